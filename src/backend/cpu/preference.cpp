// SPDX-License-Identifier: Apache-2.0
// preference_loss: a few pairs, in double on one thread; the same for every instruction set.
#include "plan/preference.h"

#include "backend/cpu/rungs.h"

namespace wick::cpu {
namespace {

void preference_loss_fwd(const StepArgs& args) {
  const auto *logp = args.in[0].as<const float>(), *reference = args.in[1].as<const float>(),
             *tokens = args.in[2].as<const float>();
  const auto& attr = wick::attr<PreferenceAttr>(*args.step);
  const Operand reward = args.out.size() > 1 ? args.out[1] : Operand{},
                slope = args.out.size() > 2 ? args.out[2] : Operand{};
  for (int64_t p = 0; p < args.out[0].elements(); ++p) {
    const double l[2] = {logp[2 * p], logp[2 * p + 1]};
    const double r[2] = {reference[2 * p], reference[2 * p + 1]};
    const double n[2] = {tokens[2 * p], tokens[2 * p + 1]};
    const PairCost<double> cost = preference_cost(attr, l, r, n);
    args.out[0].as<float>()[p] = static_cast<float>(cost.loss);
    for (int64_t i = 0; i < 2; ++i) {
      if (reward) reward.as<float>()[2 * p + i] = static_cast<float>(cost.reward[i]);
      if (slope) slope.as<float>()[2 * p + i] = static_cast<float>(cost.slope[i]);
    }
  }
}

void preference_loss_bwd(const StepArgs& args) {
  const auto *dloss = args.in[0].as<const float>(), *slope = args.in[1].as<const float>();
  for (int64_t i = 0; i < args.out[0].elements(); ++i)
    args.out[0].as<float>()[i] = dloss[i / 2] * slope[i];
}

}  // namespace

Candidates preference_candidates(Rung) {
  static constexpr Candidate kTable[] = {
      {Op::kPreferenceLoss, Dir::kForward, "preference_loss_fwd", preference_loss_fwd},
      {Op::kPreferenceLoss, Dir::kBackward, "preference_loss_bwd", preference_loss_bwd},
  };
  return kTable;
}

}  // namespace wick::cpu
