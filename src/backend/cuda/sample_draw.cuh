// SPDX-License-Identifier: Apache-2.0
// What sample_draw.cu is made of: weights and random numbers as backend/draw.h has them, and what
// the blocks of a row share.
#pragma once

#include "backend/cuda/random.cuh"
#include "backend/cuda/sample.cuh"
#include "backend/cuda/shared.cuh"

namespace wick::cuda {

constexpr int kDrawThreads = 512, kDrawWarps = kDrawThreads / 32;
constexpr int kFewBlocks = 8, kMostBlocks = 16;
constexpr int64_t kFewLogits = 32768;  // of a row that few blocks take
constexpr uint32_t kAllLanes = 0xffffffffu;
// Of weights: an octave (a power of two) has 128 buckets; those below DrawArgs::least are one.
constexpr uint32_t kLeastWeight = 0x00800000u, kOneWeight = 0x3f800000u;
constexpr int kBucketBits = 16, kMostOctaves = 24, kSmallBits = 30;
constexpr int kGroup = 32,
              kGroups = ((kMostOctaves << 23 >> kBucketBits) + 2 + kGroup - 1) / kGroup;
constexpr int kBuckets = kGroups * kGroup, kFineBits = 11;
constexpr int kFew = 256;  // weights of a bucket that are looked at one by one
static_assert(4 * kGroups <= kDrawThreads && kGroups <= 128 && 1 << kFineBits <= kBuckets);

// exp_negative() of backend/draw.h, to the bit.
__device__ inline float weight_of(float x) {
  const float clamped = -__int_as_float(min(__float_as_int(x) & 0x7fffffff, 0x42b00000));
  const float n = __fsub_rn(__fadd_rn(__fmul_rn(clamped, 1.44269504f), 12582912.0f), 12582912.0f);
  const float r =
      __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
  p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
  return __fmul_rn(p, __int_as_float((static_cast<int>(n) + 127) << 23));
}

// random_draw().where of backend/draw.h
__device__ inline double where_of(uint2 key, uint32_t position) {
  const uint4 c = random_words(key, position, 0);
  const uint64_t bits = static_cast<uint64_t>(c.y) << 32 | c.z;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

struct alignas(16) Tally {
  uint64_t mass;
  uint32_t count;
};
__device__ inline Tally operator+(Tally a, Tally b) { return {a.mass + b.mass, a.count + b.count}; }
__device__ inline Tally up(Tally x, int by) {
  return {__shfl_up_sync(kAllLanes, x.mass, by), __shfl_up_sync(kAllLanes, x.count, by)};
}
__device__ inline Tally across(Tally x, int by) {
  return {__shfl_xor_sync(kAllLanes, x.mass, by), __shfl_xor_sync(kAllLanes, x.count, by)};
}
// Of the lanes up to this one.
__device__ inline Tally warp_scan(Tally x) {
  for (int o = 1; o < 32; o *= 2) {
    const Tally y = up(x, o);
    if (static_cast<int>(threadIdx.x % 32) >= o) x = x + y;
  }
  return x;
}

struct Bucket {
  uint32_t count, sum, carry;  // carries of the sum
};

struct DrawShared {
  alignas(16) uint32_t count[kBuckets], sum[kBuckets], carry[kBuckets];  // of this block
  Tally groups[kMostBlocks][kGroups];
  uint64_t shares[kMostBlocks * kDrawWarps];
  uint32_t most[kMostBlocks * kDrawWarps];
  Tally warps[4], above, inside;
  int group, bucket;
  uint32_t listed[2], lists[2][kMostBlocks];  // of two filters: keys of this block, of each
  uint64_t list[2][kFew];
  uint64_t keys[kFew], masses[kFew];  // of all blocks
  uint64_t cut, kept;
  double where;
};

__device__ inline uint64_t key_of(uint32_t bits, int id) {
  return static_cast<uint64_t>(bits) << 32 | ~static_cast<uint32_t>(id);
}

// Numbers in order; 0 for what is none, or minus infinity.
__device__ inline uint32_t order_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (!(x > -INFINITY)) return 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float ordered(uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

// ---- shared memory of the cluster's block `rank`

__device__ inline void give(uint32_t* p, int rank, uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(cluster_address(p, rank)), "r"(x)
               : "memory");
#else
  *p = x;
#endif
}
__device__ inline void give(uint64_t* p, int rank, uint64_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(cluster_address(p, rank)), "l"(x)
               : "memory");
#else
  *p = x;
#endif
}
__device__ inline void give(Tally* p, int rank, Tally x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v2.u64 [%0], {%1, %2};" ::"r"(cluster_address(p, rank)),
               "l"(x.mass), "l"(static_cast<uint64_t>(x.count))
               : "memory");
#else
  *p = x;
#endif
}
__device__ inline uint64_t peek(const uint64_t* p, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint64_t x;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(x) : "r"(cluster_address(p, rank)));
  return x;
#else
  return *p;
#endif
}
__device__ inline Bucket peek(const DrawShared& s, int bucket, int rank) {
  Bucket x;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  auto at = [&](const uint32_t* p) {
    uint32_t y;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(y) : "r"(cluster_address(p, rank)));
    return y;
  };
  x = {at(s.count + bucket), at(s.sum + bucket), at(s.carry + bucket)};
#else
  x = {s.count[bucket], s.sum[bucket], s.carry[bucket]};
#endif
  return x;
}

}  // namespace wick::cuda
