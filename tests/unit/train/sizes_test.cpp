// SPDX-License-Identifier: Apache-2.0
// Packs that are run by smaller programs give what the large one gives.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "backend/backend.h"
#include "train/step.h"
#include "unit/train/small_model.h"

namespace wick {
namespace {

TEST(StepSizes, SmallerProgramsGiveTheSameGradients) {
  const ModelConfig config = small_model(2);
  std::vector<Example> rows;
  for (int64_t length : {300, 20, 30, 40, 10, 25, 15, 50}) {
    Example e;
    for (int64_t i = 0; i <= length; ++i)
      e.ids.push_back(static_cast<int32_t>((7 * i + length) % 96));
    e.trained.assign(e.ids.size(), 1);
    e.trained[0] = 0;
    e.full_length = length + 1;
    rows.push_back(std::move(e));
  }
  const ExampleSet set = ExampleSet::from_examples(std::move(rows), "rows");
  const Order order(set, 4, 0, false);
  const PackLimits limits = smallest_limits(set);
  const std::vector<int64_t> sizes = smaller_sizes(set, order, limits, limits.tokens, true);
  ASSERT_FALSE(sizes.empty());
  EXPECT_LT(sizes.back(), limits.tokens);
  EXPECT_LT(count_slots(set, order, limits, sizes, true).packed,
            count_slots(set, order, limits, {}, true).packed);

  const Adapter adapter = Adapter::create(LoraOptions{}, adaptable_linears(config));
  std::vector<float> params = adapter.initial_params(1);
  for (size_t i = 0; i < params.size(); ++i) params[i] += 0.01f * std::sin(static_cast<float>(i));
  auto backend = open_backend({.device = "cpu", .threads = 2});
  std::vector<float> grads[2];
  double losses[2] = {0, 0};
  for (size_t with : {0, 1}) {
    ModelWeights weights = ModelWeights::random(config, 3, DType::kF32);
    StepOptions options;
    options.limits = limits;
    options.positions = 512;
    TrainStep step(config, weights, train_adapter(adapter), options);
    if (with) step.add_sizes(weights, sizes);
    step.compile(*backend, weights);
    EXPECT_EQ(step.arena_bytes(), step.forecast(*backend).arena);
    step.set_params(params);
    bool smaller = false;
    for (int64_t u = 0; u < order.updates_per_epoch(); ++u)
      for (const Pack& pack : pack_rows(set, order.update(u), limits, 0, 0, true)) {
        smaller |= &step.micro_plan(pack) != &step.micro_plan();
        losses[with] += step.accumulate(pack, 0.01f);
      }
    EXPECT_EQ(smaller, with == 1);
    grads[with] = step.grads();
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-5 * std::abs(losses[0]));
  double difference = 0, norm = 0;
  for (size_t i = 0; i < grads[0].size(); ++i) {
    difference += std::pow(static_cast<double>(grads[0][i]) - grads[1][i], 2);
    norm += std::pow(static_cast<double>(grads[0][i]), 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LT(std::sqrt(difference), 1e-5 * std::sqrt(norm));
}

// A longer row that is only scored makes the score's plan larger, and nothing else.
TEST(StepSizes, TheLargestTrainedPackSizesTheTrainingPlan) {
  const ModelConfig config = small_model(2);
  const Adapter adapter = Adapter::create(LoraOptions{}, adaptable_linears(config));
  const ModelWeights weights = ModelWeights::random(config, 3, DType::kF32);
  auto backend = open_backend({.device = "cpu", .threads = 2});
  auto make = [&](int64_t tokens, int64_t largest) {
    StepOptions options;
    options.limits = {tokens, tokens};
    options.largest_pack = largest;
    options.positions = 512;
    return TrainStep(config, weights, train_adapter(adapter), options);
  };
  const TrainStep small = make(64, 0), large = make(512, 0), held_out = make(512, 64);
  EXPECT_EQ(held_out.limits(), large.limits());
  EXPECT_EQ(held_out.micro_limits(), small.limits());
  EXPECT_EQ(print(held_out.micro_plan()), print(small.micro_plan()));
  EXPECT_EQ(print(held_out.score_plan()), print(large.score_plan()));
  EXPECT_LT(held_out.forecast(*backend).arena, large.forecast(*backend).arena);
}

}  // namespace
}  // namespace wick
