// SPDX-License-Identifier: Apache-2.0
// Pieces of gated_sums.cu: how the work is shared out, a lane's share of it, small products with
// its elements, sums over the columns of a block.
#pragma once

#include <algorithm>

#include "backend/cuda/mma.cuh"
#include "backend/cuda/shared.cuh"

namespace wick::cuda::gated {

constexpr int kRows = 16, kCols = 32, kTile = kRows * kCols;  // of a warp's step
constexpr int kRanks = 16;                                    // of an adapter, at most
constexpr int kLeastWarps = 4, kMostWarps = 9;

// How the work is shared out, by sizes alone.
struct Shares {
  int warps = 0;
  int64_t stripes = 0, chunks = 0, chunk = 0;  // chunk: rows of a block
};

inline Shares share(int64_t tokens, int64_t cols, int sms) {
  const int64_t steps = divide_up(tokens, kRows);
  Shares best;
  int64_t least = 0;
  for (int warps = kLeastWarps; warps <= kMostWarps; ++warps) {
    const int64_t stripes = divide_up(cols, kCols * warps);
    const int64_t wanted = std::clamp<int64_t>(sms / stripes, 1, steps);
    const int64_t each = divide_up(steps, wanted), chunks = divide_up(steps, each);
    // A step takes some time however few warps there are.
    const int64_t cost = divide_up(stripes * chunks, sms) * each * (6 + warps);
    if (best.warps == 0 || cost <= least) {
      best = {warps, stripes, chunks, each * kRows};
      least = cost;
    }
  }
  return best;
}

using Eight = Pack<uint32_t, 4>;  // neighbours of a row, as pairs

__device__ __forceinline__ float2 unpack(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ __forceinline__ float2& two(float* p) { return *reinterpret_cast<float2*>(p); }
__device__ __forceinline__ Eight& eight(Bf16* p) { return *reinterpret_cast<Eight*>(p); }

// Where 8 columns of a row of a tile lie: rows of 64 bytes, so that neither a lane's accesses nor
// the rows of a matrix load meet in a bank.
__device__ __forceinline__ int place(int row, int eighth) {
  return row * kCols + (eighth ^ row / 2 % 4) * 8;
}

// Of a warp's three tiles to the next one's: the same row of both lies in different banks.
constexpr int kTiles = 3 * kTile + kCols;

// The block's share of the work, and the lane's.
struct Share {
  int warp, lane, g, t, warps, stripe, chunk;
  int col;         // the lane's first
  int begin, end;  // rows
  bool inside;     // whether its columns are there
  __device__ Share(int stripes, int tokens, int chunk_rows, int cols)
      : warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        g(lane / 4),
        t(lane % 4),
        warps(static_cast<int>(blockDim.x) / 32),
        stripe(static_cast<int>(blockIdx.x) % stripes),
        chunk(static_cast<int>(blockIdx.x) / stripes),
        col((stripe * warps + warp) * kCols + 8 * t),
        begin(chunk * chunk_rows),
        end(min(tokens, begin + chunk_rows)),
        inside(col < cols) {}
  __device__ int steps() const { return (end - begin + kRows - 1) / kRows; }
};

// How the block's threads copy a step's rows of a wide matrix: neighbours copy neighbours, so that
// memory sees long stretches of a row. A thread has 8 columns of two rows, 8 apart.
struct Copier {
  int row, col;  // of the matrix: within a step; a column that can be read
  int at;        // in the block's tiles
  bool inside;
  __device__ Copier(const Share& s, int cols) {
    const int in_row = 4 * s.warps, chunk = static_cast<int>(threadIdx.x) % in_row;
    const int wanted = s.stripe * s.warps * kCols + 8 * chunk;
    row = static_cast<int>(threadIdx.x) / in_row;
    col = min(wanted, cols - 8);
    inside = wanted < cols;
    at = chunk / 4 * kTiles + place(row, chunk % 4);
  }
};

// d[j] += h b for 16 ranks, in tf32: column n of tile j is the warp's 8 (n / 2) + 2 j + n % 2,
// which is the lane's own pair j, and slots t and t + 4 of step s are ranks 4 t + 2 s and the next.
__device__ __forceinline__ void widen(float (&d)[4][4], const Bf16* h, int ld,
                                      const uint32_t (&b)[4][2][2]) {
  const int lane = threadIdx.x % 32;
  float x[2][4];  // of rows g and g + 8
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Pack<uint32_t, 2> at =
        *reinterpret_cast<const Pack<uint32_t, 2>*>(h + (lane / 4 + 8 * i) * ld + 4 * (lane % 4));
    const float2 low = unpack(at.at[0]), high = unpack(at.at[1]);
    x[i][0] = low.x, x[i][1] = low.y, x[i][2] = high.x, x[i][3] = high.y;
  }
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const uint32_t fa[4] = {__float_as_uint(x[0][2 * s]), __float_as_uint(x[1][2 * s]),
                            __float_as_uint(x[0][2 * s + 1]), __float_as_uint(x[1][2 * s + 1])};
#pragma unroll
    for (int j = 0; j < 4; ++j) mma_tf32(d[j], fa, b[j][s]);
  }
}
// What widen() wants of a parameter, from its element of this column and rank.
template <typename At>
__device__ __forceinline__ void load_wide_b(uint32_t (&b)[4][2][2], const Share& s, int cols,
                                            int ranks, const At& at) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int col = s.col - 8 * s.t + 8 * (s.g / 2) + 2 * j + s.g % 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int rank = 4 * s.t + i;
      b[j][i / 2][i % 2] = col < cols && rank < ranks ? to_tf32(at(col, rank)) : 0;
    }
  }
}

