// SPDX-License-Identifier: Apache-2.0
// Tensor-core products of bf16 tiles in shared memory (sm_80 and up): m16n8k16, f32 sums.
//
// A tile has rows of E elements, E + 8 apart: an odd number of 16-byte chunks, so that the eight
// rows of a matrix load lie in different banks. Fragments, with g = lane / 4 and q = lane % 4:
//   sums       x[0..1] row g, columns 2q and 2q + 1; x[2..3] row g + 8
//   left       16 x 16, right 16 (depth) x 8 (columns)
#pragma once

#include "backend/cuda/shared.cuh"

namespace wick::cuda {

// Of the `Threads` threads of set `set` of `Sets`. The barriers' numbers are constants, because a
// block with a computed one is given all sixteen.
template <int Threads, int Sets, int Set = 0>
__device__ inline void set_barrier(int set) {
  static_assert(Sets < 16);
  if constexpr (Threads == 32)
    __syncwarp();
  else if constexpr (Sets == 1)
    __syncthreads();
  else if (set == Set || Set == Sets - 1)
    asm volatile("bar.sync %0, %1;\n" ::"n"(1 + Set), "n"(Threads) : "memory");
  else if constexpr (Set < Sets - 1)
    set_barrier<Threads, Sets, Set + 1>(set);
}

// Where 8 columns of a tile of R rows begin: rows E + 8 apart, or swizzled panels of 64 columns
// (attention_wgmma.cuh).
template <int E, int R, bool Swizzled>
__device__ inline int tile_offset(int row, int chunk) {
  if constexpr (Swizzled)
    return chunk / 8 * (R * 64) + row * 64 + (chunk % 8 ^ row % 8) * 8;
  else
    return row * (E + 8) + chunk * 8;
}
// Rows [first, first + R) of E columns at `from` into a tile, by `Threads` threads of which this is
// `thread`; zeros for rows outside [low, high).
template <int E, int R, int Threads, bool Swizzled = false>
__device__ inline void copy_tile(Bf16* to, const Bf16* from, int64_t ld, int first, int low,
                                 int high, int thread) {
  constexpr int kChunks = E / 8, kCount = R * kChunks / Threads;
  static_assert(R * kChunks % Threads == 0);
  if constexpr (Threads % kChunks == 0) {
    constexpr int kStep = Threads / kChunks;
    const int row0 = thread / kChunks, chunk = thread % kChunks;
    const Bf16* p = from + (first + row0) * ld + chunk * 8;
#pragma unroll
    for (int i = 0; i < kCount; ++i, p += kStep * ld) {
      const int row = row0 + i * kStep;
      copy16(to + tile_offset<E, R, Swizzled>(row, chunk), p,
             first + row >= low && first + row < high);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = i * Threads + thread, row = at / kChunks, chunk = at % kChunks;
      copy16(to + tile_offset<E, R, Swizzled>(row, chunk), from + (first + row) * ld + chunk * 8,
             first + row >= low && first + row < high);
    }
  }
}

__device__ inline void load_matrices(uint32_t (&x)[4], const Bf16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(p))
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&x)[4], const Bf16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(p))
               : "memory");
}
// The left fragment of rows [row, row + 16) and columns [col, col + 16) of a tile.
template <int E>
__device__ inline void load_left(uint32_t (&x)[4], const Bf16* tile, int row, int col) {
  const int lane = threadIdx.x % 32;
  load_matrices(x, tile + (row + lane % 16) * (E + 8) + col + lane / 16 * 8);
}
// Two right fragments, x[0..1] and x[2..3], of the tile's transpose: columns are the tile's rows
// [row, row + 16), depth its columns [col, col + 16).
template <int E>
__device__ inline void load_right_transposed(uint32_t (&x)[4], const Bf16* tile, int row, int col) {
  const int lane = threadIdx.x % 32;
  load_matrices(x, tile + (row + lane / 16 * 8 + lane % 8) * (E + 8) + col + lane / 8 % 2 * 8);
}
// Two right fragments, x[0..1] and x[2..3]: depth is rows [row, row + 16), columns [col, col + 16).
template <int E>
__device__ inline void load_right(uint32_t (&x)[4], const Bf16* tile, int row, int col) {
  const int lane = threadIdx.x % 32;
  load_matrices_transposed(x, tile + (row + lane % 16) * (E + 8) + col + lane / 16 * 8);
}

__device__ inline void multiply_add(float (&sums)[4], const uint32_t (&left)[4], uint32_t right0,
                                    uint32_t right1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

__device__ inline uint32_t pack2(float low, float high) {
  const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(x);
}
// Sums of 16 rows and 16 columns, rounded, as a left fragment of depth 16.
__device__ inline void left_of_sums(uint32_t (&x)[4], const float (&a)[4], const float (&b)[4]) {
  x[0] = pack2(a[0], a[1]);
  x[1] = pack2(a[2], a[3]);
  x[2] = pack2(b[0], b[1]);
  x[3] = pack2(b[2], b[3]);
}

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLog2E = 1.44269504088896340736f, kLn2 = 0.69314718055994530942f;

// Calls f(std::integral_constant<int, E>) for the head sizes that the mma kernels are built for.
template <typename F>
bool with_head_dim(int64_t dim, F&& f) {
  switch (dim) {
    case 64:
      return f(std::integral_constant<int, 64>{});
    case 80:
      return f(std::integral_constant<int, 80>{});
    case 96:
      return f(std::integral_constant<int, 96>{});
    case 128:
      return f(std::integral_constant<int, 128>{});
    case 256:
      return f(std::integral_constant<int, 256>{});
    default:
      return false;
  }
}

}  // namespace wick::cuda
