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

std::string truncate(Budget& budget, const std::string& text, int precision) {
  if (precision < 0) return text;
  budget.bytes(text.size() * sizeof(size_t));  // an offset for each character
  auto offsets = code_point_offsets(text);
  return text.substr(0, offsets[std::min(static_cast<size_t>(precision), offsets.size() - 1)]);
}

std::string format_value(Budget& budget, const Value& value, std::string_view text) {
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
    return pad("", truncate(budget, value.text(), spec.precision), spec, '<');
  }
  if (value.is_number() && !(value.is_bool() && !spec.type)) return format_number(value, spec);
  if (value.is_bool()) return format_number(Value(value.as_int()), spec);
  raise("unsupported format string passed to ", type_name(value), ".__format__");
}

// What a format makes, piece by piece.
class Formatted {
 public:
  Formatted(Evaluator& e, const Str& format) : e_(e) { out_.markup = format.markup; }

  void add(const Str& piece) {
    e_.budget.bytes(piece.text.size() + piece.runs.size() * sizeof(Run));
    out_.append(piece);
    if (out_.text.size() > Budget::kMaxText)
      raise("a string is longer than ", Budget::kMaxText, " bytes");
  }
  Value value() { return e_.string(std::move(out_)); }

 private:
  Evaluator& e_;
  Str out_;
};

// What % formatting makes of one value. `spec` has its flags, width and precision.
Str percent_text(Budget& budget, const Value& value, const Spec& spec, char type) {
  Str text = type == 's' ? to_str(value) : Str(repr(value), message_of(value));
  if (spec.width <= 0 && spec.precision < 0) return text;
  return Str(pad("", truncate(budget, text.text, spec.precision), spec, '>'), text.data_message());
}

Str percent_char(const Value& value) {
  if (value.is_string() && code_point_count(value.text()) == 1) return value.str();
  if (!value.is_int() || value.as_int() < 0 || value.as_int() >= 0x110000)
    raise("%c requires int or char");
  std::string c;
  append_code_point(c, static_cast<uint32_t>(value.as_int()));
  return Str(std::move(c));
}

Str percent_integer(const Value& value, Spec spec, char type) {
  const bool decimal = type == 'd' || type == 'i' || type == 'u';
  if (!value.is_number() || (value.is_float() && !decimal))
    raise("%", type, " format: a real number is required, not ", type_name(value));
  if (value.is_float() && !(std::fabs(value.as_float()) < 9e18))
    raise("cannot convert this float to an integer");
  spec.type = decimal ? 'd' : type;
  const Value whole(value.is_float() ? static_cast<int64_t>(value.as_float()) : value.as_int());
  if (spec.precision < 0) return Str(format_number(whole, spec));
  Spec digits;
  digits.type = spec.type;
  digits.zero = true;
  digits.width = spec.precision + (whole.as_int() < 0 ? 1 : 0);
  return Str(pad("", format_number(whole, digits), spec, '>'));
}

Str percent_piece(Budget& budget, const Value& value, Spec spec, char type) {
  switch (type) {
    case 's':
    case 'r':
    case 'a':
      return percent_text(budget, value, spec, type);
    case 'c':
      return percent_char(value);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
      return percent_integer(value, spec, type);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!value.is_number()) raise("must be real number, not ", type_name(value));
      spec.type = type;
      return Str(format_number(Value(value.as_float()), spec));
    default:
      raise("unsupported format character '", std::string(1, type), "'");
  }
}

// Reads a format from left to right; values are taken in their order, or by key.
class PercentFormat {
 public:
  PercentFormat(Evaluator& e, const Str& format, const Value& values)
      : e_(e), format_(format), f_(format.text), values_(values) {}

  Value value() {
    Formatted out(e_, format_);
    for (size_t literal = 0;; literal = pos_) {
      pos_ = f_.find('%', literal);
      out.add(Str(f_.substr(literal, pos_ - literal)));
      if (pos_ == std::string::npos) break;
      ++pos_;
      out.add(conversion());
    }
    if (leftover()) raise("not all arguments converted during string formatting");
    return out.value();
  }

 private:
  bool at(char c) const { return pos_ < f_.size() && f_[pos_] == c; }

  Str conversion() {
    const Value* keyed = at('(') ? &by_key() : nullptr;
    Spec spec;
    read_flags(spec);
    spec.width = number();
    if (at('.')) {
      ++pos_;
      spec.precision = number();
    }
    if (pos_ >= f_.size()) raise("incomplete format");
    const char type = f_[pos_++];
    if (type == '%') return Str("%");
    return percent_piece(e_.budget, keyed ? *keyed : take(), spec, type);
  }

  const Value& by_key() {
    const size_t close = f_.find(')', pos_);
    if (close == std::string::npos) raise("incomplete format key");
    if (!values_.is_dict()) raise("format requires a mapping");
    const Value key(f_.substr(pos_ + 1, close - pos_ - 1));
    const Value* found = values_.dict().find(key, e_.budget);
    if (!found) raise("KeyError: ", repr(key));
    mapping_ = true;
    pos_ = close + 1;
    return *found;
  }

  void read_flags(Spec& spec) {
    for (; pos_ < f_.size(); ++pos_) {
      switch (f_[pos_]) {
        case '-':
          spec.align = '<';
          break;
        case '+':
        case ' ':
          spec.sign = f_[pos_];
          break;
        case '#':
          spec.alternate = true;
          break;
        case '0':
          spec.zero = true;
          break;
        default:
          return;
      }
    }
  }

  // A width or a precision, 0 where there is none; * takes it from the values.
  int number() {
    if (!at('*')) return read_number(f_, pos_);
    ++pos_;
    const Value& v = take();
    if (!v.is_int() || v.as_int() > kMaxWidth || v.as_int() < 0) raise("* wants int");
    return static_cast<int>(v.as_int());
  }

  const Value& take() {
    if (taken_ >= (values_.is_tuple() ? values_.list().items.size() : 1))
      raise("not enough arguments for format string");
    return values_.is_tuple() ? values_.list().items[taken_++] : (++taken_, values_);
  }

  bool leftover() const {
    if (values_.is_tuple()) return taken_ < values_.list().items.size();
    return taken_ == 0 && !mapping_ && !values_.is_dict() && !values_.is_list() &&
           !values_.is_undefined();
  }

  Evaluator& e_;
  const Str& format_;
  const std::string& f_;
  const Value& values_;
  size_t pos_ = 0, taken_ = 0;
  bool mapping_ = false;  // a value was taken by its key
};

}  // namespace

Value printf_format(Evaluator& e, const Str& format, const Value& values) {
  e.budget.bytes(format.text.size());
  return PercentFormat(e, format, values).value();
}

Value brace_format(Evaluator& e, const Str& format, const Arguments& arguments) {
  const std::string& f = format.text;
  e.budget.bytes(f.size());
  Formatted out(e, format);
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
    if (brace > pos) out.add(Str(f.substr(pos, brace - pos)));
    if (brace == f.size()) break;
    if (brace + 1 < f.size() && f[brace + 1] == f[brace]) {
      out.add(Str(std::string(1, f[brace])));
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
      out.add(to_str(value));
    else
      out.add(Str(format_value(e.budget, value, spec), message_of(value)));
    pos = end + 1;
  }
  return out.value();
}

}  // namespace wick::jinja
