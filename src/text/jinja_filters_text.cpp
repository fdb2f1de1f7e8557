// SPDX-License-Identifier: Apache-2.0
// Filters on strings and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "text/jinja_eval.h"
#include "text/jinja_library.h"
#include "text/jinja_unicode.h"

namespace wick::jinja {
namespace {

Value text_of(Evaluator& e, const Value& v) { return v.is_string() ? v : e.string(to_str(v)); }

// soft_str(value).method(…): jinja2's string filters work on what a value prints as.
Value through(Evaluator& e, const Value& v, const char* method, const Arguments& a) {
  return find_string_method(method)(e, text_of(e, v), a);
}

template <std::string (*Convert)(std::string_view)>
Value converted(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "filter", {}, 0);
  Str text = to_str(v);
  e.budget.bytes(text.text.size() * 4);
  return derive(text, Convert(text.text));
}

// Unlike str.title, words begin behind white space and opening signs only.
std::string title_words(std::string_view text) {
  std::string out;
  auto separates = [](uint32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  size_t pos = 0;
  while (pos < text.size()) {
    size_t begin = pos, end = pos;
    bool separator = separates(next_code_point(text, end));
    pos = end;
    while (pos < text.size()) {
      size_t next = pos;
      if (separates(next_code_point(text, next)) != separator) break;
      pos = next;
    }
    out += to_upper(text.substr(begin, end - begin));
    out += to_lower(text.substr(end, pos - end));
  }
  return out;
}

Value trim(Evaluator& e, const Value& v, const Arguments& a) { return through(e, v, "strip", a); }

Value replace(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "replace", {"old", "new", "count"}, 2);
  Arguments given;
  given.positional = {text_of(e, b[0]), text_of(e, b[1])};
  if (!b.none(2)) given.positional.push_back(b[2]);
  return through(e, v, "replace", given);
}

Value string(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "string", {}, 0);
  return text_of(e, v);
}

Value safe(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "safe", {}, 0);
  Str text = to_str(v);
  text.markup = true;
  return e.string(std::move(text));
}

Value escape(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "escape", {}, 0);
  Str text = to_str(v);
  if (!text.markup) {
    e.budget.bytes(text.text.size());
    text = derive(text, escape_html(text.text)).str();
    text.markup = true;
  }
  return e.string(std::move(text));
}

Value force_escape(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "forceescape", {}, 0);
  Str text(escape_html(to_text(v)), message_of(v));
  text.markup = true;
  return e.string(std::move(text));
}

Value indent(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "indent", {"width", "first", "blank"}, 0);
  if (v.is_undefined()) raise(v.undefined().message);
  if (!v.is_string()) raise("unsupported operand type(s) for +=: '", type_name(v), "' and 'str'");
  std::string pad(4, ' ');
  if (b.has(0)) {
    if (b[0].is_string()) {
      pad = b[0].text();
    } else {
      int64_t width = b.integer(0, 4);
      if (width > 10'000) raise("indent: a width of ", width, " is too large");
      pad.assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
    }
  }
  bool first = b.boolean(1, false), blank = b.boolean(2, false);
  Str text = v.str();
  text.append("\n");
  Value lines = find_string_method("splitlines")(e, Value(std::move(text)), {});
  Str out;
  out.markup = v.str().markup;
  bool at_start = true;
  for (const Value& line : lines.list().items) {
    if (!at_start) out.append("\n");
    bool wanted = at_start ? first : blank || !line.text().empty();
    if (wanted) out.append(pad);
    at_start = false;
    out.append(line.str());
    e.budget.bytes(pad.size() + line.text().size());
    if (out.text.size() > Budget::kMaxText)
      raise("a string is longer than ", Budget::kMaxText, " bytes");
  }
  return e.string(std::move(out));
}

Value word_count(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "wordcount", {}, 0);
  std::string text = to_text(v);
  e.budget.bytes(text.size());
  int64_t n = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    bool word = is_word(next_code_point(text, pos));
    n += word && !inside;
    inside = word;
  }
  return Value(n);
}

