// SPDX-License-Identifier: Apache-2.0
// Models, gradients, ten updates and greedy tokens of every back end against transformers and PEFT.
// The bounds are those of docs/numerics.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "golden/golden_case.h"
#include "infer/decoder_engine.h"
#include "model/decoder_plan.h"

namespace wick::golden {
namespace {

constexpr double kLogits = 1e-4, kGradients = 1e-4;             // of the largest
constexpr double kLosses = 1e-5, kParams = 1e-4, kNorm = 1e-4;  // absolute; kNorm relative

void expect_near_of_largest(std::span<const float> got, const std::vector<float>& want,
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

std::span<const float> part(const std::vector<float>& flat, const ParamLayout::Entry& entry) {
  return std::span(flat).subspan(static_cast<size_t>(entry.offset),
                                 static_cast<size_t>(entry.shape.elements()));
}

struct Param {
  std::string name, device, isa;
  friend void PrintTo(const Param& p, std::ostream* out) {
    *out << p.name << " on " << p.device << " " << p.isa;
  }
};
// Every case on every device, on the cpu with every instruction set that works here.
std::vector<Param> all_params() {
  std::vector<Param> params;
  for (const std::string& name : case_names())
    for (const std::string& device : backend_names())
      for (const std::string& isa : device == "cpu" ? cpu_isas() : std::vector<std::string>{""})
        params.push_back({name, device, isa});
  return params;
}

class Golden : public testing::TestWithParam<Param> {
 protected:
  Case c_{GetParam().name};
  std::unique_ptr<Backend> backend_ = open(1);

  static std::unique_ptr<Backend> open(int threads) {
    return open_backend(
        {.device = GetParam().device, .threads = threads, .cpu_isa = GetParam().isa});
  }

  float share() const { return 1.0f / c_.meta["trained_tokens"].get<float>(); }

  TrainStep make_step(Trainable trainable, const PackLimits& limits, bool recompute) {
    const bool full = trainable.adapter == nullptr;
    std::vector<float> start = full ? initial_weights(trainable, c_.weights) : c_.adapter_params;
    TrainStep step(c_.config, c_.weights, std::move(trainable),
                   {.limits = limits,
                    .positions = 32,
                    .recompute_blocks = recompute ? -1 : 0,
                    .skips_rows = backend_->skips_rows()});
    const int64_t forecast = step.forecast(*backend_).arena;
    step.compile(*backend_, c_.weights);
    EXPECT_EQ(step.arena_bytes(), forecast);
    step.set_params(start);
    return step;
  }

  // Ten updates on all rows; `check_first` sees the first gradients.
  template <typename F>
  void train(TrainStep& step, const std::string& prefix, F&& check_first) {
    const Pack pack = make_pack(c_, {0, 1, 2, 3}, step.limits());
    const std::vector<float> losses = c_.floats(prefix + "losses"),
                             norms = c_.floats(prefix + "grad_norms");
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(step.accumulate(pack, share()), losses[i], kLosses) << "step " << i;
      if (i == 0) check_first();
      float norm = step.update(adamw_settings(c_, static_cast<int64_t>(i) + 1));
      EXPECT_NEAR(norm, norms[i], kNorm * norms[i]) << "step " << i;
    }
  }

  void check_adapter_gradients(const std::vector<float>& grads) {
    for (const ParamLayout::Entry& entry : c_.adapter.layout().entries())
      expect_near_of_largest(part(grads, entry), c_.floats("grad." + peft_name(entry.name)),
                             kGradients, entry.name);
  }
};

TEST_P(Golden, LogitsOfTheBaseAndWithTheAdapter) {
  const std::vector<int32_t> ids = c_.ints("input_ids"), starts = c_.ints("row_starts");
  const size_t at = c_.meta["logits_row"].get<size_t>();
  const std::vector<int32_t> row(ids.begin() + starts[at], ids.begin() + starts[at + 1]);
  expect_near_of_largest(logits(c_, *backend_, row, false), c_.floats("logits"), kLogits, "base");
  expect_near_of_largest(logits(c_, *backend_, row, true), c_.floats("logits_adapter"), kLogits,
                         "adapter");
}

TEST_P(Golden, TenUpdatesOfTheAdapter) {
  TrainStep step = make_step(train_adapter(c_.adapter), roomy_limits(c_), false);
  train(step, "", [&] { check_adapter_gradients(step.grads()); });
  const std::vector<float> params = step.params();
  for (const ParamLayout::Entry& entry : c_.adapter.layout().entries()) {
    const std::span<const float> got = part(params, entry);
    const std::vector<float> want = c_.floats("final." + peft_name(entry.name));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], kParams) << entry.name;
  }
}

