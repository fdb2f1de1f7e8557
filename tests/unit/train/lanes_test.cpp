// SPDX-License-Identifier: Apache-2.0
// What several adapters do to one product stands side by side, forward and in reverse, so that a
// device can make it in one launch.
#include <gtest/gtest.h>

#include "backend/backend.h"
#include "train/step.h"
#include "unit/train/small_model.h"

namespace wick {
namespace {

constexpr int64_t kLanes = 3;

// A letter for each product of a plan: W of the base, A and B of adapters, S a sum over tokens
// alone.
std::string products(const Plan& plan, Dir dir, int64_t rank) {
  std::string all;
  for (const Step& step : plan.steps) {
    if (step.op != Op::kLinear || step.dir != dir) continue;
    const ValueId w = step.inputs[dir == Dir::kForward ? 1 : 2];
    const Shape shape = w == kNone ? Shape{} : plan.value(w).shape;
    all += w == kNone                                      ? 'S'
           : plan.value(plan.root(w)).kind != Kind::kState ? 'W'
           : shape[1] == rank                              ? 'B'
                                                           : 'A';
  }
  return all;
}
int count(const std::string& all, const std::string& of) {
  int found = 0;
  for (size_t at = all.find(of); at != std::string::npos; at = all.find(of, at + of.size()))
    ++found;
  return found;
}

TEST(Lanes, OfOneProductStandSideBySide) {
  const ModelConfig config = small_model(3);
  LoraOptions lora;
  lora.rank = 4;
  lora.targets = {"q_proj", "v_proj"};
  const Adapter adapter = Adapter::create(lora, adaptable_linears(config));
  const std::vector<const Adapter*> lanes(kLanes, &adapter);
  const ModelWeights weights = ModelWeights::random(config, 3, DType::kF32);
  StepOptions options;
  options.limits = {64, 64};
  options.positions = 64;
  const TrainStep step(config, weights, train_adapters(lanes), options);
  const std::string forward = products(step.micro_plan(), Dir::kForward, lora.rank),
                    reverse = products(step.micro_plan(), Dir::kBackward, lora.rank);
  EXPECT_EQ(count(forward, "WAAABBBBBBW"), config.layers) << forward;
  // The first layer's input has no gradient.
  EXPECT_EQ(count(reverse, "BBBBBBAAAW"), config.layers - 1) << reverse;
}

}  // namespace
}  // namespace wick
