// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/queue.h"

namespace wick::cuda {

// The reverse of attention and of the rope that made q and k, columns of one matrix, in one launch.
// False, with nothing enqueued, where the kernels by bulk copies do not serve. `has_stats`: what
// small_product_stats() makes is there.
bool attention_rope_bwd(const StepArgs& attention, const StepArgs& rope, bool has_stats = false);

}  // namespace wick::cuda
