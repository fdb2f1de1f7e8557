// SPDX-License-Identifier: Apache-2.0
// Updates that are started before the last one was finished have the bits of updates one after the
// other, whatever a run does between them.
#include <gtest/gtest.h>

#include <cmath>

#include "train/distill.h"
#include "train/run.h"
#include "train/sweep.h"
#include "unit/io/temporary_folder.h"
#include "unit/train/late_backend.h"
#include "unit/train/small_model.h"

namespace wick {
namespace {

// Row i, and for a pair its second half is what is rejected.
ExampleSet make_rows(int64_t count, bool pairs = false) {
  std::vector<Example> rows;
  for (int64_t r = 0; r < count; ++r) {
    Example e;
    const int64_t length = 12 + 5 * (r % 7);
    auto sequence = [&](int64_t salt) {
      for (int64_t i = 0; i < length; ++i) {
        e.ids.push_back(static_cast<int32_t>((7 * i + 3 * r + salt) % 96));
        e.trained.push_back(i > length / 3);
      }
    };
    sequence(0);
    if (pairs) {
      e.second = length;
      sequence(11);
    }
    e.full_length = static_cast<int64_t>(e.ids.size());
    e.line = r + 1;
    rows.push_back(std::move(e));
  }
  return ExampleSet::from_examples(std::move(rows), "rows");
}

struct Wanted {
  bool late = false;
  std::string folder;
  int stop_at = 0;  // the question that is answered with yes
  bool resume = false;
};

class Ahead : public testing::Test {
 protected:
  Ahead() {
    LoraOptions lora;
    lora.rank = 4;
    lora.num_layers = 2;
    lora.targets = {"q_proj", "down_proj"};
    lora.dropout = 0.1f;
    for (int k = 0; k < 2; ++k)
      adapters_.push_back(Adapter::create(lora, adaptable_linears(config_)));
    options_.batch_size = 6;
    options_.iters = 9;
    options_.steps_per_report = 2;
    options_.steps_per_eval = 4;
    options_.save_every = 3;
    options_.learning_rate = 5e-3;
    options_.val_batches = -1;
    resolve_optimizer(options_);
    step_options_.limits = {96, 96};
    step_options_.positions = 96;
  }

  std::unique_ptr<Backend> device(bool late) {
    auto cpu = open_backend({.device = "cpu", .threads = 2});
    if (!late) return cpu;
    auto made = std::make_unique<LateBackend>(std::move(cpu));
    late_ = made.get();
    return made;
  }

  std::unique_ptr<TrainStep> make_step(Backend& backend, size_t lanes) {
    std::vector<const Adapter*> all;
    std::vector<float> params;
    for (size_t k = 0; k < lanes; ++k) {
      all.push_back(&adapters_[k]);
      const std::vector<float> own = adapters_[k].initial_params(3 + k);
      params.insert(params.end(), own.begin(), own.end());
    }
    auto step = std::make_unique<TrainStep>(
        config_, weights_, lanes > 1 ? train_adapters(all) : train_adapter(*all[0]), step_options_);
    step->add_sizes(weights_, sizes_);
    step->compile(backend, weights_);
    step->set_params(params);
    return step;
  }

  RunSetup setup(const TrainOptions& options) {
    RunSetup s;
    s.train = &train_;
    s.valid = &valid_;
    s.options = options;
    s.identity = Json::object();
    s.save_result = [](const std::string&, std::span<const float>) {};
    return s;
  }

  TrainResult run_one(RunStep& step, TrainOptions options, const Wanted& w) {
    options.adapter_path = (root_ / w.folder).string();
    options.resume = w.resume;
    make_folder(options.adapter_path);
    TrainRun run(step, setup(options));
    int asked = 0;
    TrainCallbacks callbacks;
    if (w.stop_at > 0) callbacks.should_stop = [&] { return ++asked == w.stop_at; };
    return run.run(callbacks);
  }

  struct Ended {
    TrainResult result;
    std::vector<float> params;
    std::string failed;
  };
  Ended run(const Wanted& w) {
    const std::unique_ptr<Backend> backend = device(w.late);
    const std::unique_ptr<TrainStep> step = make_step(*backend, 1);
    Ended ended;
    ended.failed = message_of([&] { ended.result = run_one(*step, options_, w); });
    ended.params = step->params();
    if (w.late) most_waiting_ = late_->most_waiting();
    return ended;
  }

