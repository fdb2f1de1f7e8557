// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/plan.h"

namespace wick {

constexpr int64_t kLateTokens = 4608;  // more are never few

// A rewrite of a reverse pass: sums over few tokens (the fewer, the wider their narrowest x) with a
// narrow side (LoRA's dA = dhᵀ x and, of not too many columns, dB = dyᵀ h), which nothing waits
// for, move behind everything else, where a device can make them side by side. Those alone whose x
// or h lives from the forward pass on: then more has ended by the end than what waits for it. What
// a step makes beside the sum stays where it is. Says how many there were.
int sums_last(Plan& plan);

}  // namespace wick
