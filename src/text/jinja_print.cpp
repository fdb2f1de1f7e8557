// SPDX-License-Identifier: Apache-2.0
// How Python prints values: str(), repr() and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja_unicode.h"
#include "text/jinja_value.h"

namespace wick::jinja {
namespace {

constexpr int kMaxPrintDepth = 2 * kMaxValueDepth;

void check_size(const std::string& out) {
  if (out.size() > Budget::kMaxText)
    raise("a printed value is longer than ", Budget::kMaxText, " bytes");
}

void append_hex(std::string& out, const char* prefix, uint32_t value, int digits) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "%s%0*x", prefix, digits, value);
  out += buffer;
}

void repr_string(std::string& out, const std::string& text) {
  char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  out += quote;
  for (size_t pos = 0; pos < text.size();) {
    uint32_t c = next_code_point(text, pos);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x7f && c >= 0x20) {
      out += static_cast<char>(c);
    } else if (c < 0x110000 && !is_printable(c)) {
      if (c < 0x100)
        append_hex(out, "\\x", c, 2);
      else if (c < 0x10000)
        append_hex(out, "\\u", c, 4);
      else
        append_hex(out, "\\U", c, 8);
    } else {
      append_code_point(out, c);
    }
  }
  out += quote;
}

void print(std::string& out, const Value& value, bool as_repr, int depth);

template <typename Items>
void print_items(std::string& out, const Items& items, int depth) {
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += ", ";
    first = false;
    print(out, item, true, depth);
  }
}

void print_list(std::string& out, const List& list, int depth) {
  auto wrap = [&](const char* open, const char* close) {
    out += open;
    print_items(out, list.items, depth);
    out += close;
  };
  switch (list.kind) {
    case List::Kind::kList:
      wrap("[", "]");
      break;
    case List::Kind::kTuple:
    case List::Kind::kGroup:
      wrap("(", list.items.size() == 1 ? ",)" : ")");
      break;
    case List::Kind::kKeys:
      wrap("dict_keys([", "])");
      break;
    case List::Kind::kValues:
      wrap("dict_values([", "])");
      break;
    case List::Kind::kItems:
      wrap("dict_items([", "])");
      break;
  }
}

void print(std::string& out, const Value& value, bool as_repr, int depth) {
  if (depth > kMaxPrintDepth) raise("a printed value nests deeper than ", kMaxPrintDepth);
  check_size(out);
  if (value.is_undefined()) {
    if (as_repr) out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "True" : "False";
  } else if (value.is_int()) {
    out += std::to_string(value.as_int());
  } else if (value.is_float()) {
    out += float_text(value.as_float());
  } else if (value.is_string()) {
    if (!as_repr) {
      out += value.text();
    } else {
      if (value.str().markup) out += "Markup(";
      repr_string(out, value.text());
      if (value.str().markup) out += ")";
    }
  } else if (value.is_sequence()) {
    print_list(out, value.list(), depth + 1);
  } else if (value.is_dict()) {
    out += "{";
    bool first = true;
    for (const auto& [k, v] : value.dict().entries) {
      if (!first) out += ", ";
      first = false;
      print(out, k, true, depth + 1);
      out += ": ";
      print(out, v, true, depth + 1);
    }
    out += "}";
  } else if (const auto* range = value.get<const Range>()) {
    const Range& r = **range;
    out += cat("range(", r.start, ", ", r.stop);
    if (r.step != 1) out += cat(", ", r.step);
    out += ")";
  } else if (const auto* ns = value.get<Namespace>()) {
    out += "<Namespace {";
    bool first = true;
    for (const auto& [k, v] : (*ns)->attributes) {
      if (!first) out += ", ";
      first = false;
      repr_string(out, k);
      out += ": ";
      print(out, v, true, depth + 1);
    }
    out += "}>";
  } else if (const auto* loop = value.get<Loop>()) {
    out += cat("<LoopContext ", (*loop)->index0 + 1, "/", (*loop)->length(), ">");
  } else if (const auto* callable = value.get<const Callable>()) {
    out += (*callable)->macro ? cat("<Macro '", (*callable)->name, "'>")
                              : cat("<function ", (*callable)->name, ">");
  } else {
    out += cat("<", type_name(value), " object>");
  }
}

