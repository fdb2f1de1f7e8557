// SPDX-License-Identifier: Apache-2.0
// Where the time of a plan goes.
#pragma once

#include <string>
#include <vector>

#include "bench/context.h"

namespace wick {

constexpr size_t kProfiledRuns = 5;

// Seconds of each step, one vector per run.
using StepSeconds = std::vector<std::vector<double>>;

// The median over the runs, by step.
std::vector<double> median_seconds(const StepSeconds& runs, size_t steps);

// Rows of the table "profile": kernels by share of the time, then the steps that take longest.
// `filling` is what the runs had in the plan's slots.
void emit_profile(const BenchContext& context, const std::string& of, const Plan& plan,
                  const Filling& filling, const StepSeconds& runs);

// What the process asked of the system between two moments.
struct SystemUse {
  int64_t page_faults = 0, heap_bytes = 0;
};
SystemUse system_use();

}  // namespace wick
