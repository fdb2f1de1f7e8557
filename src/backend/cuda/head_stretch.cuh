// SPDX-License-Identifier: Apache-2.0
// A row of a stretch of logits in the registers of one block, as head.cu's kernels hold it.
#pragma once

#include "backend/cuda/device.cuh"

namespace wick::cuda {

constexpr int kThreads = 384, kPacks = 11, kEach = 4;  // of a row of logits, all in registers

// The words of a row that a thread has in registers: kEach of every kThreads * kEach.
struct Stretch {
  Pack<float, kEach> at[kPacks];
  static constexpr int kStep = kThreads * kEach;
  static __device__ int first() { return static_cast<int>(threadIdx.x) * kEach; }
  // `skip`, a word, and what lies beyond the words become -inf.
  __device__ Stretch(const float* row, int words, int skip) {
    const int count = words - first();
    row += first();
    skip -= first();
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (i * kStep < count) at[i] = load<kEach>(row + i * kStep);
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (i * kStep + j >= count || i * kStep + j == skip) at[i].at[j] = -INFINITY;
    }
  }
  template <typename T>
  __device__ void store_as(T* row, int words) const {
    const int count = words - first();
    row += first();
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (i * kStep >= count) break;
      Pack<T, kEach> v;
#pragma unroll
      for (int j = 0; j < kEach; ++j) v.at[j] = from_f32<T>(at[i].at[j]);
      store(row + i * kStep, v);
    }
  }
};

}  // namespace wick::cuda