void json_string(std::string& out, const std::string& text, bool ensure_ascii) {
  out += '"';
  for (size_t pos = 0; pos < text.size();) {
    size_t at = pos;
    uint32_t c = next_code_point(text, pos);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (c < 0x20) {
          append_hex(out, "\\u", c, 4);
        } else if (c < 0x7f || !ensure_ascii || c >= 0x110000) {
          out.append(text, at, pos - at);
        } else if (c < 0x10000) {
          append_hex(out, "\\u", c, 4);
        } else {
          append_hex(out, "\\u", 0xd800 + ((c - 0x10000) >> 10), 4);
          append_hex(out, "\\u", 0xdc00 + ((c - 0x10000) & 0x3ff), 4);
        }
    }
  }
  out += '"';
}

std::string json_float(double d) {
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
  return float_text(d);
}

std::string json_key(const Value& key) {
  if (key.is_string()) return key.text();
  if (key.is_bool()) return key.as_bool() ? "true" : "false";
  if (key.is_none()) return "null";
  if (key.is_int()) return std::to_string(key.as_int());
  if (key.is_float()) return json_float(key.as_float());
  raise("keys must be str, int, float, bool or None, not ", type_name(key));
}

class JsonPrinter {
 public:
  JsonPrinter(std::string& out, const JsonStyle& style) : out_(out), style_(style) {}

  void print(const Value& value, int level) {
    check_size(out_);
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.as_bool() ? "true" : "false";
    } else if (value.is_int()) {
      out_ += std::to_string(value.as_int());
    } else if (value.is_float()) {
      out_ += json_float(value.as_float());
    } else if (value.is_string()) {
      json_string(out_, value.text(), style_.ensure_ascii);
    } else if (value.is_list() || value.is_tuple()) {
      const auto& items = value.list().items;
      if (items.empty()) {
        out_ += "[]";
        return;
      }
      out_ += '[';
      for (size_t i = 0; i < items.size(); ++i) {
        separate(i, level + 1);
        print(items[i], level + 1);
      }
      line(level);
      out_ += ']';
    } else if (value.is_dict()) {
      print_dict(value.dict(), level);
    } else {
      raise("Object of type ", type_name(value), " is not JSON serializable");
    }
  }

 private:
  void print_dict(const Dict& dict, int level) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      for (const auto* entry : entries)
        if (entry->first.data().index() != entries[0]->first.data().index())
          raise("'<' not supported between instances of '", type_name(entry->first), "' and '",
                type_name(entries[0]->first), "'");
      std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
        if (a->first.is_string()) return a->first.text() < b->first.text();
        return a->first.is_number() && a->first.as_float() < b->first.as_float();
      });
    }
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      separate(i, level + 1);
      json_string(out_, json_key(entries[i]->first), style_.ensure_ascii);
      out_ += style_.key_separator;
      print(entries[i]->second, level + 1);
    }
    line(level);
    out_ += '}';
  }

  void separate(size_t i, int level) {
    if (i > 0) out_ += style_.item_separator;
    line(level);
  }
  void line(int level) {
    if (!style_.has_indent) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += style_.indent;
    check_size(out_);
  }

  std::string& out_;
  const JsonStyle& style_;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  size_t e = text.find('e');
  int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = text.substr(0, e);
    std::snprintf(buffer, sizeof buffer, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return mantissa + buffer;
  }
  end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  text.assign(buffer, end);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string to_text(const Value& value) {
  std::string out;
  print(out, value, false, 0);
  return out;
}

std::string repr(const Value& value) {
  std::string out;
  print(out, value, true, 0);
  return out;
}

Str to_str(const Value& value) {
  if (value.is_string()) return value.str();
  return Str(to_text(value), message_of(value));
}

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  JsonPrinter(out, style).print(value, 0);
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace wick::jinja
