// SPDX-License-Identifier: Apache-2.0
// The runner's modes. Each prints to standard output and returns the number of failures.
#pragma once

#include <string>
#include <vector>

#include "ops/case.h"

namespace wick::ops {

// Each back end against ref<double>: contents within the table of tolerances, the same bits twice
// and for 1, 2 and 3 threads, nothing touched outside the operands.
int check_cases(const std::vector<Case>& cases, const std::vector<std::string>& devices);

// The reverse rule and the ref kernels of a differentiable op against complex step.
int check_gradients(const std::vector<Case>& cases);

// Markdown: op and direction by dtype, per back end.
void print_support(const std::vector<Case>& cases, const std::vector<std::string>& devices);

// Median time of the cases marked bench=1.
void bench_cases(const std::vector<Case>& cases, const std::vector<std::string>& devices);

}  // namespace wick::ops
