// SPDX-License-Identifier: Apache-2.0
// Models, gradients, ten updates and greedy tokens of every back end against transformers and PEFT.
// The bounds are those of docs/numerics.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "golden/golden_case.h"

namespace wick::golden {
namespace {

constexpr double kLogits = 1e-4, kGradients = 1e-4;             // of the largest
constexpr double kLosses = 1e-5, kParams = 1e-4, kNorm = 1e-4;  // absolute; kNorm relative

void expect_near_of_largest(const std::vector<float>& got, const std::vector<float>& want,
                            double bound, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 0, worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what << " at " << i;
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]));
  }
  EXPECT_LE(worst, bound * largest) << what;
}

// "model.layers.0.mlp.up_proj.lora_A" as PEFT's files call it.
std::string peft_name(const std::string& tensor) {
  return "base_model.model." + tensor + ".weight";
}

struct Param {
  std::string name, device;
  friend void PrintTo(const Param& p, std::ostream* out) { *out << p.name << " on " << p.device; }
};
std::vector<Param> all_params() {
  std::vector<Param> params;
  for (const std::string& name : case_names())
    for (const std::string& device : backend_names()) params.push_back({name, device});
  return params;
}

class Golden : public testing::TestWithParam<Param> {
 protected:
  Case c_{GetParam().name};
  std::unique_ptr<Backend> backend_ =
      open_backend({.device = GetParam().device, .threads = 2, .cpu_isa = {}});

  std::vector<int32_t> logits_row() const {
    std::vector<int32_t> ids = c_.ints("input_ids"), starts = c_.ints("row_starts");
    size_t row = c_.meta["logits_row"].get<size_t>();
    return {ids.begin() + starts[row], ids.begin() + starts[row + 1]};
  }

  void check_first_gradients(const Trainer& trainer) {
    for (const ParamLayout::Entry& entry : trainer.layout().entries())
      expect_near_of_largest(trainer.gradient(entry.name),
                             c_.floats("grad." + peft_name(entry.name)), kGradients, entry.name);
  }
};

TEST_P(Golden, LogitsOfTheBaseAndWithTheAdapter) {
  expect_near_of_largest(logits(c_, *backend_, logits_row(), false), c_.floats("logits"), kLogits,
                         "base");
  expect_near_of_largest(logits(c_, *backend_, logits_row(), true), c_.floats("logits_adapter"),
                         kLogits, "adapter");
}

TEST_P(Golden, TenUpdatesOfTheAdapter) {
  Trainer trainer(c_, *backend_, {});
  std::vector<float> losses = c_.floats("losses"), norms = c_.floats("grad_norms");
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(trainer.forward_backward(), losses[step], kLosses) << "step " << step;
    if (step == 0) check_first_gradients(trainer);
    EXPECT_NEAR(trainer.update(), norms[step], kNorm * norms[step]) << "step " << step;
  }
  for (const ParamLayout::Entry& entry : trainer.layout().entries()) {
    std::vector<float> got = trainer.param(entry.name),
                       want = c_.floats("final." + peft_name(entry.name));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], kParams) << entry.name;
  }
}

TEST_P(Golden, GradientsWithRecomputeAndWithoutFusion) {
  for (Trainer::Options options : {Trainer::Options{.recompute = true, .fused = true},
                                   Trainer::Options{.recompute = true, .fused = false},
                                   Trainer::Options{.recompute = false, .fused = false}}) {
    Trainer trainer(c_, *backend_, options);
    EXPECT_NEAR(trainer.forward_backward(), c_.floats("loss")[0], kLosses);
    check_first_gradients(trainer);
  }
}

TEST_P(Golden, FullTraining) {
  if (!c_.has("full_losses")) GTEST_SKIP() << "no full training in this case";
  Trainer trainer(c_, *backend_, {.trained = Trained::kWeights});
  std::vector<float> losses = c_.floats("full_losses"), norms = c_.floats("full_grad_norms");
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(trainer.forward_backward(), losses[step], kLosses) << "step " << step;
    if (step == 0)
      for (const ParamLayout::Entry& entry : trainer.layout().entries())
        if (c_.has("full_grad." + entry.name))
          expect_near_of_largest(trainer.gradient(entry.name), c_.floats("full_grad." + entry.name),
                                 kGradients, entry.name);
    EXPECT_NEAR(trainer.update(), norms[step], kNorm * norms[step]) << "step " << step;
  }
}

TEST_P(Golden, GreedyTokens) {
  const auto vocab = static_cast<size_t>(c_.config.vocab);
  for (bool with_adapter : {false, true}) {
    std::vector<int32_t> ids = c_.ints("prompt"), got;
    std::vector<int32_t> want = c_.ints(with_adapter ? "greedy_adapter" : "greedy");
    // All wanted ids at once: each is the winner after those before it.
    ids.insert(ids.end(), want.begin(), want.end() - 1);
    std::vector<float> all = logits(c_, *backend_, ids, with_adapter);
    for (size_t t = ids.size() - want.size(); t < ids.size(); ++t) {
      auto row = all.begin() + static_cast<std::ptrdiff_t>(t * vocab);
      got.push_back(static_cast<int32_t>(
          std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab)) - row));
    }
    EXPECT_EQ(got, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(all_params()), [](const auto& info) {
  return info.param.name + "_" + info.param.device;
});

}  // namespace
}  // namespace wick::golden