  // Each lane with its own cadence, so that they do not ask for the same things at the same time.
  std::vector<Ended> sweep(const Wanted& w) {
    const std::unique_ptr<Backend> backend = device(w.late);
    const std::unique_ptr<TrainStep> step = make_step(*backend, 2);
    JointStep joint(*step);
    std::vector<Ended> ended(2);
    const std::vector<std::exception_ptr> errors = joint.run([&](size_t k) {
      TrainOptions o = options_;
      o.seed = k;
      o.iters += 2 * static_cast<int64_t>(k);
      o.steps_per_eval += static_cast<int64_t>(k);
      o.save_every += static_cast<int64_t>(k);
      o.learning_rate *= k == 1 ? second_rate_ : 1;
      Wanted own = w;
      own.folder += cat("/", k);
      ended[k].failed = message_of([&] { ended[k].result = run_one(joint.lane(k), o, own); });
    });
    for (const std::exception_ptr& e : errors) EXPECT_FALSE(e);
    for (size_t k = 0; k < 2; ++k) ended[k].params = joint.lane(k).params();
    if (w.late) most_waiting_ = late_->most_waiting();
    return ended;
  }

  static void expect_same(const Ended& a, const Ended& b) {
    EXPECT_EQ(a.failed, b.failed);
    if (a.failed.empty()) {  // else they are no numbers
      EXPECT_EQ(a.params, b.params);
    }
    const TrainResult &x = a.result, &y = b.result;
    EXPECT_EQ(x.steps, y.steps);
    EXPECT_EQ(x.interrupted, y.interrupted);
    EXPECT_EQ(x.tokens, y.tokens);
    ASSERT_EQ(x.history.size(), y.history.size());
    for (size_t i = 0; i < x.history.size(); ++i) {
      EXPECT_EQ(x.history[i].step, y.history[i].step);
      EXPECT_EQ(x.history[i].loss, y.history[i].loss);
      EXPECT_EQ(x.history[i].update_loss, y.history[i].update_loss);
      EXPECT_EQ(x.history[i].grad_norm, y.history[i].grad_norm);
      EXPECT_EQ(x.history[i].preference.margin, y.history[i].preference.margin);
      EXPECT_EQ(x.history[i].preference.divergence, y.history[i].preference.divergence);
    }
    ASSERT_EQ(x.evals.size(), y.evals.size());
    for (size_t i = 0; i < x.evals.size(); ++i) EXPECT_EQ(x.evals[i].loss, y.evals[i].loss);
  }

  void expect_same_checkpoints(const std::string& a, const std::string& b) {
    const std::optional<Checkpoint> x = load_checkpoint(root_ / a), y = load_checkpoint(root_ / b);
    ASSERT_EQ(x.has_value(), y.has_value());
    if (!x) return;
    EXPECT_EQ(x->step, y->step);
    EXPECT_EQ(x->params, y->params);
    ASSERT_EQ(x->states.size(), y->states.size());
    for (size_t i = 0; i < x->states.size(); ++i) EXPECT_EQ(x->states[i].bytes, y->states[i].bytes);
  }

  // Whole, and stopped at some of the questions and gone on with, ahead as one by one.
  void expect_same_runs(std::vector<int> stops = {4}) {
    const Ended plain = run({.late = false, .folder = "plain"});
    ASSERT_EQ(plain.failed, "");
    EXPECT_EQ(plain.result.steps, options_.iters);
    expect_same(plain, run({.late = true, .folder = "ahead"}));
    expect_same_checkpoints("plain", "ahead");
    for (int at : stops) {
      SCOPED_TRACE(at);
      const std::string one = cat("one", at), other = cat("other", at);
      const Ended stopped = run({.late = false, .folder = one, .stop_at = at});
      EXPECT_TRUE(stopped.result.interrupted);
      expect_same(stopped, run({.late = true, .folder = other, .stop_at = at}));
      expect_same_checkpoints(one, other);
      const Ended rest = run({.late = true, .folder = other, .resume = true});
      EXPECT_EQ(rest.params, plain.params);
      EXPECT_EQ(rest.result.evals.back().loss, plain.result.evals.back().loss);
    }
  }

  LossMaker preference(PreferenceAttr::Kind kind, int64_t lanes) {
    PreferenceOptions p;
    p.attr.kind = kind;
    p.pairs = options_.batch_size;
    p.max_tokens = 64;
    p.uses_reference = kind == PreferenceAttr::Kind::kDpo || kind == PreferenceAttr::Kind::kKto;
    p.lanes = lanes;
    return [p] { return std::make_unique<PreferenceLoss>(p); };
  }

