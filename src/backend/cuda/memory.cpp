// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/memory.h"

#include <cstring>

#include "base/check.h"

namespace wick::cuda {

namespace {

// What a person can do about it.
const char* advice(cudaError_t status) {
  switch (status) {
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInsufficientDriver:
      return "; update the NVIDIA driver, or use --device cpu";
    case cudaErrorDevicesUnavailable:
      return "; end the process that holds the GPU, or use --device cpu";
    default:
      return "";
  }
}

}  // namespace

void succeed(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  const ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  fail(code, "the GPU could not ", what, ": ", cudaGetErrorString(status), " (",
       cudaGetErrorName(status), ")", advice(status));
}

DeviceBuffer::DeviceBuffer(size_t bytes, cudaStream_t stream) : bytes_(bytes) {
  const size_t size = bytes > 0 ? bytes : 1;
  const cudaError_t status = cudaMalloc(reinterpret_cast<void**>(&data_), size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    fail(ErrorCode::kOutOfMemory, "no room for ", size >> 20, " MiB on the GPU, of whose ",
         total >> 20, " MiB ", free >> 20,
         " are free; use a smaller batch, --memory, --quantize 8, or end what else uses the GPU");
  }
  succeed(status, "allocate memory");
  succeed(cudaMemsetAsync(data_, 0, size, stream), "clear memory");
}

PinnedMemory::PinnedMemory(size_t bytes) {
  succeed(
      cudaHostAlloc(reinterpret_cast<void**>(&data_), bytes > 0 ? bytes : 1, cudaHostAllocDefault),
      "pin memory of the host");
  std::memset(data_, 0, bytes);
}

}  // namespace wick::cuda
