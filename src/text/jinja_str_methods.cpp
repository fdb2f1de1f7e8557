// SPDX-License-Identifier: Apache-2.0
// The methods of str. Offsets that templates see count code points.
#include <algorithm>
#include <map>

#include "text/jinja_eval.h"
#include "text/jinja_library.h"
#include "text/jinja_search.h"
#include "text/jinja_unicode.h"

namespace wick::jinja {
namespace {

Value strip(Evaluator& e, const Value& self, const Arguments& a, const char* name, bool left,
            bool right) {
  Bound b(a, name, {"chars"}, 0);
  const Str& s = self.str();
  const std::string* chars = b.none(0) ? nullptr : &b.string(0).text;
  e.budget.bytes(s.text.size() * (chars ? 1 + chars->size() / 4 : 1));
  size_t begin = left ? leading_length(s.text, chars) : 0;
  size_t end = s.text.size();
  if (right && begin < end) end -= trailing_length(std::string_view(s.text).substr(begin), chars);
  return e.string(s.substr(begin, end));
}

// The pieces between separators, at most `max` cuts (-1: all), from the left or the right.
std::vector<Value> split_at(Evaluator& e, const Str& s, const std::string& separator, int64_t max,
                            bool from_right) {
  if (separator.empty()) raise("empty separator");
  Search search(e.budget, s.text, separator);
  std::vector<size_t> cuts;
  for (size_t at = from_right ? s.text.size() : 0;
       max < 0 || static_cast<int64_t>(cuts.size()) < max;) {
    const size_t pos = from_right ? search.last(at) : search.first(at);
    if (pos == std::string::npos) break;
    e.budget.step();
    cuts.push_back(pos);
    at = from_right ? pos : pos + separator.size();
  }
  if (from_right) std::reverse(cuts.begin(), cuts.end());
  std::vector<Value> out;
  size_t begin = 0;
  for (size_t cut : cuts) {
    out.push_back(e.string(s.substr(begin, cut)));
    begin = cut + separator.size();
  }
  out.push_back(e.string(s.substr(begin, s.text.size())));
  return out;
}

// The words between white space, at most `max` cuts; what is left stays in one piece.
std::vector<Value> split_words(Evaluator& e, const Str& s, int64_t max, bool from_right) {
  e.budget.bytes(s.text.size());
  std::vector<std::pair<size_t, size_t>> words;
  std::string_view text = s.text;
  size_t begin = 0, end = text.size();
  begin += leading_length(text, nullptr);
  if (begin < end) end -= trailing_length(text.substr(begin), nullptr);
  for (size_t pos = begin; pos < end;) {
    size_t from = pos, at = pos;
    while (pos < end) {
      at = pos;
      if (is_space(next_code_point(text, pos))) break;
      at = pos;
    }
    words.emplace_back(from, at);
    pos = at + leading_length(text.substr(at, end - at), nullptr);
  }
  // The piece that was not split any further keeps the white space at its outer end.
  if (max >= 0 && static_cast<size_t>(max) < words.size()) {
    size_t keep = static_cast<size_t>(max) + 1;
    if (from_right) {
      words.erase(words.begin(), words.end() - static_cast<ptrdiff_t>(keep));
      words.front().first = 0;
    } else {
      words.resize(keep);
      words.back().second = text.size();
    }
  }
  std::vector<Value> out;
  for (auto [from, to] : words) out.push_back(e.string(s.substr(from, to)));
  return out;
}

Value split(Evaluator& e, const Value& self, const Arguments& a, const char* name, bool right) {
  Bound b(a, name, {"sep", "maxsplit"}, 0);
  int64_t max = b.integer(1, -1);
  return e.list(b.none(0) ? split_words(e, self.str(), max, right)
                          : split_at(e, self.str(), b.string(0).text, max, right));
}

Value split_lines(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "splitlines", {"keepends"}, 0);
  bool keep = b.boolean(0, false);
  const Str& s = self.str();
  e.budget.bytes(s.text.size());
  std::vector<Value> out;
  size_t begin = 0;
  for (size_t pos = 0; pos < s.text.size();) {
    size_t at = pos;
    uint32_t c = next_code_point(s.text, pos);
    bool newline = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
                   c == 0x2028 || c == 0x2029;
    if (!newline) continue;
    if (c == '\r' && pos < s.text.size() && s.text[pos] == '\n') ++pos;
    out.push_back(e.string(s.substr(begin, keep ? pos : at)));
    begin = pos;
  }
  if (begin < s.text.size()) out.push_back(e.string(s.substr(begin, s.text.size())));
  return e.list(std::move(out));
}

// The part of the string that optional arguments start and end (code points) leave, in bytes.
struct Window {
  std::string_view text;
  size_t offset = 0;  // of the window, in bytes
  bool valid = true;
};

Window window(const Str& s, const Bound& b) {
  if (b.none(1) && b.none(2)) return {s.text, 0, true};
  auto offsets = code_point_offsets(s.text);
  int64_t n = static_cast<int64_t>(offsets.size()) - 1;
  auto place = [&](int64_t i) { return i < 0 ? std::max<int64_t>(0, i + n) : i; };
  int64_t begin = place(b.none(1) ? 0 : b.integer(1, 0));
  int64_t end = std::min(n, place(b.none(2) ? n : b.integer(2, n)));
  if (begin > n || begin > end) return {"", 0, false};
  size_t from = offsets[static_cast<size_t>(begin)], to = offsets[static_cast<size_t>(end)];
  return {std::string_view(s.text).substr(from, to - from), from, true};
}

Value find(Evaluator& e, const Value& self, const Arguments& a, const char* name, bool right,
           bool must) {
  Bound b(a, name, {"sub", "start", "end"}, 1);
  const Str& s = self.str();
  e.budget.bytes(s.text.size());
  Window w = window(s, b);
  const std::string& wanted = b.string(0).text;
  Search search(e.budget, w.text, wanted);
  size_t pos = !w.valid ? std::string::npos : right ? search.last(w.text.size()) : search.first();
  if (pos == std::string::npos) {
    if (must) raise("substring not found");
    return Value(-1);
  }
  return Value(code_point_count(std::string_view(s.text).substr(0, w.offset + pos)));
}

Value count(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "count", {"sub", "start", "end"}, 1);
  e.budget.bytes(self.text().size());
  Window w = window(self.str(), b);
  const std::string& wanted = b.string(0).text;
  if (!w.valid) return Value(0);
  if (wanted.empty()) return Value(code_point_count(w.text) + 1);
  int64_t n = 0;
  Search search(e.budget, w.text, wanted);
  for (size_t pos = search.first(); pos != std::string::npos;
       pos = search.first(pos + wanted.size()))
    ++n;
  return Value(n);
}