// sums[j] += x b for the warp's columns and 16 ranks, x as pairs of rows g and g + 8.
__device__ __forceinline__ void narrow(float (&sums)[2][4], const uint32_t (&x)[2][4],
                                       const uint32_t (&b)[2][2][2]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const uint32_t fa[4] = {x[0][2 * c], x[1][2 * c], x[0][2 * c + 1], x[1][2 * c + 1]};
#pragma unroll
    for (int j = 0; j < 2; ++j) mma_bf16(sums[j], fa, b[c][j]);
  }
}
// What narrow() wants: slots of half c are the lane's columns 4 c to 4 c + 3.
template <typename At>
__device__ __forceinline__ void load_narrow_b(uint32_t (&b)[2][2][2], const Share& s, int ranks,
                                              const At& at) {
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int col = s.col + 4 * c + 2 * i, rank = 8 * j + s.g;
        b[c][j][i] = s.inside && rank < ranks ? pack_bf16(at(col, rank), at(col + 1, rank)) : 0;
      }
}

// Sums of 16 rows over the block's columns: each warp puts its own, [warp][row][kLd], and after a
// barrier all add them up.
template <int Count>  // of 16 ranks
struct RowSums {
  static constexpr int kLd = Count == 1 ? 24 : 40, kFloats = kRows * kLd;
  static_assert(Count * kRanks < kLd && kLd % 32 % 16 == 8);  // four rows in different banks

  __device__ static void put(float* to, int which, const float (&sums)[2][4]) {
    const int lane = threadIdx.x % 32;
    to += lane / 4 * kLd + kRanks * which + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        two(to + 8 * i * kLd + 8 * j) = {sums[j][2 * i], sums[j][2 * i + 1]};
  }
  // store(row, which, rank, sum of this rank and the next)
  template <typename Store>
  __device__ static void add(const float* from, int warps, const Store& store) {
    constexpr int kInRow = Count * kRanks / 2;
#pragma unroll 1
    for (int e = threadIdx.x; e < kRows * kInRow; e += blockDim.x) {
      const int row = e / kInRow, rank = e % kInRow * 2;
      float2 total{};
#pragma unroll
      for (int w = 0; w < kMostWarps; ++w) {
        if (w >= warps) continue;
        const float2 more = *reinterpret_cast<const float2*>(from + w * kFloats + row * kLd + rank);
        total.x += more.x, total.y += more.y;
      }
      store(row, rank / kRanks, rank % kRanks, total);
    }
  }
};

// Rows of `Count` narrow matrices side by side, 16 ranks each: [row][kLd].
template <int Count>
struct Narrow {
  static constexpr int kLd = kRanks * Count + 8, kElements = kRows * kLd;
  struct From {
    const Bf16* data = nullptr;
    int ld = 0, ranks = 0;
  };
  // By the block's last warp: a lane has half a row of each.
  __device__ static void fetch(Bf16* to, const From (&from)[Count], int m0, int end) {
    if (threadIdx.x / 32 != blockDim.x / 32 - 1) return;
    const int lane = threadIdx.x % 32, row = lane / 2, half = lane % 2 * 8;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const bool real = m0 + row < end && half < from[i].ranks;
      const Bf16* at = from[i].data + static_cast<int64_t>(m0 + row) * from[i].ld + half;
      copy16(to + row * kLd + kRanks * i + half, real ? at : from[i].data, real);
    }
  }
};

}  // namespace wick::cuda::gated
