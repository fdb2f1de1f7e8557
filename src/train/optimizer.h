// SPDX-License-Identifier: Apache-2.0
// The optimizers as a run sees them: names, defaults, the row of hyper of an update, and what they
// keep between updates. The formulas are in plan/param_groups.h.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "plan/op.h"
#include "wick/trainer.h"

namespace wick {

// One set's row of an optimizer's hyper (plan/op.h).
using Hyper = std::array<float, 8>;

// AdamW's constants, for callers without options.
struct AdamwSettings {
  float learning_rate = 1e-4f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  float clip = 1.0f;  // 0: off
  int64_t step = 1;   // of the bias correction, from 1
  bool bias_correction = true;

  Hyper hyper() const;
};

// A state of an optimizer, all zero at the start.
struct OptimizerState {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  size_t bytes() const { return static_cast<size_t>(shape.elements()) * dtype_bytes(dtype); }
};

// adam, adamw, adamw_8bit, sgd, lion, muon, adafactor.
std::vector<std::string> optimizer_names();
// Throws: kInvalidArgument with the nearest name.
Op optimizer_op(const std::string& name);
// Whether the optimizer looks at whole matrices, so that every tensor must be a group.
bool optimizer_sees_matrices(Op op);
// In the order of the op's operands. Requires: the groups cover the parameters.
std::vector<OptimizerState> optimizer_states(Op op, const ParamGroups& groups);

// Puts the optimizer's own values where the options leave them to it (< 0).
// Throws: kInvalidArgument naming a wrong value, or an option that the optimizer does not have.
void resolve_optimizer(TrainOptions& options);
// The row of update `step`, from 1, at that rate. Requires: resolve_optimizer().
Hyper optimizer_hyper(const TrainOptions& options, double rate, int64_t step);

}  // namespace wick
