// SPDX-License-Identifier: Apache-2.0
// The device's memory, and failures of the runtime as wick's errors.
#pragma once

#include <cuda_runtime.h>

#include "backend/backend.h"

namespace wick::cuda {

// Throws kOutOfMemory or kDevice naming `what` where a call of the runtime did not succeed.
void succeed(cudaError_t status, const char* what);

// Zeroed memory of the device, aligned to 256 bytes.
class DeviceBuffer final : public Buffer {
 public:
  // Throws: kOutOfMemory saying what is free, kDevice.
  DeviceBuffer(size_t bytes, cudaStream_t stream);
  ~DeviceBuffer() override { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  size_t bytes() const override { return bytes_; }
  std::byte* address() const override { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Memory of the host that the device copies from and to by itself.
class PinnedMemory {
 public:
  explicit PinnedMemory(size_t bytes);
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

}  // namespace wick::cuda
