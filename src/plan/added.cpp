// SPDX-License-Identifier: Apache-2.0
#include "plan/added.h"

#include <algorithm>

namespace wick {
namespace {

constexpr int64_t kShortSum = 64;

bool is_linear(const Step& step) { return step.op == Op::kLinear && step.dir == Dir::kForward; }

bool has_bias(const Step& step) { return step.inputs.size() > 2 && step.inputs[2] != kNone; }

bool accumulates(const Step& step) {
  return std::any_of(step.outputs.begin(), step.outputs.end(),
                     [](const Output& o) { return o.mode == OutMode::kAccumulate; });
}

bool reads(const Plan& plan, const Step& step, ValueId root) {
  return std::any_of(step.inputs.begin(), step.inputs.end(),
                     [&](ValueId in) { return in != kNone && plan.root(in) == root; });
}

// Whether `step` makes something new of x, or of what the steps from `first` on make.
bool makes_from(const Plan& plan, const Step* first, const Step& step, ValueId x) {
  const bool fits = is_linear(step) || (step.op == Op::kDropout && step.dir == Dir::kForward);
  if (!fits || accumulates(step)) return false;
  const ValueId from = plan.root(step.inputs[0]);
  return from == x || std::any_of(first, &step, [&](const Step& s) {
           return plan.root(s.outputs[0].value) == from;
         });
}

}  // namespace

bool adds_to(const Plan& plan, const Step& step, const Step& product) {
  return is_linear(step) && accumulates(step) && !has_bias(step) &&
         plan.root(step.outputs[0].value) == plan.root(product.outputs[0].value) &&
         plan.value(step.inputs[0]).shape.cols() <= kShortSum;
}

size_t added_end(const Plan& plan, size_t product) {
  const Step& base = plan.steps[product];
  if (!is_linear(base) || accumulates(base) || plan.is_view(base.outputs[0].value))
    return product + 1;
  const ValueId x = plan.root(base.inputs[0]);
  auto adds = [&](size_t i) { return adds_to(plan, plan.steps[i], base); };
  auto after_last = [&](size_t end) {
    while (end > product + 1 && !adds(end - 1)) --end;
    return end;
  };
  const Step* first = plan.steps.data() + product + 1;
  size_t end = product + 1;
  while (end < plan.steps.size() && (adds(end) || makes_from(plan, first, plan.steps[end], x)))
    ++end;
  end = after_last(end);
  // What none of them reads is a product of its own.
  for (size_t i = product + 1; i < end; ++i) {
    if (adds(i)) continue;
    const ValueId made = plan.root(plan.steps[i].outputs[0].value);
    const bool used = std::any_of(plan.steps.begin() + static_cast<std::ptrdiff_t>(i + 1),
                                  plan.steps.begin() + static_cast<std::ptrdiff_t>(end),
                                  [&](const Step& s) { return reads(plan, s, made); });
    if (!used) end = after_last(i);
  }
  return end;
}

}  // namespace wick
