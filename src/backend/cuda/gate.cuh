// SPDX-License-Identifier: Apache-2.0
// The activations of gated_act and their slopes.
#pragma once

#include "backend/cuda/device.cuh"

namespace wick::cuda {

// The processor's own, which take what is below 2^-126 as 0.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// For results in bf16 the fast forms are exact to rounding.
template <typename T>
__device__ inline float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>)
    return 1.0f / (1.0f + expf(-x));
  else
    return reciprocal(1.0f + power_of_2(-1.44269504f * x));
}

struct ValueAndSlope {
  float value, slope;
};

// act(x) = x * s(x) with s = sigmoid(x), or sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x³), which is
// gelu's tanh form.
template <Act A, typename T>
__device__ inline ValueAndSlope act(float x) {
  float s, ds;
  if constexpr (A == Act::kSilu) {
    s = sigmoid<T>(x);
    ds = s * (1.0f - s);
  } else {
    constexpr float kTwiceC = 1.5957691216f, kCube = 0.044715f;
    const float x2 = x * x;
    s = sigmoid<T>(kTwiceC * x * fmaf(x2, kCube, 1.0f));
    ds = s * (1.0f - s) * kTwiceC * fmaf(x2, 3.0f * kCube, 1.0f);
  }
  return {x * s, fmaf(x, ds, s)};
}

}  // namespace wick::cuda
