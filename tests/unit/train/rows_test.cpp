// SPDX-License-Identifier: Apache-2.0
// A last block that makes only the rows that are asked for gives what one of all rows gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/cpu.h"
#include "train/distill.h"
#include "train/sweep.h"
#include "unit/train/small_model.h"

namespace wick {
namespace {

// Slots and targets to spare, and more rows than products take one by one.
constexpr PackLimits kLimits{96, 40};

ModelConfig model() {
  ModelConfig config = small_model(3);
  config.heads = 3;  // heads and stream are of different widths
  return config;
}

// Rows of which the last third is trained, or one token; a pair's second half is what is rejected.
ExampleSet make_rows(int64_t salt, bool pairs, bool one) {
  std::vector<Example> rows;
  for (int64_t r = 0; r < 4; ++r) {
    Example e;
    const int64_t length = (pairs ? 7 : 14) + 3 * r;
    for (int64_t half = 0; half < (pairs ? 2 : 1); ++half)
      for (int64_t i = 0; i < length; ++i) {
        e.ids.push_back(static_cast<int32_t>((7 * i + 3 * r + 11 * half + salt) % 96));
        e.trained.push_back(i > (one ? length - 2 : 2 * length / 3));
      }
    if (pairs) e.second = length;
    e.full_length = static_cast<int64_t>(e.ids.size());
    e.line = r + 1;
    rows.push_back(std::move(e));
  }
  return ExampleSet::from_examples(std::move(rows), "rows");
}

// Of one trial: log p at the start, the first gradients, losses of ten updates by lane.
struct Made {
  std::vector<float> logp, grads;
  std::vector<double> losses;
};

struct Kind {
  std::string name;
  LoraOptions lora = {};
  bool full = false;
  int64_t recompute = 0;
  size_t lanes = 1;
  bool one_target = false;  // of each row
  bool split = false;       // the frozen blocks are kept
  enum class Loss { kLikelihood, kDpo, kDistill };
  Loss loss = Loss::kLikelihood;
  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

class Trial {
 public:
  Trial(const Kind& kind, DType compute, const std::string& isa = "")
      : kind_(kind), backend_(open_backend({.device = "cpu", .threads = 2, .cpu_isa = isa})) {
    for (ModelWeights* weights : {&weights_, &other_}) weights->compute_in(compute);
    for (size_t k = 0; k < kind.lanes; ++k) {
      LoraOptions lora = kind.lora;
      if (k > 0) lora.targets = {"v_proj", "o_proj", "down_proj"};
      adapters_.push_back(Adapter::create(lora, adaptable_linears(config_)));
      const bool pairs = kind.loss == Kind::Loss::kDpo;
      sets_.push_back(make_rows(5 * static_cast<int64_t>(k), pairs, kind.one_target));
    }
  }

  TrainStep make_step(bool skips, const PackLimits& limits = kLimits) {
    StepOptions options;
    options.limits = limits;
    options.positions = 96;
    options.recompute_blocks = kind_.recompute;
    options.skips_rows = skips;
    options.split_prefix = kind_.split;
    if (kind_.loss != Kind::Loss::kLikelihood) options.loss = maker();
    TrainStep step(config_, weights_, trainable(), options);
    step.compile(*backend_, weights_);
    EXPECT_EQ(step.arena_bytes(), step.forecast(*backend_).arena);
    step.set_params(start(step.trainable()));
    return step;
  }

  Made train(bool skips, const PackLimits& limits = kLimits) {
    TrainStep step = make_step(skips, limits);
    const Pack pack = packed(limits);
    Made made;
    made.logp.resize(pack.targets.size());
    step.evaluate(pack, made.logp);
    if (Loss* loss = step.loss_kind()) {
      loss->prepare(step, sets_[0], nullptr, {});
      loss->begin_update(step, {&pack, 1});
    }
    const float share = 1.0f / static_cast<float>(pack.used_targets);
    for (int64_t update = 1; update <= 10; ++update) {
      AdamwSettings settings;
      settings.learning_rate = 1e-3f;
      settings.step = update;
      const std::vector<Hyper> hyper(kind_.lanes, settings.hyper());
      if (update == 1) {
        step.accumulate(pack, share);
        made.grads = step.grads();
        step.update(hyper);
        continue;
      }
      step.start_lanes({&pack, 1}, std::vector(kind_.lanes, share), hyper);
      for (const RunStep::Stepped& lane : step.finish_lanes().lanes)
        made.losses.push_back(lane.loss);
    }
    return made;
  }

