// SPDX-License-Identifier: Apache-2.0
// Sums over many tokens with a narrow side (sm_90, bf16): LoRA's dB = dyᵀ h and dA = dhᵀ x, and
// dh = dy B in the same reading of dy. Bound by the bytes of the wide side, which is read once.
#pragma once

#include <span>

#include "backend/cuda/blas.h"

namespace wick::cuda {

struct TokenSum {
  Operand a, b;  // [M, N], [M, R]
  Operand y;     // alpha * aᵀ b, [N, R] or, by rank, [R, N] f32
  bool y_by_rank = false, y_adds = false;
  float alpha = 1.0f;
  Operand w = {}, made = {};  // made [M, R] = alpha * a w, w [N, R] f32; none: only y
  bool made_adds = false;
};

// Bytes of the scratch that token_sums() is given.
constexpr size_t kTokenSumsScratch = Blas::kWorkspace;
constexpr size_t kMostTokenSums = 8;

// Sums of as many tokens, all of them with w or none. False, having done nothing, where operands
// are not as it wants them or too few.
bool token_sums(const Queue& queue, std::span<const TokenSum> sums, void* scratch);

}  // namespace wick::cuda
