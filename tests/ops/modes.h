// SPDX-License-Identifier: Apache-2.0
// The runner's modes. Each prints to standard output and returns the number of failures.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "ops/case.h"

namespace wick::ops {

struct Device {
  std::string name;
  std::function<std::unique_ptr<Backend>(int threads)> open;
};
// Every back end of this binary with every instruction set that this machine has; with `only`, the
// one of that name.
std::vector<Device> find_devices(const std::string& only);

// Each back end against ref<double>: contents within the table of tolerances, the same bits twice
// and for 1, 2 and 3 threads, nothing touched outside the operands.
int check_cases(const std::vector<Case>& cases, const std::vector<Device>& devices);

// The reverse rule and the ref kernels of a differentiable op against complex step.
int check_gradients(const std::vector<Case>& cases);

// docs/ops.md: for each op and direction, and each device, the types it takes.
std::string support_page(const std::vector<Case>& cases, const std::vector<Device>& devices);
// Whether a page made on another machine says the same of the devices that are here too.
int check_support(const std::string& page, const std::vector<Case>& cases,
                  const std::vector<Device>& devices);

// Median time of the cases marked bench=1.
void bench_cases(const std::vector<Case>& cases, const std::vector<Device>& devices);

}  // namespace wick::ops
