// SPDX-License-Identifier: Apache-2.0
// The kernel of skinny.h: a launch is a list of problems, a block makes a part of one of them.
//
// Sums run in an order that sizes alone decide: a warp's stretches of k, then the warps of a block,
// then the blocks of a cluster, which read each other's shared memory. How many rows a block makes
// does not change an element's bits.
#pragma once

#include <algorithm>

#include "backend/cuda/mma.cuh"
#include "backend/cuda/shared.cuh"

namespace wick::cuda {

constexpr int kSkinnyWarps = 8, kSkinnyThreads = 32 * kSkinnyWarps;
constexpr int kSkinnyCluster = 8;  // blocks of a cluster; those that share k are in one
constexpr int kSpreadCols = 256;   // of y that a block makes at once
constexpr int kMadeLd = kSpreadCols + 8;

enum class SkinnyKind : int { kNarrow, kTurned, kWide };

// y [M, N] (+)= alpha * h b, h being columns [column, column + r) of a block's tile.
struct Spread {
  const float* b = nullptr;
  Bf16* y = nullptr;
  int rank_step = 0, column_step = 0;  // of b, from a rank or a column to the next
  int y_ld = 0, n = 0, r = 0, column = 0;
  int first_chunk = 0;  // of kSpreadCols, counted over the problem's spreads
  float alpha = 1.0f;
  bool accumulate = false;
  bool vectors = false;  // four neighbours of b lie aligned, whichever they are
};

// kNarrow  y [M, R] = a b, and its spreads, which read what it makes
// kTurned  y = aᵀ b
// kWide    its one spread, h being a [M, R]
struct SkinnyProblem {
  SkinnyKind kind = SkinnyKind::kNarrow;
  const void *a = nullptr, *b = nullptr;
  void* y = nullptr;
  int a_ld = 0, b_ld = 0, y_ld = 0, m = 0, k = 0, r = 0, first_block = 0;
  int blocks = 0, tile_rows = 0;  // of y, a block's
  int64_t b_bytes = 0;            // kNarrow: what lies at b
  int splits = 1;                 // blocks that share k: a divisor of kSkinnyCluster
  int parts = 1;  // blocks that share the columns of the spreads; 1 where splits is not
  int first_spread = 0, spreads = 0, chunks = 0;
  float alpha = 1.0f;
  bool accumulate = false, by_rank = false;
  // kTurned: 16 bytes of b's rows are copied at once; kNarrow: four ranks of b are loaded at once;
  // kWide: eight of h.
  bool b_aligned = false;

