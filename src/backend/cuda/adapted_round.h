// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/fused.h"

namespace wick::cuda {

// fused_product() without a gate or a rope, in tiles that are one round of the card: false, having
// done nothing, where they are more. Operands as fused_product() checks them.
bool adapted_round(const Queue& queue, const FusedProduct& p);

}  // namespace wick::cuda