Value edge(Evaluator& e, const Value& self, const Arguments& a, const char* name, bool start) {
  Bound b(a, name, {"prefix", "start", "end"}, 1);
  e.budget.bytes(b.none(1) && b.none(2) ? 0 : self.text().size());
  Window w = window(self.str(), b);
  auto matches = [&](const Value& wanted) {
    if (!wanted.is_string())
      raise(name, " first arg must be str or a tuple of str, not ", type_name(wanted));
    const std::string& t = wanted.text();
    if (!w.valid || t.size() > w.text.size()) return false;
    e.budget.bytes(t.size());
    return w.text.substr(start ? 0 : w.text.size() - t.size(), t.size()) == t;
  };
  if (!b[0].is_tuple()) return Value(matches(b[0]));
  for (const Value& wanted : b[0].list().items)
    if (matches(wanted)) return Value(true);
  return Value(false);
}

Value replace(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "replace", {"old", "new", "count"}, 2);
  const Str &s = self.str(), &old = b.string(0), &with = b.string(1);
  int64_t limit = b.integer(2, -1);
  e.budget.bytes(s.text.size());
  Str out;
  out.markup = s.markup;
  size_t begin = 0;
  auto grow = [&] {
    e.budget.bytes(with.text.size());
    if (out.text.size() > Budget::kMaxText)
      raise("a string is longer than ", Budget::kMaxText, " bytes");
  };
  if (old.text.empty()) {
    auto offsets = code_point_offsets(s.text);
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (limit >= 0 && static_cast<int64_t>(i) >= limit) break;
      out.append(with);
      grow();
      size_t next = i + 1 < offsets.size() ? offsets[i + 1] : s.text.size();
      out.append(s.substr(begin, next));
      begin = next;
    }
    out.append(s.substr(begin, s.text.size()));
    return e.string(std::move(out));
  }
  Search search(e.budget, s.text, old.text);
  size_t pos = search.first();
  if (pos == std::string::npos || limit == 0) return self;
  for (int64_t n = 0; pos != std::string::npos && (limit < 0 || n < limit); ++n) {
    out.append(s.substr(begin, pos));
    out.append(with);
    grow();
    begin = pos + old.text.size();
    pos = search.first(begin);
  }
  out.append(s.substr(begin, s.text.size()));
  return e.string(std::move(out));
}

