// SPDX-License-Identifier: Apache-2.0
#include "train/loss.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "train/step.h"

namespace wick {

void check_wanted(const StopAsked& stop) {
  if (stop && stop()) fail(ErrorCode::kCancelled, "stopped");
}

EvalReport evaluate_likelihood(RunStep& step, std::span<const Pack> packs, const StopAsked& stop) {
  EvalReport e;
  std::vector<float> logp(static_cast<size_t>(step.limits().targets));
  double sum = 0;
  for (const Pack& pack : packs) {
    check_wanted(stop);
    step.evaluate(pack, logp);
    for (int64_t i = 0; i < pack.used_targets; ++i)
      sum -= static_cast<double>(logp[static_cast<size_t>(i)]);
    e.tokens += pack.used_targets;
    e.rows += static_cast<int64_t>(pack.examples.size());
  }
  e.loss = sum / static_cast<double>(std::max<int64_t>(1, e.tokens));
  e.perplexity = std::exp(e.loss);
  return e;
}

}  // namespace wick
