// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a forecast: rates of timed steps, carried to another plan.
#include "train/probe.h"

#include <gtest/gtest.h>

#include "model/config.h"
#include "model/shapes.h"

namespace wick {
namespace {

ModelConfig small_model(int64_t layers, int64_t vocab) {
  ModelConfig c = read_config(shape_config("qwen2.5-0.5b"), Json::object(), "test");
  c.layers = layers;
  c.windows.assign(static_cast<size_t>(layers), 0);
  c.hidden = 64;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.ffn = 96;
  c.vocab = vocab;
  return c;
}

TrainStep small_step(const ModelConfig& config, int64_t tokens, std::shared_ptr<Adapter>& adapter) {
  LoraOptions lora;
  lora.targets = {"q_proj", "v_proj"};
  adapter = std::make_shared<Adapter>(Adapter::create(lora, adaptable_linears(config)));
  StepOptions options;
  options.limits = {tokens, tokens / 2};
  options.positions = tokens;
  return TrainStep(config, ModelWeights::random(config, 0, DType::kBF16), train_adapter(*adapter),
                   options);
}

// A device on which a step takes a second per million operations, and another per million results.
double law(const Plan& plan, const Step& step) {
  const double flops = step_flops(plan, step);
  if (flops > 0) return 1e-6 * flops;
  double results = 0;
  for (const Output& o : step.outputs)
    if (o.value != kNone) results += static_cast<double>(plan.value(o.value).shape.elements());
  return 1e-6 * results;
}

TEST(StepRates, CarryFromTwoLayersToMany) {
  std::shared_ptr<Adapter> first, second;
  const TrainStep timed = small_step(small_model(2, 128), 64, first);
  const TrainStep whole = small_step(small_model(7, 1024), 64, second);
  StepRates rates;
  const double attended = 20;
  for (const Step& step : timed.micro_plan().steps)
    rates.add(timed.micro_plan(), step, attended, law(timed.micro_plan(), step));
  double wanted = 0;
  for (const Step& step : whole.micro_plan().steps) wanted += law(whole.micro_plan(), step);
  // Rows that are gathered for the embedding do not depend on the vocabulary; the law has no say in
  // it that a probe of another vocabulary could know.
  EXPECT_NEAR(rates.seconds(whole.micro_plan(), attended), wanted, 0.02 * wanted);
  rates.scale(1.25);
  EXPECT_NEAR(rates.seconds(whole.micro_plan(), attended), 1.25 * wanted, 0.03 * wanted);
}

// A narrow model in the place of a wide one: skinny products keep a rate of their own.
TEST(StepRates, CarryFromANarrowModelToAWideOne) {
  auto model = [](int64_t layers, int64_t width) {
    ModelConfig c = small_model(layers, 128);
    for (int64_t* size : {&c.hidden, &c.heads, &c.kv_heads, &c.ffn}) *size *= width;
    return c;
  };
  std::shared_ptr<Adapter> first, second;
  const TrainStep narrow = small_step(model(2, 4), 64, first);
  const TrainStep whole = small_step(model(5, 8), 96, second);
  auto slow = [](const Plan& plan, const Step& step) {
    bool skinny = false;
    if (step.op == Op::kLinear)
      for (ValueId in : step.inputs)
        skinny |= in != kNone && plan.value(in).shape.rank() == 2 && plan.value(in).shape[1] <= 16;
    return (skinny ? 10 : 1) * law(plan, step);
  };
  StepRates rates;
  for (const Step& step : narrow.micro_plan().steps)
    rates.add(narrow.micro_plan(), step, 20, slow(narrow.micro_plan(), step));
  double wanted = 0;
  for (const Step& step : whole.micro_plan().steps) wanted += slow(whole.micro_plan(), step);
  EXPECT_NEAR(rates.seconds(whole.micro_plan(), 20), wanted, 0.03 * wanted);
}

TEST(StepRates, AttentionGoesByTheRowsThatAreSeen) {
  std::shared_ptr<Adapter> adapter;
  const TrainStep step = small_step(small_model(2, 128), 64, adapter);
  StepRates rates;
  for (const Step& s : step.micro_plan().steps)
    rates.add(step.micro_plan(), s, 10, s.op == Op::kAttention ? 1.0 : 0.0);
  const double at_ten = rates.seconds(step.micro_plan(), 10);
  EXPECT_GT(at_ten, 0);
  EXPECT_NEAR(rates.seconds(step.micro_plan(), 30), 3 * at_ten, 1e-9);
}

TEST(StepRates, WithoutTimesThereIsNoForecast) {
  std::shared_ptr<Adapter> adapter;
  const TrainStep step = small_step(small_model(1, 64), 32, adapter);
  EXPECT_EQ(StepRates().seconds(step.micro_plan(), 1), 0);
}

TEST(SteadyMean, LeavesOutWhatIsRare) {
  EXPECT_EQ(steady_mean({}), 0);
  const double even[] = {1, 2, 3};
  EXPECT_DOUBLE_EQ(steady_mean(even), 2);
  const double disturbed[] = {1.0, 1.2, 1.1, 9.0, 1.1};
  EXPECT_DOUBLE_EQ(steady_mean(disturbed), 1.1);
}

TEST(MeanAttended, CountsEveryToken) {
  Pack pack;
  pack.begin = {0, 0, 0, 3};
  pack.end = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(mean_attended({&pack, 1}), (1 + 2 + 3 + 1) / 4.0);
}

}  // namespace
}  // namespace wick
