// SPDX-License-Identifier: Apache-2.0
// Losses of preferences and of distillation against torch and PEFT: first gradients, ten updates,
// in one pack and in a pack for each row.
#include "data/preference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "golden/golden_case.h"
#include "io/model_files.h"
#include "train/distill.h"
#include "train/preference.h"

namespace wick::golden {
namespace {

constexpr double kSums = 1e-5, kLosses = 1e-5, kGradients = 1e-4, kParams = 1e-4, kNorm = 1e-4;

std::string folder() { return std::string(WICK_SOURCE_DIR) + "/tests/golden/preference"; }

struct Pairs {
  Json meta = read_json(folder() + "/pairs.json");
  SafetensorsFile file{folder() + "/pairs.safetensors"};
  Case model{meta["model"].get<std::string>()}, teacher{meta["teacher"].get<std::string>()};

  template <typename T>
  std::vector<T> tensor(const std::string& name) const {
    const TensorInfo* info = file.find(name);
    WICK_CHECK(info, name);
    std::vector<T> out(file.bytes(*info).size() / sizeof(T));
    std::memcpy(out.data(), file.bytes(*info).data(), out.size() * sizeof(T));
    return out;
  }

  // Rows as --loss `kind` reads them.
  ExampleSet rows(const std::string& kind) const {
    const auto ids = tensor<int32_t>("ids"), lengths = tensor<int32_t>("lengths");
    std::vector<Example> examples;
    size_t at = 0;
    for (size_t i = 0; i < lengths.size(); i += 3) {
      std::vector<int32_t> parts[3];
      for (size_t j = 0; j < 3; ++j)
        for (int32_t k = 0; k < lengths[i + j]; ++k) parts[j].push_back(ids[at++]);
      Example e;
      for (size_t j : {size_t{1}, size_t{2}}) {
        if (j == 2 && kind == "distill") break;
        if (j == 2) e.second = static_cast<int64_t>(e.ids.size());
        e.ids.insert(e.ids.end(), parts[0].begin(), parts[0].end());
        e.trained.resize(e.ids.size(), kind == "orpo" && j == 1 ? kLikelihoodOnly : uint8_t{0});
        e.ids.insert(e.ids.end(), parts[j].begin(), parts[j].end());
        e.trained.resize(e.ids.size(), 1);
      }
      e.trained[0] = 0;
      examples.push_back(std::move(e));
    }
    return ExampleSet::from_examples(std::move(examples), "pairs");
  }

  LossMaker maker(const std::string& kind, int64_t rows, bool packing) {
    const Json s = meta["settings"][kind];
    auto number = [&](const char* key, float otherwise) {
      return s.contains(key) ? s[key].get<float>() : otherwise;
    };
    if (kind == "distill") {
      DistillOptions o;
      o.teacher = {&teacher.config, &teacher.weights, {}, {}, true};
      o.config = &model.config;
      o.weights = &model.weights;
      o.temperature = number("temperature", 1);
      o.alpha = number("alpha", 1);
      return [o] { return std::make_unique<DistillLoss>(o); };
    }
    using Compare = PreferenceAttr::Kind;
    PreferenceOptions o;
    o.attr.kind = kind == "simpo"  ? Compare::kSimpo
                  : kind == "orpo" ? Compare::kOrpo
                  : kind == "kto"  ? Compare::kKto
                                   : Compare::kDpo;
    o.attr.beta = number("beta", 0.1f);
    o.attr.gamma = number("gamma", 0);
    o.attr.smoothing = number("label_smoothing", 0);
    o.attr.desirable = number("desirable", 1);
    o.attr.undesirable = number("undesirable", 1);
    o.pairs = rows;
    o.max_tokens = 64;
    o.packing = packing;
    o.uses_reference = kind == "dpo" || kind == "kto";
    if (o.uses_reference) o.reference = ReferenceModel{&model.config, &model.weights, {}, {}};
    return [o] { return std::make_unique<PreferenceLoss>(o); };
  }
};

class Preference : public testing::TestWithParam<std::tuple<std::string, std::string, bool>> {
 protected:
  Pairs pairs_;
  std::string kind_ = std::get<0>(GetParam());
  bool packing_ = std::get<2>(GetParam());
  std::unique_ptr<Backend> backend_ =
      open_backend({.device = std::get<1>(GetParam()), .threads = 2});
  ExampleSet rows_ = pairs_.rows(kind_);
  std::vector<Pack> packs_;

