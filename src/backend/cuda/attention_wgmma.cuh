// SPDX-License-Identifier: Apache-2.0
// Tensor-core products by warp groups of 4 warps (sm_90a): m64nNk16, f32 sums. Nothing here does
// anything in code for other cards.
//
// A tile of R rows lies as panels of 64 columns, rows of 128 bytes whose 16-byte chunks are
// swizzled (chunk c of row r at c ^ r % 8); panels start at multiples of 1024 bytes. Warp w of a
// group has rows 16 w of the left operand and of the sums, laid out as in attention_mma.cuh.
#pragma once

#include "backend/cuda/attention_mma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WICK_WGMMA
#endif

namespace wick::cuda {

// What was copied or stored to shared memory becomes visible to products; before the barrier.
__device__ inline void group_publish() {
#ifdef WICK_WGMMA
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}
// Before the first product that touches registers that other code wrote.
__device__ inline void group_begin() {
#ifdef WICK_WGMMA
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}
__device__ inline void group_commit() {
#ifdef WICK_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}
// Until all but the last `Left` commits are done.
template <int Left>
__device__ inline void group_wait() {
#ifdef WICK_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(Left) : "memory");
#endif
}
// After a wait: keeps the compiler from reading the sums before it.
template <int N>
__device__ __forceinline__ void group_done(float (&d)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[n][i])::"memory");
}

// Describes the panel rows from `p` on. As a left operand, or a right one whose columns are the
// panel's rows: p is advanced by 16 elements for the next 16 of the depth. As a right operand whose
// depth is the panel's rows (Transposed = false below): p is advanced by 16 rows.
__device__ inline uint64_t panel_at(uint32_t address) {
  constexpr uint64_t kEightRows = 1024 >> 4, kSwizzle128 = 1;
  return (address & 0x3ffff) >> 4 | uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}
__device__ inline uint64_t panel(const Bf16* p) { return panel_at(shared_address(p)); }

// d[8][4] (+)= left * right, 64 columns: left from registers, right a panel, whose rows are the
// columns (Transposed) or the depth.
template <bool Transposed>
__device__ __forceinline__ void group_multiply(float (*d)[4], const uint32_t (&left)[4],
                                               uint64_t right, bool add) {
#ifdef WICK_WGMMA
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(int{add}),
        "n"(int{!Transposed}));
#endif
}

// The same with left a panel too and right one whose rows are the columns.
__device__ __forceinline__ void group_multiply_64(float (*d)[4], uint64_t left, uint64_t right,
                                                  bool add) {
#ifdef WICK_WGMMA
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "l"(left), "l"(right), "r"(int{add}));
#endif
}

}  // namespace wick::cuda