  template <typename T>
  __device__ const T* a_row(int i) const {
    return static_cast<const T*>(a) + static_cast<int64_t>(i) * a_ld;
  }
  template <typename T>
  __device__ const T* b_row(int i) const {
    return static_cast<const T*>(b) + static_cast<int64_t>(i) * b_ld;
  }
  template <typename T>
  __device__ T* y_row(int i) const {
    return static_cast<T*>(y) + static_cast<int64_t>(i) * y_ld;
  }
};

struct SkinnyGroup {
  static constexpr int kMost = 12;
  SkinnyProblem at[kMost];
  Spread spread[kMost];
  int count = 0, spread_count = 0;
};

// Of the kernel for ranks up to 8 * Tiles.
template <int Tiles>
struct SkinnyShape {
  static constexpr int kCols = 8 * Tiles;
  static constexpr int kLd = kCols + 4;  // of a tile of sums: rows in different banks
  // kTurned: a warp's stage has kDepth rows of 64 columns of a, and of b.
  static constexpr int kDepth = 16, kTurnedCols = 64, kALd = kTurnedCols + 8,
                       kBLd = 8 * (Tiles | 1), kStages = Tiles == 8 ? 2 : 3;
  static constexpr int kStage = kDepth * (kALd + kBLd);
  static constexpr int kStagesBytes =
      kSkinnyWarps * kStages * kStage * static_cast<int>(sizeof(Bf16));
  static constexpr int kWarpSums = kSkinnyWarps * 16 * kCols;  // floats
  static constexpr int kSumsBytes = (kWarpSums + 64 * kLd) * static_cast<int>(sizeof(float));
  static constexpr int bytes(int row_tiles, bool turned, bool spreads) {
    const int made = spreads ? 16 * row_tiles * kMadeLd * static_cast<int>(sizeof(float)) : 0;
    return std::max(turned ? kStagesBytes : 0, kSumsBytes + made);
  }
};

// The warps' sums of RT tiles of 16 rows, in the order of the warps, into tile [16 * RT][kLd].
// Column n of the tensor core's tile j is rank 8 j + n or, Mixed, Tiles * n + j.
template <int Tiles, int RT, bool Mixed>
__device__ void sum_warps(const float (&sums)[RT][Tiles][4], float* warp_sums, float* tile) {
  using S = SkinnyShape<Tiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float* own = warp_sums + warp * 16 * S::kCols;
#pragma unroll
  for (int rt = 0; rt < RT; ++rt) {
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
      constexpr int kNext = Mixed ? Tiles : 1;
      float* at = own + g * S::kCols + (Mixed ? 2 * Tiles * t + j : 8 * j + 2 * t);
      at[0] = sums[rt][j][0], at[kNext] = sums[rt][j][1];
      at += 8 * S::kCols;
      at[0] = sums[rt][j][2], at[kNext] = sums[rt][j][3];
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < 16 * S::kCols; i += kSkinnyThreads) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < kSkinnyWarps; ++w) total += warp_sums[w * 16 * S::kCols + i];
      tile[(16 * rt + i / S::kCols) * S::kLd + i % S::kCols] = total;
    }
    __syncthreads();
  }
}

// put(row, rank, sum) for what the blocks of a cluster have in their tiles, in their order; each
// block does a share.
template <int Tiles, typename Put>
__device__ __forceinline__ void sum_blocks(int splits, int split, const float* tile, int rows,
                                           Put put) {
  using S = SkinnyShape<Tiles>;
  const int first = static_cast<int>(blockIdx.x) % kSkinnyCluster - split;  // of those that share
  if (splits > 1) cluster_barrier();
#pragma unroll 1
  for (int i = split * kSkinnyThreads + threadIdx.x; i < rows * S::kCols;
       i += splits * kSkinnyThreads) {
    const int row = i / S::kCols, rank = i % S::kCols;
    const float* at = tile + row * S::kLd + rank;
    float sum = 0;
    if (splits > 1) {
      float parts[kSkinnyCluster];
#pragma unroll
      for (int s = 0; s < kSkinnyCluster; ++s)
        parts[s] = s < splits ? cluster_load(at, first + s) : 0.0f;
#pragma unroll
      for (int s = 0; s < kSkinnyCluster; ++s) sum += parts[s];
    } else {
      sum = *at;
    }
    put(row, rank, sum);
  }
  if (splits > 1) cluster_barrier();  // until then the others' shared memory is read
}