Value join(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "join", {"iterable"}, 1);
  Str out;
  out.markup = self.str().markup;
  bool first = true;
  size_t i = 0;
  for (const Value& item : e.iterate(b[0])) {
    if (!item.is_string())
      raise("sequence item ", i, ": expected str instance, ", type_name(item), " found");
    if (!first) out.append(self.str());
    first = false;
    out.append(item.str());
    e.budget.bytes(item.text().size() + self.text().size());
    if (out.text.size() > Budget::kMaxText)
      raise("a string is longer than ", Budget::kMaxText, " bytes");
    ++i;
  }
  return e.string(std::move(out));
}

Value justify(Evaluator& e, const Value& self, const Arguments& a, const char* name, char side) {
  Bound b(a, name, {"width", "fillchar"}, 1);
  const Str& s = self.str();
  std::string fill = b.has(1) ? b.string(1).text : " ";
  if (code_point_count(fill) != 1) raise("The fill character must be exactly one character long");
  int64_t width = b.integer(0, 0), length = e.length(self);
  if (width <= length) return self;
  if (static_cast<size_t>(width) > Budget::kMaxText / fill.size())
    raise("a string is longer than ", Budget::kMaxText, " bytes");
  size_t missing = static_cast<size_t>(width - length);
  e.budget.bytes(missing * fill.size());
  size_t left = side == 'l'   ? 0
                : side == 'r' ? missing
                              : missing / 2 + (missing & static_cast<size_t>(width) & 1);
  auto filling = [&](size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += fill;
    return Str(out);
  };
  Str out = filling(left);
  out.append(s);
  out.append(filling(missing - left));
  return e.string(std::move(out));
}

Value zfill(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "zfill", {"width"}, 1);
  int64_t missing = b.integer(0, 0) - e.length(self);
  if (missing <= 0) return self;
  if (static_cast<size_t>(missing) > Budget::kMaxText)
    raise("a string is longer than ", Budget::kMaxText, " bytes");
  const std::string& s = self.text();
  e.budget.bytes(s.size() + static_cast<size_t>(missing));
  size_t sign = !s.empty() && (s[0] == '-' || s[0] == '+') ? 1 : 0;
  return derive(self.str(), s.substr(0, sign) + std::string(static_cast<size_t>(missing), '0') +
                                s.substr(sign));
}

Value partition(Evaluator& e, const Value& self, const Arguments& a, bool right) {
  Bound b(a, "partition", {"sep"}, 1);
  const Str &s = self.str(), &sep = b.string(0);
  if (sep.text.empty()) raise("empty separator");
  Search search(e.budget, s.text, sep.text);
  size_t pos = right ? search.last(s.text.size()) : search.first();
  std::vector<Value> out;
  if (pos == std::string::npos) {
    if (right)
      out = {Value(""), Value(""), self};
    else
      out = {self, Value(""), Value("")};
  } else {
    out = {e.string(s.substr(0, pos)), b[0],
           e.string(s.substr(pos + sep.text.size(), s.text.size()))};
  }
  return e.list(std::move(out), List::Kind::kTuple);
}

Value remove_edge(Evaluator& e, const Value& self, const Arguments& a, bool prefix) {
  Bound b(a, prefix ? "removeprefix" : "removesuffix", {"affix"}, 1);
  const Str &s = self.str(), &affix = b.string(0);
  size_t n = affix.text.size();
  if (n > s.text.size()) return self;
  e.budget.bytes(n);
  if (prefix)
    return s.text.compare(0, n, affix.text) == 0 ? e.string(s.substr(n, s.text.size())) : self;
  size_t rest = s.text.size() - n;
  return s.text.compare(rest, n, affix.text) == 0 ? e.string(s.substr(0, rest)) : self;
}

// All characters pass, and there is one.
template <bool (*Is)(uint32_t)>
Value all_are(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "this method", {}, 0);
  e.budget.bytes(self.text().size() * 4);
  const std::string& s = self.text();
  for (size_t pos = 0; pos < s.size();)
    if (!Is(next_code_point(s, pos))) return Value(false);
  return Value(!s.empty());
}

bool alphanumeric(uint32_t c) { return is_alpha(c) || is_numeric(c); }

// Some character has a case, and none has the wrong one.
template <bool (*Right)(uint32_t), bool (*Wrong)(uint32_t)>
Value case_is(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "this method", {}, 0);
  e.budget.bytes(self.text().size() * 4);
  bool found = false;
  for (size_t pos = 0; pos < self.text().size();) {
    uint32_t c = next_code_point(self.text(), pos);
    if (Wrong(c) || is_title(c)) return Value(false);
    found = found || Right(c);
  }
  return Value(found);
}

