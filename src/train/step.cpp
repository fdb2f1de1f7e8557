// SPDX-License-Identifier: Apache-2.0
#include "train/step.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "backend/ahead.h"
#include "base/process.h"
#include "train/pack_work.h"

namespace wick {

TrainStep::TrainStep(const ModelConfig& config, const ModelWeights& weights, Trainable trainable,
                     const StepOptions& options)
    : config_(config),
      trainable_(std::move(trainable)),
      options_(options),
      micro_limits_(options.limits) {
  DecoderPlanOptions o;
  const int64_t lanes = trainable_.lane_count();
  const PackLimits all{lanes * options.limits.tokens, lanes * options.limits.targets};
  if (options.largest_pack > 0 && takes_sizes())
    micro_limits_ = {std::min(options.limits.tokens, options.largest_pack),
                     std::min(options.limits.targets, options.largest_pack)};
  const PackLimits micro{lanes * micro_limits_.tokens, lanes * micro_limits_.targets};
  o.tokens = micro.tokens;
  o.rows = micro.targets;
  o.positions = options.positions;
  o.training = true;
  o.recompute_first = first_trained_block(trainable_, config_);
  // A last block that is frozen may be kept, of all rows: then it has the same bits as here.
  o.skips_rows = options.skips_rows && o.recompute_first < config_.layers;
  o.recompute_end = options.recompute_blocks < 0
                        ? config_.layers
                        : std::min(config_.layers, o.recompute_first + options.recompute_blocks);
  o.source = trainable_.source();
  const int64_t below = options.split_prefix ? o.recompute_first : 0;
  o.first_block = below;
  if (below > 0) {
    const PackLimits slots{std::max(all.tokens, options.stream_slots), all.targets};
    prefix_ = std::make_unique<PrefixCache>(config_, weights, slots, options.positions, below,
                                            options.kept_tokens);
    o.stream_rows = prefix_->buffer_rows();
  }
  micro_ = std::make_unique<DecoderPlan>(config_, weights, o);
  tail_ = record_targets(*micro_, {options.skip_below});
  {
    Recorder& r = micro_->recorder();
    if (options.loss) {
      loss_kind_ = options.loss();
      loss_ = loss_kind_->record(*micro_, tail_, options.limits, options.positions);
    } else {
      Shape m{micro.targets};
      weight_ = r.feed("weight", m, DType::kF32);
      segment_ = r.feed("segment", m, DType::kI32);
      loss_ = r.segment_sum(tail_.logp, weight_, segment_, lanes);
    }
    fuse(micro_->plan());
    grads_value_ = r.state("grads", {trainable_.layout.size()}, DType::kF32);
    backward(r, loss_, micro_->params(), grads_value_);
    check(micro_->plan());
  }
  scorer_ = std::make_unique<Scorer>(config_, weights, trainable_.source(), all, options.positions,
                                     o.skips_rows, below, o.stream_rows);

  record_update();
}

void TrainStep::record_update() {
  Recorder r(update_, false);
  const int64_t p = trainable_.layout.size();
  ParamGroups groups = update_groups(trainable_, options_.optimizer);
  sets_ = groups.sets;
  hyper_ = r.feed("hyper", {sets_, 8}, DType::kF32);
  update_params_ = r.state("params", {p}, DType::kF32);
  states_ = optimizer_states(options_.optimizer, groups);
  for (const OptimizerState& s : states_)
    state_values_.push_back(r.state(s.name, s.shape, s.dtype));
  update_grads_ = r.state("grads", {p}, DType::kF32);
  norm_ = r.grad_norm(update_grads_, groups);
  r.optimizer(options_.optimizer, hyper_, norm_, update_params_, state_values_, update_grads_,
              std::move(groups));
  update_.results.push_back(norm_);
  check(update_);
}

namespace {

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

bool TrainStep::takes_sizes() const { return !options_.loss && trainable_.lanes.empty(); }

void TrainStep::add_sizes(const ModelWeights& weights, std::span<const int64_t> tokens) {
  if (!takes_sizes()) return;
  for (int64_t size : tokens) {
    WICK_CHECK(size < micro_limits_.tokens, size, " of ", micro_limits_.tokens, " slots");
    StepOptions o = options_;
    o.limits = {size, std::min(size, options_.limits.targets)};
    o.largest_pack = 0;
    o.stream_slots = options_.limits.tokens;
    smaller_.push_back(std::make_unique<TrainStep>(config_, weights, trainable_, o));
    smaller_.back()->prefix_.reset();
    smaller_.back()->stream_from_ = prefix_.get();
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
  WICK_CHECK(!takes_sizes() || (pack.used_tokens <= micro_limits_.tokens &&
                                pack.used_targets <= micro_limits_.targets),
             "a pack of ", pack.used_tokens, " tokens and ", pack.used_targets,
             " targets, which the run was said not to have");
  return *this;
}

double TrainStep::pack_flops(const Pack& pack) const { return pack_work(micro_plan(pack), pack); }

StepForecast TrainStep::forecast(const Backend& backend) const {
  MemoryForecast micro = forecast_memory(micro_->plan(), backend);
  MemoryForecast eval = scorer_->forecast(backend);
  MemoryForecast update = forecast_memory(update_, backend);
  int64_t flat =
      trainable_.layout.size() * static_cast<int64_t>(backend.element_bytes(DType::kF32));
  StepForecast f;
  f.weights = micro.weights;
  f.params = f.grads = flat;
  for (const OptimizerState& state : states_)
    f.moments += state.shape.elements() * static_cast<int64_t>(backend.element_bytes(state.dtype));
  f.feeds = micro.feeds + eval.feeds + update.feeds;
  f.arena = std::max({micro.arena, eval.arena, update.arena});
  if (prefix_) {
    const MemoryForecast prefix = forecast_memory(prefix_->plan(), backend);
    f.weights += other_weights(prefix_->plan(), micro_->plan(), backend);
    // What is kept of earlier packs is the caller's to count.
    f.feeds +=
        prefix.feeds + options_.limits.tokens * trainable_.lane_count() * prefix_->token_bytes();
    f.arena = std::max(f.arena, prefix.arena);
  }
  for (const auto& s : smaller_) {
    const MemoryForecast other = forecast_memory(s->micro_plan(), backend);
    f.feeds += other.feeds;
    f.arena = std::max(f.arena, other.arena);
  }
  if (loss_kind_) {
    const MemoryForecast beside = loss_kind_->forecast(backend);
    f.weights += beside.weights;
    f.feeds += beside.states + beside.feeds + beside.arena;
  }
  return f;
}

int64_t TrainStep::program_steps() const {
  size_t steps = micro_->plan().steps.size() + scorer_->plan().steps.size() + update_.steps.size();
  if (prefix_) steps += prefix_->plan().steps.size();
  for (const auto& s : smaller_) steps += s->micro_plan().steps.size();
  return static_cast<int64_t>(steps);
}

void TrainStep::compile(Backend& backend, ModelWeights& weights) {
  backend_ = &backend;
  const int64_t p = trainable_.layout.size();
  params_ = backend.allocate(DType::kF32, p);
  grads_ = backend.allocate(DType::kF32, p);
  for (const OptimizerState& state : states_)
    state_buffers_.push_back(backend.allocate(state.dtype, state.shape.elements()));
  arena_ = backend.allocate(DType::kU8, forecast(backend).arena);

  if (prefix_) prefix_->compile(backend, weights, arena_);
  compile_micro(backend, weights);
  for (const auto& s : smaller_) {
    s->params_ = params_;
    s->grads_ = grads_;
    s->arena_ = arena_;
    s->compile_micro(backend, weights);
  }
  scorer_->compile(backend, weights, params_, arena_, prefix_ ? prefix_->buffer() : nullptr);
  Bindings b(update_.values.size());
  b[static_cast<size_t>(update_params_)] = params_;
  b[static_cast<size_t>(update_grads_)] = grads_;
  for (size_t i = 0; i < states_.size(); ++i)
    b[static_cast<size_t>(state_values_[i])] = state_buffers_[i];
  update_program_ = backend.compile(update_, b, arena_);
}

void TrainStep::compile_micro(Backend& backend, ModelWeights& weights) {
  Bindings micro = micro_->bind(backend, weights);
  micro[static_cast<size_t>(micro_->params())] = params_;
  micro[static_cast<size_t>(grads_value_)] = grads_;
  if (const PrefixCache* below = stream_from_ ? stream_from_ : prefix_.get())
    micro[static_cast<size_t>(micro_->context().stream_state)] = below->buffer();
  if (loss_kind_) loss_kind_->compile(backend, micro);
  micro_program_ = backend.compile(micro_->plan(), micro, arena_);
  if (loss_kind_) return;
  std::vector<int32_t> lane;  // of each target
  for (int64_t k = 0; k < trainable_.lane_count(); ++k)
    lane.insert(lane.end(), static_cast<size_t>(micro_limits_.targets), static_cast<int32_t>(k));
  micro_program_->feed(segment_, lane.data(), lane.size() * sizeof(int32_t));
}

int64_t TrainStep::untouched_bytes() const {
  std::vector<BufferPtr> all = state_buffers_;
  all.insert(all.end(), {params_, grads_, arena_});
  if (prefix_) all.push_back(prefix_->buffer());
  int64_t sum = 0;
  for (const BufferPtr& buffer : all)
    sum += wick::untouched_bytes(buffer->address(), buffer->bytes());
  return sum;
}

void TrainStep::set_params(int64_t first, std::span<const float> params) {
  WICK_CHECK(first >= 0 && first + std::ssize(params) <= trainable_.layout.size());
  backend_->upload(*params_, DType::kF32, first, std::ssize(params), params.data());
}

void TrainStep::get_params(int64_t first, std::span<float> params) const {
  WICK_CHECK(first >= 0 && first + std::ssize(params) <= trainable_.layout.size());
  backend_->download(*params_, DType::kF32, first, std::ssize(params), params.data());
}

void TrainStep::set_state(size_t which, int64_t first, std::span<const std::byte> bytes) {
  const OptimizerState& state = states_[which];
  const auto count = static_cast<int64_t>(bytes.size() / dtype_bytes(state.dtype));
  WICK_CHECK(first >= 0 && first + count <= state.shape.elements());
  backend_->upload(*state_buffers_[which], state.dtype, first, count, bytes.data());
}

void TrainStep::get_state(size_t which, int64_t first, std::span<std::byte> bytes) const {
  const OptimizerState& state = states_[which];
  const auto count = static_cast<int64_t>(bytes.size() / dtype_bytes(state.dtype));
  WICK_CHECK(first >= 0 && first + count <= state.shape.elements());
  backend_->download(*state_buffers_[which], state.dtype, first, count, bytes.data());
}

void TrainStep::set_params(std::span<const float> params) {
  WICK_CHECK(static_cast<int64_t>(params.size()) == trainable_.layout.size());
  set_params(0, params);
}

std::vector<float> TrainStep::params() const {
  std::vector<float> all(static_cast<size_t>(trainable_.layout.size()));
  get_params(0, all);
  return all;
}

void TrainStep::set_state(size_t which, std::span<const std::byte> bytes) {
  WICK_CHECK(bytes.size() == states_[which].bytes());
  set_state(which, 0, bytes);
}

std::vector<std::byte> TrainStep::state(size_t which) const {
  std::vector<std::byte> all(states_[which].bytes());
  get_state(which, 0, all);
  return all;
}

std::vector<float> TrainStep::grads() const {
  std::vector<float> all(static_cast<size_t>(trainable_.layout.size()));
  backend_->download(*grads_, DType::kF32, 0, trainable_.layout.size(), all.data());
  return all;
}

void TrainStep::feed(const Pack& pack, std::span<const float> lane_weights) {
  PrefixCache* below = stream_from_ ? stream_from_ : prefix_.get();
  std::span<const int32_t> stream;
  if (below) stream = below->rows(pack, RowSet::kTrain);
  feed_pack(*micro_program_, *micro_, tail_, pack, stream);
  if (loss_kind_) return loss_kind_->feed(*micro_program_, pack, lane_weights);
  const auto lane_targets = static_cast<size_t>(micro_limits_.targets);
  std::vector<float> weights(lane_weights.size() * lane_targets, 0.0f);
  for (size_t i = 0; i < weights.size(); ++i)
    if (pack.targets[i] >= 0) weights[i] = -lane_weights[i / lane_targets];
  micro_program_->feed(weight_, weights.data(), weights.size() * sizeof(float));
}

void TrainStep::score(const Pack& pack, std::span<float> logp, RowSet set) {
  scorer_->score(pack, logp, prefix_ ? prefix_->rows(pack, set) : std::span<const int32_t>());
}

std::vector<double> TrainStep::accumulate_timed(const Pack& pack, float weight) {
  feed(pack, std::vector<float>(static_cast<size_t>(trainable_.lane_count()), weight));
  return micro_program_->run_timed();
}

TrainStep::Update& TrainStep::begin(std::span<const Pack> packs) {
  Update& update = started_.emplace_back();
  update.packs = packs;
  update.lanes.resize(static_cast<size_t>(trainable_.lane_count()));
  return update;
}

void TrainStep::start_pack(const Pack& pack, std::span<const float> weights) {
  TrainStep& s = fitting(pack);
  while (s.unread_ >= AheadProgram::kRuns) collect_pack();
  s.feed(pack, weights);
  s.micro_program_->run();
  ++s.unread_;
}

void TrainStep::collect_pack() {
  const auto oldest = std::find_if(started_.begin(), started_.end(),
                                   [](const Update& u) { return u.seen.size() < u.packs.size(); });
  WICK_CHECK(oldest != started_.end(), "no pack is under way");
  TrainStep& s = fitting(oldest->packs[oldest->seen.size()]);
  --s.unread_;
  wait_oldest(*s.micro_program_);
  std::vector<float> losses(oldest->lanes.size());
  s.micro_program_->read(s.loss_, losses.data(), losses.size() * sizeof(float));
  for (size_t k = 0; k < losses.size(); ++k)
    oldest->lanes[k].loss += static_cast<double>(losses[k]);
  oldest->seen.push_back(loss_kind_ ? loss_kind_->results(*s.micro_program_)
                                    : std::vector<float>());
}

double TrainStep::accumulate(const Pack& pack, float weight) {
  WICK_CHECK(started_.empty(), "an update is under way");
  const size_t lanes = begin({&pack, 1}).lanes.size();
  start_pack(pack, std::vector<float>(lanes, weight));
  collect_pack();
  const Update done = std::move(started_.front());
  started_.pop_front();
  for (size_t k = 0; k < lanes; ++k) tell_loss(done, k);
  return done.lanes[0].loss;
}

void TrainStep::start_update(std::span<const Hyper> hyper) {
  WICK_CHECK(static_cast<int32_t>(hyper.size()) == sets_, "a row of hyper for each set");
  update_program_->feed(hyper_, hyper.data(), hyper.size_bytes());
  update_program_->run();
}

std::vector<float> TrainStep::norms() const {
  std::vector<float> norms(static_cast<size_t>(sets_));
  update_program_->read(norm_, norms.data(), norms.size() * sizeof(float));
  return norms;
}

float TrainStep::update(std::span<const Hyper> hyper) {
  WICK_CHECK(started_.empty(), "an update is under way");
  start_update(hyper);
  update_program_->wait();
  return norms()[0];
}

void TrainStep::start_lanes(std::span<const Pack> packs, std::span<const float> weights,
                            std::span<const Hyper> hyper) {
  WICK_CHECK(started_.size() < 2, started_.size(), " updates are under way");
  Update& update = begin(packs);
  // A device that runs ahead keeps a program's results for itself. Elsewhere they lie in the arena,
  // which the next pack's program and the update's have after it.
  const bool at_once = !runs_ahead();
  for (const Pack& pack : packs) {
    start_pack(pack, weights);
    if (at_once) collect_pack();
  }
  start_update(hyper);
  if (at_once) collect_update(update);
}

void TrainStep::collect_update(Update& update) {
  wait_oldest(*update_program_);
  const std::vector<float> norm = norms();
  for (size_t k = 0; k < update.lanes.size(); ++k) update.lanes[k].norm = norm[k];
  update.done = true;
}

TrainStep::Update TrainStep::finish_lanes() {
  WICK_CHECK(!started_.empty(), "no update is under way");
  Update& oldest = started_.front();
  while (oldest.seen.size() < oldest.packs.size()) collect_pack();
  if (!oldest.done) collect_update(oldest);
  Update done = std::move(oldest);
  started_.pop_front();
  return done;
}

void TrainStep::tell_loss(const Update& update, size_t lane) {
  for (size_t i = 0; loss_kind_ && i < update.packs.size(); ++i)
    loss_kind_->read(update.seen[i], update.packs[i], lane);
}

RunStep::Stepped TrainStep::finish() {
  const Update done = finish_lanes();
  tell_loss(done, 0);
  return done.lanes.front();
}

void TrainStep::abandon() noexcept {
  auto end = [](Program& program) {
    try {
      program.wait();
    } catch (const Error&) {
      // Whoever abandons knows of a failure already.
    }
  };
  end(*micro_program_);
  for (const auto& s : smaller_) end(*s->micro_program_);
  end(*update_program_);
  started_.clear();
  unread_ = 0;
  for (const auto& s : smaller_) s->unread_ = 0;
}

}  // namespace wick
