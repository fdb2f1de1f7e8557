// SPDX-License-Identifier: Apache-2.0
// Python's two ways to format: "…" % values, and "…".format(…).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja_eval.h"
#include "text/jinja_library.h"
#include "text/jinja_unicode.h"

namespace wick::jinja {
namespace {

constexpr int kMaxWidth = 100'000;

// A format specification: [[fill]align][sign][#][0][width][,][.precision][type].
struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false, zero = false;
  char thousands = 0;
  int width = 0, precision = -1;
  char type = 0;
};

int read_number(std::string_view text, size_t& pos) {
  int value = 0;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    value = value * 10 + (text[pos++] - '0');
    if (value > kMaxWidth) raise("a format width or precision is above ", kMaxWidth);
  }
  return value;
}

std::string group_digits(const std::string& digits, char separator) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string pad(const std::string& sign, const std::string& body, const Spec& spec, char fallback) {
  size_t length = code_point_count(sign) + code_point_count(body);
  size_t width = static_cast<size_t>(spec.width);
  size_t missing = width > length ? width - length : 0;
  auto fill = [&](size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align ? spec.align : fallback) {
    case '<':
      return sign + body + fill(missing);
    case '^':
      return fill(missing / 2) + sign + body + fill(missing - missing / 2);
    case '=':
      return sign + fill(missing) + body;
    default:
      return fill(missing) + sign + body;
  }
}

std::string float_body(double x, const Spec& spec, char type) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return "inf";
  int precision = spec.precision < 0 ? 6 : spec.precision;
  if (type == '%') x *= 100;
  char conversion = type == '%' ? 'f' : type;
  char format[16];
  std::snprintf(format, sizeof format, "%%%s.*%c", spec.alternate ? "#" : "", conversion);
  int size = std::snprintf(nullptr, 0, format, precision, x);
  std::string body(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(body.data(), body.size(), format, precision, x);
  body.pop_back();
  if (spec.thousands) {
    size_t point = std::min(body.find_first_not_of("0123456789"), body.size());
    body = group_digits(body.substr(0, point), spec.thousands) + body.substr(point);
  }
  return type == '%' ? body + "%" : body;
}

std::string integer_body(uint64_t magnitude, const Spec& spec, char type) {
  char buffer[72];
  int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  auto end = std::to_chars(buffer, buffer + sizeof buffer, magnitude, base).ptr;
  std::string digits(buffer, end);
  if (type == 'X') digits = to_upper(digits);
  if (spec.thousands && base == 10) digits = group_digits(digits, spec.thousands);
  if (spec.alternate && base != 10)
    digits = (base == 16 ? (type == 'X' ? "0X" : "0x") : base == 8 ? "0o" : "0b") + digits;
  return digits;
}

std::string format_number(const Value& value, Spec spec) {
  bool negative = value.is_float() ? std::signbit(value.as_float()) : value.as_int() < 0;
  std::string sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  if (spec.zero && !spec.align) {
    spec.fill = "0";
    spec.align = '=';
  }
  char type = spec.type;
  bool integral = value.is_int() && (type == 0 || type == 'd' || type == 'x' || type == 'X' ||
                                     type == 'o' || type == 'b' || type == 'n');
  if (integral) {
    int64_t i = value.as_int();
    uint64_t magnitude = i < 0 ? ~static_cast<uint64_t>(i) + 1 : static_cast<uint64_t>(i);
    return pad(sign, integer_body(magnitude, spec, type), spec, '>');
  }
  if (type && std::string_view("eEfFgG%").find(type) == std::string_view::npos)
    raise("Unknown format code '", std::string(1, type), "' for object of type '", type_name(value),
          "'");
  double x = std::fabs(value.as_float());
  std::string body;
  if (type == 0 && spec.precision < 0) {
    body = float_text(x);
  } else if (type == 0) {
    body = float_body(x, spec, 'g');
    if (body.find_first_of(".en") == std::string::npos) body += ".0";
  } else {
    body = float_body(x, spec, type);
  }
  return pad(sign, body, spec, '>');
}

std::string truncate(const std::string& text, int precision) {
  if (precision < 0) return text;
  auto offsets = code_point_offsets(text);
  return text.substr(0, offsets[std::min(static_cast<size_t>(precision), offsets.size() - 1)]);
}