TEST_P(Golden, MicroBatchesAndRecomputeGiveTheSameGradients) {
  const PackLimits limits{40, 30};
  for (bool recompute : {false, true}) {
    TrainStep step = make_step(train_adapter(c_.adapter), limits, recompute);
    double loss = step.accumulate(make_pack(c_, {3, 0}, limits), share()) +
                  step.accumulate(make_pack(c_, {2, 1}, limits), share());
    EXPECT_NEAR(loss, c_.floats("loss")[0], kLosses);
    check_adapter_gradients(step.grads());
  }
}

TEST_P(Golden, UnfusedPlanGivesTheSameGradients) {
  const Pack pack = make_pack(c_, {0, 1, 2, 3}, roomy_limits(c_));
  DecoderPlanOptions options;
  options.tokens = static_cast<int64_t>(pack.ids.size());
  options.positions = 32;
  options.training = true;
  options.source.adapter = &c_.adapter;
  DecoderPlan plan(c_.config, c_.weights, options);
  Recorder& r = plan.recorder();
  const Shape bound{static_cast<int64_t>(pack.rows.size())}, all{c_.adapter.param_count()};
  ValueId rows = r.feed("rows", bound, DType::kI32),
          targets = r.feed("targets", bound, DType::kI32),
          weight = r.feed("weight", bound, DType::kF32),
          segment = r.feed("segment", bound, DType::kI32);
  ValueId logp = r.head(r.gather_rows(plan.hidden(), rows), plan.head_weight(), targets);
  ValueId loss = r.segment_sum(logp, weight, segment, 1),
          grads = r.state("grads", all, DType::kF32);
  backward(r, loss, plan.params(), grads);
  check(plan.plan());

  Bindings bindings = plan.bind(*backend_, c_.weights);
  bindings.resize(plan.plan().values.size());
  bindings[static_cast<size_t>(plan.params())] = upload(*backend_, c_.adapter_params);
  BufferPtr made = backend_->allocate(DType::kF32, all.elements());
  bindings[static_cast<size_t>(grads)] = made;
  auto program = backend_->compile(plan.plan(), bindings);
  std::vector<int32_t> segments = pack.segment;
  for (int32_t& s : segments) s = std::min(s, 0);
  const DecoderContext& context = plan.context();
  for (auto [id, data] : {std::pair(context.ids, &pack.ids),
                          {context.positions, &pack.positions},
                          {context.begin, &pack.begin},
                          {context.end, &pack.end},
                          {rows, &pack.rows},
                          {targets, &pack.targets}})
    program->feed(id, data->data(), data->size() * sizeof(int32_t));
  program->feed(segment, segments.data(), segments.size() * sizeof(int32_t));
  const std::vector<float> weights(pack.rows.size(), -share());
  program->feed(weight, weights.data(), weights.size() * sizeof(float));
  program->run();
  program->wait();

  float got = 0;
  program->read(loss, &got, sizeof got);
  EXPECT_NEAR(got, c_.floats("loss")[0], kLosses);
  std::vector<float> flat(static_cast<size_t>(all.elements()));
  backend_->download(*made, DType::kF32, 0, all.elements(), flat.data());
  check_adapter_gradients(flat);
}

TEST_P(Golden, FullTraining) {
  if (!c_.has("full_losses")) GTEST_SKIP() << "no full training in this case";
  TrainStep step = make_step(train_weights(c_.config, -1), roomy_limits(c_), false);
  train(step, "full_", [&] {
    const std::vector<float> grads = step.grads();
    size_t compared = 0;
    for (const WeightSpec& spec : weight_specs(c_.config)) {
      // A spec holds the rows of its tensors one after the other.
      int64_t offset = step.trainable().layout.find(spec.name)->offset;
      for (const WeightSpec::Part& tensor : spec.parts) {
        const std::string name = "full_grad." + tensor.tensor;
        const ParamLayout::Entry entry{name, tensor.shape, offset};
        offset += tensor.shape.elements();
        if (!c_.has(name)) continue;
        expect_near_of_largest(part(grads, entry), c_.floats(name), kGradients, name);
        ++compared;
      }
    }
    EXPECT_GE(compared, size_t{10});
  });
}

