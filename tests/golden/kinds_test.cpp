// SPDX-License-Identifier: Apache-2.0
// Kinds of adapter against PEFT (tests/golden/kinds), what they save and merge, and LoRA on
// quantised bases.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "adapter/svd.h"
#include "backend/cpu/cpu.h"
#include "base/rng.h"
#include "base/threads.h"
#include "golden/golden_case.h"
#include "model/adapter_start.h"
#include "model/save.h"
#include "train/sweep.h"
#include "unit/io/temporary_folder.h"

namespace wick::golden {
namespace {

constexpr double kLogits = 1e-4, kGradients = 1e-4;             // of the largest
constexpr double kLosses = 1e-5, kParams = 1e-4, kNorm = 1e-4;  // absolute; kNorm relative

void expect_near_of_largest(std::span<const float> got, std::span<const float> want, double bound,
                            const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 0, worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what << " at " << i;
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]));
  }
  EXPECT_LE(worst, bound * largest) << what;
}

// An entry's numbers as PEFT's files have them, and the name there.
struct Named {
  std::string name;
  std::vector<float> values;
};
Named peft_tensor(const std::vector<float>& flat, const ParamLayout::Entry& e) {
  auto from = flat.begin() + e.offset;
  Named out{"base_model.model." + e.name, {from, from + e.shape.elements()}};
  if (e.name.ends_with("lora_A") || e.name.ends_with("lora_B")) out.name += ".weight";
  if (e.name.ends_with("lora_embedding_A") || e.name.ends_with("trainable_tokens_delta")) {
    const int64_t rows = e.shape[0], cols = e.shape[1];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        out.values[static_cast<size_t>(c * rows + r)] = *(from + r * cols + c);
  }
  return out;
}

std::vector<int32_t> logits_row(const Case& c) {
  const std::vector<int32_t> ids = c.ints("input_ids"), starts = c.ints("row_starts");
  const auto at = c.meta["logits_row"].get<size_t>();
  return {ids.begin() + starts[at], ids.begin() + starts[at + 1]};
}

float share(const Case& c) { return 1.0f / c.meta["trained_tokens"].get<float>(); }

struct Param {
  std::string name, device;
  friend void PrintTo(const Param& p, std::ostream* out) { *out << p.name << " on " << p.device; }
};
std::vector<Param> all_params() {
  std::vector<Param> params;
  for (const std::string& name : kind_names())
    for (const std::string& device : backend_names()) params.push_back({name, device});
  return params;
}

class Kinds : public testing::TestWithParam<Param> {
 protected:
  Case c_ = Case::kind(GetParam().name);
  std::unique_ptr<Backend> backend_ =
      open_backend({.device = GetParam().device, .threads = 1, .cpu_isa = {}});

  TrainStep make_step(bool recompute) {
    TrainStep step(c_.config, c_.weights, train_adapter(c_.adapter),
                   {.limits = roomy_limits(c_),
                    .positions = 32,
                    .recompute_blocks = recompute ? -1 : 0,
                    .skips_rows = backend_->skips_rows()});
    step.compile(*backend_, c_.weights);
    step.set_params(c_.adapter_params);
    return step;
  }
  void check_gradients(const std::vector<float>& grads) {
    for (const ParamLayout::Entry& e : c_.adapter.layout().entries()) {
      const Named got = peft_tensor(grads, e);
      expect_near_of_largest(got.values, c_.floats("grad." + got.name), kGradients, got.name);
    }
  }
};

TEST_P(Kinds, Logits) {
  expect_near_of_largest(logits(c_, *backend_, logits_row(c_), true), c_.floats("logits"), kLogits,
                         "logits");
}

TEST_P(Kinds, TenUpdates) {
  for (bool recompute : {false, true}) {
    TrainStep step = make_step(recompute);
    const Pack pack = make_pack(c_, {0, 1, 2, 3}, step.limits());
    const std::vector<float> losses = c_.floats("losses"), norms = c_.floats("grad_norms");
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(step.accumulate(pack, share(c_)), losses[i], kLosses) << "step " << i;
      if (i == 0) check_gradients(step.grads());
      if (i == 0 && recompute) break;
      const float norm = step.update(adamw_settings(c_, static_cast<int64_t>(i) + 1));
      EXPECT_NEAR(norm, norms[i], kNorm * norms[i]) << "step " << i;
    }
    if (recompute) continue;
    const std::vector<float> params = step.params();
    for (const ParamLayout::Entry& e : c_.adapter.layout().entries()) {
      const Named got = peft_tensor(params, e);
      const std::vector<float> want = c_.floats("final." + got.name);
      ASSERT_EQ(got.values.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got.values[i], want[i], kParams) << got.name;
    }
  }
}

