// SPDX-License-Identifier: Apache-2.0
// Arithmetic, comparison, membership and slices with Python's rules.
#include <algorithm>
#include <cmath>

#include "text/jinja_eval.h"
#include "text/jinja_library.h"
#include "text/jinja_search.h"
#include "text/jinja_unicode.h"

namespace wick::jinja {
namespace {

[[noreturn]] void unsupported(const std::string& op, const Value& a, const Value& b) {
  if (op == "+" && a.is_string())
    raise("can only concatenate str (not \"", type_name(b), "\") to str");
  if (op == "+" && a.is_sequence())
    raise("can only concatenate ", type_name(a), " (not \"", type_name(b), "\") to ", type_name(a));
  raise("unsupported operand type(s) for ", op, ": '", type_name(a), "' and '", type_name(b), "'");
}

[[noreturn]] void overflow() { raise("an integer does not fit in 64 bits"); }

int64_t floor_div(int64_t a, int64_t b) {
  int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

double float_mod(double a, double b) {
  double r = std::fmod(a, b);
  if (r != 0 && (r < 0) != (b < 0)) r += b;
  return r == 0 ? std::copysign(0.0, b) : r;
}

Value power(const Value& a, const Value& b) {
  if (a.is_int() && b.is_int() && b.as_int() >= 0) {
    int64_t base = a.as_int(), n = b.as_int(), result = 1;
    while (n > 0) {
      if ((n & 1) && __builtin_mul_overflow(result, base, &result)) overflow();
      n >>= 1;
      if (n > 0 && __builtin_mul_overflow(base, base, &base)) overflow();
    }
    return Value(result);
  }
  double x = a.as_float(), y = b.as_float();
  if (x == 0 && y < 0) raise("0.0 cannot be raised to a negative power");
  if (x < 0 && y != std::floor(y)) raise("complex numbers are not supported");
  double result = std::pow(x, y);
  if (std::isinf(result) && !std::isinf(x) && !std::isinf(y))
    raise("Numerical result out of range");
  return Value(result);
}

Value integers(const std::string& op, int64_t x, int64_t y) {
  int64_t r = 0;
  if (op == "+") {
    if (__builtin_add_overflow(x, y, &r)) overflow();
  } else if (op == "-") {
    if (__builtin_sub_overflow(x, y, &r)) overflow();
  } else if (op == "*") {
    if (__builtin_mul_overflow(x, y, &r)) overflow();
  } else {
    if (y == 0) raise(op == "/" ? "division by zero" : "integer division or modulo by zero");
    if (op == "/") return Value(static_cast<double>(x) / static_cast<double>(y));
    if (y == -1) {  // the one quotient that overflows
      if (op == "%") return Value(0);
      if (__builtin_sub_overflow(int64_t{0}, x, &r)) overflow();
      return Value(r);
    }
    r = floor_div(x, y);
    if (op == "%") r = x - r * y;
  }
  return Value(r);
}

Value numbers(const std::string& op, const Value& a, const Value& b) {
  if (op == "**") return power(a, b);
  if (a.is_int() && b.is_int()) return integers(op, a.as_int(), b.as_int());
  double x = a.as_float(), y = b.as_float();
  if (op == "+") return Value(x + y);
  if (op == "-") return Value(x - y);
  if (op == "*") return Value(x * y);
  if (y == 0) raise(op == "/" ? "float division by zero" : "float modulo");
  if (op == "/") return Value(x / y);
  if (op == "//") return Value(std::floor((x - float_mod(x, y)) / y + 0.5));
  return Value(float_mod(x, y));
}

Value add_strings(Evaluator& e, const Str& a, const Str& b) {
  if (a.text.size() + b.text.size() > Budget::kMaxText)
    raise("a string is longer than ", Budget::kMaxText, " bytes");
  if (!a.markup && !b.markup) {
    Str out = a;
    out.append(b);
    return e.string(std::move(out));
  }
  auto escaped = [](const Str& s) {
    return s.markup ? s : Str(escape_html(s.text), s.data_message());
  };
  Str out = escaped(a);
  out.append(escaped(b));
  out.markup = true;
  return e.string(std::move(out));
}

Value repeat(Evaluator& e, const Value& what, int64_t times) {
  size_t n = times > 0 ? static_cast<size_t>(times) : 0;
  if (what.is_string()) {
    const Str& s = what.str();
    if (!s.text.empty() && n > Budget::kMaxText / s.text.size())
      raise("a string is longer than ", Budget::kMaxText, " bytes");
    e.budget.bytes(s.text.size() * n + s.runs.size() * n * sizeof(Run));
    Str out;
    out.markup = s.markup;
    if (s.runs.empty()) {
      for (size_t i = 0; i < n; ++i) out.text += s.text;
    } else {
      for (size_t i = 0; i < n; ++i) out.append(s);
    }
    return e.string(std::move(out));
  }
  const auto& items = what.list().items;
  if (!items.empty() && n > Budget::kMaxSteps / items.size()) e.budget.step(Budget::kMaxSteps);
  e.budget.step(items.size() * n);
  std::vector<Value> out;
  for (size_t i = 0; i < n; ++i) out.insert(out.end(), items.begin(), items.end());
  return e.list(std::move(out), what.list().kind);
}

bool repeatable(const Value& v) { return v.is_string() || v.is_list() || v.is_tuple(); }

int64_t index_or(const Value& v, int64_t fallback) {
  if (v.is_none()) return fallback;
  if (!v.is_int()) raise("slice indices must be integers or None or have an __index__ method");
  return v.as_int();
}

// Python's adjustment of a slice to a length: the first index, how many, and the step.
struct SliceRange {
  int64_t start, count, step;
};

SliceRange adjust(int64_t length, const Value& start, const Value& stop, const Value& step) {
  int64_t by = index_or(step, 1);
  if (by == 0) raise("slice step cannot be zero");
  by = std::clamp<int64_t>(by, -INT64_MAX, INT64_MAX);
  int64_t low = by < 0 ? -1 : 0, high = by < 0 ? length - 1 : length;
  auto place = [&](const Value& v, int64_t fallback) {
    if (v.is_none()) return fallback;
    int64_t i = index_or(v, 0);
    if (i < 0) i = i < -length ? low - 1 : i + length;
    return std::clamp(i, low, high);
  };
  int64_t from = place(start, by < 0 ? high : low), to = place(stop, by < 0 ? low : high);
  int64_t count = 0;
  if (by > 0 && from < to) count = (to - from - 1) / by + 1;
  if (by < 0 && to < from) count = (from - to - 1) / -by + 1;
  return {from, count, by};
}

Value slice_string(Evaluator& e, const Str& s, const Value& start, const Value& stop,
                   const Value& step) {
  e.budget.bytes(s.text.size());
  bool ascii = is_ascii(s.text);
  std::vector<size_t> offsets;
  if (!ascii) offsets = code_point_offsets(s.text);
  auto at = [&](int64_t i) {
    return ascii ? static_cast<size_t>(i) : offsets[static_cast<size_t>(i)];
  };
  SliceRange r =
      adjust(static_cast<int64_t>(ascii ? s.text.size() : offsets.size() - 1), start, stop, step);
  if (r.count == 0) {
    Str empty;
    empty.markup = s.markup;
    return Value(std::move(empty));
  }
  if (r.step == 1) return e.string(s.substr(at(r.start), at(r.start + r.count)));
  std::string text;
  for (int64_t i = 0; i < r.count; ++i) {
    int64_t k = r.start + i * r.step;
    text.append(s.text, at(k), at(k + 1) - at(k));
  }
  e.budget.step(static_cast<size_t>(r.count));
  return derive(s, std::move(text));
}

}  // namespace

Value derive(const Str& source, std::string text) {
  if (text.size() == source.text.size()) {
    Str out = source;
    out.text = std::move(text);
    return Value(std::move(out));
  }
  Str out(std::move(text), source.data_message());
  out.markup = source.markup;
  return Value(std::move(out));
}

Value negate(const Value& a, bool minus) {
  if (!a.is_number())
    raise("bad operand type for unary ", minus ? "-" : "+", ": '", type_name(a), "'");
  if (a.is_float()) return Value(minus ? -a.as_float() : a.as_float());
  int64_t r = a.as_int();
  if (minus && __builtin_sub_overflow(int64_t{0}, r, &r)) overflow();
  return Value(r);
}

Value binary_operator(Evaluator& e, const std::string& op, const Value& a, const Value& b) {
  if (a.is_undefined()) raise(a.undefined().message);
  if (op == "%" && a.is_string()) return printf_format(e, a.str(), b);
  if (b.is_undefined()) raise(b.undefined().message);
  if (a.is_number() && b.is_number()) return numbers(op, a, b);
  if (op == "+") {
    if (a.is_string() && b.is_string()) return add_strings(e, a.str(), b.str());
    bool same = (a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple());
    if (same) {
      e.budget.step(a.list().items.size() + b.list().items.size());
      std::vector<Value> items = a.list().items;
      items.insert(items.end(), b.list().items.begin(), b.list().items.end());
      return e.list(std::move(items), a.is_list() ? List::Kind::kList : List::Kind::kTuple);
    }
  } else if (op == "*") {
    if (repeatable(a) && b.is_int()) return repeat(e, a, b.as_int());
    if (repeatable(b) && a.is_int()) return repeat(e, b, a.as_int());
  }
  unsupported(op, a, b);
}

bool less(Evaluator& e, const Value& a, const Value& b) {
  e.budget.step();
  if (a.is_undefined()) raise(a.undefined().message);
  if (b.is_undefined()) raise(b.undefined().message);
  if (a.is_number() && b.is_number()) {
    if (a.is_int() && b.is_int()) return a.as_int() < b.as_int();
    return a.as_float() < b.as_float();
  }
  if (a.is_string() && b.is_string()) {
    e.budget.bytes(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();
  }
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    const auto &x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equal(x[i], y[i], e.budget)) return less(e, x[i], y[i]);
    return x.size() < y.size();
  }
  raise("'<' not supported between instances of '", type_name(a), "' and '", type_name(b), "'");
}

bool compare(Evaluator& e, const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return equal(a, b, e.budget);
  if (op == "!=") return !equal(a, b, e.budget);
  if (op == "in") return contains(e, b, a);
  if (op == "not in") return !contains(e, b, a);
  bool has_nan =
      (a.is_float() && std::isnan(a.as_float())) || (b.is_float() && std::isnan(b.as_float()));
  if (has_nan && a.is_number() && b.is_number()) return false;
  bool comparable = a.is_undefined() || b.is_undefined() || (a.is_number() && b.is_number()) ||
                    (a.is_string() && b.is_string()) || (a.is_list() && b.is_list()) ||
                    (a.is_tuple() && b.is_tuple());
  if (!comparable)
    raise("'", op, "' not supported between instances of '", type_name(a), "' and '", type_name(b),
          "'");
  if (op == "<") return less(e, a, b);
  if (op == ">") return less(e, b, a);
  if (op == "<=") return !less(e, b, a);
  return !less(e, a, b);
}

bool contains(Evaluator& e, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (item.is_undefined() || !item.is_string())
      raise("'in <string>' requires string as left operand, not ", type_name(item));
    return Search(e.budget, container.text(), item.text()).first() != std::string::npos;
  }
  if (container.is_dict()) {
    if (!hashable(item)) raise("unhashable type: '", type_name(item), "'");
    return container.dict().find(item, e.budget) != nullptr;
  }
  if (container.is_sequence()) {
    for (const Value& v : container.list().items)
      if (equal(v, item, e.budget)) return true;
    return false;
  }
  bool iterable = container.is_undefined() || container.is<std::shared_ptr<Generator>>() ||
                  container.is<std::shared_ptr<const Range>>();
  if (!iterable) raise("argument of type '", type_name(container), "' is not iterable");
  if (const auto* generator = container.get<Generator>()) {
    Generator& g = **generator;
    while (g.pos < g.items.size())
      if (equal(g.items[g.pos++], item, e.budget)) return true;
    return false;
  }
  for (const Value& v : e.iterate(container))
    if (equal(v, item, e.budget)) return true;
  return false;
}

