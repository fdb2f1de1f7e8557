// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/plan.h"

namespace wick {

// The quantised matrix that a linear multiplies with, forward or for dx; kNone where there is none.
ValueId quantized_matrix(const Plan& plan, const Step& step);

// Steps of a reverse pass that may be made together with such a product behind them, and so after
// its matrix.
constexpr size_t kBeforeProduct = 2;

// A device may bring such a matrix to floats in its step's scratch while steps before it still run.
// So, unless it is large, the scratch is the step's own from that step on which has one before it;
// this is that step, -1 where it is large or none is near.
int32_t widened_from(const Plan& plan, size_t step);

}  // namespace wick
