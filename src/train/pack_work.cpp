// SPDX-License-Identifier: Apache-2.0
#include "train/pack_work.h"

namespace wick {

double PackWork::of(const Plan& plan, const Pack& pack) {
  auto [found, is_new] = parts_.try_emplace(&plan);
  Parts& parts = found->second;
  if (is_new) {
    auto rows = [&](ValueId id) { return static_cast<double>(plan.value(id).shape.rows()); };
    for (const Step& step : plan.steps) {
      const double flops = step_flops(plan, step);
      if (flops == 0) continue;
      const bool forward = step.dir == Dir::kForward;
      if (step.op == Op::kAttention) {
        // step_flops takes the slots for one causal segment.
        const double slots = rows(step.inputs[forward ? 0 : 1]);
        parts.attention += flops / (0.5 * slots * slots);
      } else if (step.op == Op::kHead) {
        parts.head += flops / rows(step.inputs[forward ? 0 : 1]);
      } else {
        parts.rest += flops;
      }
    }
  }
  double attended = 0;
  for (int64_t t = 0; t < pack.used_tokens; ++t)
    attended += pack.end[static_cast<size_t>(t)] - pack.begin[static_cast<size_t>(t)];
  return parts.rest + parts.attention * attended +
         parts.head * static_cast<double>(pack.used_targets);
}

}  // namespace wick
