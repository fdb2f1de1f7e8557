// SPDX-License-Identifier: Apache-2.0
// The CUDA back end: plans as one CUDA graph each, on one NVIDIA GPU of compute capability 8.0 or
// more.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace wick {

// "" where a GPU can be used, else why not: no driver, no GPU, one that is too old. Asks once.
const std::string& cuda_problem();

// Throws: kNotFound with cuda_problem(), kInvalidArgument for an unknown --cuda-arch, kOutOfMemory.
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);

}  // namespace wick
