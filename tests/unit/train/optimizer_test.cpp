// SPDX-License-Identifier: Apache-2.0
// The optimizers against torch's and transformers' numbers
// (tools/golden/make_optimizer_goldens.py).
#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "backend/backend.h"
#include "base/check.h"
#include "io/json.h"
#include "plan/recorder.h"
#include "train/step.h"

namespace wick {
namespace {

Json goldens() { return read_json(WICK_SOURCE_DIR "/tests/golden/optimizers/steps.json"); }

TrainOptions options_of(const Json& o) {
  TrainOptions t;
  t.grad_clip = 0;
  t.optimizer = o["optimizer"].get<std::string>();
  auto number = [&](const char* key, double& to) {
    if (const Json* value = find_member(o, key)) to = value->get<double>();
  };
  number("beta1", t.beta1);
  number("beta2", t.beta2);
  number("eps", t.eps);
  number("weight_decay", t.weight_decay);
  number("momentum", t.momentum);
  number("dampening", t.dampening);
  if (const Json* nesterov = find_member(o, "nesterov")) t.nesterov = nesterov->get<int>();
  t.scale_parameter = get_bool(o, "scale_parameter", "golden", false);
  t.relative_step = get_bool(o, "relative_step", "golden", false);
  return t;
}

// One set of parameters and its optimizer on a device.
class Updater {
 public:
  Updater(Backend& backend, const std::vector<ParamGroup>& groups, TrainOptions options)
      : backend_(backend), options_(std::move(options)) {
    resolve_optimizer(options_);
    const Op op = optimizer_op(options_.optimizer);
    ParamGroups all{groups, 1};
    count_ = groups.back().end;
    Recorder r(plan_, false);
    hyper_ = r.feed("hyper", {1, 8}, DType::kF32);
    const ValueId params = r.state("params", {count_}, DType::kF32);
    std::vector<ValueId> states;
    const std::vector<OptimizerState> kept = optimizer_states(op, all);
    for (const OptimizerState& s : kept) states.push_back(r.state(s.name, s.shape, s.dtype));
    const ValueId grads = r.state("grads", {count_}, DType::kF32);
    const ValueId norm = r.grad_norm(grads, all);
    r.optimizer(op, hyper_, norm, params, states, grads, all);
    plan_.results.push_back(norm);
    Bindings b(plan_.values.size());
    b[static_cast<size_t>(params)] = params_ = backend.allocate(DType::kF32, count_);
    b[static_cast<size_t>(grads)] = grads_ = backend.allocate(DType::kF32, count_);
    for (size_t i = 0; i < kept.size(); ++i)
      b[static_cast<size_t>(states[i])] = backend.allocate(kept[i].dtype, kept[i].shape.elements());
    program_ = backend.compile(plan_, b);
  }

  void start(const std::vector<float>& params) {
    backend_.upload(*params_, DType::kF32, 0, count_, params.data());
  }
  std::vector<float> update(const std::vector<float>& grads, double rate) {
    backend_.upload(*grads_, DType::kF32, 0, count_, grads.data());
    const Hyper hyper = optimizer_hyper(options_, rate, ++step_);
    program_->feed(hyper_, hyper.data(), sizeof hyper);
    program_->run();
    program_->wait();
    std::vector<float> params(static_cast<size_t>(count_));
    backend_.download(*params_, DType::kF32, 0, count_, params.data());
    return params;
  }