Value slice(Evaluator& e, const Value& object, const Value& start, const Value& stop,
            const Value& step) {
  for (const Value* bound : {&start, &stop, &step})
    if (bound->is_undefined())
      raise("slice indices must be integers or None or have an __index__ method");
  if (object.is_string()) return slice_string(e, object.str(), start, stop, step);
  if (object.is_list() || object.is_tuple()) {
    const List& from = object.list();
    SliceRange r = adjust(static_cast<int64_t>(from.items.size()), start, stop, step);
    std::vector<Value> items;
    for (int64_t i = 0; i < r.count; ++i)
      items.push_back(from.items[static_cast<size_t>(r.start + i * r.step)]);
    return e.list(std::move(items), object.is_list() ? List::Kind::kList : List::Kind::kTuple);
  }
  if (const auto* range = object.get<const Range>()) {
    const Range& from = **range;
    SliceRange r = adjust(from.size(), start, stop, step);
    auto narrow = [](__int128 v) {
      if (v > INT64_MAX || v < INT64_MIN) overflow();
      return static_cast<int64_t>(v);
    };
    Range out;
    out.step = narrow(static_cast<__int128>(from.step) * r.step);
    out.start = narrow(from.start + static_cast<__int128>(r.start) * from.step);
    out.stop = narrow(out.start + static_cast<__int128>(out.step) * r.count);
    return Value(std::make_shared<const Range>(out));
  }
  if (object.is_dict()) raise("unhashable type: 'slice'");
  raise("'", type_name(object), "' object is not subscriptable");
}

}  // namespace wick::jinja
