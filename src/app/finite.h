// SPDX-License-Identifier: Apache-2.0
// Results whose numbers are none.
#pragma once

#include "wick/evaluator.h"

namespace wick {

// Throws: kInternal where a row's likelihood is no finite number; it names `file` and the first
// such row. To be asked after the result was shown: its other rows may still tell something.
void expect_finite(const EvalResult& result, const std::string& file);
void expect_finite(const ChoiceResult& result, const std::string& file);

}  // namespace wick