 private:
  Trainable trainable() {
    if (kind_.full) return train_weights(config_, -1);
    if (kind_.lanes == 1) return train_adapter(adapters_[0]);
    std::vector<const Adapter*> lanes;
    for (const Adapter& adapter : adapters_) lanes.push_back(&adapter);
    return train_adapters(lanes);
  }

  // With B and gains that are not at their start.
  std::vector<float> start(const Trainable& trained) {
    std::vector<float> params;
    if (kind_.full) return initial_weights(trained, weights_);
    for (const Adapter& adapter : adapters_) {
      const std::vector<float> own = adapter.initial_params(params.size());
      params.insert(params.end(), own.begin(), own.end());
    }
    for (size_t i = 0; i < params.size(); ++i)
      params[i] += 0.05f * std::sin(static_cast<float>(3 * i));
    return params;
  }

  LossMaker maker() {
    const ReferenceModel beside{&config_, &other_, {}, nullptr, true};
    if (kind_.loss == Kind::Loss::kDistill)
      return [d = DistillOptions{beside, &config_, &weights_, 1.0f, 0.7f}] {
        return std::make_unique<DistillLoss>(d);
      };
    PreferenceOptions p;
    p.attr.kind = PreferenceAttr::Kind::kDpo;
    p.pairs = 4;
    p.max_tokens = 64;
    p.reference = beside;
    return [p] { return std::make_unique<PreferenceLoss>(p); };
  }

  // All rows of each lane; of three lanes the one in the middle has none.
  Pack packed(const PackLimits& limits) const {
    std::vector<Pack> packs;
    std::vector<const Pack*> lanes;
    packs.reserve(kind_.lanes);
    for (size_t k = 0; k < kind_.lanes; ++k) {
      std::vector<int64_t> all(static_cast<size_t>(sets_[k].size()));
      std::iota(all.begin(), all.end(), int64_t{0});
      const std::vector<Pack> made = pack_rows(sets_[k], all, limits, k, 0, true);
      EXPECT_EQ(made.size(), 1U);
      packs.push_back(made[0]);
      lanes.push_back(k == 1 && kind_.lanes == 3 ? nullptr : &packs.back());
    }
    return kind_.lanes == 1 ? packs[0] : join_packs(lanes, limits);
  }

  Kind kind_;
  ModelConfig config_ = model();
  ModelWeights weights_ = ModelWeights::random(config_, 5, DType::kBF16),
               other_ = ModelWeights::random(config_, 8, DType::kBF16);
  std::unique_ptr<Backend> backend_;
  std::vector<Adapter> adapters_;
  std::vector<ExampleSet> sets_;
};

double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got.at(i)) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  EXPECT_GT(norm, 0);
  return std::sqrt(difference / norm);
}

LoraOptions lora(float dropout, bool dora = false) {
  LoraOptions o;
  o.rank = 4;
  o.dropout = dropout;
  o.dora = dora;
  return o;
}

LoraOptions of_ends() {
  LoraOptions o = lora(0);
  o.targets.push_back("lm_head");
  o.modules_to_save = {"model.norm", "post_attention_layernorm"};
  return o;
}

std::vector<Kind> kinds() {
  using Loss = Kind::Loss;
  return {{.name = "plain", .lora = lora(0)},
          {.name = "dropout", .lora = lora(0.3f)},
          {.name = "dora", .lora = lora(0.3f, true)},
          {.name = "ends", .lora = of_ends()},
          {.name = "full", .full = true},
          {.name = "recompute", .lora = lora(0.3f), .recompute = -1},
          {.name = "recompute_below", .lora = lora(0.3f), .recompute = 2},
          {.name = "lanes", .lora = lora(0), .lanes = 2},
          {.name = "lanes_dropout", .lora = lora(0.3f), .lanes = 3},
          {.name = "lanes_recompute", .lora = lora(0.3f), .recompute = -1, .lanes = 2},
          {.name = "lanes_ends", .lora = of_ends(), .lanes = 2},
          {.name = "dpo", .lora = lora(0.3f), .loss = Loss::kDpo},
          {.name = "distill", .lora = lora(0.3f), .loss = Loss::kDistill}};
}

class AskedRows : public testing::TestWithParam<Kind> {};

TEST_P(AskedRows, InF32) {
  for (const std::string& isa : cpu_isas()) {
    SCOPED_TRACE(isa);
    Trial trial(GetParam(), DType::kF32, isa);
    const Made all = trial.train(false), asked = trial.train(true);
    EXPECT_EQ(asked.logp, all.logp);
    EXPECT_LT(distance(asked.grads, all.grads), 1e-5);
    ASSERT_EQ(asked.losses.size(), all.losses.size());
    for (size_t i = 0; i < all.losses.size(); ++i)
      EXPECT_NEAR(asked.losses[i], all.losses[i], 1e-5) << i;
  }
}

TEST_P(AskedRows, InBf16) {
  Trial trial(GetParam(), DType::kBF16);
  const Made all = trial.train(false), asked = trial.train(true);
  EXPECT_EQ(asked.logp, all.logp);
  EXPECT_LT(distance(asked.grads, all.grads), 0.01);
  for (size_t i = 0; i < all.losses.size(); ++i)
    EXPECT_NEAR(asked.losses.at(i), all.losses[i], 0.01) << i;
}

// So few that products take them one by one, in another order of sums.
TEST(FewAskedRows, AreTheSame) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const double bound = compute == DType::kF32 ? 1e-5 : 0.02;
    Trial trial({.name = "one", .lora = lora(0.3f), .one_target = true}, compute);
    const PackLimits limits{96, 5};
    const Made all = trial.train(false, limits), asked = trial.train(true, limits);
    EXPECT_LT(distance(asked.logp, all.logp), bound);
    EXPECT_LT(distance(asked.grads, all.grads), bound);
    for (size_t i = 0; i < all.losses.size(); ++i)
      EXPECT_NEAR(asked.losses.at(i), all.losses[i], bound) << i;
  }
}