// Two of them share a step, each with rows of its own.
TEST_P(Kinds, LanesOfOneStep) {
  const Adapter* lanes[] = {&c_.adapter, &c_.adapter};
  const PackLimits limits = roomy_limits(c_);
  TrainStep step(c_.config, c_.weights, train_adapters(lanes),
                 {.limits = limits, .positions = 32, .skips_rows = backend_->skips_rows()});
  step.compile(*backend_, c_.weights);
  std::vector<float> params = c_.adapter_params;
  params.insert(params.end(), c_.adapter_params.begin(), c_.adapter_params.end());
  step.set_params(params);
  const Pack pack = make_pack(c_, {0, 1, 2, 3}, limits);
  const Pack* packs[] = {&pack, &pack};
  const Pack joined = join_packs(packs, limits);
  const std::vector<float> losses = c_.floats("losses"), norms = c_.floats("grad_norms");
  for (size_t i = 0; i < losses.size(); ++i) {
    const Hyper hyper = adamw_settings(c_, static_cast<int64_t>(i) + 1).hyper();
    step.start_lanes({&joined, 1}, std::vector(2, share(c_)), std::vector(2, hyper));
    const TrainStep::Update done = step.finish_lanes();
    for (const RunStep::Stepped& lane : done.lanes) {
      EXPECT_NEAR(lane.loss, losses[i], kLosses) << "step " << i;
      EXPECT_NEAR(lane.norm, norms[i], kNorm * norms[i]) << "step " << i;
    }
  }
}

TEST_P(Kinds, WhatIsSavedIsWhatRan) {
  const std::vector<int32_t> row = logits_row(c_);
  const std::vector<float> before = logits(c_, *backend_, row, true);
  TemporaryFolder folder(GetParam().name + GetParam().device);
  c_.adapter.save(folder.path(), c_.adapter_params, "base");
  c_.adapter = Adapter::load(folder.path(), adaptable_linears(c_.config), c_.adapter_params);
  start_adapter(c_.adapter, c_.config, c_.weights, false, c_.adapter_params);
  expect_near_of_largest(logits(c_, *backend_, row, true), before, 1e-5, "loaded again");
}

TEST_P(Kinds, MergedIsWhatRan) {
  if (c_.config.tied) GTEST_SKIP() << "a tied table cannot be changed at one end";
  const std::vector<int32_t> row = logits_row(c_);
  const std::vector<float> before = logits(c_, *backend_, row, true);
  ThreadPool pool(1);
  TemporaryFolder folder("merged" + GetParam().name + GetParam().device);
  save_weights(folder.path(), c_.config, c_.weights, DType::kF32,
               [&](const WeightSpec& spec) -> std::optional<std::vector<float>> {
                 std::vector<float> values = c_.weights.read_floats(spec);
                 int64_t at = 0;
                 for (const WeightSpec::Part& part : spec.parts) {
                   const std::string module = part.tensor.substr(0, part.tensor.rfind('.'));
                   const bool is_weight = part.tensor.ends_with(".weight");
                   const WholeModule* whole =
                       c_.adapter.find_whole(is_weight ? module : part.tensor);
                   if (const LoraModule* m = is_weight ? c_.adapter.find(module) : nullptr)
                     c_.adapter.merge(*m, c_.adapter_params, values.data() + at, pool);
                   if (whole)
                     std::copy_n(c_.adapter_params.data() + whole->offset, part.shape.elements(),
                                 values.data() + at);
                   if (is_weight && c_.adapter.tokens() && c_.adapter.tokens()->module == module)
                     c_.adapter.merge_tokens(c_.adapter_params, values.data() + at);
                   at += part.shape.elements();
                 }
                 return values;
               });
  c_.weights =
      ModelWeights::open(SafetensorsSet::open(folder.path()), folder.path().string(), c_.config);
  expect_near_of_largest(logits(c_, *backend_, row, false), before, 1e-4, "merged");
}

INSTANTIATE_TEST_SUITE_P(Cases, Kinds, testing::ValuesIn(all_params()), [](const auto& info) {
  return info.param.name + "_" + info.param.device;
});