TEST_P(Golden, GreedyTokensOverTheCache) {
  for (bool with_adapter : {false, true}) {
    const std::vector<int32_t> prompt = c_.ints("prompt"),
                               want = c_.ints(with_adapter ? "greedy_adapter" : "greedy");
    DecoderEngine engine(*backend_, c_.config, c_.weights,
                         {.adapter = with_adapter ? &c_.adapter : nullptr},
                         with_adapter ? upload(*backend_, c_.adapter_params) : nullptr, 3, 40);
    // Slot 1 of three, so that a wrong row of the cache shows.
    std::vector<SlotToken> run;
    int32_t position = 0;
    for (int32_t id : prompt) run.push_back({id, 1, position++, false});
    run.back().wants_logits = true;
    std::vector<int32_t> got;
    std::vector<float> row;
    while (got.size() < want.size()) {
      engine.run(run, row);
      ASSERT_EQ(row.size(), static_cast<size_t>(c_.config.vocab));
      got.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
      run = {{got.back(), 1, position++, true}};
    }
    EXPECT_EQ(got, want) << (with_adapter ? "adapter" : "base");
  }
}

// The same tokens when each step draws the next one's, beside a slot that rests.
TEST_P(Golden, GreedyTokensByWalking) {
  const std::vector<int32_t> prompt = c_.ints("prompt"), want = c_.ints("greedy");
  DecoderEngine engine(*backend_, c_.config, c_.weights, {}, nullptr, 2, 40);
  std::vector<SlotToken> run;
  int32_t position = 0;
  for (int32_t id : prompt) run.push_back({id, 1, position++, false});
  run.back().wants_logits = true;
  std::vector<int32_t> got, drawn;
  engine.run_drawn(run, got);
  ASSERT_EQ(got.size(), 1u);
  const SlotToken first{got[0], 1, position, true};
  engine.walk_from({&first, 1});
  for (int64_t steps = 1; got.size() < want.size(); ++steps) {
    const int64_t left = static_cast<int64_t>(want.size() - got.size());
    const int64_t now = std::min(steps, left);
    engine.walk(now);
    engine.walked(now, drawn);
    ASSERT_EQ(drawn.size(), static_cast<size_t>(2 * now));
    for (int64_t i = 0; i < now; ++i) got.push_back(drawn[static_cast<size_t>(2 * i + 1)]);
  }
  EXPECT_EQ(got, want);
}

// Compared as bits: == would take a NaN for a difference and -0 for 0.
void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST_P(Golden, AnyNumberOfThreadsGivesTheSameBits) {
  std::vector<float> first;
  for (int threads : {1, 2, 3}) {
    backend_ = open(threads);
    c_.weights.release();
    TrainStep step = make_step(train_adapter(c_.adapter), roomy_limits(c_), false);
    const Pack pack = make_pack(c_, {0, 1, 2, 3}, step.limits());
    // Also: micro-batch and update in one call, or one after the other.
    for (int64_t i = 1; i <= 2; ++i) {
      if (threads == 2) {
        step.step({&pack, 1}, share(), adamw_settings(c_, i));
        continue;
      }
      step.accumulate(pack, share());
      step.update(adamw_settings(c_, i));
    }
    if (first.empty()) first = step.params();
    expect_same_bits(step.params(), first);
  }
}

TEST_P(Golden, AnAdapterMayBeNamedByItsFile) {
  std::vector<float> params;
  const std::string folder = std::string(WICK_SOURCE_DIR) + "/tests/golden/" + GetParam().name;
  Adapter::load(folder + "/adapter/adapter_model.safetensors", adaptable_linears(c_.config),
                params);
  expect_same_bits(params, c_.adapter_params);
}

TEST_P(Golden, ARowHasTheSameBitsInAnyPack) {
  TrainStep step = make_step(train_adapter(c_.adapter), roomy_limits(c_), false);
  std::vector<float> alone;
  for (const std::vector<size_t>& rows :
       {std::vector<size_t>{2}, std::vector<size_t>{0, 1, 2, 3}, std::vector<size_t>{3, 2}}) {
    const Pack pack = make_pack(c_, rows, step.limits());
    std::vector<float> logp(pack.targets.size()), of_row;
    step.evaluate(pack, logp);
    for (size_t i = 0; i < logp.size(); ++i)
      if (pack.segment[i] == 2) of_row.push_back(logp[i]);
    if (alone.empty()) alone = of_row;
    expect_same_bits(of_row, alone);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(all_params()), [](const auto& info) {
  std::string id = info.param.name + "_" + info.param.device;
  for (char x : info.param.isa) id += std::isalnum(static_cast<unsigned char>(x)) ? x : '_';
  return id;
});

}  // namespace
}  // namespace wick::golden
