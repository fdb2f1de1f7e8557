// SPDX-License-Identifier: Apache-2.0
// attention backward: what four warps do with two fixed tiles and the tiles that stream past them.
// Fixed are k and v of 64 keys, or q and dy of 64 rows; streamed are the others.
#pragma once

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_mma.cuh"

namespace wick::cuda {

constexpr int kBwdStep = 32;  // streamed rows at a time

template <int E_, int Blocks_>
struct BwdShape {
  static constexpr int E = E_, kTile = kAttentionBlock * (E + 8);
  static constexpr bool kRegisters = E <= 64;  // the fixed tiles' fragments are kept
  static constexpr bool kApart = E > 128;      // dk and dv need a pass each
  static constexpr int kMinBlocks = Blocks_;
  static constexpr size_t kStatBytes = 1024;  // lse, delta, low of a stage's rows
  static constexpr size_t kStageBytes = sizeof(Bf16) * 2 * kTile + kStatBytes;
  static constexpr size_t kBytes = sizeof(Bf16) * 2 * kTile + 2 * kStageBytes;
};

// What streams past the fixed tiles: two tiles, and (for blocks of keys) their rows' statistics.
template <class C>
struct Stage {
  Bf16 *first, *second;
  float *lse, *delta;
  int* low;
  __device__ Stage(unsigned char* shared, int i) {
    unsigned char* at = shared + sizeof(Bf16) * 2 * C::kTile + i * C::kStageBytes;
    first = reinterpret_cast<Bf16*>(at);
    second = first + C::kTile;
    lse = reinterpret_cast<float*>(second + C::kTile);
    delta = lse + kAttentionBlock;
    low = reinterpret_cast<int*>(delta + kAttentionBlock);
  }
};

// s becomes p = exp2(scale2 * s - lse), 0 where a row does not see a key. The thread's rows of the
// fixed tile are `row` and row + 8, its columns of the streamed one `col`, col + 1, col + 8 n and
// so on; fixed0 and streamed0 are the tiles' places among keys and queries. `lse` and `low` belong
// to the streamed rows (Keys), or are those of the thread's two rows.
template <bool Keys, int N>
__device__ __forceinline__ void make_probabilities(float (&s)[N][4], int row, int col, int fixed0,
                                                   int streamed0, bool masked, float scale2,
                                                   const float* lse, const int* low) {
  if (masked)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = row + i / 2 * 8, c = col + n * 8 + i % 2;
        const int t = Keys ? streamed0 + c : fixed0 + r, key = Keys ? fixed0 + r : streamed0 + c;
        if (key > t || key < low[Keys ? c : i / 2]) s[n][i] = -INFINITY;
      }
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float2 pair = Keys ? *reinterpret_cast<const float2*>(lse + col + n * 8) : float2{};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float of = Keys ? (i % 2 ? pair.y : pair.x) : lse[i / 2];
      s[n][i] = exp2_fast(fmaf(s[n][i], scale2, -of));
    }
  }
}
// dp becomes ds = p * (dp - delta).
template <bool Keys, int N>
__device__ __forceinline__ void make_gradients(float (&dp)[N][4], const float (&p)[N][4], int col,
                                               const float* delta) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float2 pair = Keys ? *reinterpret_cast<const float2*>(delta + col + n * 8) : float2{};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      dp[n][i] = p[n][i] * (dp[n][i] - (Keys ? (i % 2 ? pair.y : pair.x) : delta[i / 2]));
  }
}

// A warp's 16 rows of the fixed tiles (k, v or q, dy) against 32 rows of a stage's (q, dy or k, v):
//   s = fixed1 streamed1ᵀ,  dp = fixed2 streamed2ᵀ
//   sums1 += ds streamed1,  sums2 += p streamed2
// `Keys`: fixed rows are keys, streamed ones are queries. With1, With2: which sums there are.
template <class C, bool Keys, bool With1, bool With2>
struct Warp {
  static constexpr int E = C::E, kSteps = E / 16;
  const Bf16 *fixed1, *fixed2;
  int row0, lane;
  uint32_t left1[C::kRegisters ? kSteps : 1][4], left2[C::kRegisters ? kSteps : 1][4];
  float sums1[With1 ? E / 8 : 1][4], sums2[With2 ? E / 8 : 1][4];

  __device__ Warp(unsigned char* shared) {
    fixed1 = reinterpret_cast<Bf16*>(shared);
    fixed2 = fixed1 + C::kTile;
    row0 = threadIdx.x / 32 * 16;
    lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < (With1 ? E / 8 : 1); ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums1[n][i] = 0.0f;
#pragma unroll
    for (int n = 0; n < (With2 ? E / 8 : 1); ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums2[n][i] = 0.0f;
  }
  // Once the fixed tiles have arrived.
  __device__ __forceinline__ void keep_fixed() {
    if constexpr (C::kRegisters) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        load_left<E>(left1[k], fixed1, row0, k * 16);
        load_left<E>(left2[k], fixed2, row0, k * 16);
      }
    }
  }
  __device__ __forceinline__ void multiply_transposed(
      float (&to)[4][4], const uint32_t (&kept)[C::kRegisters ? kSteps : 1][4], const Bf16* fixed,
      const Bf16* streamed, int first) const {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t left[4];
      if constexpr (C::kRegisters) {
#pragma unroll
        for (int i = 0; i < 4; ++i) left[i] = kept[k][i];
      } else {
        load_left<E>(left, fixed, row0, k * 16);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t right[4];
        load_right_transposed<E>(right, streamed, first + n * 16, k * 16);
        multiply_add(to[2 * n], left, right[0], right[1]);
        multiply_add(to[2 * n + 1], left, right[2], right[3]);
      }
    }
  }
  __device__ __forceinline__ void multiply(float (&to)[E / 8][4], const float (&left_sums)[4][4],
                                           const Bf16* streamed, int first) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t left[4];
      left_of_sums(left, left_sums[2 * k], left_sums[2 * k + 1]);
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        uint32_t right[4];
        load_right<E>(right, streamed, first + k * 16, n * 16);
        multiply_add(to[2 * n], left, right[0], right[1]);
        multiply_add(to[2 * n + 1], left, right[2], right[3]);
      }
    }
  }
  // Rows [first, first + 32) of the stage.
  __device__ __forceinline__ void step(const Stage<C>& stage, int first, int fixed0, int streamed0,
                                       bool masked, float scale2, const float* lse,
                                       const float* delta, const int* low, bool want1, bool want2) {
    float s[4][4] = {}, dp[4][4] = {};
    multiply_transposed(s, left1, fixed1, stage.first, first);
    const bool want_ds = With1 && want1;
    if (want_ds) multiply_transposed(dp, left2, fixed2, stage.second, first);
    const int row = row0 + lane / 4, col = first + lane % 4 * 2;
    make_probabilities<Keys>(s, row, col, fixed0, streamed0, masked, scale2, lse, low);
    if (want_ds) make_gradients<Keys>(dp, s, col, delta);
    if constexpr (With2)
      if (want2) multiply(sums2, s, stage.second, first);
    if constexpr (With1)
      if (want1) multiply(sums1, dp, stage.first, first);
  }
};

}  // namespace wick::cuda
