// SPDX-License-Identifier: Apache-2.0
// What the two halves of sample share: the largest of a row, and what becomes of its token.
#pragma once

#include "backend/cuda/device.cuh"

namespace wick::cuda {

// The largest so far and the lowest index that has it; index -1: none above minus infinity.
struct Best {
  float value;
  int index;
};
__device__ inline Best better(Best a, Best b) {
  if (b.index < 0) return a;
  if (a.index < 0 || b.value > a.value) return b;
  return b.value == a.value && b.index < a.index ? b : a;
}
// Of a block; its first warp has it.
template <int kThreads>
__device__ inline Best block_best(Best x) {
  __shared__ Best shared[kThreads / 32];
  auto of_warp = [](Best y) {
    for (int o = 16; o > 0; o >>= 1)
      y = better(
          y, {__shfl_xor_sync(0xffffffffu, y.value, o), __shfl_xor_sync(0xffffffffu, y.index, o)});
    return y;
  };
  x = of_warp(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x < 32)
    x = of_warp(threadIdx.x < kThreads / 32 ? shared[threadIdx.x] : Best{0.0f, -1});
  return x;
}

// Row r of place is at place + r * ld.
struct Walk {
  int32_t *place, *log;
  int64_t ld, log_ld;
  int log_rows;
};
__device__ inline void take_token(int index, int row, int32_t* token, const Walk& walk) {
  token[row] = index;
  if (walk.place == nullptr) return;
  int32_t* at = walk.place + row;
  if (at[3 * walk.ld] < 0) return;
  at[0] = max(index, 0);
  const int position = ++at[walk.ld];
  ++at[2 * walk.ld];
  ++at[3 * walk.ld];
  if (walk.log != nullptr) walk.log[position % walk.log_rows * walk.log_ld + row] = index;
}

// Draws a token of every row as `how` [rows, 8] says.
void draw_rows(const Queue& queue, const Operand& logits, const Operand& how, int32_t* token,
               const Walk& walk);

}  // namespace wick::cuda
