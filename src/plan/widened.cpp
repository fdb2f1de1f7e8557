// SPDX-License-Identifier: Apache-2.0
#include "plan/widened.h"

namespace wick {
namespace {

constexpr int64_t kLarge = int64_t{1} << 24;  // elements
constexpr size_t kNear = 24;                  // steps: what lies between two products of a layer

}  // namespace

ValueId quantized_matrix(const Plan& plan, const Step& step) {
  if (step.op != Op::kLinear) return kNone;
  const bool forward = step.dir == Dir::kForward;
  if (!forward && step.outputs[0].value == kNone) return kNone;
  const ValueId w = step.inputs[forward ? 1 : 2];
  return w != kNone && dtype_is_quantized(plan.value(w).dtype) ? w : kNone;
}

int32_t widened_from(const Plan& plan, size_t step) {
  const ValueId w = quantized_matrix(plan, plan.steps[step]);
  if (w == kNone || plan.value(w).shape.elements() > kLarge) return -1;
  for (size_t i = step; i > 0 && i + kNear > step; --i)
    if (quantized_matrix(plan, plan.steps[i - 1]) != kNone) return static_cast<int32_t>(i - 1);
  return -1;
}

}  // namespace wick
