// SPDX-License-Identifier: Apache-2.0
// What each launch of a CUDA program reads and writes, as the headers of cuda/ say it: of steps
// that are made one by one, and of those that are made together.
#pragma once

#include <utility>
#include <vector>

#include "backend/flat_program.h"

namespace wick {

// Steps that are made together: the first, the one behind.
using StepGroup = std::pair<size_t, size_t>;
// Those of a program that is timed, on a card where each takes some time.
std::vector<StepGroup> groups_of(Program& program);
std::string name_of(const Plan& plan, StepGroup group);

// Launches that may run at the same time count as one.
struct Launch {
  std::vector<ValueId> reads = {}, writes = {};
  std::vector<size_t> scratch = {};   // of these steps
  std::vector<size_t> matrices = {};  // that were brought to bf16 in the scratch of these steps
};
std::vector<Launch> launches_of(const Plan& plan, StepGroup group);

// The bytes of a step's scratch that a matrix in codes is brought to bf16 in; 0 where none is.
size_t matrix_bytes(const Plan& plan, size_t step);

}  // namespace wick
