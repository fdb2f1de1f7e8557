// SPDX-License-Identifier: Apache-2.0
// Kinds of adapter against PEFT (tests/golden/kinds), what they save and merge, and LoRA on
// quantised bases.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "adapter/select.h"
#include "adapter/svd.h"
#include "backend/cpu/cpu.h"
#include "base/rng.h"
#include "base/threads.h"
#include "golden/golden_case.h"
#include "model/adapter_start.h"
#include "model/save.h"
#include "train/sweep.h"

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

class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / cat("wick_kinds_", ::getpid(), "_", name)) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

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
  Folder folder(GetParam().name + GetParam().device);
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
  Folder folder("merged" + GetParam().name + GetParam().device);
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
        Folder folder(cat("plain_", kind, dtype_name(type), device));
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

TEST(Patterns, AreReadAsPeftReadsThem) {
  const std::string module = "model.layers.11.mlp.up_proj";
  EXPECT_TRUE(target_matches("up_proj", module, ""));
  EXPECT_TRUE(target_matches("mlp.up_proj", module, ""));
  EXPECT_FALSE(target_matches("p_proj", module, ""));
  EXPECT_TRUE(target_matches(R"(.*\.(up|down)_proj)", module, ""));
  EXPECT_FALSE(target_matches(R"((up|down)_proj)", module, ""));
  const std::vector<std::pair<std::string, int64_t>> ranks = {
      {R"(layers\.1\..*)", 1}, {R"(layers\.\d+\.mlp\..*)", 2}, {"up_proj", 3}};
  EXPECT_EQ(by_pattern<int64_t>(ranks, module, 8, ""), 2);
  EXPECT_EQ(by_pattern<int64_t>(ranks, "model.layers.1.mlp.up_proj", 8, ""), 1);
  EXPECT_EQ(by_pattern<int64_t>(ranks, "model.layers.1x.up_proj", 8, ""), 3);
  EXPECT_EQ(by_pattern<int64_t>(ranks, "q_proj", 8, ""), 8);
}

// The file names the blocks that are adapted, the first of the model too: PEFT would adapt them
// all, and look for the others' biases where it keeps those of adapted linears.
TEST(Saved, NamesTheAdaptedBlocks) {
  const Case c("qwen2_window");
  auto layers = [&](std::vector<int64_t> blocks) {
    LoraOptions options;
    options.layers_to_transform = std::move(blocks);
    return Adapter::create(options, adaptable_linears(c.config)).peft_config("base");
  };
  ASSERT_EQ(c.config.layers, 3);
  EXPECT_EQ(layers({0})["layers_to_transform"], Json::array({0}));
  EXPECT_EQ(layers({0, 1})["layers_to_transform"], Json::array({0, 1}));
  EXPECT_EQ(layers({1, 2})["layers_to_transform"], Json::array({1, 2}));
  EXPECT_TRUE(layers({0, 1, 2})["layers_to_transform"].is_null());
}

// PEFT takes every module whose name ends so, within a word too.
TEST(Selected, WholeModulesByTheEndsOfNames) {
  const Case c("qwen3_tied");
  auto wholes = [&](const std::string& name) {
    LoraOptions options;
    options.modules_to_save = {name};
    return Adapter::create(options, adaptable_linears(c.config)).wholes().size();
  };
  ASSERT_EQ(c.config.layers, 2);
  EXPECT_EQ(wholes("norm"), 9u);  // two of a block, those of q and k, and the last
  EXPECT_EQ(wholes("layernorm"), 4u);
  EXPECT_EQ(wholes("model.norm"), 1u);
  EXPECT_EQ(wholes("head"), 1u);
}

// What is named in full is adapted beside the blocks, as in PEFT; an end of its name may mean it
// or not.
TEST(Selected, ModulesBesideTheBlocks) {
  const Case c("qwen2_window");
  auto create = [&](std::vector<std::string> targets) {
    LoraOptions options;
    options.targets = std::move(targets);
    options.layers_to_transform = {1};
    return Adapter::create(options, adaptable_linears(c.config));
  };
  const Adapter some =
      create({"v_proj", "lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj"});
  ASSERT_EQ(some.modules().size(), 4u);
  for (const char* module : {"lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj",
                             "model.layers.1.self_attn.v_proj"})
    EXPECT_TRUE(some.find(module)) << module;
  EXPECT_EQ(create({"all-linear"}).modules().size(), 7u);
  try {
    create({"q_proj", "embed_tokens"});
    ADD_FAILURE() << "was taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("name model.embed_tokens in full"), std::string::npos)
        << e.what();
  }
}

// PEFT has adapters that wick does not run; it says so, and which file it is.
TEST(Refused, KindsThatDoNotGoTogether) {
  const Case c = Case::kind("dora");
  Folder folder("refused");
  std::filesystem::copy(c.folder + "/adapter", folder.path());
  Json config = read_json(folder.path() / "adapter_config.json");
  config["init_lora_weights"] = "pissa";
  write_file(folder.path() / "adapter_config.json", dump_json(config));
  std::vector<float> params;
  try {
    Adapter::load(folder.path(), adaptable_linears(c.config), params);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind((folder.path() / "adapter_config.json").string(), 0), 0u) << message;
    EXPECT_NE(message.find("use_dora with init_lora_weights pissa"), std::string::npos) << message;
  }
}

// A kind that this version of wick has never heard of is not taken for plain LoRA.
TEST(Refused, KindsOfALaterPeft) {
  const Case c = Case::kind("patterns");
  Folder folder("refused_later");
  std::filesystem::copy(c.folder + "/adapter", folder.path());
  const Json config = read_json(folder.path() / "adapter_config.json");
  auto refusal = [&](const char* changes) -> std::string {
    Json changed = config;
    changed.update(parse_json(changes, "changes"));
    write_file(folder.path() / "adapter_config.json", dump_json(changed));
    std::vector<float> params;
    try {
      Adapter::load(folder.path(), adaptable_linears(c.config), params);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(R"({"use_later": false, "later_config": null, "eva_config": {"rho": 2.0},
                        "loftq_config": {"loftq_bits": 4}, "a_note": true})"),
            "");
  for (const char* changes :
       {R"({"use_later": true})", R"({"later_config": {"x": 1}})", R"({"lora_bias": true})",
        R"({"layer_replication": [[0, 2]]})", R"({"target_parameters": ["q_proj.weight"]})"}) {
    const std::string message = refusal(changes);
    EXPECT_NE(message.find("wick does not run such adapters"), std::string::npos)
        << changes << message;
  }
}

}  // namespace
}  // namespace wick::golden
