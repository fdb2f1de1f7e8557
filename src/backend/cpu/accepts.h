// SPDX-License-Identifier: Apache-2.0
// What the kernels take: activations and gradients in f32, feeds in i32, weights also in halves.
#pragma once

#include "backend/kernels.h"

namespace wick::cpu {

inline bool is_f32(const Operand& o) { return !o || o.dtype == DType::kF32; }
inline bool is_i32(const Operand& o) { return !o || o.dtype == DType::kI32; }
inline bool is_weight(const Operand& o) {
  return is_f32(o) || o.dtype == DType::kBF16 || o.dtype == DType::kF16;
}

// Every operand is f32 or i32, but the inputs whose bit is set in `Weights` may be halves.
template <unsigned Weights>
bool accepts_weights(const StepArgs& args) {
  for (size_t i = 0; i < args.in.size(); ++i) {
    const Operand& o = args.in[i];
    bool weight = (Weights >> i) & 1;
    if (!is_f32(o) && !is_i32(o) && !(weight && is_weight(o))) return false;
  }
  for (const Operand& o : args.out)
    if (!is_f32(o)) return false;
  return true;
}

}  // namespace wick::cpu
