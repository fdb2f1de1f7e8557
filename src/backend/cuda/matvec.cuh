// SPDX-License-Identifier: Apache-2.0
// What becomes of a product's sums.
#pragma once

#include "backend/cuda/device.cuh"

namespace wick::cuda {

// An element of a vector of any float type; 0 where there is none.
struct AnyFloats {
  const void* data;
  DType dtype;
  __device__ float operator[](int64_t i) const {
    if (data == nullptr) return 0.0f;
    if (dtype == DType::kBF16) return to_f32(static_cast<const Bf16*>(data)[i]);
    if (dtype == DType::kF16) return to_f32(static_cast<const F16*>(data)[i]);
    return static_cast<const float*>(data)[i];
  }
  // Elements [i, i + 8). Requires: data, aligned to 16 bytes; i a multiple of 8.
  __device__ void eight(int64_t i, float* to) const {
    if (dtype == DType::kBF16) {
      const Pack<Bf16, 8> v = load<8>(static_cast<const Bf16*>(data) + i);
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = to_f32(v.at[j]);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = (*this)[i + j];
    }
  }
};
inline AnyFloats any_floats(const Operand& o) { return {o.data, o.dtype}; }

// y = alpha * sum + bias, written or added
struct Into {
  void* y;
  int64_t ld;
  bool f32, accumulate;
  AnyFloats bias;
  float alpha;

  __device__ void put(int64_t m, int64_t n, float sum, float bias_of_n) const {
    const float value = alpha * sum + bias_of_n;
    if (f32) {
      float* at = static_cast<float*>(y) + m * ld + n;
      *at = value + (accumulate ? *at : 0.0f);
    } else {
      Bf16* at = static_cast<Bf16*>(y) + m * ld + n;
      *at = from_f32<Bf16>(value + (accumulate ? to_f32(*at) : 0.0f));
    }
  }
};
inline Into into(float alpha, bool accumulate, const Operand& bias, const Operand& y) {
  return {y.data, y.ld, y.dtype == DType::kF32, accumulate, any_floats(bias), alpha};
}

}  // namespace wick::cuda