// A fresh adapter leaves the model as it is, whatever its kind.
TEST(FreshAdapter, ChangesNothing) {
  for (const char* kind :
       {"plain", "gaussian", "dora", "pissa", "embedding", "head", "whole", "tokens"}) {
    Case c("qwen2_window");
    auto backend = open_backend({.device = "ref", .threads = 1, .cpu_isa = {}});
    const std::vector<int32_t> row = {5, 9, 31, 7, 2, 44, 80, 3, 3, 61};
    const std::vector<float> base = logits(c, *backend, row, false);
    LoraOptions o;
    o.rank = 3;
    const std::string name = kind;
    o.dora = name == "dora";
    if (name == "gaussian" || name == "pissa") o.init = name;
    if (name == "embedding") o.targets.push_back("embed_tokens");
    if (name == "head") o.targets.push_back("lm_head");
    if (name == "tokens") o.trainable_token_indices = {3, 61, 96};
    if (name == "whole") o.modules_to_save = {"lm_head", "embed_tokens", "model.norm"};
    c.adapter = Adapter::create(o, adaptable_linears(c.config));
    c.adapter_params = c.adapter.initial_params(3);
    start_adapter(c.adapter, c.config, c.weights, true, c.adapter_params);
    expect_near_of_largest(logits(c, *backend, row, true), base, 2e-6, name);
  }
}

// DoRA divides by the length of a row; a row of zeros would make every number of a run none.
TEST(FreshAdapter, DoraRefusesRowsOfZeros) {
  Case c("qwen2_window");
  LoraOptions o;
  o.dora = true;
  Adapter adapter = Adapter::create(o, adaptable_linears(c.config));
  std::vector<float> params = adapter.initial_params(3);
  const LoraModule& m = *adapter.find("model.layers.1.mlp.up_proj");
  std::vector<float> w(static_cast<size_t>(m.out * m.in), 0.5f);
  adapter.start_module(m, w.data(), true, params);
  std::fill_n(w.begin() + 7 * m.in, m.in, 0.0f);
  try {
    adapter.start_module(m, w.data(), true, params);
    ADD_FAILURE() << "was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("up_proj: row 7 of its weight"), std::string::npos)
        << e.what();
  }
}

// q, k and v are one product: a kind may be on any of them.
TEST(FreshAdapter, GoesOnAnyPartOfAJoinedProduct) {
  const std::vector<std::string> names = {"q_proj", "k_proj", "v_proj"};
  for (unsigned chosen = 1; chosen < 8; ++chosen)
    for (const char* kind : {"plain", "dora", "pissa"})
      for (float dropout : {0.0f, 0.2f}) {
        Case c("llama_mha_rope3");
        auto backend = open_backend({.device = "ref", .threads = 1, .cpu_isa = {}});
        const std::vector<int32_t> row = {5, 9, 31, 7, 2};
        const std::vector<float> base = logits(c, *backend, row, false);
        LoraOptions o;
        o.rank = 2;
        o.dropout = dropout;
        o.dora = std::string(kind) == "dora";
        if (std::string(kind) == "pissa") o.init = kind;
        o.targets.clear();
        for (unsigned i = 0; i < 3; ++i)
          if (chosen >> i & 1) o.targets.push_back(names[i]);
        c.adapter = Adapter::create(o, adaptable_linears(c.config));
        c.adapter_params = c.adapter.initial_params(3);
        start_adapter(c.adapter, c.config, c.weights, true, c.adapter_params);
        const std::string what = cat(kind, " on ", chosen, " dropout ", dropout);
        expect_near_of_largest(logits(c, *backend, row, true), base, 2e-6, what);
        EXPECT_NO_THROW(TrainStep(c.config, c.weights, train_adapter(c.adapter),
                                  {.limits = roomy_limits(c), .positions = 32}))
            << what;
      }
}

