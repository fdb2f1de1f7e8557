// SPDX-License-Identifier: Apache-2.0
// A kernel that copies a few bytes to or from pinned memory of the host: it is done before the copy
// engine has begun.
#pragma once

#include <cuda_runtime.h>

namespace wick::cuda {

// Beyond so many the engine is faster.
constexpr size_t kFewBytes = 4096;
// Requires: both aligned to 4 bytes, `bytes` a multiple of 4.
cudaError_t copy_few(void* to, const void* from, size_t bytes, cudaStream_t stream);

}  // namespace wick::cuda
