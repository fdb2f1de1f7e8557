// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/gated.h"

#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

// x's product is all of y, without bias or weights' gradients: steps of the two directions.
bool is_plain_product(const Step& step) {
  if (step.op != Op::kLinear || attr<LinearAttr>(step).scale != 1.0f ||
      step.outputs[0].value == kNone || step.outputs[0].mode != OutMode::kWrite)
    return false;
  if (step.dir == Dir::kForward) return step.inputs[2] == kNone;
  return step.outputs[1].value == kNone && step.outputs[2].value == kNone;
}

}  // namespace

Gated::Gated(const Plan& plan, std::span<const FlatProgram::Call> calls)
    : calls_(calls), begins_(calls.size(), 0) {
  std::vector<int> reads(plan.values.size(), 0);
  for (const Step& step : plan.steps)
    for (ValueId in : step.inputs)
      if (in != kNone) ++reads[static_cast<size_t>(plan.root(in))];
  for (ValueId id : plan.results) ++reads[static_cast<size_t>(plan.root(id))];
  for (size_t i = 0; i + 1 < plan.steps.size(); ++i) {
    const Step &product = plan.steps[i], &gate = plan.steps[i + 1];
    if (!is_plain_product(product) || gate.op != Op::kGatedAct || gate.dir != product.dir) continue;
    const ValueId y = product.outputs[0].value;
    if (plan.is_view(y) || gate.inputs[0] != y || gate.outputs[0].mode != OutMode::kWrite) continue;
    // In reverse the gradient between the two is not made.
    begins_[i] = product.dir == Dir::kForward || reads[static_cast<size_t>(y)] == 1;
  }
}

size_t Gated::enqueue(const Queue& queue, size_t first) const {
  if (!begins_[first]) return 0;
  const StepArgs &product = calls_[first].args, &gate = calls_[first + 1].args;
  const Act act = attr<GatedActAttr>(*gate.step).act;
  flush(queue);
  const bool done =
      product.step->dir == Dir::kForward
          ? gated_product(queue, act, product.in[0], product.in[1], product.out[0], gate.out[0])
          : gated_product_back(queue, act, product.in[0], product.in[2], gate.in[1], gate.out[0]);
  return done ? 2 : 0;
}

}  // namespace wick::cuda
