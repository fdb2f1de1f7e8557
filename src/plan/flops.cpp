// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/plan.h"

namespace wick {

double step_flops(const Plan& plan, const Step& step) {
  auto rows = [&](ValueId v) { return static_cast<double>(plan.value(v).shape.rows()); };
  auto cols = [&](ValueId v) { return static_cast<double>(plan.value(v).shape.cols()); };
  auto count = [&](ValueId v) { return static_cast<double>(plan.value(v).shape.elements()); };
  const bool forward = step.dir == Dir::kForward;
  switch (step.op) {
    case Op::kLinear: {
      if (forward) return 2 * rows(step.inputs[0]) * count(step.inputs[1]);
      double flops = 0;
      ValueId dx = step.outputs[0].value, dw = step.outputs[1].value;
      if (dx != kNone) flops += 2 * count(dx) * cols(step.inputs[0]);
      if (dw != kNone) flops += 2 * count(dw) * rows(step.inputs[0]);
      return flops;
    }
    case Op::kAttention: {
      // Two products of T x T/2 x E per head forward, five backward.
      ValueId q = step.inputs[forward ? 0 : 1], k = step.inputs[forward ? 1 : 2];
      return (forward ? 2.0 : 5.0) * count(q) * rows(k);
    }
    case Op::kHead: {
      ValueId x = step.inputs[forward ? 0 : 1], w = step.inputs[forward ? 1 : 2];
      double product = 2 * rows(x) * count(w);
      if (forward) return product * (step.outputs[2].value == kNone ? 1 : 2);
      double products = 0;
      if (step.inputs[5] == kNone && step.outputs[0].value != kNone) products += 1;
      if (step.outputs[1].value != kNone) products += 1;
      return products == 0 ? 0 : product * (products + 1);
    }
    case Op::kKlHead: {
      const size_t x = forward ? 0 : 2;
      if (step.inputs[x] == kNone) return 0;
      double student = 2 * rows(step.inputs[x]) * count(step.inputs[x + 1]);
      double teacher = 2 * rows(step.inputs[x + 2]) * count(step.inputs[x + 3]);
      if (!forward) return teacher + student * (step.outputs[1].value == kNone ? 1 : 2);
      // Logits twice: for the sums, and for what the sums make of them.
      return 2 * teacher + student * (step.outputs[1].value == kNone ? 2 : 3);
    }
    case Op::kEmbed:
    case Op::kRmsNorm:
    case Op::kAddRmsNorm:
    case Op::kLayerNorm:
    case Op::kSoftmax:
    case Op::kRope:
    case Op::kGatedAct:
    case Op::kAdd:
    case Op::kScale:
    case Op::kBias:
    case Op::kDropout:
    case Op::kGatherRows:
    case Op::kSegmentSum:
    case Op::kColumnScale:
    case Op::kPreferenceLoss:
    case Op::kColumnNorm:
    case Op::kGradNorm:
    case Op::kAdamw:
    case Op::kSgd:
    case Op::kLion:
    case Op::kMuon:
    case Op::kAdafactor:
    case Op::kAdamw8:
    case Op::kSample:
    case Op::kCopy:
      return 0;
  }
  return 0;
}

double plan_flops(const Plan& plan) {
  double flops = 0;
  for (const Step& step : plan.steps) flops += step_flops(plan, step);
  return flops;
}

Filling token_filling(int64_t first, int64_t last, int64_t sequences) {
  return {[=](int64_t window) {
    double rows = 0;
    for (int64_t t = first; t < last; ++t)
      rows += static_cast<double>(window > 0 ? std::min(window, t + 1) : t + 1);
    return rows * static_cast<double>(sequences);
  }};
}

double step_flops(const Plan& plan, const Step& step, const Filling& filling) {
  const double flops = step_flops(plan, step);
  const size_t x = step.dir == Dir::kForward ? 0 : 1;
  auto rows = [&](size_t input) {
    return static_cast<double>(plan.value(step.inputs[input]).shape.rows());
  };
  if (step.op == Op::kAttention) {
    const int64_t window = std::get<AttentionAttr>(step.attr).window;
    return flops / (0.5 * rows(x) * rows(x + 1)) * filling.attended(window);
  }
  if (step.op == Op::kHead && flops > 0) return flops / rows(x) * filling.targets;
  return flops;
}

double plan_flops(const Plan& plan, const Filling& filling) {
  double flops = 0;
  for (const Step& step : plan.steps) flops += step_flops(plan, step, filling);
  return flops;
}

}  // namespace wick
