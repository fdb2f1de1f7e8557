// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share whose tiles come by the bulk copy engine (sm_90a): a block of
// one group that asks for tiles and two that multiply; tiles of 64 rows in panels of 64 columns.
#pragma once

#include "backend/cuda/attention.h"
#include "backend/cuda/bulk.cuh"

namespace wick::cuda {

constexpr int kBulkGroups = 2;  // that multiply
constexpr int kBulkThreads = 128 * (kBulkGroups + 1);
constexpr int kBulkPanel = 64 * 64 * static_cast<int>(sizeof(Bf16));  // bytes

// The stage that is next, and the parity of its barriers' phase.
template <int Stages>
struct BulkRing {
  int stage = 0, phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// A warp's 16 rows from `row` on, of a tile of 64 rows, as left operands.
template <int Steps>
__device__ __forceinline__ void bulk_left(uint32_t (&x)[Steps][4], uint32_t tile, int row) {
  const int lane = static_cast<int>(threadIdx.x) % 32, r = row + lane % 16;
#pragma unroll
  for (int k = 0; k < Steps; ++k) {
    const int chunk = k % 4 * 2 + lane / 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(x[k][0]), "=r"(x[k][1]), "=r"(x[k][2]), "=r"(x[k][3])
                 : "r"(tile + k / 4 * kBulkPanel + r * 128 + (chunk ^ r % 8) * 16)
                 : "memory");
  }
}

// Pairs in shared memory.
__device__ __forceinline__ void put_pair(uint32_t to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(to), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ float2 get_pair(uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}

// The panel that begins so many bytes after another.
__device__ __forceinline__ uint64_t panel_after(uint64_t panel, int bytes) {
  return panel + static_cast<uint64_t>(bytes >> 4);
}

// Neighbouring bytes: a multiple of 16, aligned to it.
__device__ inline void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t barrier) {
#ifdef WICK_WGMMA
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

template <int Registers>
__device__ inline void bulk_keep_registers() {
#ifdef WICK_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Registers));
#endif
}
template <int Registers>
__device__ inline void bulk_get_registers() {
#ifdef WICK_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Registers));
#endif
}

// What was made of x is made before the next wait for a product, and not after it as the assembler
// would have it: nothing moves over the loop that asks for a phase of `barrier`, which is long
// over.
template <int N>
__device__ __forceinline__ void bulk_made(float (&x)[N][4], uint32_t barrier, int parity) {
  group_done(x);
  barrier_wait(barrier, parity);
}

// Waits for the cluster's other blocks, and for nothing that was written.
__device__ inline void cluster_leave() {
#ifdef WICK_WGMMA
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n" ::
                   : "memory");
#endif
}

// A barrier of the groups that multiply.
template <int Groups = kBulkGroups>
__device__ inline void bulk_meet() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(128 * Groups) : "memory");
}

}  // namespace wick::cuda