TEST(AskedRowsOfAPlan, AreLeftAloneWhereTheyAreMost) {
  Trial trial({.name = "plain", .lora = lora(0.3f)}, DType::kF32);
  auto steps = [&](bool skips, int64_t targets) {
    return print(trial.make_step(skips, {96, targets}).micro_plan());
  };
  EXPECT_EQ(steps(true, 73), steps(false, 73));
  EXPECT_NE(steps(true, 72), steps(false, 72));
}

// What the last block does behind its attention, forward and in reverse, is made of those rows.
TEST(AskedRowsOfAPlan, AreAllThatTheLastBlockMakes) {
  Trial trial({.name = "plain", .lora = lora(0)}, DType::kF32);
  const TrainStep step = trial.make_step(true);
  const Plan& plan = step.micro_plan();
  int64_t gates = 0, narrow = 0;
  for (const Step& s : plan.steps) {
    if (s.op != Op::kGatedAct) continue;
    ++gates;
    narrow += plan.value(s.inputs[0]).shape.rows() == kLimits.targets;
  }
  EXPECT_EQ(gates, 6);
  EXPECT_EQ(narrow, 2);
  // Each norm is fused with the sum before it, but for the first, which has none.
  for (const Plan* p : {&step.micro_plan(), &step.score_plan()})
    EXPECT_EQ(
        std::count_if(p->steps.begin(), p->steps.end(),
                      [](const Step& s) { return s.op == Op::kRmsNorm && s.dir == Dir::kForward; }),
        1);
}

// Outputs of frozen blocks may be kept, also where all are frozen: not a bit depends on it.
TEST(AskedRowsOfAPlan, AreTheSameBehindKeptRows) {
  for (const bool head : {false, true}) {
    Kind kind{.name = "kept", .lora = lora(0), .one_target = true};
    kind.lora.num_layers = 1;
    if (head) kind.lora.targets = {"lm_head"};
    const PackLimits limits{96, 5};
    const Made whole = Trial(kind, DType::kF32).train(true, limits);
    kind.split = true;
    const Made kept = Trial(kind, DType::kF32).train(true, limits);
    EXPECT_EQ(kept.logp, whole.logp) << head;
    EXPECT_EQ(kept.grads, whole.grads) << head;
    EXPECT_EQ(kept.losses, whole.losses) << head;
  }
}

TEST(AskedRowsOfAPlan, AreTakenBehindThemWhereItHasNoBlocks) {
  const ModelConfig config = model();
  const ModelWeights weights = ModelWeights::random(config, 5, DType::kF32);
  DecoderPlanOptions options;
  options.tokens = options.positions = options.stream_rows = 96;
  options.first_block = config.layers;
  options.rows = 8;
  const DecoderPlan plan(config, weights, options);
  EXPECT_EQ(plan.plan().value(plan.hidden()).shape, Shape({8, config.hidden}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, AskedRows, testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace wick
