// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/queue.h"

namespace wick::cuda {

constexpr int64_t kMatvecRows = 8;

// y [M, N] = alpha * x wᵀ + bias for at most kMatvecRows rows:  x f32 or bf16 [M, K];  w [N, K] in
// rows of any float type or codes;  y f32 or bf16. False, having done nothing, where the operands
// do not lie aligned or there are more rows.
bool matvec(const Queue& queue, float alpha, bool accumulate, const Operand& x, const Operand& w,
            const Operand& bias, const Operand& y);

}  // namespace wick::cuda
