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
constexpr int kSkinnyCluster = 8;  // blocks that share k
constexpr int kSpreadCols = 32;    // of y that a warp makes at once

enum class SkinnyKind : int { kNarrow, kTurned, kWide };

// y [M, N] (+)= alpha * h b, h being columns [column, column + r) of a block's tile.
struct Spread {
  const float* b = nullptr;
  Bf16* y = nullptr;
  int64_t b_ld = 0, y_ld = 0, n = 0;
  int r = 0, column = 0, first_chunk = 0;  // of kSpreadCols, counted over the problem's spreads
  float alpha = 1.0f;
  bool accumulate = false, by_rank = false;
};

// kNarrow  y [M, R] = a b, and its spreads, which read what it makes
// kTurned  y = aᵀ b
// kWide    its one spread, h being a [M, R]
struct SkinnyProblem {
  SkinnyKind kind = SkinnyKind::kNarrow;
  const void *a = nullptr, *b = nullptr;
  void* y = nullptr;
  int64_t a_ld = 0, b_ld = 0, y_ld = 0, m = 0, k = 0;
  int r = 0, first_block = 0;
  int splits = 1;  // blocks that share k: 1 or kSkinnyCluster
  int parts = 1;   // blocks that share the columns of the spreads; 1 where splits is not
  int first_spread = 0, spreads = 0, chunks = 0;
  float alpha = 1.0f;
  bool accumulate = false, by_rank = false;
  bool b_aligned = false;  // kTurned: 16 bytes of b's rows are copied at once