// Eight neighbours of y, as pairs: plain words, so that they move in one access.
using Eight = Pack<uint32_t, 4>;
__device__ inline float2 unpack_bf16(uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

// The spreads of rows [m0, m0 + 16 * RT) from their tile of h, with tf32 for b. A block makes 256
// columns at a time, a warp 32 of them; they go through shared memory (`made`, rows of kMadeLd), so
// that a warp touches 512 neighbouring bytes of a row of y.
template <int Tiles, int RT>
__device__ __forceinline__ void spread_rows(const SkinnyGroup& group, const SkinnyProblem& p,
                                            int m0, int part, const float* h, float* made) {
  using S = SkinnyShape<Tiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int at = p.first_spread;
  const int last = p.first_spread + p.spreads - 1;
#pragma unroll 1
  for (int chunk = part; chunk < p.chunks; chunk += p.parts) {
    while (at < last && group.spread[at + 1].first_chunk <= chunk) ++at;
    const Spread& s = group.spread[at];
    const int n0 = (chunk - s.first_chunk) * kSpreadCols, ranks = s.r;
    const int rows = n0 + 8 * lane < s.n ? p.m - m0 - warp : 0;  // whether row i is there: i < rows
    Bf16* y = s.y + static_cast<int64_t>(m0 + warp) * s.y_ld + n0 + 8 * lane;
    const int64_t y_step = static_cast<int64_t>(8) * s.y_ld;
    const bool accumulate = s.accumulate;
    Eight old[2 * RT] = {};
    if (accumulate) {
#pragma unroll
      for (int i = 0; i < 2 * RT; ++i)
        if (8 * i < rows) old[i] = *reinterpret_cast<const Eight*>(y + i * y_step);
    }
    const int col = n0 + 32 * warp + g;
    const int64_t next_eight = static_cast<int64_t>(8) * s.column_step;
    const int64_t next_four = static_cast<int64_t>(4) * s.rank_step;
    const float* b =
        s.b + static_cast<int64_t>(col) * s.column_step + static_cast<int64_t>(t) * s.rank_step;
    const float* left = h + g * S::kLd + s.column + t;
    const int most = S::kCols - s.column - t;  // beyond it lies the next row
    float sums[RT][4][4] = {};
#pragma unroll 1
    for (int k = 0; k < ranks; k += 8) {
      uint32_t fb[4][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const bool real = k + 4 * i + t < ranks && col + 8 * j < s.n;
          fb[j][i] = real ? to_tf32(b[j * next_eight]) : 0;
        }
        b += next_four;
      }
#pragma unroll
      for (int rt = 0; rt < RT; ++rt) {
        uint32_t fa[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int rank = k + 4 * (i / 2);
          fa[i] = rank < most ? __float_as_uint(left[(16 * rt + 8 * (i % 2)) * S::kLd + rank]) : 0;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_tf32(sums[rt][j], fa, fb[j]);
      }
    }
#pragma unroll
    for (int rt = 0; rt < RT; ++rt)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float* to = made + (16 * rt + g) * kMadeLd + 32 * warp + 8 * j + 2 * t;
        *reinterpret_cast<float2*>(to) = {sums[rt][j][0], sums[rt][j][1]};
        *reinterpret_cast<float2*>(to + 8 * kMadeLd) = {sums[rt][j][2], sums[rt][j][3]};
      }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * RT; ++i) {
      if (8 * i >= rows) break;
      const float* from = made + (warp + 8 * i) * kMadeLd + 8 * lane;
      Eight now;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 was = unpack_bf16(old[i].at[j]);
        const float2 x = *reinterpret_cast<const float2*>(from + 2 * j);
        now.at[j] = accumulate ? pack_bf16(s.alpha * x.x + was.x, s.alpha * x.y + was.y)
                               : pack_bf16(s.alpha * x.x, s.alpha * x.y);
      }
      *reinterpret_cast<Eight*>(y + i * y_step) = now;
    }
    __syncthreads();
  }
}

