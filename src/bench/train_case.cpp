// SPDX-License-Identifier: Apache-2.0
#include "bench/train_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "api/report_text.h"
#include "base/check.h"
#include "base/rng.h"
#include "train/sweep.h"

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
      adapters_(static_cast<size_t>(options.adapters), make_adapter(config, options)) {
  if (options.batch_size % options.adapters != 0)
    fail(ErrorCode::kInvalidArgument, "--batch-size ", options.batch_size,
         " cannot be shared out among ", options.adapters, " adapters");
  const ExampleSet rows = batch(0);
  StepOptions s;
  s.limits =
      choose_limits(rows, Order(rows.size(), rows.size() / options.adapters, options.seed, false),
                    backend.tokens_at_once());
  s.positions = options.seq;
  s.skips_rows = backend.skips_rows();
  s.split_prefix = options.keep_prefix;
  if (options.keep_prefix) s.kept_tokens = options.batch_size * options.seq;
  std::vector<const Adapter*> lanes;
  for (const Adapter& a : adapters_) lanes.push_back(&a);
  step_ = std::make_unique<TrainStep>(
      config_, weights_, lanes.size() > 1 ? train_adapters(lanes) : train_adapter(adapter()), s);
  const int64_t needs = step_->forecast(backend).total();
  const auto has = static_cast<int64_t>(backend.info().memory_bytes);
  if (has > 0 && needs > has)
    fail(ErrorCode::kOutOfMemory, "a step of ", options.batch_size, " x ", options.seq,
         " tokens with adapters of rank ", options.rank, " takes ", report::bytes(needs), " and ",
         backend.info().name, " has ", report::bytes(has),
         "; choose a smaller --batch-size, --seq or --rank");
  start_ = adapter().initial_params(options.seed);
  for (const LoraModule& m : adapter().modules()) {
    Rng rng(mix_key(options.seed, name_key(m.module + ".lora_B")));
    for (int64_t i = 0; i < m.out * m.rank; ++i)
      start_[static_cast<size_t>(m.b_offset + i)] = rng.uniform(-kStartOfB, kStartOfB);
  }
  packs_per_step_ = static_cast<int64_t>(next_packs().size());
  next_ = 0;
}

void TrainCase::compile() {
  step_->compile(backend_, weights_);
  std::vector<float> start;
  for (size_t k = 0; k < adapters_.size(); ++k)
    start.insert(start.end(), start_.begin(), start_.end());
  step_->set_params(start);
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
  std::vector<std::vector<Pack>> lanes;
  size_t most = 0;
  const int64_t each = rows.size() / options_.adapters;
  for (int64_t k = 0; k < options_.adapters; ++k) {
    std::vector<int64_t> own(static_cast<size_t>(each));
    std::iota(own.begin(), own.end(), k * each);
    lanes.push_back(pack_rows(rows, own, step_->limits(), options_.seed, 0, true));
    most = std::max(most, lanes.back().size());
  }
  if (lanes.size() == 1) return std::move(lanes.front());
  std::vector<Pack> joined;
  for (size_t i = 0; i < most; ++i) {
    std::vector<const Pack*> packs;
    for (const auto& lane : lanes) packs.push_back(i < lane.size() ? &lane[i] : nullptr);
    joined.push_back(join_packs(packs, step_->limits()));
  }
  return joined;
}

void TrainCase::start() {
  started_.push_back(next_packs());
  if (gflop_ == 0)
    for (const Pack& pack : started_.back()) gflop_ += step_->pack_flops(pack) * 1e-9;
  AdamwSettings settings;
  settings.step = next_;
  const size_t lanes = adapters_.size();
  const float share = static_cast<float>(lanes) / static_cast<float>(tokens());
  step_->start_lanes(started_.back(), std::vector<float>(lanes, share),
                     std::vector<Hyper>(lanes, settings.hyper()));
}

double TrainCase::finish() {
  const TrainStep::Update done = step_->finish_lanes();
  started_.pop_front();
  double loss = 0;
  for (const RunStep::Stepped& lane : done.lanes)
    loss += lane.loss / static_cast<double>(done.lanes.size());
  return loss;
}

double TrainCase::run() {
  const size_t wanted = step_->runs_ahead() ? 2 : 1;
  while (started_.size() < wanted) start();
  return finish();
}

double TrainCase::run_alone() {
  while (!started_.empty()) finish();
  start();
  return finish();
}

}  // namespace wick
