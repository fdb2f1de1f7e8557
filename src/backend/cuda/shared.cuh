// SPDX-License-Identifier: Apache-2.0
// Shared memory: how much of it a kernel gets, copies into it, and that of a cluster's other blocks
// (sm_90 and up; in code for other cards those functions do nothing).
#pragma once

#include "backend/cuda/device.cuh"

namespace wick::cuda {

// Lets `kernel` have `bytes` of shared memory. False where the card has not that much.
template <typename Kernel>
bool allow_shared(Kernel* kernel, size_t bytes) {
  if (bytes <= size_t{48} << 10) return true;
  int device = 0, most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
             cudaSuccess &&
         bytes <= static_cast<size_t>(most) &&
         cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes)) == cudaSuccess;
}

// Kernels that all want the largest part of a multiprocessor's memory as shared memory lie on it
// side by side; where they want different parts it must first become empty.
template <typename Kernel>
void prefer_shared(Kernel* kernel) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                       cudaSharedmemCarveoutMaxShared);
}

// Lets `kernel` start in clusters of more than 8 blocks. False where the card has no place for one.
template <typename Kernel>
bool allow_clusters(Kernel* kernel, int blocks, int threads, size_t shared) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
      cudaSuccess)
    return false;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  return cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess && clusters > 0;
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Asynchronous copies into shared memory; zeros, and nothing is read, where not `valid`.
__device__ inline void copy16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
// Of 4 or 8 bytes.
template <int Bytes>
__device__ inline void copy_small(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(shared_address(to)), "l"(from),
               "n"(Bytes)
               : "memory");
}
__device__ inline void copies_wait() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until all but this thread's last `Left` commits are done.
template <int Left>
__device__ inline void copies_wait_but() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Left) : "memory");
}

// ---- clusters of blocks

__device__ inline void cluster_barrier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
#endif
}
// The two halves of a barrier behind which nothing is ordered but that all blocks have started.
__device__ inline void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;\n" ::: "memory");
#endif
}
// What lies at `p` in the shared memory of the cluster's block `rank`.
__device__ inline uint32_t cluster_address(const void* p, int rank) {
  uint32_t at = shared_address(p);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;\n" : "+r"(at) : "r"(rank));
#endif
  return at;
}
__device__ inline Pack<float, 4> cluster_load(const Pack<float, 4>* p, int rank) {
  Pack<float, 4> x{};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(x.at[0]), "=f"(x.at[1]), "=f"(x.at[2]), "=f"(x.at[3])
               : "r"(cluster_address(p, rank))
               : "memory");
#endif
  return x;
}
__device__ inline float cluster_load(const float* p, int rank) {
  float x = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n"
               : "=f"(x)
               : "r"(cluster_address(p, rank))
               : "memory");
#endif
  return x;
}

}  // namespace wick::cuda
