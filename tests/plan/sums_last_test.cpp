// SPDX-License-Identifier: Apache-2.0
// LoRA's dA = dhᵀ x and dB = dyᵀ h wait for the end of a reverse pass.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/recorder.h"

namespace wick {
namespace {

constexpr int64_t kRank = 2, kLayers = 3;

// Linears with adapters behind each other, and their reverse.
Plan recorded(int64_t tokens, bool recompute, int64_t width = 6) {
  Plan plan;
  Recorder r(plan, true, DType::kF32);
  const int64_t each = 2 * kRank * width;
  const ValueId params = r.state("params", {kLayers * each}, DType::kF32);
  const ValueId grads = r.state("grads", {kLayers * each}, DType::kF32);
  ValueId x = r.feed("x", {tokens, width}, DType::kF32);
  for (int64_t i = 0; i < kLayers; ++i) {
    r.begin_block(recompute);
    const ValueId a = r.flat(params, i * each, {kRank, width}, "a");
    const ValueId b = r.flat(params, i * each + each / 2, {width, kRank}, "b");
    const ValueId scaled = r.scale(x, 2.0f);
    const ValueId y = r.linear(scaled, r.weight("w", {width, width}, DType::kF32));
    r.linear_into(y, r.linear(scaled, a), b, 1.0f);
    r.end_block();
    x = y;
  }
  const ValueId logp = r.head(x, r.weight("words", {9, width}, DType::kF32),
                              r.feed("targets", {tokens}, DType::kI32));
  const ValueId loss = r.segment_sum(logp, r.feed("weight", {tokens}, DType::kF32),
                                     r.feed("segment", {tokens}, DType::kI32), 1);
  backward(r, loss, params, grads);
  check(plan);
  return plan;
}

bool makes_sum(const Step& step) {
  return step.op == Op::kLinear && step.dir == Dir::kBackward && step.outputs[1].value != kNone;
}
bool makes_sum_alone(const Step& step) {
  return makes_sum(step) && step.outputs[0].value == kNone && step.inputs[2] == kNone;
}

TEST(SumsLast, OfFewTokensStandAtTheEnd) {
  const Plan plan = recorded(5, false);
  const size_t first = plan.steps.size() - 2 * kLayers;
  for (size_t i = 0; i < plan.steps.size(); ++i)
    EXPECT_EQ(makes_sum(plan.steps[i]), i >= first) << "step " << i;
  for (size_t i = first; i < plan.steps.size(); ++i)
    EXPECT_TRUE(makes_sum_alone(plan.steps[i])) << "step " << i;
}

TEST(SumsLast, OfMoreTokensWhereRowsAreNarrow) {
  auto moved = [](const Plan& plan) {
    return std::all_of(plan.steps.begin(), plan.steps.end(),
                       [](const Step& step) { return !makes_sum(step) || makes_sum_alone(step); });
  };
  EXPECT_TRUE(moved(recorded(2048, false, 896)));
  EXPECT_TRUE(moved(recorded(1024, false, 2048)));
  EXPECT_FALSE(moved(recorded(2048, false, 2048)));
}

TEST(SumsLast, StayWhereTokensAreManyOrTheirInputIsMadeAgain) {
  for (const Plan& plan : {recorded(5000, false), recorded(5, true)})
    EXPECT_TRUE(std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
      return makes_sum(step) && !makes_sum_alone(step);
    }));
}

}  // namespace
}  // namespace wick