  template <typename T>
  __device__ const T* a_row(int64_t i) const {
    return static_cast<const T*>(a) + i * a_ld;
  }
  template <typename T>
  __device__ const T* b_row(int64_t i) const {
    return static_cast<const T*>(b) + i * b_ld;
  }
  template <typename T>
  __device__ T* y_row(int64_t i) const {
    return static_cast<T*>(y) + i * y_ld;
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
  static constexpr int bytes(bool turned) {
    return turned ? std::max(kStagesBytes, kSumsBytes) : kSumsBytes;
  }
};

// The warps' sums of RT tiles of 16 rows, in the order of the warps, into tile [16 * RT][kLd].
template <int Tiles, int RT>
__device__ void sum_warps(const float (&sums)[RT][Tiles][4], float* warp_sums, float* tile) {
  using S = SkinnyShape<Tiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float* own = warp_sums + warp * 16 * S::kCols;
#pragma unroll
  for (int rt = 0; rt < RT; ++rt) {
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
      float* at = own + g * S::kCols + 8 * j + 2 * t;
      *reinterpret_cast<float2*>(at) = {sums[rt][j][0], sums[rt][j][1]};
      *reinterpret_cast<float2*>(at + 8 * S::kCols) = {sums[rt][j][2], sums[rt][j][3]};
    }
    __syncthreads();
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
__device__ void sum_blocks(const SkinnyProblem& p, int split, const float* tile, int rows,
                           Put put) {
  using S = SkinnyShape<Tiles>;
  const bool cluster = p.splits > 1;
  if (cluster) cluster_barrier();
  for (int i = split * kSkinnyThreads + threadIdx.x; i < rows * S::kCols;
       i += p.splits * kSkinnyThreads) {
    const int row = i / S::kCols, rank = i % S::kCols;
    const float* at = tile + row * S::kLd + rank;
    float sum = 0;
    if (cluster) {
      float parts[kSkinnyCluster];
#pragma unroll
      for (int s = 0; s < kSkinnyCluster; ++s) parts[s] = cluster_load(at, s);
#pragma unroll
      for (int s = 0; s < kSkinnyCluster; ++s) sum += parts[s];
    } else {
      sum = *at;
    }
    put(row, rank, sum);
  }
  if (cluster) cluster_barrier();  // until then the others' shared memory is read
}

// The spreads of rows [m0, m0 + 16 * RT) from their tile of h, with tf32 for b. A warp has 32
// columns; within them, column 8 (n / 2) + 2 j + n % 2 is column n of the tensor core's product j,
// so that a lane's four products are eight neighbours in y.
template <int Tiles, int RT>
__device__ void spread_rows(const SkinnyGroup& group, const SkinnyProblem& p, int64_t m0, int part,
                            const float* h) {
  using S = SkinnyShape<Tiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int at = p.first_spread;
  for (int chunk = part * kSkinnyWarps + warp; chunk < p.chunks; chunk += p.parts * kSkinnyWarps) {
    while (at + 1 < p.first_spread + p.spreads && group.spread[at + 1].first_chunk <= chunk) ++at;
    const Spread& s = group.spread[at];
    const int64_t n0 = static_cast<int64_t>(chunk - s.first_chunk) * kSpreadCols;
    const bool inside = n0 + 8 * t < s.n;
    Pack<Bf16, 8> old[RT][2];
#pragma unroll
    for (int rt = 0; rt < RT; ++rt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = m0 + 16 * rt + 8 * half + g;
        if (s.accumulate && inside && row < p.m)
          old[rt][half] = load<8>(s.y + row * s.y_ld + n0 + 8 * t);
      }
    uint32_t fb[Tiles][4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t col = n0 + 8 * (g / 2) + 2 * j + g % 2;
#pragma unroll
      for (int k = 0; k < Tiles; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int rank = 8 * k + 4 * i + t;
          const bool real = rank < s.r && col < s.n;
          fb[k][j][i] =
              real ? to_tf32(s.by_rank ? s.b[rank * s.b_ld + col] : s.b[col * s.b_ld + rank]) : 0;
        }
    }
#pragma unroll
    for (int rt = 0; rt < RT; ++rt) {
      float sums[4][4] = {};
#pragma unroll
      for (int k = 0; k < Tiles; ++k) {
        if (8 * k >= s.r) break;
        uint32_t fa[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int rank = s.column + 8 * k + 4 * (i / 2) + t;
          const float x = rank < S::kCols ? h[(16 * rt + 8 * (i % 2) + g) * S::kLd + rank] : 0.0f;
          fa[i] = __float_as_uint(x);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_tf32(sums[j], fa, fb[k][j]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = m0 + 16 * rt + 8 * half + g;
        if (!inside || row >= p.m) continue;
        Pack<Bf16, 8> made;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float x = s.alpha * sums[i / 2][2 * half + i % 2];
          made.at[i] = from_f32<Bf16>(s.accumulate ? x + to_f32(old[rt][half].at[i]) : x);
        }
        store(s.y + row * s.y_ld + n0 + 8 * t, made);
      }
    }
  }
}

// y [M, R] = a b. A block makes 16 * RT rows; its warps, and the blocks of its cluster, share out k
// in pieces of 32. Within a piece a lane takes 8 neighbours of k: which k meets which slot of the
// tensor core does not matter, as long as a and b agree.
template <int Tiles, int RT>
__device__ void narrow(const SkinnyGroup& group, const SkinnyProblem& p, int block, char* shared) {
  using S = SkinnyShape<Tiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int split = block % p.splits, part = block % p.parts;
  const int64_t m0 = static_cast<int64_t>(block / (p.splits * p.parts)) * 16 * RT;
  if (m0 >= p.m) return;
  float sums[RT][Tiles][4] = {};
#pragma unroll(RT == 1 ? 2 : 1)
  for (int64_t k0 = (split * kSkinnyWarps + warp) * 32; k0 < p.k;
       k0 += p.splits * kSkinnyWarps * 32) {
    const int64_t at = k0 + 8 * t;
    const bool inside = at < p.k;
    Pack<Bf16, 8> x[RT][2];
#pragma unroll
    for (int rt = 0; rt < RT; ++rt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = m0 + 16 * rt + 8 * half + g;
        x[rt][half] = Pack<Bf16, 8>{};
        if (inside && row < p.m) x[rt][half] = load<8>(p.a_row<Bf16>(row) + at);
      }
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
      if (8 * j >= p.r) break;
      const int col = 8 * j + g;
      float w[8] = {};
      if (inside && col < p.r) {
        if (p.by_rank) {
          const float* row = p.b_row<float>(col) + at;
          const Pack<float, 4> w0 = load<4>(row), w1 = load<4>(row + 4);
#pragma unroll
          for (int i = 0; i < 4; ++i) w[i] = w0.at[i], w[4 + i] = w1.at[i];
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) w[i] = p.b_row<float>(at + i)[col];
        }
      }
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const uint32_t fb[2] = {pack_bf16(w[i], w[i + 1]), pack_bf16(w[i + 2], w[i + 3])};
#pragma unroll
        for (int rt = 0; rt < RT; ++rt) {
          const Bf16 *low = x[rt][0].at + i, *high = x[rt][1].at + i;
          const uint32_t fa[4] = {pack_bf16(low[0], low[1]), pack_bf16(high[0], high[1]),
                                  pack_bf16(low[2], low[3]), pack_bf16(high[2], high[3])};
          mma_bf16(sums[rt][j], fa, fb);
        }
      }
    }
  }
  auto* warp_sums = reinterpret_cast<float*>(shared);
  float* tile = warp_sums + S::kWarpSums;
  sum_warps<Tiles, RT>(sums, warp_sums, tile);
  sum_blocks<Tiles>(p, split, tile, 16 * RT, [&](int row, int rank, float sum) {
    const bool real = m0 + row < p.m && rank < p.r;
    float x = p.alpha * sum;
    Bf16* at = p.y_row<Bf16>(m0 + row) + rank;
    if (real && p.accumulate) x += to_f32(*at);
    const Bf16 made = from_f32<Bf16>(x);
    if (real && part == 0) *at = made;
    if (p.spreads > 0) tile[row * S::kLd + rank] = real ? to_f32(made) : 0.0f;
  });
  if (p.spreads == 0) return;
  __syncthreads();
  spread_rows<Tiles, RT>(group, p, m0, part, tile);
}