std::string quote_url(const std::string& text, bool query) {
  static const char* kHex = "0123456789ABCDEF";
  std::string out;
  for (char c : text) {
    bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' ||
                 c == '.' || c == '-' || c == '~' || (c == '/' && !query);
    if (plain) {
      out += c;
    } else if (query && c == ' ') {
      out += '+';
    } else {
      auto byte = static_cast<unsigned char>(c);
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

Value url_encode(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "urlencode", {}, 0);
  bool pairs = v.is_dict() || v.is_sequence();
  if (!pairs) return e.string(Str(quote_url(to_text(v), false), message_of(v)));
  std::vector<Value> items =
      v.is_dict() ? e.iterate(find_method(v, "items")(e, v, {})) : e.iterate(v);
  std::string out;
  for (const Value& item : items) {
    std::vector<Value> two = e.iterate(item);
    if (two.size() != 2) raise("urlencode needs pairs");
    if (!out.empty()) out += '&';
    out += quote_url(to_text(two[0]), true) + "=" + quote_url(to_text(two[1]), true);
    e.budget.bytes(out.size());
  }
  return e.string(Str(std::move(out), message_of(v)));
}

Value center(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "center", {"width"}, 0);
  Arguments given;
  given.positional = {b.get(0, Value(80))};
  return through(e, v, "center", given);
}

Value truncate(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "truncate", {"length", "killwords", "end", "leeway"}, 0);
  int64_t length = b.integer(0, 255), leeway = b.none(3) ? 5 : b.integer(3, 5);
  const Value end = b.get(2, Value("..."));
  const int64_t end_length = e.length(end);
  if (length < end_length) raise("expected length >= ", end_length, ", got ", length);
  if (leeway < 0) raise("expected leeway >= 0, got ", leeway);
  if (e.length(v) <= length + leeway) return v;
  Value cut = slice(e, v, Value(), Value(length - end_length), Value());
  if (!b.boolean(1, false)) {
    if (!cut.is_string()) raise("'", type_name(cut), " object' has no attribute 'rsplit'");
    size_t space = cut.text().rfind(' ');
    if (space != std::string::npos) cut = Value(cut.str().substr(0, space));
  }
  return binary_operator(e, "+", cut, end);
}

Value format(Evaluator& e, const Value& v, const Arguments& a) {
  Str text = to_str(v);
  if (a.named.empty()) return printf_format(e, text, e.list(a.positional, List::Kind::kTuple));
  if (!a.positional.empty())
    raise("can't handle positional and keyword arguments at the same time");
  auto values = std::make_shared<Dict>();
  for (const auto& [name, value] : a.named) values->set(name, value);
  return printf_format(e, text, e.dict(values));
}

// --- JSON
// -----------------------------------------------------------------------------------------

Value tojson(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ensure_ascii = b.boolean(0, false);
  style.sort_keys = b.boolean(3, false);
  if (!b.none(1)) {
    style.has_indent = true;
    style.item_separator = ",";
    if (b[1].is_string()) {
      style.indent = b[1].text();
    } else {
      int64_t n = b.integer(1, 0);
      if (n > 1000) raise("tojson: an indent of ", n, " is too large");
      style.indent.assign(static_cast<size_t>(std::max<int64_t>(0, n)), ' ');
    }
  }
  if (!b.none(2)) {
    std::vector<Value> two = e.iterate(b[2]);
    if (two.size() != 2 || !two[0].is_string() || !two[1].is_string())
      raise("tojson: separators must be a pair of strings");
    style.item_separator = two[0].text();
    style.key_separator = two[1].text();
  }
  return e.string(Str(to_json(v, style), message_of(v)));
}

// --- numbers
// --------------------------------------------------------------------------------------

// Python's int(text, base) and float(text): white space around, single underscores between digits.
bool clean_number(const std::string& text, std::string& out) {
  size_t begin = leading_length(text, nullptr);
  size_t end = text.size();
  if (begin < end) end -= trailing_length(std::string_view(text).substr(begin), nullptr);
  out.clear();
  for (size_t i = begin; i < end; ++i) {
    if (text[i] == '_') {
      auto digit = [](char c) { return isalnum(static_cast<unsigned char>(c)) != 0; };
      if (i == begin || i + 1 >= end || !digit(text[i - 1]) || !digit(text[i + 1])) return false;
      continue;
    }
    out += text[i];
  }
  return !out.empty();
}

bool parse_integer(const std::string& text, int base, int64_t& out) {
  std::string s;
  if (!clean_number(text, s)) return false;
  bool negative = s[0] == '-';
  if (s[0] == '-' || s[0] == '+') s.erase(0, 1);
  if (s.size() > 2 && s[0] == '0') {
    char p = static_cast<char>(s[1] | 0x20);
    int named = p == 'x' ? 16 : p == 'o' ? 8 : p == 'b' ? 2 : 0;
    if (named && (base == named || base == 0)) {
      s.erase(0, 2);
      base = named;
    }
  }
  if (base == 0) base = 10;
  if (s.empty() || base < 2 || base > 36) return false;
  uint64_t magnitude = 0;
  auto [p, error] = std::from_chars(s.data(), s.data() + s.size(), magnitude, base);
  if (p != s.data() + s.size() || s[0] == '-') return false;
  if (error != std::errc() || magnitude > static_cast<uint64_t>(INT64_MAX))
    raise("the integer ", text.substr(0, 40), " does not fit in 64 bits");
  out = negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
  return true;
}

bool parse_float(const std::string& text, double& out) {
  std::string s;
  if (!clean_number(text, s)) return false;
  std::string lower = to_lower(s);
  std::string body = lower[0] == '-' || lower[0] == '+' ? lower.substr(1) : lower;
  if (body == "inf" || body == "infinity" || body == "nan") {
    out = body == "nan" ? NAN : INFINITY;
    if (lower[0] == '-') out = -out;
    return true;
  }
  if (body.empty() || body.find_first_not_of("0123456789.e+-") != std::string::npos) return false;
  const char* begin = lower[0] == '+' ? lower.c_str() + 1 : lower.c_str();
  char* end = nullptr;
  out = std::strtod(begin, &end);
  return end == lower.c_str() + lower.size() && end != begin;
}

