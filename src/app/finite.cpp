// SPDX-License-Identifier: Apache-2.0
#include "app/finite.h"

#include <algorithm>
#include <cmath>

#include "app/format.h"
#include "base/check.h"

namespace wick {

namespace {

bool is_finite(const ExampleResult& row) {
  return std::isfinite(row.loss) && std::isfinite(row.rejected_logp);
}

bool is_finite(const ChoiceRow& row) {
  return std::all_of(row.logp.begin(), row.logp.end(), [](double x) { return std::isfinite(x); });
}

template <typename Result>
void expect_finite_rows(const Result& result, const std::string& file) {
  int64_t bad = 0, line = 0;
  for (const auto& row : result.examples) {
    if (is_finite(row)) continue;
    if (bad++ == 0) line = row.line;
  }
  if (bad == 0) return;
  fail(ErrorCode::kInternal, file, ":", line, ": the loss of this row is not a finite number",
       bad > 1
           ? cat(", nor that of ", plural(bad - 1, "other row"), " of ", format_count(result.rows))
           : "",
       "; try --dtype f32, and if that changes nothing, the weights or the adapter are damaged or "
       "their training diverged");
}

}  // namespace

void expect_finite(const EvalResult& result, const std::string& file) {
  expect_finite_rows(result, file);
}

void expect_finite(const ChoiceResult& result, const std::string& file) {
  expect_finite_rows(result, file);
}

}  // namespace wick