std::string format_value(const Value& value, std::string_view text) {
  if (text.empty()) return to_text(value);
  Spec spec;
  size_t pos = 0;
  auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t behind = 0;
  next_code_point(text, behind);
  if (behind < text.size() && is_align(text[behind])) {
    spec.fill = text.substr(0, behind);
    spec.align = text[behind];
    pos = behind + 1;
  } else if (is_align(text[0])) {
    spec.align = text[pos++];
  }
  auto take = [&](char c) {
    if (pos >= text.size() || text[pos] != c) return false;
    ++pos;
    return true;
  };
  for (char c : {'+', '-', ' '})
    if (take(c)) spec.sign = c;
  spec.alternate = take('#');
  spec.zero = take('0');
  spec.width = read_number(text, pos);
  for (char c : {',', '_'})
    if (take(c)) spec.thousands = c;
  if (take('.')) {
    if (pos >= text.size() || text[pos] < '0' || text[pos] > '9')
      raise("Format specifier missing precision");
    spec.precision = read_number(text, pos);
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos < text.size()) raise("Invalid format specifier");
  if (value.is_string()) {
    if (spec.type && spec.type != 's')
      raise("Unknown format code '", std::string(1, spec.type), "' for object of type 'str'");
    if (spec.zero && !spec.align) spec.fill = "0";
    return pad("", truncate(value.text(), spec.precision), spec, '<');
  }
  if (value.is_number() && !(value.is_bool() && !spec.type)) return format_number(value, spec);
  if (value.is_bool()) return format_number(Value(value.as_int()), spec);
  raise("unsupported format string passed to ", type_name(value), ".__format__");
}

Value finish(Evaluator& e, const Str& format, std::vector<Str> pieces) {
  Str out;
  for (Str& piece : pieces) {
    out.append(piece);
    if (out.text.size() > Budget::kMaxText)
      raise("a string is longer than ", Budget::kMaxText, " bytes");
  }
  out.markup = format.markup;
  return e.string(std::move(out));
}

}  // namespace

Value printf_format(Evaluator& e, const Str& format, const Value& values) {
  const std::string& f = format.text;
  e.budget.bytes(f.size());
  std::vector<Str> pieces;
  size_t next = 0;
  bool tuple = values.is_tuple();
  auto take = [&]() -> Value {
    if (!tuple) {
      if (next++ > 0) raise("not enough arguments for format string");
      return values;
    }
    if (next >= values.list().items.size()) raise("not enough arguments for format string");
    return values.list().items[next++];
  };
  bool mapping = false;
  size_t literal = 0;
  for (size_t pos = 0; pos < f.size();) {
    if (f[pos] != '%') {
      ++pos;
      continue;
    }
    pieces.emplace_back(f.substr(literal, pos - literal));
    ++pos;
    Value value;
    bool keyed = false;
    if (pos < f.size() && f[pos] == '(') {
      size_t close = f.find(')', pos);
      if (close == std::string::npos) raise("incomplete format key");
      if (!values.is_dict()) raise("format requires a mapping");
      Value key(f.substr(pos + 1, close - pos - 1));
      const Value* found = values.dict().find(key);
      if (!found) raise("KeyError: ", repr(key));
      value = *found;
      keyed = mapping = true;
      pos = close + 1;
    }
    Spec spec;
    for (bool flags = true; flags && pos < f.size();) {
      switch (f[pos]) {
        case '-':
          spec.align = '<';
          break;
        case '+':
          spec.sign = '+';
          break;
        case ' ':
          spec.sign = ' ';
          break;
        case '#':
          spec.alternate = true;
          break;
        case '0':
          spec.zero = true;
          break;
        default:
          flags = false;
          continue;
      }
      ++pos;
    }
    auto number = [&]() {
      if (pos < f.size() && f[pos] == '*') {
        ++pos;
        Value v = take();
        if (!v.is_int() || v.as_int() > kMaxWidth || v.as_int() < 0) raise("* wants int");
        return static_cast<int>(v.as_int());
      }
      return read_number(f, pos);
    };
    spec.width = number();
    if (pos < f.size() && f[pos] == '.') {
      ++pos;
      spec.precision = number();
    }
    if (pos >= f.size()) raise("incomplete format");
    char type = f[pos++];
    literal = pos;
    if (type == '%') {
      pieces.emplace_back("%");
      continue;
    }
    if (!keyed) value = take();
    switch (type) {
      case 's':
      case 'r':
      case 'a': {
        Str text = type == 's' ? to_str(value) : Str(repr(value), message_of(value));
        if (spec.width > 0 || spec.precision >= 0)
          text = Str(pad("", truncate(text.text, spec.precision), spec, '>'), text.data_message());
        pieces.push_back(std::move(text));
        break;
      }
      case 'c':
        if (value.is_string() && code_point_count(value.text()) == 1) {
          pieces.push_back(value.str());
        } else if (value.is_int() && value.as_int() >= 0 && value.as_int() < 0x110000) {
          std::string c;
          append_code_point(c, static_cast<uint32_t>(value.as_int()));
          pieces.emplace_back(std::move(c));
        } else {
          raise("%c requires int or char");
        }
        break;
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        if (!value.is_number() || (value.is_float() && type != 'd' && type != 'i' && type != 'u'))
          raise("%", type, " format: a real number is required, not ", type_name(value));
        if (value.is_float() && !(std::fabs(value.as_float()) < 9e18))
          raise("cannot convert this float to an integer");
        spec.type = type == 'i' || type == 'u' ? 'd' : type;
        value = Value(value.is_float() ? static_cast<int64_t>(value.as_float()) : value.as_int());
        if (spec.precision >= 0) {
          Spec digits;
          digits.type = spec.type;
          digits.zero = true;
          digits.width = spec.precision + (value.as_int() < 0 ? 1 : 0);
          pieces.emplace_back(pad("", format_number(value, digits), spec, '>'));
        } else {
          pieces.emplace_back(format_number(value, spec));
        }
        break;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!value.is_number()) raise("must be real number, not ", type_name(value));
        spec.type = type;
        pieces.emplace_back(format_number(Value(value.as_float()), spec));
        break;
      default:
        raise("unsupported format character '", std::string(1, type), "'");
    }
  }
  pieces.emplace_back(f.substr(literal));
  size_t given = tuple ? values.list().items.size() : 1;
  bool leftover = tuple ? next < given
                        : next == 0 && !mapping && !values.is_dict() && !values.is_list() &&
                              !values.is_undefined();
  if (leftover) raise("not all arguments converted during string formatting");
  return finish(e, format, std::move(pieces));
}

