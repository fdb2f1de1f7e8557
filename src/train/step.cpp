// SPDX-License-Identifier: Apache-2.0
#include "train/step.h"

#include <algorithm>
#include <cmath>

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
  auto record = [&](bool training, Tail& tail) {
    DecoderPlanOptions o;
    o.tokens = options.limits.tokens;
    o.positions = options.positions;
    o.training = training;
    o.recompute = options.recompute;
    o.adapter = trainable_.adapter;
    if (!trainable_.adapter) o.trained = &trainable_.layout;
    auto plan = std::make_unique<DecoderPlan>(config_, weights, o);
    Recorder& r = plan->recorder();
    Shape m{options.limits.targets};
    tail.rows = r.feed("rows", m, DType::kI32);
    tail.targets = r.feed("targets", m, DType::kI32);
    ValueId x = r.gather_rows(plan->hidden(), tail.rows);
    tail.logp = r.head(x, plan->head_weight(), tail.targets);
    if (training) {
      tail.weight = r.feed("weight", m, DType::kF32);
      tail.segment = r.feed("segment", m, DType::kI32);
      tail.loss = r.segment_sum(tail.logp, tail.weight, tail.segment, 1);
      fuse(plan->plan());
      tail.grads = r.state("grads", {trainable_.layout.size()}, DType::kF32);
      backward(r, tail.loss, plan->params(), tail.grads);
    } else {
      plan->plan().results.push_back(tail.logp);
      fuse(plan->plan());
    }
    check(plan->plan());
    return plan;
  };
  micro_ = record(true, micro_tail_);
  evaluate_ = record(false, evaluate_tail_);

  Recorder r(update_, false);
  const int64_t p = trainable_.layout.size();
  hyper_ = r.feed("hyper", {8}, DType::kF32);
  for (const char* name : {"params", "m", "v", "grads"})
    update_states_.push_back(r.state(name, {p}, DType::kF32));
  norm_ = r.grad_norm(update_states_[3]);
  AdamwAttr attr;
  attr.groups.push_back({0, p, 1.0f, 1.0f});
  r.adamw(hyper_, norm_, update_states_[0], update_states_[1], update_states_[2], update_states_[3],
          std::move(attr));
  update_.results.push_back(norm_);
  check(update_);
}

StepForecast TrainStep::forecast(const Backend& backend) const {
  MemoryForecast micro = forecast_memory(micro_->plan(), backend);
  MemoryForecast eval = forecast_memory(evaluate_->plan(), backend);
  MemoryForecast update = forecast_memory(update_, backend);
  int64_t flat =
      trainable_.layout.size() * static_cast<int64_t>(backend.element_bytes(DType::kF32));
  StepForecast f;
  f.weights = micro.weights;
  f.params = f.grads = flat;
  f.moments = 2 * flat;
  f.feeds = micro.feeds + eval.feeds + update.feeds;
  f.arena = std::max({micro.arena, eval.arena, update.arena});
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

  auto compile_decoder = [&](const DecoderPlan& plan, const Tail& tail) {
    Bindings b = plan.bind(backend, weights);
    b[static_cast<size_t>(plan.params())] = params_;
    if (tail.grads != kNone) b[static_cast<size_t>(tail.grads)] = grads_;
    return backend.compile(plan.plan(), b, arena_);
  };
  micro_program_ = compile_decoder(*micro_, micro_tail_);
  evaluate_program_ = compile_decoder(*evaluate_, evaluate_tail_);
  Bindings b(update_.values.size());
  const BufferPtr states[] = {params_, m_, v_, grads_};
  for (size_t i = 0; i < 4; ++i) b[static_cast<size_t>(update_states_[i])] = states[i];
  update_program_ = backend.compile(update_, b, arena_);

  std::vector<int32_t> zeros(static_cast<size_t>(options_.limits.targets), 0);
  micro_program_->feed(micro_tail_.segment, zeros.data(), zeros.size() * sizeof(int32_t));
}

int64_t TrainStep::arena_bytes() const {
  return static_cast<int64_t>(
      std::max({micro_program_->arena_bytes(), update_program_->arena_bytes(),
                evaluate_program_->arena_bytes()}));
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

void TrainStep::feed_pack(Program& program, const DecoderPlan& plan, ValueId rows, ValueId targets,
                          const Pack& pack) const {
  auto feed = [&](ValueId id, const std::vector<int32_t>& data) {
    program.feed(id, data.data(), data.size() * sizeof(int32_t));
  };
  const DecoderContext& c = plan.context();
  feed(c.ids, pack.ids);
  feed(c.positions, pack.positions);
  feed(c.begin, pack.begin);
  feed(c.end, pack.end);
  if (c.adapter.keys != kNone) feed(c.adapter.keys, pack.keys);
  feed(rows, pack.rows);
  feed(targets, pack.targets);
}

double TrainStep::accumulate(const Pack& pack, float weight) {
  feed_pack(*micro_program_, *micro_, micro_tail_.rows, micro_tail_.targets, pack);
  std::vector<float> weights(pack.targets.size(), 0.0f);
  for (size_t i = 0; i < weights.size(); ++i)
    if (pack.targets[i] >= 0) weights[i] = -weight;
  micro_program_->feed(micro_tail_.weight, weights.data(), weights.size() * sizeof(float));
  micro_program_->run();
  micro_program_->wait();
  float loss = 0;
  micro_program_->read(micro_tail_.loss, &loss, sizeof loss);
  return loss;
}

float TrainStep::update(const AdamwSettings& s) {
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
  update_program_->wait();
  float norm = 0;
  update_program_->read(norm_, &norm, sizeof norm);
  return norm;
}

void TrainStep::evaluate(const Pack& pack, std::span<float> logp) {
  feed_pack(*evaluate_program_, *evaluate_, evaluate_tail_.rows, evaluate_tail_.targets, pack);
  evaluate_program_->run();
  evaluate_program_->wait();
  evaluate_program_->read(evaluate_tail_.logp, logp.data(), logp.size_bytes());
}

}  // namespace wick
