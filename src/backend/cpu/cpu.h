// SPDX-License-Identifier: Apache-2.0
// The cpu back end: f32 arithmetic on all threads of this process, with the best instruction set
// that the machine has. Weights may rest in f32, bf16 or f16; results do not depend on the number
// of threads, to the bit.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace wick {

// options.cpu_isa is one of cpu_isas(), or "" for the best. Throws: kInvalidArgument naming the
// instruction sets that work here.
std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);

// The instruction sets that this binary has code for and this machine can run, best first.
std::vector<std::string> cpu_isas();

}  // namespace wick