Value to_int(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "int", {"default", "base"}, 0);
  Value fallback = b.get(0, Value(0));
  if (v.is_undefined()) raise(v.undefined().message);
  double d = 0;
  if (v.is_string()) {
    e.budget.step(v.text().size());
    int64_t i = 0;
    if (parse_integer(v.text(), static_cast<int>(b.integer(1, 10)), i)) return Value(i);
    if (!parse_float(v.text(), d)) return fallback;
  } else if (v.is_int()) {
    return Value(v.as_int());
  } else if (v.is_float()) {
    d = v.as_float();
    if (std::isinf(d)) raise("cannot convert float infinity to integer");
  } else {
    return fallback;
  }
  if (std::isnan(d) || std::isinf(d)) return fallback;
  if (std::fabs(d) >= 9.2e18) raise("an integer does not fit in 64 bits");
  return Value(static_cast<int64_t>(d));
}

Value to_float(Evaluator& e, const Value& v, const Arguments& a) {
  Bound b(a, "float", {"default"}, 0);
  if (v.is_undefined()) raise(v.undefined().message);
  double d = 0;
  if (v.is_number()) return Value(v.as_float());
  if (v.is_string()) e.budget.step(v.text().size());
  if (v.is_string() && parse_float(v.text(), d)) return Value(d);
  return b.get(0, Value(0.0));
}

Value absolute(Evaluator&, const Value& v, const Arguments& a) {
  Bound b(a, "abs", {}, 0);
  if (v.is_undefined() || !v.is_number()) raise("bad operand type for abs(): '", type_name(v), "'");
  if (v.is_float()) return Value(std::fabs(v.as_float()));
  return v.as_int() < 0 ? negate(v, true) : Value(v.as_int());
}

Value round_number(Evaluator&, const Value& v, const Arguments& a) {
  Bound b(a, "round", {"precision", "method"}, 0);
  std::string method = b.has(1) ? b.string(1).text : "common";
  int64_t precision = b.none(0) ? 0 : b.integer(0, 0);
  if (method != "common" && method != "ceil" && method != "floor")
    raise("method must be common, ceil or floor");
  if (v.is_undefined()) raise(v.undefined().message);
  if (!v.is_number()) raise("type ", type_name(v), " doesn't define __round__ method");
  if (std::llabs(precision) > 300) raise("round: a precision of ", precision, " is too large");
  if (method != "common") {
    double scale = std::pow(10.0, static_cast<double>(precision));
    double scaled = v.as_float() * scale;
    return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (v.is_int() && precision >= 0) return Value(v.as_int());
  // Correct rounding of the decimal digits, ties to even on the exact value, is what printf does.
  if (precision >= 0) {
    char buffer[700];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), v.as_float());
    return Value(std::strtod(buffer, nullptr));
  }
  double scale = std::pow(10.0, static_cast<double>(-precision));
  double rounded = std::nearbyint(v.as_float() / scale) * scale;
  if (!v.is_int()) return Value(rounded);
  if (std::fabs(rounded) >= 9.2e18) raise("an integer does not fit in 64 bits");
  return Value(static_cast<int64_t>(rounded));
}

Value refused(Evaluator&, const Value&, const Arguments&) {
  raise(
      "this filter of jinja2 (random, pprint, wordwrap, xmlattr, urlize, striptags or "
      "filesizeformat) is not supported in chat templates");
}

}  // namespace

bool is_word(uint32_t c) { return c == '_' || is_alpha(c) || is_numeric(c); }

Filter find_text_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> kFilters = {
      {"upper", converted<to_upper>},
      {"lower", converted<to_lower>},
      {"capitalize", converted<capitalize>},
      {"title", converted<title_words>},
      {"trim", trim},
      {"replace", replace},
      {"string", string},
      {"safe", safe},
      {"escape", escape},
      {"e", escape},
      {"forceescape", force_escape},
      {"indent", indent},
      {"wordcount", word_count},
      {"urlencode", url_encode},
      {"center", center},
      {"truncate", truncate},
      {"format", format},
      {"tojson", tojson},
      {"int", to_int},
      {"float", to_float},
      {"abs", absolute},
      {"round", round_number},
      {"random", refused},
      {"pprint", refused},
      {"wordwrap", refused},
      {"xmlattr", refused},
      {"urlize", refused},
      {"striptags", refused},
      {"filesizeformat", refused},
  };
  auto it = kFilters.find(name);
  return it == kFilters.end() ? nullptr : it->second;
}

Filter find_filter(std::string_view name) {
  Filter f = find_text_filter(name);
  return f ? f : find_sequence_filter(name);
}

}  // namespace wick::jinja
