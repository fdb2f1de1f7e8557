// SPDX-License-Identifier: Apache-2.0
// attention forward: the shapes of its blocks, and what a warp does with a block of keys.
#pragma once

#include "backend/cuda/attention_wgmma.cuh"

namespace wick::cuda {

// What a block is: consecutive rows of a head, whose products are made by warps or by warp groups,
// or the heads of a row that is decoded.
enum class TileKind { kRows, kGroups, kDecode };

// E columns; a warp has MT times 16 rows, a set WM warps, a block WK sets; blocks of BN keys.
template <int E_, int MT_, int WM_, int WK_, int BN_, int Blocks_, TileKind Kind_ = TileKind::kRows>
struct FwdShape {
  static constexpr int E = E_, MT = MT_, WM = WM_, WK = WK_, BN = BN_, kMinBlocks = Blocks_;
  static constexpr bool kDecode = Kind_ == TileKind::kDecode, kGroups = Kind_ == TileKind::kGroups;
  static_assert(!kGroups || (MT == 1 && WM % 4 == 0 && E % 64 == 0 && BN % 64 == 0));
  static constexpr int kRows = 16 * MT * WM, kThreads = 32 * WM * WK, kSetThreads = 32 * WM;
  static constexpr int kLd = kGroups ? E : E + 8, kTile = BN * kLd;  // of k or v
  static constexpr bool kQShared = MT * E > 128;  // q's fragments do not fit registers
  static constexpr int kQTile = kQShared ? kRows * kLd : 0;
  static constexpr int kSumLd = E + 8;  // rows of sums, whose halves of a warp then differ in banks
  static constexpr size_t kStreamBytes = sizeof(Bf16) * (kQTile + WK * 4 * kTile);
  static constexpr int kJoinRows = WK * kRows;
  static constexpr size_t kJoinBytes = sizeof(float) * kJoinRows * (kSumLd + 2);
  // What the cluster's blocks give each other lies apart: they are not in step.
  static constexpr size_t kOwnBytes = kStreamBytes > kJoinBytes ? kStreamBytes : kJoinBytes;
  static constexpr size_t kGivenBytes = sizeof(float) * kRows * (kSumLd + 2) + 16;
  static constexpr size_t kBytes = kOwnBytes + (kDecode ? kGivenBytes : 0);
};

// The scores of a warp's rows become probabilities; totals and sums are scaled to the new maxima.
template <class C>
__device__ __forceinline__ void soften(float (&s)[C::BN / 8][4], float (&sums)[C::E / 8][4],
                                       float (&most)[2], float (&total)[2], const int (&low)[2],
                                       const int (&high)[2], bool masked, int j0, float scale2) {
  const int q = threadIdx.x % 4;
  if (masked)
#pragma unroll
    for (int n = 0; n < C::BN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = j0 + n * 8 + q * 2 + i % 2;
        if (key < low[i / 2] || key >= high[i / 2]) s[n][i] = -INFINITY;
      }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = most[half];
#pragma unroll
    for (int n = 0; n < C::BN / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top * scale2;
    const float factor = exp2_fast(fmaf(most[half], scale2, -base));
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < C::BN / 8; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        s[n][i] = exp2_fast(fmaf(s[n][i], scale2, -base));
        sum += s[n][i];
      }
    total[half] = fmaf(total[half], factor, sum);
    most[half] = top;
#pragma unroll
    for (int n = 0; n < C::E / 8; ++n) {
      sums[n][2 * half] *= factor;
      sums[n][2 * half + 1] *= factor;
    }
  }
}