  TrainStep make_step() {
    Case& c = pairs_.model;
    // Two pairs, or all of them, and an odd number of slots to spare.
    const PackLimits limits = packing_ ? PackLimits{67, 90} : PackLimits{48, 61};
    StepOptions options;
    options.limits = limits;
    options.positions = 64;
    options.skips_rows = backend_->skips_rows();
    options.loss = pairs_.maker(kind_, rows_.size(), packing_);
    TrainStep step(c.config, c.weights, train_adapter(c.adapter), options);
    step.compile(*backend_, c.weights);
    step.set_params(c.adapter_params);
    step.loss_kind()->prepare(step, rows_, &rows_, {});
    std::vector<int64_t> all(static_cast<size_t>(rows_.size()));
    std::iota(all.begin(), all.end(), int64_t{0});
    packs_ = pack_rows(rows_, all, limits, 0, 0, packing_);
    return step;
  }
  float share(TrainStep& step) const {
    int64_t count = 0;
    for (const Pack& pack : packs_) count += step.loss_kind()->count(pack);
    return 1.0f / static_cast<float>(count);
  }
  void expect_tensors(const std::vector<float>& got, const std::string& prefix, double of_largest,
                      double absolute) {
    for (const ParamLayout::Entry& entry : pairs_.model.adapter.layout().entries()) {
      const auto want = pairs_.tensor<float>(
          cat(kind_, ".", prefix, ".base_model.model.", entry.name, ".weight"));
      double largest = 0, worst = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const float value = got[static_cast<size_t>(entry.offset) + i];
        largest = std::max(largest, std::abs(static_cast<double>(want[i])));
        worst = std::max(worst, std::abs(static_cast<double>(value) - want[i]));
      }
      EXPECT_LE(worst, of_largest * largest + absolute) << prefix << " " << entry.name;
    }
  }
};

TEST_P(Preference, FirstGradients) {
  TrainStep step = make_step();
  EXPECT_EQ(packs_.size() > 1, !packing_ || kind_ != "distill");
  step.loss_kind()->begin_update(step, packs_);
  double loss = 0;
  for (const Pack& pack : packs_) loss += step.accumulate(pack, share(step));
  EXPECT_NEAR(loss, pairs_.tensor<float>(kind_ + ".losses")[0], kLosses);
  expect_tensors(step.grads(), "grad", kGradients, 0);
}

TEST_P(Preference, TenUpdates) {
  TrainStep step = make_step();
  const auto losses = pairs_.tensor<float>(kind_ + ".losses"),
             norms = pairs_.tensor<float>(kind_ + ".grad_norms");
  for (size_t i = 0; i < losses.size(); ++i) {
    if (kind_ != "distill") {
      EXPECT_NEAR(step.loss_kind()->evaluate(step, packs_, {}).loss, losses[i], kLosses) << i;
    }
    step.loss_kind()->begin_update(step, packs_);
    const auto done =
        step.step(packs_, share(step), adamw_settings(pairs_.model, static_cast<int64_t>(i) + 1));
    EXPECT_NEAR(done.loss, losses[i], kLosses) << "step " << i;
    EXPECT_NEAR(done.norm, norms[i], kNorm * norms[i]) << "step " << i;
  }
  expect_tensors(step.params(), "final", 0, kParams);
}

TEST_P(Preference, SumsOfTheReferenceAndRewards) {
  if (kind_ != "dpo") return;
  TrainStep step = make_step();
  const auto& loss = static_cast<const PreferenceLoss&>(*step.loss_kind());
  const auto chosen = pairs_.tensor<float>("reference.chosen"),
             rejected = pairs_.tensor<float>("reference.rejected"),
             policy_chosen = pairs_.tensor<float>("policy.chosen"),
             policy_rejected = pairs_.tensor<float>("policy.rejected");
  double reward[2] = {0, 0}, right = 0;
  const double beta = pairs_.meta["settings"]["dpo"]["beta"].get<double>();
  const auto rows = static_cast<double>(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    EXPECT_NEAR(loss.reference_sums()[2 * i], chosen[i], kSums * std::abs(chosen[i]));
    EXPECT_NEAR(loss.reference_sums()[2 * i + 1], rejected[i], kSums * std::abs(rejected[i]));
    const double c = beta * (policy_chosen[i] - chosen[i]),
                 r = beta * (policy_rejected[i] - rejected[i]);
    reward[0] += c / rows;
    reward[1] += r / rows;
    right += c > r ? 1 / rows : 0;
  }
  step.loss_kind()->begin_update(step, packs_);
  for (const Pack& pack : packs_) step.accumulate(pack, share(step));
  for (const PreferenceReport& report :
       {step.loss_kind()->take_report(), step.loss_kind()->evaluate(step, packs_, {}).preference}) {
    EXPECT_TRUE(report.present);
    EXPECT_NEAR(report.chosen, reward[0], 1e-4);
    EXPECT_NEAR(report.rejected, reward[1], 1e-4);
    EXPECT_NEAR(report.margin, reward[0] - reward[1], 1e-4);
    EXPECT_NEAR(report.accuracy, right, 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, Preference,
                         testing::Combine(testing::Values("dpo", "simpo", "orpo", "kto", "distill"),
                                          testing::ValuesIn(backend_names()), testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param) +
                                  (std::get<2>(info.param) ? "_packed" : "_alone");
                         });

// Labels instead of pairs: the same answers one by one give the same loss.
TEST(Kto, RowsWithLabelsAreThePairsTakenApart) {
  Pairs pairs;
  auto backend = open_backend({.device = "cpu", .threads = 1});
  const ExampleSet together = pairs.rows("kto");
  std::vector<Example> single;
  for (bool rejected : {false, true})
    for (int64_t i = 0; i < together.size(); ++i)
      for (const SequenceView& s : sequences_of(together[i])) {
        if (s.rejected != rejected) continue;
        Example e;
        e.ids.assign(s.ids.begin(), s.ids.end());
        e.trained.assign(s.trained.begin(), s.trained.end());
        e.undesirable = rejected;
        single.push_back(std::move(e));
      }
  const ExampleSet rows = ExampleSet::from_examples(std::move(single), "labels");
  Case& c = pairs.model;
  StepOptions options;
  options.limits = {67, 90};
  options.positions = 64;
  options.skips_rows = backend->skips_rows();
  options.loss = pairs.maker("kto", rows.size(), true);
  TrainStep step(c.config, c.weights, train_adapter(c.adapter), options);
  step.compile(*backend, c.weights);
  step.set_params(c.adapter_params);
  step.loss_kind()->prepare(step, rows, nullptr, {});
  std::vector<int64_t> all(static_cast<size_t>(rows.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  const auto packs = pack_rows(rows, all, options.limits, 0, 0, true);
  step.loss_kind()->begin_update(step, packs);
  double loss = 0;
  for (const Pack& pack : packs) loss += step.accumulate(pack, 0.1f);
  EXPECT_NEAR(loss, pairs.tensor<float>("kto.losses")[0], kLosses);
}

}  // namespace
}  // namespace wick::golden
