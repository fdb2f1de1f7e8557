// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that copies complete, and the copies: whole rows at a time, without
// a thread's registers or its queue of loads; and what blocks of a cluster give each other. On
// cards before 9.0 a warp copies piece by piece.
#pragma once

#include "backend/cuda/shared.cuh"

namespace wick::cuda {

using CopyBarrier = uint64_t;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kCopyArrivals = 32;
#else
constexpr int kCopyArrivals = 1;
#endif

__device__ inline void barrier_init(CopyBarrier* b, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals)
               : "memory");
}
// Between barrier_init() and the first copy.
__device__ inline void barriers_ready() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ inline void barrier_arrive(CopyBarrier* b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Until the phase of this parity is complete.
__device__ inline void barrier_wait(CopyBarrier* b, int parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(b)), "r"(parity)
        : "memory");
  }
}

// Of the barrier's phase: arrives and says how many bytes bulk copies will bring (sm_90).
__device__ inline void barrier_expect(CopyBarrier* b, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)),
               "r"(bytes)
               : "memory");
#endif
}
// The cluster's block `rank`: how far its shared memory lies from this one's.
struct Neighbour {
  uint32_t distance;
  __device__ explicit Neighbour(int rank) {
    extern __shared__ __align__(128) uint8_t any[];
    distance = cluster_address(any, rank) - shared_address(any);
  }
  __device__ uint32_t at(const void* p) const { return shared_address(p) + distance; }
};
// Stores to the shared memory of a neighbour that complete as many bytes of its barrier `b`
// (sm_90). All blocks must have started and made their barriers ready.
__device__ inline void cluster_give(float* p, const Neighbour& to, float x, CopyBarrier* b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to.at(p)),
      "r"(__float_as_uint(x)), "r"(to.at(b))
      : "memory");
#endif
}
__device__ inline void cluster_give(uint2* p, const Neighbour& to, uint2 x, CopyBarrier* b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::"r"(
          to.at(p)),
      "r"(x.x), "r"(x.y), "r"(to.at(b))
      : "memory");
#endif
}
__device__ inline void cluster_give(float* p, const Neighbour& to, const Pack<float, 4>& x,
                                    CopyBarrier* b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::
          "r"(to.at(p)),
      "r"(__float_as_uint(x.at[0])), "r"(__float_as_uint(x.at[1])), "r"(__float_as_uint(x.at[2])),
      "r"(__float_as_uint(x.at[3])), "r"(to.at(b))
      : "memory");
#endif
}

// A bulk copy of a multiple of 16 bytes (sm_90).
__device__ inline void copy_bulk(uint8_t* to, const uint8_t* from, int bytes, CopyBarrier* b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(b))
      : "memory");
#endif
}
// Asks for the same into the second-level cache.
__device__ inline void ask_bulk(const uint8_t* from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// A warp copies `rows` <= 32 rows of `bytes` each, a multiple of 16, to rows `to_ld` bytes apart;
// lane i gives where row i begins. Completes a phase of `b`, which has kCopyArrivals.
__device__ inline void copy_rows(uint8_t* to, int to_ld, const uint8_t* from, int rows, int bytes,
                                 CopyBarrier* b) {
  const int lane = threadIdx.x % 32;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (lane == 0) barrier_expect(b, rows * bytes);
  __syncwarp();
  if (lane < rows) copy_bulk(to + lane * to_ld, from, bytes, b);
#else
  for (int r = 0; r < rows; ++r) {
    const auto* row = reinterpret_cast<const uint8_t*>(
        __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(from), r));
    for (int i = lane * 16; i < bytes; i += 512) copy16(to + r * to_ld + i, row + i, true);
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(b))
               : "memory");
#endif
}

// How many clusters of so many blocks of `kernel` the card can have at once (sm_90).
template <typename... Params>
int clusters_at_once(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, int cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  return cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess ? count : 0;
}

// Among the block's first `threads` threads.
template <int Threads>
__device__ inline void barrier_of_first() {
  asm volatile("bar.sync 1, %0;" ::"n"(Threads) : "memory");
}

}  // namespace wick::cuda
