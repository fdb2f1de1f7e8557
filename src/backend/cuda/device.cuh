// SPDX-License-Identifier: Apache-2.0
// What kernels share on the device: element types, wide loads, sums in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "backend/cuda/queue.h"

namespace wick::cuda {

using Bf16 = __nv_bfloat16;
using F16 = __half;

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(Bf16 x) { return __bfloat162float(x); }
__device__ inline float to_f32(F16 x) { return __half2float(x); }
// Rounds to nearest even.
template <typename T>
__device__ inline T from_f32(float x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return __float2bfloat16_rn(x);
  } else if constexpr (std::is_same_v<T, F16>) {
    return __float2half_rn(x);
  } else {
    return x;
  }
}

// A matrix of elements T, without its number of rows. Absent: data is null.
template <typename T>
struct Rows {
  T* data;
  int64_t ld;
  __device__ T* operator[](int64_t row) const { return data + row * ld; }
  __device__ explicit operator bool() const { return data != nullptr; }
};
template <typename T>
Rows<T> rows(const Operand& o) {
  return {static_cast<T*>(o.data), o.ld};
}

// N elements that are loaded and stored as one where they lie aligned (aligned16).
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};
template <int N, typename T>
__device__ inline Pack<T, N> load(const T* p) {
  return *reinterpret_cast<const Pack<T, N>*>(p);
}
template <int N, typename T>
__device__ inline void store(T* p, const Pack<T, N>& x) {
  *reinterpret_cast<Pack<T, N>*>(p) = x;
}

// Whether packs of 16 bytes of every row of the operand lie aligned. Sees real addresses, so it is
// asked when a launch is enqueued, never in accepts().
inline bool aligned16(const Operand& o) {
  if (!o) return true;
  const int64_t size = static_cast<int64_t>(dtype_bytes(o.dtype));
  return reinterpret_cast<uintptr_t>(o.data) % 16 == 0 && (o.rows <= 1 || o.ld * size % 16 == 0) &&
         o.cols * size % 16 == 0;
}

// Calls f(T*) with the element type of activations, or of a frozen operand in rows.
template <typename F>
void with_activation(DType dtype, F&& f) {
  if (dtype == DType::kBF16)
    f(static_cast<Bf16*>(nullptr));
  else
    f(static_cast<float*>(nullptr));
}
template <typename F>
void with_float(DType dtype, F&& f) {
  if (dtype == DType::kBF16)
    f(static_cast<Bf16*>(nullptr));
  else if (dtype == DType::kF16)
    f(static_cast<F16*>(nullptr));
  else
    f(static_cast<float*>(nullptr));
}

// Butterflies: every lane ends with the same bits.
__device__ inline float warp_sum(float x) {
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
  return x;
}

// Over a block of a multiple of 32 threads; every thread gets the result, in an order that depends
// on the block's size alone. `shared` holds 33 floats and may be used again after the call.
__device__ inline float block_sum(float x, float* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = warp_sum(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  if (warp == 0) {
    x = warp_sum(lane < warps ? shared[lane] : 0.0f);
    if (lane == 0) shared[32] = x;
  }
  __syncthreads();
  x = shared[32];
  __syncthreads();
  return x;
}
__device__ inline float block_max(float x, float* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = warp_max(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  if (warp == 0) {
    x = warp_max(lane < warps ? shared[lane] : -INFINITY);
    if (lane == 0) shared[32] = x;
  }
  __syncthreads();
  x = shared[32];
  __syncthreads();
  return x;
}

// Lets the next kernel of the stream be set up while this one runs; it waits in begin_kernel().
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Begins every kernel that launch() starts: lets the next kernel of the stream be set up while this
// one runs, and waits until the one before it is done. Nothing that another kernel wrote may be
// read, and nothing written, before it; all threads must come by here.
__device__ inline void begin_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  let_next_start();
  wait_for_previous();
#endif
}

// kernel<<<grid, block, shared>>>(args...) in clusters of so many blocks, overlapping its start
// with the end of the kernel before it where the card can. Requires: the kernel begins with
// begin_kernel(); no clusters but on sm_90.
template <typename... Params, typename... Args>
void launch_clusters(const Queue& queue, void (*kernel)(Params...), dim3 grid, dim3 block,
                     size_t shared, int cluster, Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = queue.stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = queue.early ? 1 : 0;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  config.attrs = attributes;
  config.numAttrs = queue.arch != Arch::kSm90 ? 0 : cluster == 1 ? 1 : 2;
  cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...);
}
template <typename... Params, typename... Args>
void launch(const Queue& queue, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
            Args&&... args) {
  launch_clusters(queue, kernel, grid, block, shared, 1, std::forward<Args>(args)...);
}

inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

}  // namespace wick::cuda