  TemporaryFolder root_{"ahead"};
  ModelConfig config_ = small_model(3);
  ModelWeights weights_ = ModelWeights::random(config_, 5, DType::kF32);
  std::vector<Adapter> adapters_;
  ExampleSet train_ = make_rows(22), valid_ = make_rows(5);
  TrainOptions options_;
  StepOptions step_options_;
  std::vector<int64_t> sizes_ = {32, 64};
  double second_rate_ = 1;
  LateBackend* late_ = nullptr;
  size_t most_waiting_ = 0;
};

TEST_F(Ahead, ARunIsTheSame) {
  expect_same_runs({1, 2, 3, 5, 7});
  EXPECT_GE(most_waiting_, 4U);  // packs of two updates and an update
}

TEST_F(Ahead, ManyPacksOfOneProgram) {
  step_options_.limits = {48, 48};
  sizes_ = {};
  expect_same_runs();
}

TEST_F(Ahead, KeptRows) {
  step_options_.split_prefix = true;
  step_options_.kept_tokens = 120;  // of some rows
  expect_same_runs();
}

TEST_F(Ahead, Preferences) {
  train_ = make_rows(22, true);
  valid_ = make_rows(5, true);
  for (const PreferenceAttr::Kind kind :
       {PreferenceAttr::Kind::kDpo, PreferenceAttr::Kind::kOrpo, PreferenceAttr::Kind::kKto}) {
    SCOPED_TRACE(static_cast<int>(kind));
    std::filesystem::remove_all(root_.path());
    step_options_.loss = preference(kind, 1);
    expect_same_runs();
  }
}

TEST_F(Ahead, Distillation) {
  ModelWeights teacher = ModelWeights::random(config_, 8, DType::kF32);
  DistillOptions d;
  d.teacher = {&config_, &teacher, {}, {}, true};
  d.config = &config_;
  d.weights = &weights_;
  d.alpha = 0.7f;
  step_options_.loss = [d] { return std::make_unique<DistillLoss>(d); };
  expect_same_runs();
}

// The update behind the one that failed was under way.
TEST_F(Ahead, ALossThatIsNoNumberStopsTheRunWhereItDid) {
  options_.learning_rate = 1e30;
  options_.grad_clip = 0;
  options_.lr_schedule = "constant";
  options_.warmup = 0;
  options_.save_every = 1;
  options_.steps_per_eval = 0;
  for (int64_t every : {1, 5}) {
    options_.save_every = every;
    const Ended plain = run({.late = false, .folder = cat("plain", every)});
    const Ended ahead = run({.late = true, .folder = cat("ahead", every)});
    EXPECT_NE(plain.failed.find("the loss is"), std::string::npos) << plain.failed;
    auto said = [](const std::string& text) { return text.substr(0, text.find("; training")); };
    EXPECT_EQ(said(plain.failed), said(ahead.failed));
    expect_same_checkpoints(cat("plain", every), cat("ahead", every));
  }
}

TEST_F(Ahead, AStepCanBeUsedAfterARunThatFailed) {
  const std::unique_ptr<Backend> backend = device(true);
  const std::unique_ptr<TrainStep> step = make_step(*backend, 1);
  const std::vector<Pack> packs =
      pack_rows(train_, std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}, step->limits(), 0, 0, true);
  const Hyper hyper = AdamwSettings().hyper();
  step->start(packs, 0.01f, {&hyper, 1});
  step->start(packs, 0.01f, {&hyper, 1});
  step->abandon();
  EXPECT_GT(step->step(packs, 0.01f, {&hyper, 1}).loss, 0);
}

TEST_F(Ahead, ASweepIsTheSame) {
  sizes_ = {};
  auto expect_same_sweeps = [&](const std::string& name) {
    SCOPED_TRACE(name);
    const std::vector<Ended> plain = sweep({.late = false, .folder = name + "_plain"}),
                             ahead = sweep({.late = true, .folder = name + "_ahead"});
    for (size_t k = 0; k < 2; ++k) {
      SCOPED_TRACE(k);
      expect_same(plain[k], ahead[k]);
      expect_same_checkpoints(cat(name, "_plain/", k), cat(name, "_ahead/", k));
    }
    return plain;
  };
  for (const Ended& lane : expect_same_sweeps("sft")) EXPECT_EQ(lane.failed, "");
  EXPECT_GE(most_waiting_, 4U);
  // One lane ends early, with an update under way, and the other goes on.
  options_.grad_clip = 0;
  options_.steps_per_eval = 0;
  options_.save_every = 5;
  second_rate_ = 1e30;
  const std::vector<Ended> broken = expect_same_sweeps("broken");
  EXPECT_EQ(broken[0].failed, "");
  EXPECT_NE(broken[1].failed, "");
}

TEST_F(Ahead, ASweepOfPreferencesReportsEachLanesOwn) {
  sizes_ = {};
  train_ = make_rows(22, true);
  valid_ = make_rows(5, true);
  for (const PreferenceAttr::Kind kind : {PreferenceAttr::Kind::kDpo, PreferenceAttr::Kind::kKto}) {
    SCOPED_TRACE(static_cast<int>(kind));
    std::filesystem::remove_all(root_.path());
    step_options_.loss = preference(kind, 2);
    const std::vector<Ended> plain = sweep({.late = false, .folder = "plain"}),
                             ahead = sweep({.late = true, .folder = "ahead"});
    for (size_t k = 0; k < 2; ++k) {
      SCOPED_TRACE(k);
      EXPECT_TRUE(plain[k].result.history.back().preference.present);
      expect_same(plain[k], ahead[k]);
    }
  }
}

}  // namespace
}  // namespace wick