// y [M, R] = a b. A block makes 16 * RT rows; its warps, and the blocks of its cluster, share out k
// in pieces of 32. Within a piece a lane takes 8 neighbours of k: which k meets which slot of the
// tensor core does not matter, as long as a and b agree.
template <int Tiles, int RT>
__device__ __forceinline__ void narrow(const SkinnyProblem& p, int m0, int split, int part,
                                       float* warp_sums, float* tile) {
  using S = SkinnyShape<Tiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rows = p.m - m0 - g, k = p.k, r = p.r, step = p.splits * kSkinnyWarps * 32;
  const int first = (split * kSkinnyWarps + warp) * 32 + 8 * t;
  const int64_t a_step = static_cast<int64_t>(8) * p.a_ld;
  const Bf16* a = p.a_row<Bf16>(m0 + g) + first;
  const bool by_rank = p.by_rank;
  const int64_t column_step = by_rank ? p.b_ld : 1, depth_step = by_rank ? 1 : p.b_ld;
  const float* b = static_cast<const float*>(p.b) + Tiles * g * column_step + first * depth_step;
  constexpr int kPack = Tiles < 4 ? Tiles : 4;
  constexpr int kPieces = Tiles * RT == 1 ? 2 : 1;  // on their way at once
  float sums[RT][Tiles][4] = {};
#pragma unroll 1
  for (int at = first; at - 8 * t < k; at += kPieces * step) {
    uint4 x[kPieces][RT][2];
    float w[kPieces][Tiles][8];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const bool inside = at + piece * step < k;
#pragma unroll
      for (int i = 0; i < 2 * RT; ++i) {
        x[piece][i / 2][i % 2] = uint4{};
        if (inside && 8 * i < rows)
          x[piece][i / 2][i % 2] = *reinterpret_cast<const uint4*>(a + i * a_step);
      }
      if (!by_rank && p.b_aligned) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
          for (int j = 0; j < Tiles; j += kPack) {
            Pack<float, kPack> at{};
            if (inside && Tiles * g + j < r) at = load<kPack>(b + i * depth_step + j);
#pragma unroll
            for (int c = 0; c < kPack; ++c) w[piece][j + c][i] = at.at[c];
          }
      } else {
#pragma unroll
        for (int j = 0; j < Tiles; ++j) {
          const bool real = inside && Tiles * g + j < r;
          const float* from = b + j * column_step;
          if (by_rank) {
            const Pack<float, 4> none{};
            const Pack<float, 4> w0 = real ? load<4>(from) : none,
                                 w1 = real ? load<4>(from + 4) : none;
#pragma unroll
            for (int i = 0; i < 4; ++i) w[piece][j][i] = w0.at[i], w[piece][j][4 + i] = w1.at[i];
          } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) w[piece][j][i] = real ? from[i * depth_step] : 0.0f;
          }
        }
      }
      a += step;
      b += step * depth_step;
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
      for (int j = 0; j < Tiles; ++j) {
        uint32_t fb[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) fb[i] = pack_bf16(w[piece][j][2 * i], w[piece][j][2 * i + 1]);
#pragma unroll
        for (int rt = 0; rt < RT; ++rt) {
          const uint4 low = x[piece][rt][0], high = x[piece][rt][1];
          mma_bf16(sums[rt][j], {low.x, high.x, low.y, high.y}, {fb[0], fb[1]});
          mma_bf16(sums[rt][j], {low.z, high.z, low.w, high.w}, {fb[2], fb[3]});
        }
      }
  }
  sum_warps<Tiles, RT, true>(sums, warp_sums, tile);
  sum_blocks<Tiles>(p.splits, split, tile, 16 * RT, [&](int row, int rank, float sum) {
    const bool real = m0 + row < p.m && rank < r;
    float y = p.alpha * sum;
    Bf16* at = p.y_row<Bf16>(m0 + row) + rank;
    if (real && p.accumulate) y += to_f32(*at);
    const Bf16 made = from_f32<Bf16>(y);
    if (real && part == 0) *at = made;
    if (p.spreads > 0) tile[row * S::kLd + rank] = real ? to_f32(made) : 0.0f;
  });
}

