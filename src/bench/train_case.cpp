// SPDX-License-Identifier: Apache-2.0
#include "bench/train_case.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace wick {

namespace {

constexpr float kStartOfB = 0.01f;

Adapter make_adapter(const ModelConfig& config, const TrainCaseOptions& options) {
  LoraOptions lora;
  lora.rank = options.rank;
  lora.alpha = 2.0f * static_cast<float>(options.rank);
  lora.targets = options.targets;
  lora.num_layers = options.num_layers;
  return Adapter::create(lora, adaptable_linears(config));
}

}  // namespace

TrainCase::TrainCase(Backend& backend, const ModelConfig& config, ModelWeights& weights,
                     const TrainCaseOptions& options)
    : backend_(backend),
      config_(config),
      weights_(weights),
      options_(options),
      adapter_(make_adapter(config, options)) {
  start_ = adapter_.initial_params(options.seed);
  for (const LoraModule& m : adapter_.modules()) {
    Rng rng(mix_key(options.seed, name_key(m.module + ".lora_B")));
    for (int64_t i = 0; i < m.out * m.rank; ++i)
      start_[static_cast<size_t>(m.b_offset + i)] = rng.uniform(-kStartOfB, kStartOfB);
  }
  const ExampleSet rows = batch(0);
  StepOptions s;
  s.limits = choose_limits(rows, Order(rows.size(), rows.size(), options.seed, false),
                           backend.tokens_at_once());
  s.positions = options.seq;
  s.split_prefix = options.keep_prefix;
  step_ = std::make_unique<TrainStep>(config_, weights_, train_adapter(adapter_), s);
  packs_per_step_ = static_cast<int64_t>(next_packs().size());
  next_ = 0;
}

void TrainCase::compile() {
  step_->compile(backend_, weights_);
  step_->set_params(start_);
  if (step_->prefix())
    step_->prefix()->keep_in(std::make_shared<PrefixStore>(std::numeric_limits<int64_t>::max()));
}

ExampleSet TrainCase::batch(int64_t index) const {
  std::vector<Example> rows;
  for (int64_t r = 0; r < options_.batch_size; ++r) {
    Example e;
    for (int64_t p = 0; p <= options_.seq; ++p) {
      e.ids.push_back(bench_id(options_.seed, index, r * (options_.seq + 1) + p, config_.vocab));
      e.trained.push_back(
          p > 0 &&
          p > options_.seq - std::llround(options_.trained * static_cast<double>(options_.seq)));
    }
    e.full_length = options_.seq + 1;
    rows.push_back(std::move(e));
  }
  return ExampleSet::from_examples(std::move(rows), "random rows");
}

std::vector<Pack> TrainCase::next_packs() {
  const ExampleSet rows = batch(options_.keep_prefix ? 0 : next_);
  ++next_;
  std::vector<int64_t> all(static_cast<size_t>(rows.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  return pack_rows(rows, all, step_->limits(), options_.seed, 0, true);
}

double TrainCase::run() {
  const std::vector<Pack> packs = next_packs();
  AdamwSettings settings;
  settings.step = next_;
  return step_->step(packs, 1.0f / static_cast<float>(tokens()), settings).loss;
}

double TrainCase::gflop() const {
  return step_->micro_flops() * static_cast<double>(packs_per_step_) * 1e-9;
}

}  // namespace wick