 private:
  Backend& backend_;
  TrainOptions options_;
  Plan plan_;
  int64_t count_ = 0, step_ = 0;
  ValueId hyper_ = kNone;
  BufferPtr params_, grads_;
  std::unique_ptr<Program> program_;
};

std::vector<ParamGroup> groups_of(const Json& shapes) {
  std::vector<ParamGroup> groups;
  int64_t end = 0;
  for (const Json& shape : shapes) {
    ParamGroup g;
    g.begin = end;
    end += shape[0].get<int64_t>() * (shape.size() > 1 ? shape[1].get<int64_t>() : 1);
    g.end = end;
    g.rows = shape.size() > 1 ? shape[0].get<int64_t>() : 0;
    groups.push_back(g);
  }
  return groups;
}

std::vector<std::string> devices() {
  std::vector<std::string> names = {"ref", "cpu"};
  for (const std::string& name : backend_names())
    if (name == "cuda") names.push_back(name);
  return names;
}

TEST(Optimizer, StepsAreThoseOfTorchAndTransformers) {
  const Json g = goldens();
  for (const std::string& device : devices()) {
    std::unique_ptr<Backend> backend = open_backend({.device = device});
    for (const auto& [name, c] : g["cases"].items()) {
      Updater updater(*backend, groups_of(g["shapes"]), options_of(c["options"]));
      updater.start(g["start"].get<std::vector<float>>());
      for (size_t step = 0; step < c["steps"].size(); ++step) {
        const std::vector<float> got =
            updater.update(g["grads"][step].get<std::vector<float>>(), g["lr"].get<double>());
        const auto want = c["steps"][step].get<std::vector<float>>();
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(got[i], want[i], 2e-6f)
              << device << " " << name << " step " << step + 1 << " element " << i;
      }
    }
  }
}

// A large matrix is shared out among threads, small ones each have one.
TEST(Optimizer, TheNumberOfThreadsDoesNotChangeBits) {
  const std::vector<ParamGroup> groups = groups_of(
      Json{Json{530, 520}, Json{9, 30001}, Json{8, 70}, Json{33}, Json{30001, 9}, Json{300000}});
  std::vector<float> start(static_cast<size_t>(groups.back().end)), grads = start;
  for (size_t i = 0; i < start.size(); ++i) {
    start[i] = static_cast<float>(i % 97) / 97.0f - 0.5f;
    grads[i] = static_cast<float>(i % 89) / 89.0f - 0.5f;
  }
  for (const char* name : {"muon", "adafactor", "adamw_8bit"}) {
    TrainOptions o;
    o.optimizer = name;
    o.ns_steps = 2;
    std::vector<float> one;
    for (int threads : {1, 2, 3}) {
      std::unique_ptr<Backend> backend = open_backend({.device = "cpu", .threads = threads});
      Updater updater(*backend, groups, o);
      updater.start(start);
      updater.update(grads, 1e-2);
      const std::vector<float> got = updater.update(grads, 1e-2);
      if (threads == 1)
        one = got;
      else
        EXPECT_EQ(got, one) << name << " on " << threads;
    }
  }
}

// mlx-lm's adam: with a constant gradient the first step is 3.16 times the rate.
TEST(Optimizer, AdamWithoutBiasCorrection) {
  TrainOptions o;
  o.optimizer = "adam";
  o.bias_correction = false;
  o.grad_clip = 0;
  std::unique_ptr<Backend> backend = open_backend({.device = "cpu"});
  Updater updater(*backend, {{0, 1}}, o);
  updater.start({0.0f});
  float before = 0, largest = 0, last = 0;
  for (int step = 1; step <= 1000; ++step) {
    const float now = updater.update({1.0f}, 1e-3)[0];
    last = (before - now) / 1e-3f;
    if (step == 1) {
      EXPECT_NEAR(last, 3.1623f, 1e-3f);
    }
    largest = std::max(largest, last);
    before = now;
  }
  EXPECT_NEAR(largest, 6.57f, 0.01f);
  EXPECT_NEAR(last, 1.26f, 0.01f);
}

TEST(Optimizer, EightBitMomentsStayNearTheFullOnes) {
  const int64_t count = 1000;
  std::unique_ptr<Backend> backend = open_backend({.device = "cpu"});
  TrainOptions o;
  Updater full(*backend, {{0, count}}, o);
  o.optimizer = "adamw_8bit";
  Updater codes(*backend, {{0, count}}, o);
  std::vector<float> start(static_cast<size_t>(count)), grads(start.size());
  full.start(start);
  codes.start(start);
  std::vector<float> a, b;
  uint32_t seed = 1;
  for (int step = 0; step < 50; ++step) {
    for (size_t i = 0; i < grads.size(); ++i) {
      seed = seed * 1664525u + 1013904223u;
      // A part that stays and noise, in sizes that are tenfold apart.
      const float noise = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
      grads[i] = (0.5f + noise) * std::pow(10.0f, -static_cast<float>(i % 2));
    }
    a = full.update(grads, 1e-3);
    b = codes.update(grads, 1e-3);
  }
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(a[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / size), 0.03);
}

TEST(Optimizer, RefusesWhatItDoesNotHave) {
  auto wrong = [](auto&& change) {
    TrainOptions o;
    change(o);
    try {
      resolve_optimizer(o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(wrong([](TrainOptions& o) { o.optimizer = "adamx"; }).find("did you mean adam"),
            std::string::npos);
  EXPECT_NE(wrong([](TrainOptions& o) {
              o.optimizer = "adam";
              o.weight_decay = 0.1;
            }).find("use adamw"),
            std::string::npos);
  EXPECT_NE(wrong([](TrainOptions& o) { o.momentum = 0.9; }).find("--momentum"), std::string::npos);
  // Of Adafactor, by the names of settings files: there are no flags.
  const std::string adafactor = "optimizer_config.adafactor.";
  for (double eps : {-1.0, 0.0, std::nan(""), 1.0 / 0.0})
    EXPECT_EQ(wrong([&](TrainOptions& o) { o.adafactor_eps1 = eps; }).find(adafactor + "eps[0] is"),
              0u)
        << eps;
  EXPECT_EQ(wrong([](TrainOptions& o) { o.adafactor_eps2 = -5; }).find(adafactor + "eps[1] is"),
            0u);
  EXPECT_EQ(
      wrong([](TrainOptions& o) { o.clip_threshold = -1; }).find(adafactor + "clip_threshold is"),
      0u);
  EXPECT_EQ(wrong([](TrainOptions&) {}), "");
}

TEST(Optimizer, KeepsWhatItSays) {
  const ParamGroups groups{{{0, 21, 1, 1, 0, 3}, {21, 26, 1, 1, 0, 0}}, 1};
  EXPECT_EQ(optimizer_states(Op::kAdamw, groups).size(), 2u);
  EXPECT_EQ(optimizer_states(Op::kMuon, groups).size(), 1u);
  EXPECT_EQ(optimizer_states(Op::kAdafactor, groups)[0].shape.elements(), 3 + 7 + 5);
  const auto codes = optimizer_states(Op::kAdamw8, groups);
  EXPECT_EQ(codes[0].dtype, DType::kU8);
  EXPECT_EQ(codes[2].shape, (Shape{2, 2}));
}

// muon's factor is that of the matrix as PEFT has it; decay is what it was.
TEST(Groups, MuonSeesATurnedMatrixAsItIsMeant) {
  Trainable t;
  t.layout.add("a", {32, 2}, 1.0f, true);
  t.layout.add("b", {2, 32}, 1.0f, true);
  t.layout.add("c", {32, 2});
  const std::vector<ParamGroup> groups = update_groups(t, Op::kMuon).groups;
  ASSERT_EQ(groups.size(), 3u);
  const float wanted[] = {0.25f, 4.0f, 1.0f};
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_FLOAT_EQ(groups[i].lr_scale, wanted[i]);
    EXPECT_FLOAT_EQ(groups[i].decay_scale * groups[i].lr_scale, 1.0f);
  }
  for (const ParamGroup& g : update_groups(t, Op::kAdafactor).groups) EXPECT_EQ(g.lr_scale, 1.0f);
}

// The q, k and v of a model are one value, and each a matrix of its own to an optimizer.
TEST(Groups, JoinedWeightsAreSeenApart) {
  Trainable t;
  t.layout.add("qkv.weight", {8, 4});
  t.layout.add("qkv.bias", {8});
  t.layout.add("o.weight", {4, 4});
  t.specs = {{.name = "qkv.weight",
              .shape = {8, 4},
              .parts = {{"q.weight", {4, 4}}, {"k.weight", {2, 4}}, {"v.weight", {2, 4}}}},
             {.name = "qkv.bias",
              .shape = {8},
              .parts = {{"q.bias", {4}}, {"k.bias", {2}}, {"v.bias", {2}}}},
             {.name = "o.weight", .shape = {4, 4}, .parts = {{"o.weight", {4, 4}}}}};
  for (const Op op : {Op::kMuon, Op::kAdafactor}) {
    const std::vector<ParamGroup> groups = update_groups(t, op).groups;
    const int64_t wanted[][3] = {{0, 16, 4},  {16, 24, 2}, {24, 32, 2}, {32, 36, 0},
                                 {36, 38, 0}, {38, 40, 0}, {40, 56, 4}};
    ASSERT_EQ(groups.size(), std::size(wanted));
    for (size_t i = 0; i < groups.size(); ++i) {
      EXPECT_EQ(groups[i].begin, wanted[i][0]) << i;
      EXPECT_EQ(groups[i].end, wanted[i][1]) << i;
      EXPECT_EQ(groups[i].rows, wanted[i][2]) << i;
    }
  }
  const std::vector<ParamGroup> joined = update_groups(t, Op::kAdamw).groups;
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_EQ(joined[0].end, 56);
}

}  // namespace
}  // namespace wick
