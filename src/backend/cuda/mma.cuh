// SPDX-License-Identifier: Apache-2.0
// The tensor core of every card since 8.0, in bf16 with f32 sums.
#pragma once

#include "backend/cuda/device.cuh"

namespace wick::cuda {

// d += a b for a [16, 16], b [16, 8]. With g = lane / 4, t = lane % 4:
//   a  (g, 2t..) (g+8, 2t..) (g, 2t+8..) (g+8, 2t+8..), pairs along k
//   b  (2t.., g) (2t+8.., g), pairs along k;   d  (g, 2t..) (g+8, 2t..)
__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same for a [16, 8], b [8, 8] in tf32:
//   a  (g, t) (g+8, t) (g, t+4) (g+8, t+4);   b  (t, g) (t+4, g)
__device__ inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline uint32_t to_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}
__device__ inline uint32_t pack_bf16(Bf16 low, Bf16 high) {
  const __nv_bfloat162 both(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

// Four 8 x 8 matrices of shared memory, each turned; lane l gives row l % 8 of matrix l / 8.
__device__ inline void load_turned(uint32_t (&r)[4], const Bf16* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Two of them, by lanes 0 to 15.
__device__ inline void load_turned(uint32_t (&r)[2], const Bf16* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address));
}

}  // namespace wick::cuda
