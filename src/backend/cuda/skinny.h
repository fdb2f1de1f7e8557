// SPDX-License-Identifier: Apache-2.0
// Products with one side of at most kSkinny: LoRA's. bf16 activations, parameters in f32 that are
// rounded on the way into the tensor core (to bf16; where they widen, to tf32), sums in f32.
//
// They take less time than it takes to start them, so they are started together: each is put on
// the queue's list, and flush() launches the list as one kernel. Whatever else goes to the stream
// comes after flush(); a product that touches what one of the list writes flushes first, but for a
// wide product of what a narrow one of them makes: its blocks go on with it (y += B A x).
//
// Each returns false, having done nothing, where the operands are not as it wants them; product()
// takes those.
#pragma once

#include "backend/cuda/product.h"

namespace wick::cuda {

constexpr int64_t kSkinny = 64;

// y [M, R] = alpha * a b:  a [M, K] bf16;  b f32, [R, K] with b_by_rank, else [K, R];  y bf16.
bool narrow_product(const Queue& queue, float alpha, bool accumulate, bool b_by_rank,
                    const Operand& a, const Operand& b, const Operand& y);
// y = alpha * aᵀ b, [M, R] or, with y_by_rank, [R, M]:  a [K, M], b [K, R] bf16;  y f32.
bool narrow_product_turned(const Queue& queue, float alpha, bool accumulate, bool y_by_rank,
                           const Operand& a, const Operand& b, const Operand& y);
// y [M, N] = alpha * a b:  a [M, R] bf16;  b f32, [R, N] with b_by_rank, else [N, R];  y bf16.
bool wide_product(const Queue& queue, float alpha, bool accumulate, bool b_by_rank,
                  const Operand& a, const Operand& b, const Operand& y);

// The same as product(), but that it waits for the next flush() of others: where the list then has
// wide products that add to all of y, they come first and write, and this one adds to what they
// wrote. It needs no scratch. False, having done nothing, where y is too small to matter.
bool defer_product(const Queue& queue, const Product& p, const Operand& x, const Operand& w,
                   const Operand& y, const Operand& bias);

// Launches what is on the list, and what waits with it.
void flush(const Queue& queue);

}  // namespace wick::cuda
