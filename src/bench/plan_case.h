// SPDX-License-Identifier: Apache-2.0
// A few recorded ops with random operands, compiled alone.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/context.h"
#include "plan/recorder.h"

namespace wick {

class PlanCase {
 public:
  // Computes in the context's type, with weights that rest as the model's do.
  explicit PlanCase(const BenchContext& context);

  Recorder& recorder() { return recorder_; }
  const Plan& plan() const { return plan_; }
  ValueId input(const std::string& name, Shape shape);
  ValueId weight(const std::string& name, Shape shape);
  ValueId gain(const std::string& name, int64_t size);
  ValueId params(int64_t count);
  ValueId integers(const std::string& name, std::vector<int32_t> values);
  // Of any type and shape, from what they are in memory.
  ValueId given(const std::string& name, Shape shape, DType dtype, const void* data);
  void result(ValueId id) { plan_.results.push_back(id); }

  // Requires: everything is recorded.
  void compile();
  void run() {
    program_->run();
    program_->wait();
  }

 private:
  const BenchContext& context_;
  DType compute_, resting_;
  Plan plan_;
  Recorder recorder_;
  std::vector<std::pair<ValueId, std::vector<std::byte>>> given_;
  std::unique_ptr<Program> program_;
};

}  // namespace wick
