// SPDX-License-Identifier: Apache-2.0
#include "train/probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

namespace wick {

namespace {

using Clock = std::chrono::steady_clock;

// At least two layers: the first has no gradient below it, the second is like the rest. More where
// they take no time, since a small model's own size decides what stays in the caches; and so many
// of a larger one that caches hold them as little as they hold all.
constexpr int64_t kLeastLayers = 2;
constexpr double kLayerSeconds = 0.15;  // of one run, estimated, for more of them
constexpr int64_t kLayerBytes = int64_t{192} << 20, kVocabBytes = int64_t{96} << 20;
constexpr int64_t kLeastTokens = 128;
// Products of that width are as fast, for their arithmetic, as wider ones; what is as narrow as an
// adapter is not.
constexpr int64_t kLeastHidden = 768, kNarrowColumns = 64, kWholeColumns = 128;
// Higher ranks have about the rates of this one, and would take memory and time that only the run
// may.
constexpr int64_t kMostRank = 256;
constexpr double kRunSeconds = 0.6;   // of one run of the cut step, estimated
constexpr double kUtilisation = 0.5;  // for those estimates
constexpr double kTimedSeconds = 1.2, kTokenSeconds = 0.2;
constexpr int kLeastRuns = 3, kMostRuns = 40;
constexpr double kRare = 2;  // times the median: a duration that is left out

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return 0.5 * (values[(n - 1) / 2] + values[n / 2]);
}

std::string op_of(const Step& step) {
  return cat(op_name(step.op), step.dir == Dir::kForward ? " fwd" : " bwd");
}

// Op, direction, and of each operand its type and columns: what a kernel's rate depends on, rows
// and the vocabulary aside. Without `exact`, all columns that are no adapter's rank are alike.
std::string kind_of(const Plan& plan, const Step& step, bool exact) {
  std::string kind = op_of(step);
  auto add = [&](ValueId id) {
    if (id == kNone) {
      kind += " -";
      return;
    }
    const Value& v = plan.value(id);
    kind += cat(" ", dtype_name(v.dtype));
    if (v.shape.rank() == 2) kind += exact || v.shape[1] <= kNarrowColumns ? cat(v.shape[1]) : "*";
    if (plan.value(v.root).kind == Kind::kWeight) kind += "w";
  };
  for (ValueId id : step.inputs) add(id);
  for (const Output& o : step.outputs) {
    add(o.value);
    if (o.mode != OutMode::kWrite) kind += "+";
  }
  return kind;
}

// What its rate is looked for under, the nearest first: a step of a narrower model is like that of
// a wide one, one of the same op better than none.
std::array<std::string, 3> names_of(const Plan& plan, const Step& step) {
  return {kind_of(plan, step, true), kind_of(plan, step, false), op_of(step)};
}

double units_of(const Plan& plan, const Step& step, double attended) {
  auto elements = [&](ValueId id) { return static_cast<double>(plan.value(id).shape.elements()); };
  if (step.op == Op::kAttention)
    return attended * elements(step.inputs[step.dir == Dir::kForward ? 0 : 1]);
  if (step.op == Op::kEmbed)
    return elements(step.dir == Dir::kForward ? step.outputs[0].value : step.inputs[0]);
  const double flops = step_flops(plan, step);
  if (flops > 0) return flops;
  double sum = 0;
  for (const Output& o : step.outputs)
    if (o.value != kNone) sum += elements(o.value);
  return sum;
}

// The adapter, or the trained weights, of the cut model. `made` keeps the adapter alive.
Trainable cut_trainable(const Trainable& whole, const ModelConfig& cut,
                        std::shared_ptr<Adapter>& made) {
  const Adapter* like = whole.lanes.empty() ? whole.adapter : whole.lanes.front();
  if (!like) {
    const bool all = whole.layout.find("model.embed_tokens.weight") != nullptr;
    return train_weights(cut, all ? -1 : 1);
  }
  LoraOptions lora;
  if (!like->modules().empty()) {
    lora.rank = std::min(kMostRank, like->modules().front().rank);
    lora.dropout = like->modules().front().dropout;
  }
  std::set<std::string> targets;
  for (const LoraModule& m : like->modules()) {
    // model.layers.3.self_attn.q_proj → self_attn.q_proj
    size_t dot = m.module.rfind('.');
    if (dot != std::string::npos && dot > 0) dot = m.module.rfind('.', dot - 1);
    targets.insert(dot == std::string::npos ? m.module : m.module.substr(dot + 1));
  }
  lora.targets.assign(targets.begin(), targets.end());
  lora.dora = like->options().dora;
  lora.init = like->options().init;
  for (const WholeModule& m : like->wholes())
    if (m.layer < 0) lora.modules_to_save.push_back(m.module);
  made = std::make_shared<Adapter>(Adapter::create(lora, adaptable_linears(cut)));
  return train_adapter(*made);
}

// The widths that a model may be cut to, the widest first: each head stays as it is, and what is
// quantised has whole groups.
std::vector<ModelConfig> narrower(const ModelConfig& whole) {
  std::vector<ModelConfig> all = {whole};
  for (int64_t d = 2; d <= whole.kv_heads && whole.hidden / d >= kLeastHidden; ++d) {
    const bool even = whole.kv_heads % d == 0 && whole.heads % d == 0 &&
                      whole.hidden % (d * kWholeColumns) == 0 &&
                      whole.ffn % (d * kWholeColumns) == 0;
    if (!even) continue;
    ModelConfig cut = whole;
    cut.kv_heads /= d;
    cut.heads /= d;
    cut.hidden /= d;
    cut.ffn /= d;
    all.push_back(cut);
  }
  return all;
}

// One full pack of rows whose tokens attend to as many others as the run's do.
Pack make_pack(const PackLimits& limits, double attended, int64_t vocab) {
  const int64_t length = std::clamp<int64_t>(std::llround(2 * attended - 1), 1, limits.tokens);
  std::vector<Example> rows;
  int64_t tokens = 0, targets = 0;
  while (tokens < limits.tokens) {
    const int64_t n = std::min(length, limits.tokens - tokens);
    tokens += n;
    // The row's share of all targets, at its end; at least the one that makes it a row.
    const int64_t wanted = limits.targets * tokens / limits.tokens - targets;
    const int64_t trained = std::clamp<int64_t>(wanted, 1, n);
    if (targets + trained > limits.targets) break;
    targets += trained;
    Example e;
    for (int64_t i = 0; i <= n; ++i) {
      e.ids.push_back(static_cast<int32_t>((7919 * (tokens + i)) % vocab));
      e.trained.push_back(i > n - trained);
    }
    rows.push_back(std::move(e));
  }
  const ExampleSet set = ExampleSet::from_examples(std::move(rows), "probe");
  std::vector<int64_t> all(static_cast<size_t>(set.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  return pack_rows(set, all, limits, 0, 0, true).front();
}

// What the system takes to give a byte of fresh memory, where it does so when it is first written;
// tried with a part of the run's, so that the probe does not take more than the run.
double first_touch_seconds(Backend& backend, int64_t run_bytes) {
  constexpr int64_t kMost = int64_t{48} << 20, kPart = int64_t{1} << 20;
  const int64_t touched = std::min(kMost, run_bytes / 2 / kPart * kPart);
  if (touched == 0) return 0;
  const BufferPtr fresh = backend.allocate(DType::kU8, touched);
  const std::vector<std::byte> part(static_cast<size_t>(kPart));
  auto write = [&] {
    const Clock::time_point start = Clock::now();
    for (int64_t at = 0; at < touched; at += kPart)
      backend.upload(*fresh, DType::kU8, at, kPart, part.data());
    return seconds_since(start);
  };
  const double first = write(), second = write();
  return std::max(0.0, first - second) / static_cast<double>(touched);
}

// Of one token by itself, by the bytes of weights that it reads.
double token_seconds_per_byte(Backend& backend, const TrainStep& step, const ModelConfig& config,
                              ModelWeights& weights) {
  const PackLimits one{1, 1};
  Scorer scorer(config, weights, step.trainable().source(), one, 1);
  scorer.compile(backend, weights, step.params_buffer(), nullptr);
  const Pack pack = make_pack(one, 1, config.vocab);
  std::vector<double> seconds;
  std::vector<float> logp(1);
  scorer.score(pack, logp);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kMostRuns && (i == 0 || seconds_since(start) < kTokenSeconds); ++i) {
    const Clock::time_point before = Clock::now();
    scorer.score(pack, logp);
    seconds.push_back(seconds_since(before));
  }
  return steady_mean(seconds) / static_cast<double>(scorer.forecast(backend).weights);
}

double flops_per_second(const Backend& backend, DType compute) {
  return 1e9 * kUtilisation * std::max(1.0, backend.peak_gflops(compute));
}

}  // namespace

double mean_attended(std::span<const Pack> packs) {
  double sum = 0, tokens = 0;
  for (const Pack& pack : packs) {
    tokens += static_cast<double>(pack.begin.size());
    for (size_t t = 0; t < pack.begin.size(); ++t) sum += pack.end[t] - pack.begin[t];
  }
  return tokens > 0 ? sum / tokens : 1;
}

SpeedProbe::SpeedProbe(Backend& backend, const ModelConfig& config, const ModelWeights& weights,
                       const Trainable& trainable, const Case& run) {
  ModelConfig cut = config;
  const double whole_seconds = run.flops / flops_per_second(backend, weights.compute());
  const double affordable = static_cast<double>(config.layers) * kLayerSeconds / whole_seconds;
  cut.layers =
      whole_seconds > 0 && affordable < static_cast<double>(config.layers)
          ? std::min(config.layers, std::max(kLeastLayers, static_cast<int64_t>(affordable)))
          : config.layers;
  const DType type = weights.dtype(weight_specs(config).front());
  const int64_t element = dtype_is_quantized(type) ? 1 : static_cast<int64_t>(dtype_bytes(type));
  ModelConfig one = config;
  one.layers = 1;
  one.windows.resize(1);
  const int64_t all_layers = weight_count(config) - weight_count(one);
  const int64_t layer_bytes = all_layers / std::max<int64_t>(1, config.layers - 1) * element;
  cut.layers = std::min(config.layers,
                        std::max(cut.layers, kLayerBytes / std::max<int64_t>(1, layer_bytes) + 1));
  cut.windows.resize(static_cast<size_t>(cut.layers));
  cut.vocab = std::min(config.vocab, kVocabBytes / (config.hidden * element));
  // Among fewer layers the last one, of fewer rows, would count for more than it does in the run.
  const bool skips_rows = backend.skips_rows() && cut.layers == config.layers;
  measure(backend, cut, weights, trainable, run, skips_rows);
}

void SpeedProbe::measure(Backend& backend, const ModelConfig& whole, const ModelWeights& weights,
                         const Trainable& trainable, const Case& run, bool skips_rows) {
  cold_rate_ = first_touch_seconds(backend, run.bytes);
  const DType type = weights.dtype(weight_specs(whole).front());
  ModelWeights random =
      ModelWeights::random(whole, 0, dtype_is_quantized(type) ? DType::kBF16 : type);
  if (dtype_is_quantized(type)) random.quantize_to(type);
  random.compute_in(weights.compute());

  StepOptions options;
  options.recompute_blocks = run.recompute ? -1 : 0;
  options.skips_rows = skips_rows;
  options.skip_below = run.skip_below;
  options.optimizer = run.optimizer;
  std::shared_ptr<Adapter> adapter;
  std::unique_ptr<TrainStep> step;
  const double affordable = kRunSeconds * flops_per_second(backend, weights.compute());
  auto affords = [&](const ModelConfig& config, int64_t tokens) {
    options.limits.tokens = tokens;
    options.limits.targets = std::max<int64_t>(1, run.limits.targets * tokens / run.limits.tokens);
    options.positions = tokens;
    std::shared_ptr<Adapter> made;
    const Trainable trained = cut_trainable(trainable, config, made);
    step = std::make_unique<TrainStep>(config, random, trained, options);
    adapter = std::move(made);
    return step->micro_flops() < affordable;
  };
  // Width first: few tokens are further from what the run does.
  ModelConfig cut = whole;
  int64_t tokens = run.limits.tokens;
  for (const ModelConfig& narrow : narrower(whole)) {
    cut = narrow;
    if (affords(cut, tokens)) break;
  }
  while (tokens > kLeastTokens && step->micro_flops() >= affordable) {
    tokens = (tokens / 2 + 15) / 16 * 16;
    affords(cut, tokens);
  }
  const Trainable& trained = step->trainable();
  const Pack pack = make_pack(options.limits, run.attended, cut.vocab);
  step->compile(backend, random);
  step->set_params(adapter ? adapter->initial_params(0) : initial_weights(trained, random));

  const Plan& plan = step->micro_plan();
  std::vector<std::vector<double>> samples(plan.steps.size());
  std::vector<double> wholes, updates;
  const std::span<const Hyper> hyper(&run.hyper, 1);
  step->accumulate_timed(pack, 1.0f);
  step->update(hyper);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kMostRuns; ++i) {
    if (i >= kLeastRuns && seconds_since(start) > kTimedSeconds) break;
    Clock::time_point before = Clock::now();
    const std::vector<double> seconds = step->accumulate_timed(pack, 1.0f);
    if (backend.runs_ahead()) {
      // Steps that are timed one by one are no longer the one launch that a run is.
      before = Clock::now();
      step->accumulate(pack, 1.0f);
    }
    wholes.push_back(seconds_since(before));
    for (size_t s = 0; s < seconds.size(); ++s) samples[s].push_back(seconds[s]);
    before = Clock::now();
    step->update(hyper);
    updates.push_back(seconds_since(before));
  }
  const double attended = mean_attended({&pack, 1});
  double sum = 0;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    if (samples[s].empty()) continue;  // a device that cannot time its steps
    const double seconds = median(samples[s]);
    rates_.add(plan, plan.steps[s], attended, seconds);
    sum += seconds;
  }
  // What lies between the steps, and delays that medians do not see.
  if (sum > 0) rates_.scale(steady_mean(wholes) / sum);
  update_rate_ = steady_mean(updates) / static_cast<double>(trained.layout.size());
  if (run.answers) token_rate_ = token_seconds_per_byte(backend, *step, cut, random);
}

void StepRates::add(const Plan& plan, const Step& step, double attended, double seconds) {
  const double units = units_of(plan, step, attended);
  for (const std::string& name : names_of(plan, step)) {
    Rate& r = rates_[name];
    r.seconds += seconds;
    r.units += units;
  }
  all_.seconds += seconds;
  all_.units += step_flops(plan, step);
}

double StepRates::seconds(const Plan& plan, double attended) const {
  double sum = 0;
  for (const Step& step : plan.steps) {
    const Rate* known = nullptr;
    for (const std::string& name : names_of(plan, step)) {
      const auto found = rates_.find(name);
      if (!known && found != rates_.end() && found->second.units > 0) known = &found->second;
    }
    if (known)
      sum += units_of(plan, step, attended) * known->seconds / known->units;
    else if (all_.units > 0)
      sum += step_flops(plan, step) * all_.seconds / all_.units;
  }
  return factor_ * sum;
}

double steady_mean(std::span<const double> seconds) {
  if (seconds.empty()) return 0;
  const double most = kRare * median({seconds.begin(), seconds.end()});
  double sum = 0, count = 0;
  for (double s : seconds) {
    if (s > most) continue;
    sum += s;
    count += 1;
  }
  return sum / count;
}

}  // namespace wick
