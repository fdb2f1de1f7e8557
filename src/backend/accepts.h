// SPDX-License-Identifier: Apache-2.0
// What the kernels take: activations and their gradients in f32 or bf16, one type in a step; frozen
// operands in f32 or a half, whatever the activations are; statistics, parameters' gradients and
// tables in f32; feeds in i32.
#pragma once

#include "backend/kernels.h"

namespace wick {

inline bool is_f32(const Operand& o) { return !o || o.dtype == DType::kF32; }
inline bool is_i32(const Operand& o) { return !o || o.dtype == DType::kI32; }
inline bool is_activation(const Operand& o) { return is_f32(o) || o.dtype == DType::kBF16; }
inline bool is_weight(const Operand& o) {
  return o.form == WeightForm::kRows && (is_activation(o) || o.dtype == DType::kF16);
}
// What only matrices are: read by products and embed.
inline bool is_codes(const Operand& o) {
  return o.form == WeightForm::kRows && dtype_is_quantized(o.dtype);
}

// Bit i of a mask is input or output i. Inputs in no mask are f32 or i32, such outputs f32. Weights
// that are also in `Matrices` may be codes and, with `Tiles`, in that form.
template <unsigned ActivationsIn, unsigned Weights, unsigned ActivationsOut, unsigned Matrices = 0,
          bool Tiles = false>
bool accepts(const StepArgs& args) {
  const Operand* first = nullptr;
  auto same_type = [&](const Operand& o) {
    if (!o) return true;
    if (first == nullptr) first = &o;
    return is_activation(o) && o.dtype == first->dtype;
  };
  auto is_matrix = [](const Operand& o) {
    return is_codes(o) || (Tiles && o.form == WeightForm::kTiles);
  };
  for (size_t i = 0; i < args.in.size(); ++i) {
    const Operand& o = args.in[i];
    const bool good = (ActivationsIn >> i) & 1 ? same_type(o)
                      : (Weights >> i) & 1 ? is_weight(o) || ((Matrices >> i) & 1 && is_matrix(o))
                                           : is_f32(o) || is_i32(o);
    if (!good) return false;
  }
  for (size_t i = 0; i < args.out.size(); ++i)
    if (!((ActivationsOut >> i) & 1 ? same_type(args.out[i]) : is_f32(args.out[i]))) return false;
  return true;
}

}  // namespace wick