// y = aᵀ b. A block makes 64 rows of it, that is 64 columns of a, which its warps, and the blocks
// of its cluster, read in pieces of 16 rows and turn through shared memory.
template <int Tiles>
__device__ __forceinline__ void turned(const SkinnyProblem& p, int m0, int split, char* shared) {
  using S = SkinnyShape<Tiles>;
  constexpr int kRT = S::kTurnedCols / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Bf16* stages = reinterpret_cast<Bf16*>(shared) + warp * S::kStages * S::kStage;
  const int first = (split * kSkinnyWarps + warp) * S::kDepth;
  const int step = p.splits * kSkinnyWarps * S::kDepth, k = p.k, r = p.r;
  const bool inside = m0 + lane % 8 * 8 < p.m;
  const Bf16* a = p.a_row<Bf16>(first + lane / 8) + m0 + lane % 8 * 8;
  const int64_t a_step = static_cast<int64_t>(4) * p.a_ld;
  // Piece after piece.
  int next = first, to_stage = 0;
  auto fetch = [&] {
    Bf16* to = stages + to_stage * S::kStage;
#pragma unroll
    for (int i = 0; i < S::kDepth / 4; ++i) {
      const bool real = inside && next + lane / 8 + 4 * i < k;
      copy16(to + (lane / 8 + 4 * i) * S::kALd + lane % 8 * 8, real ? a + i * a_step : p.a, real);
    }
    to += S::kDepth * S::kALd;
    if (p.b_aligned) {
#pragma unroll
      for (int i = lane; i < S::kDepth * Tiles; i += 32) {
        const int row = i / Tiles, col = i % Tiles * 8;
        const bool real = next + row < k && col < r;
        copy16(to + row * S::kBLd + col, real ? p.b_row<Bf16>(next + row) + col : p.b, real);
      }
    } else {
#pragma unroll 1
      for (int i = lane; i < S::kDepth * S::kCols; i += 32) {
        const int row = i / S::kCols, col = i % S::kCols;
        to[row * S::kBLd + col] =
            next + row < k && col < r ? p.b_row<Bf16>(next + row)[col] : from_f32<Bf16>(0.0f);
      }
    }
    copies_commit();
    a += static_cast<int64_t>(step) * p.a_ld;
    next += step;
    to_stage = to_stage == S::kStages - 1 ? 0 : to_stage + 1;
  };
  float sums[kRT][Tiles][4] = {};
  int stage = 0;
  // The first turns only fetch.
#pragma unroll 1
  for (int k0 = first - (S::kStages - 1) * step; k0 < k; k0 += step) {
    if (k0 >= first) copies_wait_but<S::kStages - 2>();
    __syncwarp();
    fetch();
    if (k0 < first) continue;
    const Bf16 *left = stages + stage * S::kStage, *right = left + S::kDepth * S::kALd;
    uint32_t fa[kRT][4];
#pragma unroll
    for (int rt = 0; rt < kRT; ++rt)
      load_turned(fa[rt],
                  left + (8 * (lane / 16) + lane % 8) * S::kALd + 16 * rt + 8 * (lane / 8 % 2));
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
      if (8 * j >= r) break;
      uint32_t fb[2];
      load_turned(fb, right + lane % 16 * S::kBLd + 8 * j);
#pragma unroll
      for (int rt = 0; rt < kRT; ++rt) mma_bf16(sums[rt][j], fa[rt], fb);
    }
    stage = stage == S::kStages - 1 ? 0 : stage + 1;
  }
  copies_wait();
  __syncthreads();
  auto* warp_sums = reinterpret_cast<float*>(shared);
  float* tile = warp_sums + S::kWarpSums;
  sum_warps<Tiles, kRT, false>(sums, warp_sums, tile);
  sum_blocks<Tiles>(p.splits, split, tile, S::kTurnedCols, [&](int row, int rank, float sum) {
    if (m0 + row >= p.m || rank >= r) return;
    float* at = p.by_rank ? p.y_row<float>(rank) + m0 + row : p.y_row<float>(m0 + row) + rank;
    *at = p.alpha * sum + (p.accumulate ? *at : 0.0f);
  });
}

// Asks for parameters, which no kernel of the same graph writes: they are on their way while the
// kernel before this one still runs. `bytes` from `first` on, by all blocks of a problem.
__device__ inline void ask_for(const void* first, int64_t bytes, int block, int blocks) {
  const int64_t step = static_cast<int64_t>(blocks) * kSkinnyThreads * 128;
#pragma unroll 1
  for (int64_t at = (static_cast<int64_t>(block) * kSkinnyThreads + threadIdx.x) * 128; at < bytes;
       at += step)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(first) + at));
}

}  // namespace wick::cuda