Value brace_format(Evaluator& e, const Str& format, const Arguments& arguments) {
  const std::string& f = format.text;
  e.budget.bytes(f.size());
  std::vector<Str> pieces;
  size_t automatic = 0;
  auto positional = [&](size_t i) {
    if (i >= arguments.positional.size())
      raise("Replacement index ", i, " out of range for positional args tuple");
    return arguments.positional[i];
  };
  auto resolve = [&](const std::string& field) {
    size_t pos = std::min(field.find_first_of(".["), field.size());
    std::string first = field.substr(0, pos);
    Value value;
    bool digits = !first.empty() && first.find_first_not_of("0123456789") == std::string::npos;
    if (first.empty()) {
      value = positional(automatic++);
    } else if (digits) {
      value = positional(first.size() > 6 ? SIZE_MAX : std::stoul(first));
    } else {
      bool found = false;
      for (const auto& [name, v] : arguments.named)
        if (name == first) {
          value = v;
          found = true;
        }
      if (!found) raise("KeyError: ", repr(Value(first)));
    }
    while (pos < field.size()) {
      if (field[pos] == '.') {
        size_t end = std::min(field.find_first_of(".[", pos + 1), field.size());
        value = e.attribute(value, field.substr(pos + 1, end - pos - 1));
        pos = end;
      } else {
        size_t end = field.find(']', pos);
        if (field[pos] != '[' || end == std::string::npos)
          raise("expected '}' before end of string");
        std::string key = field.substr(pos + 1, end - pos - 1);
        bool number = !key.empty() && key.size() < 18 &&
                      key.find_first_not_of("0123456789") == std::string::npos;
        value = e.item(value, number ? Value(int64_t{std::stoll(key)}) : Value(key));
        pos = end + 1;
      }
    }
    return value;
  };
  for (size_t pos = 0; pos < f.size();) {
    size_t brace = std::min(f.find_first_of("{}", pos), f.size());
    if (brace > pos) pieces.emplace_back(f.substr(pos, brace - pos));
    if (brace == f.size()) break;
    if (brace + 1 < f.size() && f[brace + 1] == f[brace]) {
      pieces.emplace_back(std::string(1, f[brace]));
      pos = brace + 2;
      continue;
    }
    if (f[brace] == '}') raise("Single '}' encountered in format string");
    size_t end = f.find('}', brace);
    if (end == std::string::npos) raise("expected '}' before end of string");
    std::string field = f.substr(brace + 1, end - brace - 1);
    if (field.find('{') != std::string::npos)
      raise("nested fields in a format specification are not supported");
    std::string spec, conversion;
    if (size_t colon = field.find(':'); colon != std::string::npos) {
      spec = field.substr(colon + 1);
      field.resize(colon);
    }
    if (size_t bang = field.find('!'); bang != std::string::npos) {
      conversion = field.substr(bang + 1);
      field.resize(bang);
    }
    Value value = resolve(field);
    if (conversion == "r" || conversion == "a")
      value = Value(repr(value));
    else if (conversion == "s")
      value = Value(to_str(value));
    else if (!conversion.empty())
      raise("Unknown conversion specifier ", conversion);
    if (spec.empty())
      pieces.push_back(to_str(value));
    else
      pieces.emplace_back(format_value(value, spec), message_of(value));
    pos = end + 1;
  }
  return finish(e, format, std::move(pieces));
}

}  // namespace wick::jinja
