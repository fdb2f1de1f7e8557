// SPDX-License-Identifier: Apache-2.0
// Matrix products on the device, whatever the element types: the one place that knows cuBLASLt.
//
//   kNT   y [M, N] = alpha * a bᵀ    a [M, K], b [N, K]
//   kNN   y [M, N] = alpha * a b     a [M, K], b [K, N]
//   kTN   y [M, N] = alpha * aᵀ b    a [K, M], b [K, N]
//
// a, b and y are f32, bf16 or f16 in rows (b also quantised rows); sums are f32, rounded once when
// stored. With `accumulate` y is added to. `bias` [N] is added where it is given (kNT only).
// The choice of kernel depends on types and sizes alone, so that the same step has the same bits in
// every run.
#pragma once

#include "backend/cuda/queue.h"

namespace wick::cuda {

enum class Trans { kNT, kNN, kTN };

struct Product {
  Trans trans = Trans::kNT;
  float alpha = 1.0f;
  bool accumulate = false;
  bool bare = false;  // there is no scratch; a and b are of one type
};

// `scratch` holds product_scratch() bytes.
void product(const Queue& queue, const Product& p, const Operand& a, const Operand& b,
             const Operand& y, void* scratch, const Operand& bias = {});
size_t product_scratch(const Product& p, const Operand& a, const Operand& b, const Operand& y,
                       int sms);
// How many of these, the first ones, are for b brought to a's type.
size_t widened_bytes(const Operand& a, const Operand& b);

}  // namespace wick::cuda
