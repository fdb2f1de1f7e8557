// SPDX-License-Identifier: Apache-2.0
// jinja2's tests: what may follow `is`.
#include <map>

#include "text/jinja_eval.h"
#include "text/jinja_library.h"
#include "text/jinja_unicode.h"

namespace wick::jinja {
namespace {

#define WICK_TEST(...) [](Evaluator& e, const Value& v, const Arguments& a) -> bool { __VA_ARGS__ }
#define WICK_COMPARE(op) \
  WICK_TEST(Bound b(a, "test", {"other"}, 1); return compare(e, op, v, b[0]);)

bool plain(const Arguments& a) {
  Bound b(a, "test", {}, 0);
  return true;
}

bool remainder_is(Evaluator& e, const Value& v, int64_t divisor, int64_t wanted) {
  Value r = binary_operator(e, "%", v, Value(divisor));
  return r.is_number() && r.as_float() == static_cast<double>(wanted);
}

bool is_iterable(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is_dict() ||
         v.is<std::shared_ptr<const Range>>() || v.is<std::shared_ptr<Generator>>() ||
         v.is<std::shared_ptr<Loop>>();
}

bool is_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_list() || v.is_tuple() || v.is_dict() ||
         v.is<std::shared_ptr<const Range>>();
}

// str(value).isupper() or islower()
bool has_case(Evaluator& e, const Value& v, const char* method) {
  Value text(to_text(v));
  return truthy(find_string_method(method)(e, text, {}));
}

}  // namespace

Test find_test(std::string_view name) {
  static const std::map<std::string_view, Test> kTests = {
      {"defined", WICK_TEST(return plain(a) && !v.is_undefined();)},
      {"undefined", WICK_TEST(return plain(a) && v.is_undefined();)},
      {"none", WICK_TEST(return plain(a) && v.is_none();)},
      {"boolean", WICK_TEST(return plain(a) && v.is_bool();)},
      {"true", WICK_TEST(return plain(a) && v.is_bool() && v.as_bool();)},
      {"false", WICK_TEST(return plain(a) && v.is_bool() && !v.as_bool();)},
      {"integer", WICK_TEST(return plain(a) && v.is_int() && !v.is_bool();)},
      {"float", WICK_TEST(return plain(a) && v.is_float();)},
      {"number", WICK_TEST(return plain(a) && v.is_number();)},
      {"string", WICK_TEST(return plain(a) && v.is_string();)},
      {"mapping", WICK_TEST(return plain(a) && v.is_dict();)},
      {"sequence", WICK_TEST(return plain(a) && is_sequence(v);)},
      {"iterable", WICK_TEST(return plain(a) && is_iterable(v);)},
      {"callable",
       WICK_TEST(return plain(a) &&
                            (v.is<std::shared_ptr<const Callable>>() || v.is_undefined() ||
                             v.is<std::shared_ptr<Joiner>>() || v.is<std::shared_ptr<Loop>>());)},
      {"escaped", WICK_TEST(return plain(a) && v.is_string() && v.str().markup;)},
      {"upper", WICK_TEST(return plain(a) && has_case(e, v, "isupper");)},
      {"lower", WICK_TEST(return plain(a) && has_case(e, v, "islower");)},
      {"odd", WICK_TEST(return plain(a) && remainder_is(e, v, 2, 1);)},
      {"even", WICK_TEST(return plain(a) && remainder_is(e, v, 2, 0);)},
      {"divisibleby", WICK_TEST(Bound b(a, "divisibleby", {"num"}, 1); return equal(
                                    binary_operator(e, "%", v, b[0]), Value(0), e.budget);)},
      {"sameas",
       WICK_TEST(Bound b(a, "sameas", {"other"}, 1);
                 e.budget.bytes(v.is_string() ? v.text().size() : 0); return identical(v, b[0]);)},
      {"in", WICK_TEST(Bound b(a, "in", {"seq"}, 1); return contains(e, b[0], v);)},
      {"filter", WICK_TEST(return plain(a) && v.is_string() && find_filter(v.text());)},
      {"test", WICK_TEST(return plain(a) && v.is_string() && find_test(v.text());)},
      {"==", WICK_COMPARE("==")},
      {"eq", WICK_COMPARE("==")},
      {"equalto", WICK_COMPARE("==")},
      {"!=", WICK_COMPARE("!=")},
      {"ne", WICK_COMPARE("!=")},
      {">", WICK_COMPARE(">")},
      {"gt", WICK_COMPARE(">")},
      {"greaterthan", WICK_COMPARE(">")},
      {">=", WICK_COMPARE(">=")},
      {"ge", WICK_COMPARE(">=")},
      {"<", WICK_COMPARE("<")},
      {"lt", WICK_COMPARE("<")},
      {"lessthan", WICK_COMPARE("<")},
      {"<=", WICK_COMPARE("<=")},
      {"le", WICK_COMPARE("<=")},
  };
  auto it = kTests.find(name);
  return it == kTests.end() ? nullptr : it->second;
}

#undef WICK_TEST
#undef WICK_COMPARE

}  // namespace wick::jinja