// LoRA on codes is LoRA on the numbers that the codes stand for.
TEST(QuantisedBase, GradientsAreThoseOfTheDequantisedOne) {
  for (const char* kind : {"", "dora"})
    for (DType type : {DType::kQ8G32, DType::kQ4G32}) {
      Case c = *kind ? Case::kind(kind) : Case("qwen3_untied");
      for (const char* device : {"ref", "cpu"}) {
        auto backend = open_backend({.device = device, .threads = 1, .cpu_isa = {}});
        c.weights.release();
        c.weights.quantize_to(type);
        TemporaryFolder folder(cat("plain_", kind, dtype_name(type), device));
        save_weights(folder.path(), c.config, c.weights, DType::kF32,
                     [&](const WeightSpec& spec) { return c.weights.read_floats(spec); });
        ModelWeights plain = ModelWeights::open(SafetensorsSet::open(folder.path()),
                                                folder.path().string(), c.config);
        auto gradients = [&](ModelWeights& weights) {
          TrainStep step(c.config, weights, train_adapter(c.adapter),
                         {.limits = roomy_limits(c), .positions = 32});
          step.compile(*backend, weights);
          step.set_params(c.adapter_params);
          step.accumulate(make_pack(c, {0, 1, 2, 3}, step.limits()), share(c));
          return step.grads();
        };
        const std::vector<float> want = gradients(plain);
        expect_near_of_largest(gradients(c.weights), want, 5e-6,
                               cat(kind, " ", dtype_name(type), " on ", device));
      }
    }
}

TEST(SingularVectors, RebuildKnownMatrices) {
  struct Size {
    int64_t rows, cols, rank;
  };
  for (const Size& n : {Size{7, 5, 5}, {5, 9, 3}, {1, 4, 1}, {160, 140, 6}, {140, 200, 6}}) {
    // A matrix with known values: orthogonal vectors of cosines, values 10, 5, 2.5, …
    const int64_t most = std::min({n.rows, n.cols, int64_t{9}});
    auto basis = [](int64_t k, int64_t i, int64_t size) {
      const double norm = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(size));
      return norm * std::cos(3.14159265358979 * (static_cast<double>(i) + 0.5) *
                             static_cast<double>(k) / static_cast<double>(size));
    };
    std::vector<float> w(static_cast<size_t>(n.rows * n.cols));
    for (int64_t r = 0; r < n.rows; ++r)
      for (int64_t c = 0; c < n.cols; ++c) {
        double sum = 0;
        for (int64_t k = 0; k < most; ++k)
          sum += 10.0 * std::pow(0.5, static_cast<double>(k)) * basis(k, r, n.rows) *
                 basis(k, c, n.cols);
        w[static_cast<size_t>(r * n.cols + c)] = static_cast<float>(sum);
      }
    const SingularVectors got = singular_vectors(w.data(), n.rows, n.cols, n.rank);
    for (int64_t k = 0; k < n.rank; ++k) {
      const double value = 10.0 * std::pow(0.5, static_cast<double>(k));
      EXPECT_NEAR(got.s[static_cast<size_t>(k)], value, 2e-5) << n.rows << "x" << n.cols;
      double u = 0, v = 0;
      for (int64_t r = 0; r < n.rows; ++r)
        u += static_cast<double>(got.u[static_cast<size_t>(r * n.rank + k)]) * basis(k, r, n.rows);
      for (int64_t c = 0; c < n.cols; ++c)
        v += static_cast<double>(got.v[static_cast<size_t>(k * n.cols + c)]) * basis(k, c, n.cols);
      EXPECT_NEAR(u * v, 1.0, 1e-4) << k;
    }
  }
}

// Of random matrices, as of trained ones, the values lie close together, and vectors converge long
// after them.
TEST(SingularVectors, AreThoseOfAFlatSpectrum) {
  struct Size {
    int64_t rows, cols, rank;
  };
  for (const Size& n : {Size{160, 150, 4}, {140, 200, 16}}) {
    std::vector<float> w(static_cast<size_t>(n.rows * n.cols));
    Rng rng(3);
    for (float& x : w) x = static_cast<float>(rng.normal());
    const SingularVectors got = singular_vectors(w.data(), n.rows, n.cols, n.rank);
    for (int64_t k = 0; k < n.rank; ++k) {
      double away = 0;  // of wᵀ u from s v
      for (int64_t c = 0; c < n.cols; ++c) {
        double sum = -static_cast<double>(got.s[static_cast<size_t>(k)]) *
                     got.v[static_cast<size_t>(k * n.cols + c)];
        for (int64_t r = 0; r < n.rows; ++r)
          sum += static_cast<double>(w[static_cast<size_t>(r * n.cols + c)]) *
                 got.u[static_cast<size_t>(r * n.rank + k)];
        away += sum * sum;
      }
      EXPECT_LT(std::sqrt(away), 2e-6 * got.s[0]) << n.rows << "x" << n.cols << " " << k;
    }
  }
}

}  // namespace
}  // namespace wick::golden
