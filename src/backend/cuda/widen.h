// SPDX-License-Identifier: Apache-2.0
// Matrices in codes brought to floats, for products of many rows: these read a weight several
// times, the second-level cache has it meanwhile, and a pass over codes costs a small part of the
// product.
#pragma once

#include "backend/cuda/queue.h"

namespace wick::cuda {

// to = scale * code, rounded:  from [N, K] in codes;  to [N, K] dense, bf16 or f32. Codes are read
// before the kernel before is done, and with `free` what is made of them is written before, too:
// then nothing that may still run uses the memory of `to`. It ends after the kernel before.
void widen(const Queue& queue, const Operand& from, const Operand& to, bool free = false);

}  // namespace wick::cuda
