// SPDX-License-Identifier: Apache-2.0
// Products whose result is at most as many tiles of 64 x 64 as there are multiprocessors (sm_90,
// bf16): o, and the reverse of o and of q, k, v, at some hundred rows. Beside the library's kernels
// they let what follows be set up early, and ask for weights before what comes before is done.
#pragma once

#include "backend/cuda/product.h"

namespace wick::cuda {

struct SmallProduct {
  Product how;
  Operand a, b, y;  // as of product()
  // y += scale * more more_b, with up to 24 ranks: LoRA's part of a gradient.
  Operand more = {}, more_b = {};  // [M, R], [R, N] f32
  float scale = 1.0f;
  // y is the gradient that this step of attention_bwd, by bulk copies, reads: its scratch gets what
  // it needs to know of it (AttentionStats).
  const StepArgs* attention = nullptr;
};

// False, having done nothing, where it does not serve. b and more_b are read before the kernel
// before is done: parameters or feeds.
bool small_product(const Queue& queue, const SmallProduct& p);

}  // namespace wick::cuda
