// SPDX-License-Identifier: Apache-2.0
// Products of a few rows with a frozen matrix, bound by reading the matrix once: decoding. In
// bf16 the tensor cores make them (matvec_mma.cu), with what comes before and behind joined to
// them; other types are left to matvec.cu.
#pragma once

#include "backend/cuda/queue.h"

namespace wick::cuda {

constexpr int64_t kMatvecRows = 8;      // of any type
constexpr int64_t kMatvecMmaRows = 16;  // in bf16
constexpr int kMostParts = 8;           // of what is added before a norm

// y [M, N] = alpha * x wᵀ + bias for a few rows:  x f32 or bf16 [M, K];  w [N, K] in rows of any
// float type or codes;  y f32 or bf16. False, having done nothing, where the operands do not lie
// aligned or there are more rows.
bool matvec(const Queue& queue, float alpha, bool accumulate, const Operand& x, const Operand& w,
            const Operand& bias, const Operand& y);

// x of a product, or what it is the norm of: then every block makes it for itself, and one of them
// writes `sum` and `normed` where they are given.
struct MatvecIn {
  Operand x = {};
  // x = rms_norm(a + b) * gain; b may be absent
  Operand a = {}, b = {}, gain = {}, sum = {}, normed = {};
  float eps = 0;
  // In place of b: [part_count][M][K], of which b is the sum, rounded to bf16. For attend.h and
  // mlp.h alone.
  const float* parts = nullptr;
  int part_count = 0;
};
// q and k of a product's columns q, k, v are rotated; q is written, k and v go to rows of a cache.
struct MatvecRotation {
  Operand q, table, positions, cache_k, cache_v, cache_rows;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool ahead = false;  // table, positions and cache_rows are there before the launch's turn
};

// The same for x in bf16 and w in bf16 or codes, at most kMatvecMmaRows rows; false as there.
bool matvec_mma(const Queue& queue, const MatvecIn& in, float alpha, bool accumulate,
                const Operand& w, const Operand& bias, const Operand& y);
// y [M, N / 2] = act(first half of the columns) * second half
bool matvec_gated(const Queue& queue, const MatvecIn& in, const Operand& w, const Operand& bias,
                  Act act, const Operand& y);
bool matvec_rotated(const Queue& queue, const MatvecIn& in, const Operand& w, const Operand& bias,
                    const MatvecRotation& rotation);

}  // namespace wick::cuda
