// SPDX-License-Identifier: Apache-2.0
#include "train/step.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string_view>

namespace wick {

Trainable train_adapter(const Adapter& adapter) {
  Trainable t;
  t.adapter = &adapter;
  t.layout = adapter.layout();
  return t;
}

Trainable train_weights(const ModelConfig& config, int64_t num_layers) {
  if (num_layers > config.layers)
    fail(ErrorCode::kInvalidArgument, "--num-layers is ", num_layers, ", but the model has ",
         config.layers, " layers; use -1 for all weights");
  Trainable t;
  for (const WeightSpec& spec : weight_specs(config)) {
    bool wanted = num_layers <= 0;
    for (int64_t layer = config.layers - std::max<int64_t>(num_layers, 0);
         !wanted && layer < config.layers; ++layer)
      wanted = spec.name.rfind(cat("model.layers.", layer, "."), 0) == 0;
    if (!wanted) continue;
    t.layout.add(spec.name, spec.shape);
    t.specs.push_back(spec);
  }
  return t;
}

int64_t first_trained_block(const Trainable& trainable, const ModelConfig& config) {
  int64_t first = config.layers;
  for (const ParamLayout::Entry& e : trainable.layout.entries()) {
    constexpr std::string_view kBlocks = "layers.";
    const size_t at = e.name.find(kBlocks);
    if (at != std::string::npos)
      first = std::min<int64_t>(first, std::atoll(e.name.c_str() + at + kBlocks.size()));
    else if (e.name.find("embed") != std::string::npos)
      first = 0;
  }
  return first;
}

std::vector<float> initial_weights(const Trainable& trainable, const ModelWeights& weights) {
  std::vector<float> params;
  params.reserve(static_cast<size_t>(trainable.layout.size()));
  for (const WeightSpec& spec : trainable.specs) {
    std::vector<float> values = weights.read_floats(spec);
    params.insert(params.end(), values.begin(), values.end());
  }
  return params;
}

TrainStep::TrainStep(const ModelConfig& config, const ModelWeights& weights, Trainable trainable,
                     const StepOptions& options)
    : config_(config), trainable_(std::move(trainable)), options_(options) {
  DecoderPlanOptions o;
  o.tokens = options.limits.tokens;
  o.positions = options.positions;
  o.training = true;
  o.recompute_first = first_trained_block(trainable_, config_);
  o.recompute_end = options.recompute_blocks < 0
                        ? config_.layers
                        : std::min(config_.layers, o.recompute_first + options.recompute_blocks);
  o.source = trainable_.source();
  const int64_t below = options.split_prefix ? o.recompute_first : 0;
  o.first_block = below;
  if (below > 0)
    prefix_ =
        std::make_unique<PrefixCache>(config_, weights, options.limits, options.positions, below);
  micro_ = std::make_unique<DecoderPlan>(config_, weights, o);
  tail_ = record_targets(*micro_, options.limits.targets, {options.skip_below});
  {
    Recorder& r = micro_->recorder();
    Shape m{options.limits.targets};
    weight_ = r.feed("weight", m, DType::kF32);
    segment_ = r.feed("segment", m, DType::kI32);
    loss_ = r.segment_sum(tail_.logp, weight_, segment_, 1);
    fuse(micro_->plan());
    grads_value_ = r.state("grads", {trainable_.layout.size()}, DType::kF32);
    backward(r, loss_, micro_->params(), grads_value_);
    check(micro_->plan());
  }
  scorer_ = std::make_unique<Scorer>(config_, weights, trainable_.source(), options.limits,
                                     options.positions, below);

  Recorder r(update_, false);
  const int64_t p = trainable_.layout.size();
  hyper_ = r.feed("hyper", {8}, DType::kF32);
  for (const char* name : {"params", "m", "v", "grads"})
    update_states_.push_back(r.state(name, {p}, DType::kF32));
  norm_ = r.grad_norm(update_states_[3]);
  ParamGroups attr;
  attr.groups.push_back({0, p, 1.0f, 1.0f});
  r.adamw(hyper_, norm_, update_states_[0], update_states_[1], update_states_[2], update_states_[3],
          std::move(attr));
  update_.results.push_back(norm_);
  check(update_);
}

namespace {

constexpr int32_t kTrainRows = 0, kHeldOutRows = 1;  // the data sets of a PrefixCache

// Bytes of the weights of one plan that the other has not.
int64_t other_weights(const Plan& plan, const Plan& other, const Backend& backend) {
  std::set<std::string> known;
  for (const Value& v : other.values)
    if (v.kind == Kind::kWeight) known.insert(v.name);
  const std::vector<WeightForm> forms = backend.weight_forms(plan);
  int64_t bytes = 0;
  for (size_t i = 0; i < plan.values.size(); ++i) {
    const Value& v = plan.values[i];
    if (v.kind == Kind::kWeight && !plan.is_view(static_cast<ValueId>(i)) && !known.count(v.name))
      bytes += backend.weight_bytes(v, forms[i]);
  }
  return bytes;
}

}  // namespace

void TrainStep::add_sizes(const ModelWeights& weights, std::span<const int64_t> tokens) {
  // The rows that a prefix cache keeps are laid for one size.
  if (prefix_) return;
  for (int64_t size : tokens) {
    WICK_CHECK(size < options_.limits.tokens, size, " of ", options_.limits.tokens, " slots");
    StepOptions o = options_;
    o.limits = {size, std::min(size, options_.limits.targets)};
    smaller_.push_back(std::make_unique<TrainStep>(config_, weights, trainable_, o));
  }
}

std::vector<int64_t> TrainStep::sizes() const {
  std::vector<int64_t> tokens;
  for (const auto& s : smaller_) tokens.push_back(s->limits().tokens);
  return tokens;
}

const TrainStep& TrainStep::fitting(const Pack& pack) const {
  for (const auto& s : smaller_)
    if (pack.used_tokens <= s->limits().tokens && pack.used_targets <= s->limits().targets)
      return *s;
  return *this;
}

StepForecast TrainStep::forecast(const Backend& backend) const {
  MemoryForecast micro = forecast_memory(micro_->plan(), backend);
  MemoryForecast eval = scorer_->forecast(backend);
  MemoryForecast update = forecast_memory(update_, backend);
  int64_t flat =
      trainable_.layout.size() * static_cast<int64_t>(backend.element_bytes(DType::kF32));
  StepForecast f;
  f.weights = micro.weights;
  f.params = f.grads = flat;
  f.moments = 2 * flat;
  f.feeds = micro.feeds + eval.feeds + update.feeds;
  f.arena = std::max({micro.arena, eval.arena, update.arena});
  if (prefix_) {
    const MemoryForecast prefix = forecast_memory(prefix_->plan(), backend);
    f.weights += other_weights(prefix_->plan(), micro_->plan(), backend);
    f.feeds += prefix.feeds;
    f.arena = std::max(f.arena, prefix.arena);
  }
  for (const auto& s : smaller_) {
    const MemoryForecast other = forecast_memory(s->micro_plan(), backend);
    f.feeds += other.feeds;
    f.arena = std::max(f.arena, other.arena);
  }
  return f;
}

void TrainStep::compile(Backend& backend, ModelWeights& weights) {
  backend_ = &backend;
  const int64_t p = trainable_.layout.size();
  params_ = backend.allocate(DType::kF32, p);
  grads_ = backend.allocate(DType::kF32, p);
  m_ = backend.allocate(DType::kF32, p);
  v_ = backend.allocate(DType::kF32, p);
  arena_ = backend.allocate(DType::kU8, forecast(backend).arena);

  compile_micro(backend, weights);
  for (const auto& s : smaller_) {
    s->params_ = params_;
    s->grads_ = grads_;
    s->arena_ = arena_;
    s->compile_micro(backend, weights);
  }
  scorer_->compile(backend, weights, params_, arena_);
  if (prefix_) prefix_->compile(backend, weights, arena_);
  Bindings b(update_.values.size());
  const BufferPtr states[] = {params_, m_, v_, grads_};
  for (size_t i = 0; i < 4; ++i) b[static_cast<size_t>(update_states_[i])] = states[i];
  update_program_ = backend.compile(update_, b, arena_);
}

void TrainStep::compile_micro(Backend& backend, ModelWeights& weights) {
  Bindings micro = micro_->bind(backend, weights);
  micro[static_cast<size_t>(micro_->params())] = params_;
  micro[static_cast<size_t>(grads_value_)] = grads_;
  micro_program_ = backend.compile(micro_->plan(), micro, arena_);
  std::vector<int32_t> zeros(static_cast<size_t>(options_.limits.targets), 0);
  micro_program_->feed(segment_, zeros.data(), zeros.size() * sizeof(int32_t));
}

void TrainStep::set_params(std::span<const float> params) {
  WICK_CHECK(static_cast<int64_t>(params.size()) == trainable_.layout.size());
  backend_->upload(*params_, DType::kF32, 0, trainable_.layout.size(), params.data());
}

void TrainStep::set_moments(std::span<const float> m, std::span<const float> v) {
  const int64_t p = trainable_.layout.size();
  WICK_CHECK(static_cast<int64_t>(m.size()) == p && static_cast<int64_t>(v.size()) == p);
  backend_->upload(*m_, DType::kF32, 0, p, m.data());
  backend_->upload(*v_, DType::kF32, 0, p, v.data());
}

namespace {

std::vector<float> download_all(const Backend& backend, const BufferPtr& from, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  backend.download(*from, DType::kF32, 0, count, out.data());
  return out;
}

}  // namespace

std::vector<float> TrainStep::params() const {
  return download_all(*backend_, params_, trainable_.layout.size());
}
std::vector<float> TrainStep::moments(int which) const {
  return download_all(*backend_, which == 0 ? m_ : v_, trainable_.layout.size());
}
std::vector<float> TrainStep::grads() const {
  return download_all(*backend_, grads_, trainable_.layout.size());
}

void TrainStep::feed(const Pack& whole, float weight) {
  const Pack pack = first_part(whole, options_.limits);
  feed_pack(*micro_program_, *micro_, tail_, pack,
            prefix_ ? prefix_->rows(pack, kTrainRows) : std::span<const std::byte>());
  std::vector<float> weights(pack.targets.size(), 0.0f);
  for (size_t i = 0; i < weights.size(); ++i)
    if (pack.targets[i] >= 0) weights[i] = -weight;
  micro_program_->feed(weight_, weights.data(), weights.size() * sizeof(float));
}

void TrainStep::evaluate(const Pack& pack, std::span<float> logp) {
  scorer_->score(pack, logp,
                 prefix_ ? prefix_->rows(pack, kHeldOutRows) : std::span<const std::byte>());
}

std::vector<double> TrainStep::accumulate_timed(const Pack& pack, float weight) {
  feed(pack, weight);
  return micro_program_->run_timed();
}

double TrainStep::loss() const {
  float loss = 0;
  micro_program_->read(loss_, &loss, sizeof loss);
  return loss;
}

double TrainStep::accumulate(const Pack& pack, float weight) {
  TrainStep& s = fitting(pack);
  s.feed(pack, weight);
  s.micro_program_->run();
  s.micro_program_->wait();
  return s.loss();
}

void TrainStep::start_update(const AdamwSettings& s) {
  double t = static_cast<double>(s.step);
  const float hyper[8] = {s.learning_rate,
                          s.beta1,
                          s.beta2,
                          s.eps,
                          s.weight_decay,
                          s.clip,
                          static_cast<float>(1.0 - std::pow(static_cast<double>(s.beta1), t)),
                          static_cast<float>(1.0 - std::pow(static_cast<double>(s.beta2), t))};
  update_program_->feed(hyper_, hyper, sizeof hyper);
  update_program_->run();
}

float TrainStep::norm() const {
  float norm = 0;
  update_program_->read(norm_, &norm, sizeof norm);
  return norm;
}

float TrainStep::update(const AdamwSettings& settings) {
  start_update(settings);
  update_program_->wait();
  return norm();
}

TrainStep::Stepped TrainStep::step(std::span<const Pack> packs, float weight,
                                   const AdamwSettings& settings) {
  Stepped result;
  auto finish = [&](TrainStep& s) {
    s.micro_program_->wait();
    result.loss += s.loss();
  };
  for (size_t i = 0; i < packs.size(); ++i) {
    if (i > 0) finish(fitting(packs[i - 1]));
    TrainStep& s = fitting(packs[i]);
    s.feed(packs[i], weight);
    s.micro_program_->run();
  }
  start_update(settings);
  if (!packs.empty()) finish(fitting(packs.back()));
  update_program_->wait();
  result.norm = norm();
  return result;
}

}  // namespace wick
