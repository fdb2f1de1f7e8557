// SPDX-License-Identifier: Apache-2.0
// A warp's part of attend.cuh's attention: the heads of one row that share a kv head against some
// keys, 16 at a time, by the tensor cores without shared memory. Which column of a head stands in
// which place of a product does not matter as long as both sides agree, so a lane takes its keys,
// values and q in pieces of 16 bytes from where they lie.
//
// With g = lane / 4, t = lane % 4: of keys g and g + 8 columns 8t.. of every 32; of the values of
// keys 2t, 2t + 1, 2t + 8, 2t + 9 columns 8g.. of every 64. So sums come as columns 16t.. of every
// 64, of head g: there are 8 at most.
//
// A part may also be made by four warps (kQuarter), each of which makes the scores and then two of
// every eight columns: code that runs once costs a warp as many cycles as it has instructions,
// times seven.
#pragma once

#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/matvec_weights.cuh"

namespace wick::cuda {

constexpr int kAttendKeys = 16;

// From the second-level cache; stays where it stands among other loads and waits.
__device__ inline uint4 load_now(const Bf16* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ inline uint32_t load_word_now(const Bf16* p) {
  uint32_t v;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

// mma_bf16() where the lower half of a is zeros.
__device__ inline void mma_bf16_upper(float (&d)[2], uint32_t a0, uint32_t a2, uint32_t b0,
                                      uint32_t b1) {
  [[maybe_unused]] float unused0, unused1;
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%5}, {%7,%8}, "
      "{%0,%1,%9,%9};"
      : "+f"(d[0]), "+f"(d[1]), "=f"(unused0), "=f"(unused1)
      : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1), "f"(0.0f));
}

// Keys [first, stop) of a cache.
struct KeyPart {
  int first, stop;
};

// `quarter`: of a kQuarter, which.
template <int E, bool kQuarter>
struct KeyBlock {
  static_assert(!kQuarter || E == 64);
  using Values = std::conditional_t<kQuarter, uint32_t, uint4>;
  uint4 k[2][E / 32];
  Values v[4][E / 64];

  static __device__ int key_of_k(int j0, int stop, int i) {
    return min(j0 + 8 * i + static_cast<int>(threadIdx.x % 32 / 4), stop - 1);
  }
  static __device__ int key_of_v(int j0, int stop, int i) {
    return min(j0 + static_cast<int>(threadIdx.x % 4) * 2 + i / 2 * 8 + i % 2, stop - 1);
  }
  // Of columns `column` on of the caches; keys behind `stop` are the last one's.
  __device__ void take(Rows<const Bf16> cache_k, Rows<const Bf16> cache_v, int column, int j0,
                       int stop, int quarter) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Bf16* row = cache_k[key_of_k(j0, stop, i)] + column + 8 * t;
#pragma unroll
      for (int j = 0; j < E / 32; ++j) k[i][j] = load_now(row + 32 * j);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Bf16* row = cache_v[key_of_v(j0, stop, i)] + column + 8 * g;
#pragma unroll
      for (int j = 0; j < E / 64; ++j)
        if constexpr (kQuarter)
          v[i][j] = load_word_now(row + 2 * quarter);
        else
          v[i][j] = load_now(row + 64 * j);
    }
  }
  // Key `key`, if it is among these, is the one in shared memory.
  __device__ void replace(int key, const Bf16* new_k, const Bf16* new_v, int j0, int stop,
                          int quarter) {
    if (key < j0 || key >= min(j0 + kAttendKeys, stop)) return;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (key_of_k(j0, stop, i) == key)
#pragma unroll
        for (int j = 0; j < E / 32; ++j) k[i][j] = load16(new_k + 32 * j + 8 * t);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (key_of_v(j0, stop, i) == key)
#pragma unroll
        for (int j = 0; j < E / 64; ++j)
          if constexpr (kQuarter)
            v[i][j] = *reinterpret_cast<const uint32_t*>(new_v + 8 * g + 2 * quarter);
          else
            v[i][j] = load16(new_v + 64 * j + 8 * g);
  }
};

// The running maximum, total and sums of head g.
template <int E, bool kQuarter>
struct HeadSums {
  float at[kQuarter ? 2 : E / 8][2] = {};
  float most = -INFINITY, total = 0.0f;

  __device__ void add(const KeyBlock<E, kQuarter>& block, const uint4 (&q)[E / 32], int j0,
                      int stop, float scale2) {
    const int t = threadIdx.x % 4;
    float s[2][2] = {};
#pragma unroll
    for (int j = 0; j < E / 32; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4& k = block.k[i][j];
        mma_bf16_upper(s[i], q[j].x, q[j].y, k.x, k.y);
        mma_bf16_upper(s[i], q[j].z, q[j].w, k.z, k.w);
      }
    float top = most;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (j0 + 8 * i + 2 * t + e >= stop) s[i][e] = -INFINITY;
        top = fmaxf(top, s[i][e]);
      }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top * scale2;
    const float factor = exp2_fast(fmaf(most, scale2, -base));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        s[i][e] = exp2_fast(fmaf(s[i][e], scale2, -base));
        sum += s[i][e];
      }
    total = fmaf(total, factor, sum);
    most = top;
    const uint32_t p[2] = {pack_bf16(s[0][0], s[0][1]), pack_bf16(s[1][0], s[1][1])};
    // Columns n of every eight: words of two of them, of four keys.
    auto add_values = [&](float(&to)[2], int n, uint32_t v0, uint32_t v1, uint32_t v2,
                          uint32_t v3) {
      const unsigned pick = n % 2 == 0 ? 0x5410 : 0x7632;
      to[0] *= factor;
      to[1] *= factor;
      mma_bf16_upper(to, p[0], p[1], __byte_perm(v0, v1, pick), __byte_perm(v2, v3, pick));
    };
#pragma unroll
    for (int j = 0; j < E / 64; ++j) {
      const auto &v0 = block.v[0][j], &v1 = block.v[1][j], &v2 = block.v[2][j], &v3 = block.v[3][j];
      if constexpr (kQuarter) {
#pragma unroll
        for (int n = 0; n < 2; ++n) add_values(at[n], n, v0, v1, v2, v3);
      } else {
        const uint32_t words[4][4] = {{v0.x, v0.y, v0.z, v0.w},
                                      {v1.x, v1.y, v1.z, v1.w},
                                      {v2.x, v2.y, v2.z, v2.w},
                                      {v3.x, v3.y, v3.z, v3.w}};
#pragma unroll
        for (int n = 0; n < 8; ++n)
          add_values(at[8 * j + n], n, words[0][n / 2], words[1][n / 2], words[2][n / 2],
                     words[3][n / 2]);
      }
    }
  }

  // The whole total, when all keys have been added.
  __device__ void finish() {
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
  }
};

}  // namespace wick::cuda
