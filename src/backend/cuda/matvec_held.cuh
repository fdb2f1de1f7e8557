// SPDX-License-Identifier: Apache-2.0
// x of matvec_mma.cu in registers. A warp multiplies every kWarps-th chunk of 32 columns, so where
// rows are short each lane asks for just what it multiplies, in one round of loads, and nothing of
// x goes through shared memory or waits for the other warps.
//
// The norm's factor is known when all warps have their sums of squares, which is behind the
// product: it multiplies the product's sums. Squares are the diagonal of x xᵀ.
#pragma once

#include "backend/cuda/matvec_weights.cuh"
#include "backend/cuda/matvec_x.cuh"

namespace wick::cuda {

// Chunks of a warp. More would need registers that keep the next launches' blocks out: with 19
// (rows of 4864) decoding took longer, not less.
constexpr int kHeldChunks = 4;
constexpr int kHeldSquares = PlainWeights::kWarps * static_cast<int>(kMatvecMmaRows);  // floats

// The columns of chunk j that this lane takes: from here on, eight.
__device__ inline int held_column(int j) {
  const int warp = threadIdx.x / 32, t = threadIdx.x % 4;
  return (warp + j * PlainWeights::kWarps) * kChunk + 8 * t;
}

struct HeldGain {
  uint4 at[kHeldChunks];
  // Requires: in bf16.
  __device__ void take(const AnyFloats& gain, int k) {
#pragma unroll
    for (int j = 0; j < kHeldChunks; ++j) {
      const int c = held_column(j);
      at[j] = c < k ? load16(static_cast<const Bf16*>(gain.data) + c) : uint4{};
    }
  }
};

// f of two pairs of bf16 in words.
template <typename F>
__device__ inline uint32_t of_pairs(uint32_t a, uint32_t b, F&& f) {
  __nv_bfloat162 x, y;
  memcpy(&x, &a, 4);
  memcpy(&y, &b, 4);
  x = f(x, y);
  memcpy(&a, &x, 4);
  return a;
}
__device__ inline uint32_t add_bf16(uint32_t a, uint32_t b) {
  return of_pairs(a, b, [](auto x, auto y) { return __hadd2_rn(x, y); });
}
__device__ inline uint32_t times_bf16(uint32_t a, uint32_t b) {
  return of_pairs(a, b, [](auto x, auto y) { return __hmul2_rn(x, y); });
}

template <int kEights>
struct HeldX {
  uint4 at[kHeldChunks][kEights];

  // Of rows that x has not, the last one's.
  static __device__ int row_of(int n, int m) {
    return min(8 * n + static_cast<int>(threadIdx.x % 32 / 4), m - 1);
  }
  __device__ void take(Rows<const Bf16> x, int m, int k) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const Bf16* row = x[row_of(n, m)];
#pragma unroll
      for (int j = 0; j < kHeldChunks; ++j) {
        const int c = held_column(j);
        at[j][n] = c < k ? load16(row + c) : uint4{};
      }
    }
  }
  // The norm but for its factor; the warp's sums of squares to [kWarps][kMatvecMmaRows].
  __device__ void norm(const MatvecNorm& norm, int m, int k, const HeldGain& gain, float* squares) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const int r = row_of(n, m);
      const Bf16 *a = norm.a[r], *b = norm.b ? norm.b[r] : nullptr;
      uint4 more[kHeldChunks] = {};
#pragma unroll
      for (int j = 0; j < kHeldChunks; ++j) {
        const int c = held_column(j);
        at[j][n] = c < k ? load16(a + c) : uint4{};
        if (b != nullptr && c < k) more[j] = load16(b + c);
      }
      float diagonal[2][4] = {};
#pragma unroll
      for (int j = 0; j < kHeldChunks; ++j) {
        uint4& v = at[j][n];
        if (b != nullptr)
          v = {add_bf16(v.x, more[j].x), add_bf16(v.y, more[j].y), add_bf16(v.z, more[j].z),
               add_bf16(v.w, more[j].w)};
        mma_bf16(diagonal[0], {v.x, 0, v.y, 0}, {v.x, v.y});
        mma_bf16(diagonal[1], {v.z, 0, v.w, 0}, {v.z, v.w});
        const int c = held_column(j);
        if (norm.sum && blockIdx.x == 0 && 8 * n + g < m && c < k)
          *reinterpret_cast<uint4*>(norm.sum[r] + c) = v;
        v = {times_bf16(v.x, gain.at[j].x), times_bf16(v.y, gain.at[j].y),
             times_bf16(v.z, gain.at[j].z), times_bf16(v.w, gain.at[j].w)};
      }
      // Row g of the diagonal is with one of its four lanes.
      if (t == g / 2)
        squares[threadIdx.x / 32 * kMatvecMmaRows + 8 * n + g] =
            g % 2 == 0 ? diagonal[0][0] + diagonal[1][0] : diagonal[0][1] + diagonal[1][1];
    }
  }
};

// Of row r, when all warps have made their squares.
__device__ inline float held_factor(const MatvecNorm& norm, int r, const float* squares) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < PlainWeights::kWarps; ++w) sum += squares[w * kMatvecMmaRows + r];
  return rsqrtf(fmaf(sum, norm.inverse, norm.eps));
}

}  // namespace wick::cuda