template <int Tiles, int RT>
__device__ void wide(const SkinnyGroup& group, const SkinnyProblem& p, int block, char* shared) {
  using S = SkinnyShape<Tiles>;
  const int64_t m0 = static_cast<int64_t>(block / p.parts) * 16 * RT;
  if (m0 >= p.m) return;
  float* tile = reinterpret_cast<float*>(shared) + S::kWarpSums;
  for (int i = threadIdx.x; i < 16 * RT * S::kCols; i += kSkinnyThreads) {
    const int row = i / S::kCols, rank = i % S::kCols;
    tile[row * S::kLd + rank] =
        m0 + row < p.m && rank < p.r ? to_f32(p.a_row<Bf16>(m0 + row)[rank]) : 0.0f;
  }
  __syncthreads();
  spread_rows<Tiles, RT>(group, p, m0, block % p.parts, tile);
}

// y = aᵀ b. A block makes 64 rows of it, that is 64 columns of a, which its warps, and the blocks
// of its cluster, read in pieces of 16 rows and turn through shared memory.
template <int Tiles>
__device__ void turned(const SkinnyProblem& p, int block, char* shared) {
  using S = SkinnyShape<Tiles>;
  constexpr int kRT = S::kTurnedCols / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = block % p.splits;
  const int64_t m0 = static_cast<int64_t>(block / p.splits) * S::kTurnedCols;
  if (m0 >= p.m) return;
  Bf16* stages = reinterpret_cast<Bf16*>(shared) + warp * S::kStages * S::kStage;
  auto fetch = [&](int64_t k0, int stage) {
    Bf16* to = stages + stage * S::kStage;
#pragma unroll
    for (int i = lane; i < S::kDepth * 8; i += 32) {
      const int row = i / 8, col = i % 8 * 8;
      const bool real = k0 + row < p.k && m0 + col < p.m;
      copy16(to + row * S::kALd + col, p.a_row<Bf16>(real ? k0 + row : 0) + (real ? m0 + col : 0),
             real);
    }
    to += S::kDepth * S::kALd;
    if (p.b_aligned) {
#pragma unroll
      for (int i = lane; i < S::kDepth * Tiles; i += 32) {
        const int row = i / Tiles, col = i % Tiles * 8;
        const bool real = k0 + row < p.k && col < p.r;
        copy16(to + row * S::kBLd + col, p.b_row<Bf16>(real ? k0 + row : 0) + (real ? col : 0),
               real);
      }
    } else {
      for (int i = lane; i < S::kDepth * S::kCols; i += 32) {
        const int row = i / S::kCols, col = i % S::kCols;
        to[row * S::kBLd + col] =
            k0 + row < p.k && col < p.r ? p.b_row<Bf16>(k0 + row)[col] : from_f32<Bf16>(0.0f);
      }
    }
  };
  const int64_t first = (split * kSkinnyWarps + warp) * S::kDepth;
  const int64_t step = static_cast<int64_t>(p.splits) * kSkinnyWarps * S::kDepth;
  float sums[kRT][Tiles][4] = {};
#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i) {
    fetch(first + i * step, i);
    copies_commit();
  }
  int stage = 0;
  for (int64_t k0 = first; k0 < p.k; k0 += step) {
    copies_wait_but<S::kStages - 2>();
    __syncwarp();
    fetch(k0 + (S::kStages - 1) * step, stage == 0 ? S::kStages - 1 : stage - 1);
    copies_commit();
    const Bf16 *left = stages + stage * S::kStage, *right = left + S::kDepth * S::kALd;
    uint32_t fa[kRT][4];
#pragma unroll
    for (int rt = 0; rt < kRT; ++rt)
      load_turned(fa[rt],
                  left + (8 * (lane / 16) + lane % 8) * S::kALd + 16 * rt + 8 * (lane / 8 % 2));
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
      if (8 * j >= p.r) break;
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
  sum_warps<Tiles, kRT>(sums, warp_sums, tile);
  sum_blocks<Tiles>(p, split, tile, S::kTurnedCols, [&](int row, int rank, float sum) {
    if (m0 + row >= p.m || rank >= p.r) return;
    float* at = p.by_rank ? p.y_row<float>(rank) + m0 + row : p.y_row<float>(m0 + row) + rank;
    *at = p.alpha * sum + (p.accumulate ? *at : 0.0f);
  });
}