// Upper case where a word begins, and only there.
Value is_title_text(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "istitle", {}, 0);
  e.budget.bytes(self.text().size() * 4);
  bool found = false, in_word = false;
  for (size_t pos = 0; pos < self.text().size();) {
    const uint32_t c = next_code_point(self.text(), pos);
    const bool begins = is_upper(c) || is_title(c), goes_on = is_lower(c);
    if ((begins && in_word) || (goes_on && !in_word)) return Value(false);
    in_word = begins || goes_on;
    found = found || in_word;
  }
  return Value(found);
}

template <std::string (*Convert)(std::string_view)>
Value converted(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "this method", {}, 0);
  e.budget.bytes(self.text().size() * 4);
  return derive(self.str(), Convert(self.text()));
}

Value expand_tabs(Evaluator& e, const Value& self, const Arguments& a) {
  Bound b(a, "expandtabs", {"tabsize"}, 0);
  int64_t size = b.integer(0, 8), column = 0;
  if (size > 1000) raise("expandtabs: at most 1000 columns are supported");
  std::string out;
  for (char c : self.text()) {
    if (c == '\t') {
      int64_t n = size > 0 ? size - column % size : 0;
      out.append(static_cast<size_t>(n), ' ');
      column += n;
    } else {
      out += c;
      column = c == '\n' || c == '\r' ? 0 : column + ((c & 0xc0) != 0x80);
    }
    if (out.size() > Budget::kMaxText)
      raise("a string is longer than ", Budget::kMaxText, " bytes");
  }
  e.budget.bytes(out.size());
  return derive(self.str(), std::move(out));
}

}  // namespace

#define WICK_METHOD(...) \
  [](Evaluator& e, const Value& s, const Arguments& a) -> Value { __VA_ARGS__ }

Method find_string_method(std::string_view name) {
  static const std::map<std::string_view, Method> kMethods = {
      {"strip", WICK_METHOD(return strip(e, s, a, "strip", true, true);)},
      {"lstrip", WICK_METHOD(return strip(e, s, a, "lstrip", true, false);)},
      {"rstrip", WICK_METHOD(return strip(e, s, a, "rstrip", false, true);)},
      {"split", WICK_METHOD(return split(e, s, a, "split", false);)},
      {"rsplit", WICK_METHOD(return split(e, s, a, "rsplit", true);)},
      {"splitlines", split_lines},
      {"find", WICK_METHOD(return find(e, s, a, "find", false, false);)},
      {"rfind", WICK_METHOD(return find(e, s, a, "rfind", true, false);)},
      {"index", WICK_METHOD(return find(e, s, a, "index", false, true);)},
      {"rindex", WICK_METHOD(return find(e, s, a, "rindex", true, true);)},
      {"count", count},
      {"startswith", WICK_METHOD(return edge(e, s, a, "startswith", true);)},
      {"endswith", WICK_METHOD(return edge(e, s, a, "endswith", false);)},
      {"replace", replace},
      {"join", join},
      {"ljust", WICK_METHOD(return justify(e, s, a, "ljust", 'l');)},
      {"rjust", WICK_METHOD(return justify(e, s, a, "rjust", 'r');)},
      {"center", WICK_METHOD(return justify(e, s, a, "center", 'c');)},
      {"zfill", zfill},
      {"partition", WICK_METHOD(return partition(e, s, a, false);)},
      {"rpartition", WICK_METHOD(return partition(e, s, a, true);)},
      {"removeprefix", WICK_METHOD(return remove_edge(e, s, a, true);)},
      {"removesuffix", WICK_METHOD(return remove_edge(e, s, a, false);)},
      {"expandtabs", expand_tabs},
      {"upper", converted<to_upper>},
      {"lower", converted<to_lower>},
      {"title", converted<title_case>},
      {"capitalize", converted<capitalize>},
      {"swapcase", converted<swap_case>},
      {"casefold", converted<case_fold>},
      {"isspace", all_are<is_space>},
      {"isalpha", all_are<is_alpha>},
      {"isalnum", all_are<alphanumeric>},
      {"isdecimal", all_are<is_decimal>},
      {"isdigit", all_are<is_digit>},
      {"isnumeric", all_are<is_numeric>},
      {"isupper", case_is<is_upper, is_lower>},
      {"islower", case_is<is_lower, is_upper>},
      {"istitle", is_title_text},
      {"isascii", WICK_METHOD(Bound b(a, "isascii", {}, 0); e.budget.bytes(s.text().size());
                              return Value(is_ascii(s.text()));)},
      {"isprintable",
       WICK_METHOD(return s.text().empty() ? Value(true) : all_are<is_printable>(e, s, a);)},
      {"format", WICK_METHOD(return brace_format(e, s.str(), a);)},
  };
  auto it = kMethods.find(name);
  return it == kMethods.end() ? nullptr : it->second;
}

#undef WICK_METHOD

}  // namespace wick::jinja
