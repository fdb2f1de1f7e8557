// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "backend/cuda/copies.h"

namespace wick::cuda {
namespace {

__global__ void copy_words(uint32_t* to, const uint32_t* from, uint32_t words) {
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}

}  // namespace

cudaError_t copy_few(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  constexpr int kThreads = 128;
  copy_words<<<1, kThreads, 0, stream>>>(static_cast<uint32_t*>(to),
                                         static_cast<const uint32_t*>(from),
                                         static_cast<uint32_t>(bytes / sizeof(uint32_t)));
  return cudaGetLastError();
}

}  // namespace wick::cuda
