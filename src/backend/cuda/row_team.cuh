// SPDX-License-Identifier: Apache-2.0
// The threads that share a row which must be seen whole before any of it is written: norms,
// softmax.
//
// A warp owns a row of up to 1,024 columns, a block a longer one; up to 8,192 columns a row is read
// once and kept in registers, every operand asked for before the first is used.
#pragma once

#include "backend/cuda/wide.cuh"

namespace wick::cuda {

// Of a block whose warps have a row each. Kernels of up to kFewBlocks leave multiprocessors free,
// where the next one's blocks start early; beyond that, and for rows that are few, small blocks.
constexpr int kLeastRows = 4, kMostRows = 16, kFewBlocks = 64;
constexpr int kMostBlockThreads = 512;  // of a block that owns a row

// The threads that own one row, and the columns that each of them has in its registers at once.
template <bool kWarp, int kPacks>
struct Team {
  int64_t row;
  int rank, step;
  __device__ Team()
      : row(kWarp ? static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32
                  : blockIdx.x),
        rank(kWarp ? threadIdx.x % 32 : threadIdx.x),
        step((kWarp ? 32 : static_cast<int>(blockDim.x)) * kWide) {}
  // Columns of the whole team.
  __device__ int tile() const { return step * kPacks; }
  __device__ int col(int base, int pack) const { return base + rank * kWide + pack * step; }
  __device__ float sum(float x, float* shared) const {
    if constexpr (kWarp)
      return warp_sum(x);
    else
      return block_sum(x, shared);
  }
  __device__ float most(float x, float* shared) const {
    if constexpr (kWarp)
      return warp_max(x);
    else
      return block_max(x, shared);
  }
};

// Floats fill the registers of few rows.
template <typename T, bool kWarp>
constexpr int kTeamThreads = kWarp ? 32 * (sizeof(T) == 2 ? kMostRows : kLeastRows)
                                   : kMostBlockThreads;

// Eight elements as they lie in memory: each is widened where it is used. Kept one by one, halves
// take a register each, and fewer rows are under way at once.
template <typename T>
struct Kept {
  static constexpr int kWords = kWide * static_cast<int>(sizeof(T)) / 4;
  uint32_t word[kWords];

  __device__ float operator[](int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[i]);
    } else if constexpr (std::is_same_v<T, Bf16>) {
      return __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xffff0000u);
    } else {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&word[i / 2]));
      return i % 2 == 0 ? both.x : both.y;
    }
  }
};

template <typename T>
__device__ inline Kept<T> keep(const Wide<T>& v) {
  Kept<T> kept;
#pragma unroll
  for (int i = 0; i < Kept<T>::kWords; ++i) kept.word[i] = reinterpret_cast<const uint32_t*>(&v)[i];
  return kept;
}
template <typename T>
__device__ inline Wide<T> unkeep(const Kept<T>& kept) {
  Wide<T> v;
#pragma unroll
  for (int i = 0; i < Kept<T>::kWords; ++i) reinterpret_cast<uint32_t*>(&v)[i] = kept.word[i];
  return v;
}

template <bool kAligned, bool kWarp, int kPacks, typename T>
__device__ inline void load_packs(const Team<kWarp, kPacks>& team, const T* row, int base, int cols,
                                  Kept<std::remove_const_t<T>> (&v)[kPacks]) {
  using V = std::remove_const_t<T>;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = team.col(base, i);
    v[i] = Kept<V>{};
    if (c >= cols) continue;
    if constexpr (kAligned) {
#pragma unroll
      for (int part = 0; part < Kept<V>::kWords; part += 4) {
        const uint4 four =
            *reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(row + c) + 4 * part);
        v[i].word[part] = four.x;
        v[i].word[part + 1] = four.y;
        v[i].word[part + 2] = four.z;
        v[i].word[part + 3] = four.w;
      }
    } else {
      v[i] = keep(load_wide<false>(row + c, cols - c));
    }
  }
}

// to[c] = value(pack, place in it), of all columns of the team from base on.
template <bool kAligned, bool kWarp, int kPacks, typename T, typename F>
__device__ inline void store_packs(const Team<kWarp, kPacks>& team, T* to, int base, int cols,
                                   const F& value) {
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = team.col(base, i);
    if (c >= cols) break;
    Wide<T> v;
#pragma unroll
    for (int j = 0; j < kWide; ++j) v.set(j, value(i, j));
    store_wide<kAligned>(to + c, cols - c, v);
  }
}

constexpr int kWarpPacks = 4, kBlockPacks = 2;
constexpr int64_t kWarpColumns = 32 * kWide * kWarpPacks;

// f(aligned, warp, packs, blocks, threads): how rows of T are shared out. Rows that start anywhere
// are left to warps that read them twice. Where a row is much arithmetic, few blocks are no gain.
template <typename T, typename F>
void with_team(bool aligned, int64_t rows, int64_t cols, F&& f, bool few_blocks = true) {
  if (rows == 0 || cols == 0) return;
  const bool large = few_blocks && sizeof(T) == 2 && rows > kMostRows * kFewBlocks / 2 &&
                     rows <= int64_t{kMostRows} * kFewBlocks;
  const int each = large ? kMostRows : kLeastRows;
  const auto blocks = static_cast<unsigned>(divide_up(rows, each));
  if (!aligned)
    return f(std::false_type{}, std::true_type{}, std::integral_constant<int, 1>{}, blocks,
             32 * each);
  if (cols <= kWarpColumns)
    return f(std::true_type{}, std::true_type{}, std::integral_constant<int, kWarpPacks>{}, blocks,
             32 * each);
  const int64_t wanted = divide_up(divide_up(cols, kWide * kBlockPacks), 32) * 32;
  f(std::true_type{}, std::false_type{}, std::integral_constant<int, kBlockPacks>{},
    static_cast<unsigned>(rows),
    static_cast<int>(wanted < kMostBlockThreads ? wanted : kMostBlockThreads));
}

}  // namespace wick::cuda
