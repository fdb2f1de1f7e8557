// SPDX-License-Identifier: Apache-2.0
// What templates find ready: filters, tests, methods of values, global functions.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace wick::jinja {

using Filter = Value (*)(Evaluator&, const Value& input, const Arguments&);
using Test = bool (*)(Evaluator&, const Value& input, const Arguments&);
using Method = Value (*)(Evaluator&, const Value& self, const Arguments&);

// Null where there is none of that name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
Method find_method(const Value& self, std::string_view name);

Filter find_text_filter(std::string_view name);
Filter find_sequence_filter(std::string_view name);
Method find_string_method(std::string_view name);

// A method that exists in Python and changes its object, which the sandbox forbids.
bool is_mutator(const Value& self, std::string_view name);

// range, dict, namespace, cycler, joiner, raise_exception, strftime_now
std::optional<Value> find_global(std::string_view name);

// Arguments by parameter name, as Python binds them. Throws: Raised for one too many, an unknown or
// a missing one.
class Bound {
 public:
  Bound(const Arguments& arguments, const char* function,
        std::initializer_list<const char*> parameters, size_t required);

  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& operator[](size_t i) const { return *values_[i]; }
  const Value& get(size_t i, const Value& fallback) const {
    return values_[i] ? *values_[i] : fallback;
  }
  // The value as what is asked for. Throws: Raised for another type.
  const Str& string(size_t i) const;
  int64_t integer(size_t i, int64_t fallback) const;
  bool boolean(size_t i, bool fallback) const;
  bool none(size_t i) const { return !values_[i] || values_[i]->is_none(); }

 private:
  const char* function_;
  std::vector<const char*> parameters_;
  std::vector<const Value*> values_;
};

// Operators, in jinja_operators.cpp.
Value binary_operator(Evaluator& e, const std::string& op, const Value& a, const Value& b);
Value negate(const Value& a, bool minus);
bool compare(Evaluator& e, const std::string& op, const Value& a, const Value& b);
bool less(Evaluator& e, const Value& a, const Value& b);
bool contains(Evaluator& e, const Value& container, const Value& item);
Value slice(Evaluator& e, const Value& object, const Value& start, const Value& stop,
            const Value& step);

// str % values and str.format(…), in jinja_format.cpp.
Value printf_format(Evaluator& e, const Str& format, const Value& values);
Value brace_format(Evaluator& e, const Str& format, const Arguments& arguments);

// A string made from `source` with new text; keeps where its bytes came from as far as is known.
Value derive(const Str& source, std::string text);

// The code of a character of Python's \w, for filters that count or split words.
bool is_word(uint32_t code_point);

}  // namespace wick::jinja