// s = q kᵀ for a warp's rows and a block of keys.
template <class C, int Q1, int Q2>
__device__ __forceinline__ void scores(float (&s)[C::MT][C::BN / 8][4],
                                       const uint32_t (&q)[Q1][Q2][4], const Bf16* q_tile,
                                       const Bf16* k_tile, int row0) {
  constexpr int E = C::E, MT = C::MT;
  if constexpr (C::kGroups) {
    group_begin();
#pragma unroll
    for (int n = 0; n < C::BN / 64; ++n)
#pragma unroll
      for (int k = 0; k < E / 16; ++k)
        group_multiply<true>(&s[0][n * 8], q[0][k],
                             panel(k_tile + k / 4 * (C::BN * 64) + n * 64 * 64 + k % 4 * 16),
                             k > 0);
    group_commit();
    group_wait<0>();
    group_done(s[0]);
  } else {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
      for (int n = 0; n < C::BN / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[mt][n][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < E / 16; ++k) {
      uint32_t left[MT][4];
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) {
        if constexpr (C::kQShared) {
          load_left<E>(left[mt], q_tile, row0 + mt * 16, k * 16);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) left[mt][i] = q[mt][k][i];
        }
      }
#pragma unroll
      for (int n = 0; n < C::BN / 16; ++n) {
        uint32_t right[4];
        load_right_transposed<E>(right, k_tile, n * 16, k * 16);
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) {
          multiply_add(s[mt][2 * n], left[mt], right[0], right[1]);
          multiply_add(s[mt][2 * n + 1], left[mt], right[2], right[3]);
        }
      }
    }
  }
}

// sums += p v
template <class C>
__device__ __forceinline__ void add_values(float (&sums)[C::MT][C::E / 8][4],
                                           const float (&p)[C::MT][C::BN / 8][4],
                                           const Bf16* v_tile) {
  constexpr int E = C::E, MT = C::MT;
  if constexpr (C::kGroups) {
    uint32_t left[C::BN / 16][4];
#pragma unroll
    for (int k = 0; k < C::BN / 16; ++k) left_of_sums(left[k], p[0][2 * k], p[0][2 * k + 1]);
    group_begin();
#pragma unroll
    for (int k = 0; k < C::BN / 16; ++k)
#pragma unroll
      for (int n = 0; n < E / 64; ++n)
        group_multiply<false>(&sums[0][n * 8], left[k],
                              panel(v_tile + n * (C::BN * 64) + k * 16 * 64), true);
    group_commit();
    group_wait<0>();
    group_done(sums[0]);
  } else {
#pragma unroll
    for (int k = 0; k < C::BN / 16; ++k) {
      uint32_t left[MT][4];
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) left_of_sums(left[mt], p[mt][2 * k], p[mt][2 * k + 1]);
#pragma unroll
      for (int n = 0; n < E / 16; ++n) {
        uint32_t right[4];
        load_right<E>(right, v_tile, k * 16, n * 16);
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) {
          multiply_add(sums[mt][2 * n], left[mt], right[0], right[1]);
          multiply_add(sums[mt][2 * n + 1], left[mt], right[2], right[3]);
        }
      }
    }
  }
}

// Which of a warp's block of keys, from j0 on, the launch before may write: asked before the kernel
// waits, and copied once more behind that. Of up to 32 kEach rows.
template <class C, int kEach>
struct NewKeys {
  int row[kEach];  // of the lane
  uint32_t among[kEach];

  __device__ NewKeys(const int32_t* rows, int count, int j0, int stop) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      row[i] = 32 * i + lane < count ? __ldcg(rows + 32 * i + lane) : -1;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      among[i] = __ballot_sync(0xffffffffu, row[i] >= j0 && row[i] < min(j0 + C::BN, stop));
  }
  __device__ void copy(Rows<const Bf16> k, Rows<const Bf16> v, int kv, int j0, Bf16* k_tile) const {
    constexpr int kChunks = C::E / 8;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      for (uint32_t left = among[i]; left != 0; left &= left - 1) {
        const int key = __shfl_sync(0xffffffffu, row[i], __ffs(static_cast<int>(left)) - 1);
        copies_wait();  // of what was asked for too early
        __syncwarp();
        for (int c = static_cast<int>(threadIdx.x) % 32; c < 2 * kChunks; c += 32) {
          const int chunk = c % kChunks;
          const int at = tile_offset<C::E, C::BN, C::kGroups>(key - j0, chunk);
          copy16(k_tile + (c < kChunks ? 0 : C::kTile) + at,
                 (c < kChunks ? k : v)[key] + kv * C::E + chunk * 8, true);
        }
      }
  }
};

}  // namespace wick::cuda
