// SPDX-License-Identifier: Apache-2.0
// gated_act between adapted products (sm_90, bf16, many tokens and columns), with LoRA's small
// products on both sides of it: each of the wide matrices passes once. Bits are those of the steps,
// but that a sum which a step would round and the next one read stays as it is.
//
//   forward   h = x aᵀ   y = x wᵀ + scale h bᵀ, by halves   made = act(gate) * up   more = made cᵀ
//   reverse   dmade = dz w + scale dmore c    dc = dmoreᵀ made    dy, from dmade and y
//             dh = scale dy b, db = scale dyᵀ h, by halves
#pragma once

#include "backend/cuda/fused.h"

namespace wick::cuda {

// Operands are as of the steps; where `more` is none it is left out.
struct GatedForward {
  FusedProduct product;       // with a gate, and an adapter for each half
  Operand c = {}, more = {};  // [R, F] f32, [T, R]
  void *product_scratch = nullptr, *scratch = nullptr;
};

struct GatedReverse {
  Operand dz, w;  // [T, D], [D, F]
  float w_scale = 1.0f;
  Operand dmade, y, dy;  // [T, F], [T, 2 F], [T, 2 F]
  Act act = Act::kSilu;
  Operand dmore, c, dc;  // [T, R], [R, F] f32, [R, F] f32
  float c_scale = 1.0f;
  bool dc_adds = false;
  struct Half {
    Operand h, b, dh, db;  // [T, R], [F, R] f32, [T, R], [F, R] f32
    float scale = 1.0f;
    bool dh_adds = false, db_adds = false;
  };
  Half half[2] = {};
  void *product_scratch = nullptr, *scratch = nullptr;
};

// False, having done nothing, where operands are not as they should be or too few.
bool gated_forward(const Queue& queue, const GatedForward& g);
bool gated_reverse(const Queue& queue, const GatedReverse& g);

// Bytes of `scratch` for a gated_act that makes [tokens, cols], or has; 0 where it is not for
// these.
size_t gated_forward_scratch(int64_t tokens, int64_t cols, DType dtype, int sms);
size_t gated_reverse_scratch(int64_t tokens, int64_t cols, DType dtype, int sms);

}  // namespace wick::cuda
