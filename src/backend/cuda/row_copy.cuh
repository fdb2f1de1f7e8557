// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that copies complete, and the copies: whole rows at a time, without
// a thread's registers or its queue of loads. On cards before 9.0 a warp copies piece by piece.
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

// A warp copies `rows` <= 32 rows of `bytes` each, a multiple of 16, to rows `to_ld` bytes apart;
// lane i gives where row i begins. Completes a phase of `b`, which has kCopyArrivals.
__device__ inline void copy_rows(uint8_t* to, int to_ld, const uint8_t* from, int rows, int bytes,
                                 CopyBarrier* b) {
  const int lane = threadIdx.x % 32;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (lane == 0)
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(rows * bytes)
                 : "memory");
  __syncwarp();
  if (lane < rows)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to + lane * to_ld)),
        "l"(from), "r"(bytes), "r"(shared_address(b))
        : "memory");
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

// Among the block's first `threads` threads.
template <int Threads>
__device__ inline void barrier_of_first() {
  asm volatile("bar.sync 1, %0;" ::"n"(Threads) : "memory");
}

}  // namespace wick::cuda
