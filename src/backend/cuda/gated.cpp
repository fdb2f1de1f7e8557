// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/gated.h"

#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

bool is_plain_product(const Step& step) {
  return step.op == Op::kLinear && step.dir == Dir::kForward && step.inputs[2] == kNone &&
         attr<LinearAttr>(step).scale == 1.0f && step.outputs[0].mode == OutMode::kWrite;
}

}  // namespace

Gated::Gated(const Plan& plan, std::span<const FlatProgram::Call> calls)
    : calls_(calls), begins_(calls.size(), 0) {
  for (size_t i = 0; i + 1 < plan.steps.size(); ++i) {
    const Step &product = plan.steps[i], &gate = plan.steps[i + 1];
    const ValueId y = product.outputs[0].value;
    begins_[i] = is_plain_product(product) && gate.op == Op::kGatedAct &&
                 gate.dir == Dir::kForward && !plan.is_view(y) && gate.inputs[0] == y &&
                 gate.outputs[0].mode == OutMode::kWrite;
  }
}

size_t Gated::enqueue(const Queue& queue, size_t first) const {
  if (!begins_[first]) return 0;
  const StepArgs &product = calls_[first].args, &gate = calls_[first + 1].args;
  const Act act = attr<GatedActAttr>(*gate.step).act;
  flush(queue);
  const bool done =
      gated_product(queue, act, product.in[0], product.in[1], product.out[0], gate.out[0]);
  return done ? 2 : 0;
}

}  // namespace wick::cuda