// Asks for rows of parameters, which no kernel of the same graph writes: they are on their way
// while the kernel before this one still runs.
__device__ inline void fetch_rows(const float* first, int64_t ld, int64_t rows, int64_t cols) {
  constexpr int64_t kMost = 1 << 20;  // bytes
  const int64_t width = cols * 4, lines = (width + 127) / 128;
  if (rows * width > kMost) return;
  for (int64_t i = threadIdx.x; i < rows * lines; i += kSkinnyThreads) {
    const char* at =
        reinterpret_cast<const char*>(first + i / lines * ld) + min(i % lines * 128, width - 4);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

template <int Tiles, int RT>
__global__ void __launch_bounds__(kSkinnyThreads, Tiles == 8 ? 1 : 2)
    skinny_kernel(const __grid_constant__ SkinnyGroup group) {
  extern __shared__ __align__(16) char shared[];
  int i = group.count - 1;
  while (group.at[i].first_block > static_cast<int>(blockIdx.x)) --i;
  const SkinnyProblem& p = group.at[i];
  const int block = static_cast<int>(blockIdx.x) - p.first_block;
  if (block == 0) {
    if (p.kind == SkinnyKind::kNarrow)
      fetch_rows(static_cast<const float*>(p.b), p.b_ld, p.by_rank ? p.r : p.k,
                 p.by_rank ? p.k : p.r);
    for (int s = p.first_spread; s < p.first_spread + p.spreads; ++s) {
      const Spread& to = group.spread[s];
      fetch_rows(to.b, to.b_ld, to.by_rank ? to.r : to.n, to.by_rank ? to.n : to.r);
    }
  }
  begin_kernel();
  if (p.kind == SkinnyKind::kNarrow)
    narrow<Tiles, RT>(group, p, block, shared);
  else if (p.kind == SkinnyKind::kTurned)
    turned<Tiles>(p, block, shared);
  else
    wide<Tiles, RT>(group, p, block, shared);
}

}  // namespace wick::cuda
