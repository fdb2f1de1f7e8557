// SPDX-License-Identifier: Apache-2.0
// How long a run takes: by trying the step that it is about to run (train/rehearsal.h), or, where
// that would take too long for what is asked, by a part of the model (train/probe.h).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>

#include "api/trainer_impl.h"
#include "base/process.h"
#include "model/adapter_start.h"
#include "train/checkpoint.h"
#include "train/pack_work.h"
#include "train/probe.h"
#include "train/rehearsal.h"

namespace wick {

namespace {

// Updates whose packs stand for all.
constexpr int64_t kSampledUpdates = 64;
// For weighing the packs of others.
constexpr double kWeighSeconds = 0.1;
// The least that is tried: one pack that warms up and one that counts. It may take a fifth of the
// run, or so many seconds of any.
constexpr double kLeastPacks = 2, kTriedShare = 0.2, kQuickSeconds = 2;
// What a forecast without a run may wait for: weights read and prepared, a few packs; and tries of
// packs that are quicker, as long as the run itself or so many seconds.
constexpr double kPlanSeconds = 8, kPlanPacks = 3, kLoadRate = 1e9;
constexpr RehearsalTime kPlanTrial{.short_share = 1, .short_seconds = 3, .most_seconds = 3};
constexpr double kUtilisation = 0.5;  // of the device, for those estimates
// What a run of one second may differ by from what was tried, since a processor's speed changes
// within seconds; of longer ones less, by the root of their seconds, of shorter ones more. No run
// is known better than by kLeastMood: a trial of seconds does not see what the minutes after it
// bring, and of runs that were tried beside other work a quarter lay outside of it.
constexpr double kSecondsMood = 0.2, kLeastMood = 0.15, kMostMood = 0.35;

constexpr double kMostOthers = 0.5;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

// A part of a checkpoint of the run's size. Zeros take some disks no time: these are none.
Checkpoint Trainer::Impl::part_of_checkpoint(double part) const {
  Checkpoint c;
  uint32_t noise = 1;
  auto fill = [&](std::span<std::byte> bytes) {
    for (std::byte& b : bytes)
      b = static_cast<std::byte>((noise = noise * 1664525u + 1013904223u) >> 24);
  };
  auto share = [&](size_t size) { return static_cast<size_t>(part * static_cast<double>(size)); };
  c.params.resize(share(static_cast<size_t>(trainable->layout.size())));
  fill(std::as_writable_bytes(std::span(c.params)));
  if (options.keep_best || options.early_stop > 0) c.best = c.params;
  for (const OptimizerState& state : step->states()) {
    const size_t count = share(static_cast<size_t>(state.shape.elements()));
    c.states.push_back(
        {state.name, state.dtype, std::vector<std::byte>(count * dtype_bytes(state.dtype))});
    fill(c.states.back().bytes);
  }
  return c;
}

// By doing what a run does, or of large checkpoints a part.
Saving Trainer::Impl::try_saving(std::vector<float> params) const {
  constexpr int64_t kMost = int64_t{64} << 20;
  SaveTrial trial;
  trial.place = options.adapter_path;
  const DiskNeed need = saved_at_once();
  trial.bytes = need.state + need.result;
  trial.result_bytes = need.result;
  Checkpoint c;
  if (trial.bytes <= kMost && others.empty()) {
    trial.checkpoint = [&](const std::filesystem::path& folder) {
      c = {};
      release_free_memory();
      c.params = std::move(params);
      if (options.keep_best || options.early_stop > 0) c.best = c.params;
      for (size_t i = 0; i < step->states().size(); ++i)
        c.states.push_back({step->states()[i].name, step->states()[i].dtype, step->state(i)});
      c.run = identity();
      save_checkpoint(folder, c);
      c.states = std::vector<CheckpointState>();
    };
    trial.result = [&](const std::filesystem::path& folder) {
      save_result(folder.string(), c.params);
      params = std::move(c.params);
    };
    return wick::try_saving(trial);
  }
  std::vector<float>().swap(params);
  const auto all = static_cast<double>(trial.bytes);
  c = part_of_checkpoint(std::min(0.99, static_cast<double>(kMost) / all));
  double bytes = 4.0 * static_cast<double>(c.params.size() + c.best.size());
  for (const CheckpointState& state : c.states) bytes += static_cast<double>(state.bytes.size());
  trial.part = std::max(1.0, bytes) / all;
  trial.files = 3 * static_cast<int64_t>(1 + others.size());  // checkpoint, adapter, config
  trial.checkpoint = [&](const std::filesystem::path& folder) { save_checkpoint(folder, c); };
  return wick::try_saving(trial);
}

// The packs of some of a run's updates, evenly spread over it, and of the held-out rows.
struct Trainer::Impl::SampledPacks {
  std::vector<Pack> packs, held_out;
  std::vector<size_t> update_packs;  // of each update
  int64_t updates = 0;
  double work = 0;      // of the run's updates, on average (pack_work)
  double own_work = 0;  // of those that are here
  double seconds = 0;   // of making the packs of one update
  double per_update() const {
    return static_cast<double>(packs.size()) / static_cast<double>(updates);
  }
};

Trainer::Impl::SampledPacks Trainer::Impl::sample_packs() const {
  const Order order = this->order();
  const int64_t updates = std::max<int64_t>(1, forecast.updates);
  SampledPacks sampled;
  sampled.updates = std::min(kSampledUpdates, updates);
  const auto start = std::chrono::steady_clock::now();
  // Each grid of updates is spread over all of the run and lies between those before it; one that
  // is weighed only leaves no packs behind.
  double sum = 0, grids = 0;
  for (double offset : {0.5, 0.0, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875}) {
    if (grids > 0 && (updates <= kSampledUpdates || seconds_since(start) > kWeighSeconds)) break;
    for (int64_t i = 0; i < sampled.updates; ++i) {
      const auto index =
          static_cast<int64_t>((static_cast<double>(i) + offset) * static_cast<double>(updates) /
                               static_cast<double>(sampled.updates));
      std::vector<Pack> packs =
          pack_rows(train, order.update(index), step->limits(), options.seed, order.epoch_of(index),
                    options.packing, order.copies(index));
      for (const Pack& pack : packs) sum += pack_work(step->micro_plan(pack), pack);
      if (grids > 0) continue;
      sampled.update_packs.push_back(packs.size());
      std::move(packs.begin(), packs.end(), std::back_inserter(sampled.packs));
    }
    if (++grids > 1) continue;
    sampled.own_work = sum / static_cast<double>(sampled.updates);
    sampled.seconds = seconds_since(start) / static_cast<double>(sampled.updates);
  }
  sampled.work = sum / grids / static_cast<double>(sampled.updates);
  if (valid) sampled.held_out = valid_packs(*valid, options, step->limits());
  return sampled;
}

void Trainer::Impl::set_times(const RunTimes& times, double packing_seconds, const Saving& saving) {
  const Order order = this->order();
  forecast.save_ms = 1e3 * saving.seconds;
  forecast.step_ms = 1e3 * (times.update + packing_seconds);
  forecast.prefix_ms = 1e3 * times.prefix;
  forecast.answer_ms = 1e3 * times.answers;
  forecast.eval_ms = 1e3 * times.eval + forecast.answer_ms;
  forecast.prepare_ms = 1e3 * times.prepare;
  forecast.cold_ms = 1e3 * (times.cold + times.eval_prefix);
  const double evals = valid ? static_cast<double>(count_evals(options, forecast.updates)) : 0;
  const double computed =
      1e-3 * (forecast.step_ms * static_cast<double>(forecast.updates) + forecast.eval_ms * evals +
              forecast.cold_ms + forecast.prepare_ms +
              forecast.prefix_ms *
                  static_cast<double>(std::min(forecast.updates, order.updates_per_epoch())));
  const auto saves = static_cast<double>(count_saves(options, forecast.updates));
  const double numbered = options.save_numbered ? saving.result : 0;
  forecast.total_seconds = computed + saves * (saving.seconds + numbered);
  const double seconds_mood = std::clamp(
      kSecondsMood / std::sqrt(std::max(1e-3, forecast.total_seconds)), kLeastMood, kMostMood);
  // Work beside the trial may end, and may become as much again.
  const double mood = std::max(seconds_mood, std::min(kMostOthers, times.others));
  const double low = std::min(times.low, 1 - mood), high = std::max(times.high, 1 + mood);
  forecast.step_ms_low = low * forecast.step_ms;
  forecast.step_ms_high = high * forecast.step_ms;
  forecast.total_seconds_low = low * computed + saves * (saving.low + numbered);
  forecast.total_seconds_high = high * computed + saves * (saving.high + numbered);
  timed = true;
}

void Trainer::Impl::forecast_time() {
  const Model::Impl& m = model->impl();
  if (timed || m.backend().peak_gflops(m.weights->compute()) <= 0) return;
  const SampledPacks sampled = sample_packs();
  const double attended = mean_attended(sampled.packs);
  const SpeedProbe probe(
      m.backend(), m.config, *m.weights, *trainable,
      {step->limits(), attended, forecast.recompute, step->micro_flops(),
       forecast.peak_bytes - forecast.weights, static_cast<float>(options.skip_below),
       optimizer_op(options.optimizer), optimizer_hyper(options, options.learning_rate, 1),
       options.sample_at_evals && valid.has_value()});
  RunTimes times;
  const double share = sampled.work / sampled.own_work / static_cast<double>(sampled.updates);
  for (const Pack& pack : sampled.packs)
    times.update += share * probe.seconds(step->micro_plan(pack), attended);
  times.update += probe.update_seconds(trainable->layout.size());
  if (free_step) {
    // Both by the rates of one probe, so that its noise cancels.
    const Order order = this->order();
    auto update_seconds = [&](const TrainStep& s) {
      const double each = probe.seconds(s.micro_plan(), attended) * pack_overhead(s.limits());
      return each * packs_per_update(train, order, s.limits(), options.packing);
    };
    forecast.time_factor = update_seconds(*step) / update_seconds(*free_step);
  }
  const auto held_out = static_cast<double>(sampled.held_out.size());
  const double score = probe.seconds(
      step->score_plan(), sampled.held_out.empty() ? attended : mean_attended(sampled.held_out));
  if (const PrefixCache* prefix = step->prefix()) {
    const double one = probe.seconds(prefix->plan(), attended);
    times.prefix = sampled.per_update() * one;
    times.eval_prefix = held_out * one;
  }
  times.eval = held_out * score;
  if (const Loss* kind = step->loss_kind()) {
    const Plan* beside = kind->beside_plan();
    const double asked = beside ? probe.seconds(*beside, attended) : score;
    const Loss::Passes passes = kind->passes();
    times.update += sampled.per_update() * (passes.own * score + passes.beside * asked);
    times.eval += held_out * (passes.eval_own * score + passes.eval_beside * asked);
    times.prepare =
        asked * static_cast<double>(kind->count_asked(train, valid ? &*valid : nullptr));
  }
  if (options.sample_at_evals && valid)
    for (const Impl* run : runs()) times.answers += run->guessed_answer_seconds(probe);
  times.cold = probe.cold_seconds(forecast.peak_bytes - forecast.weights);
  times.low = kEstimatedLow;
  times.high = kEstimatedHigh;
  const DiskNeed need = saved_at_once();
  set_times(times, sampled.seconds, common_saving(need.state + need.result));
}

// Of one pack, from its arithmetic; 0 where the device cannot be timed.
double Trainer::Impl::guessed_pack_seconds() const {
  const Model::Impl& m = model->impl();
  const double peak = 1e9 * kUtilisation * m.backend().peak_gflops(m.weights->compute());
  return peak > 0 ? step->micro_flops() / peak : 0;
}

// Of a start by singular vectors, roughly: by the weights' elements and the vectors that are
// sought.
double Trainer::Impl::decompose_seconds() const {
  constexpr double kVectorSeconds = 3e-8;  // of an element on one thread, with a common spectrum
  double work = 0;
  for (const Impl* run : runs())
    for (const LoraModule& m : run->adapter ? run->adapter->modules() : std::vector<LoraModule>())
      if (m.a0_offset >= 0)
        work += static_cast<double>(m.in * m.out) * 1.5 * static_cast<double>(m.rank + 4);
  return kVectorSeconds * work / std::max(1, host_threads(model->impl().backend()));
}

bool Trainer::Impl::can_rehearse() const {
  const double each = guessed_pack_seconds();
  if (each <= 0) return false;
  const double packs = static_cast<double>(forecast.updates) *
                       packs_per_update(train, order(), step->limits(), options.packing);
  return kLeastPacks <= kTriedShare * packs || kLeastPacks * each < kQuickSeconds;
}

bool Trainer::Impl::can_try_now() const {
  const Model::Impl& m = model->impl();
  const double each = guessed_pack_seconds();
  if (each <= 0 || !m.options.shape.empty()) return false;
  // A device that runs ahead of the host has memory of its own.
  const int64_t available = m.backend().runs_ahead()
                                ? static_cast<int64_t>(m.backend().info().memory_bytes)
                                : available_memory_bytes();
  const double load = m.weights->loaded() ? 0 : static_cast<double>(forecast.weights) / kLoadRate;
  // Trained numbers are drawn, and put back as they were.
  const double drawn =
      static_cast<double>(forecast.params + forecast.gradients + forecast.moments) / kLoadRate;
  return load + drawn + decompose_seconds() + kPlanPacks * each <= kPlanSeconds &&
         forecast.peak_bytes <= available;
}

bool Trainer::Impl::start(const StopAsked& stop) {
  if (started) return true;
  Model::Impl& m = model->impl();
  const StopWhileReading own(*m.weights, stop);
  std::optional<StopWhileReading> besides;
  if (beside) besides.emplace(*beside->impl().weights, stop);
  try {
    start_step();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kCancelled) throw;
    return false;
  }
  return started = true;
}

void Trainer::Impl::start_step() {
  Model::Impl& m = model->impl();
  const int threads = host_threads(m.backend());
  for (Impl* run : runs()) {
    if (!run->adapter) continue;
    const bool fresh = run->options.init_adapter.empty();
    if (fresh) run->start_params = run->adapter->initial_params(run->options.seed);
    start_adapter(*run->adapter, m.config, *m.weights, fresh, run->start_params, threads);
  }
  // Before the step takes its own: what was read and widened on the way.
  release_free_memory();
  // What an adapter's file leaves to the weights.
  if (reference_adapter)
    start_adapter(*reference_adapter, *reference->config, *reference->weights, false,
                  reference_params, threads);
  step->compile(m.backend(), *m.weights);
  if (!adapter) {
    step->set_params(initial_weights(*trainable, *m.weights));
  } else {
    std::vector<float> all;
    for (const Impl* run : runs())
      all.insert(all.end(), run->start_params.begin(), run->start_params.end());
    step->set_params(all);
    // Of one that was loaded a checkpoint wants the sum.
    for (Impl* run : runs())
      if (run->options.init_adapter.empty()) std::vector<float>().swap(run->start_params);
  }
  // Weights were read and widened on the way.
  release_free_memory();
}

void Trainer::Impl::try_now() {
  if (!can_try_now()) return forecast_time();
  if (free_step) forecast_time();
  start();
  const auto asked = std::chrono::steady_clock::now();
  if (options.sample_at_evals) answer(sample_prompts(), step->params_buffer());
  rehearse_run(seconds_since(asked), kPlanTrial);
}

void Trainer::Impl::rehearse_run(double answer_seconds, const RehearsalTime& time,
                                 const std::function<bool()>& should_give_up) {
  {
    const SampledPacks sampled = sample_packs();
    Rehearsal r;
    r.packs = sampled.packs;
    r.updates = static_cast<double>(sampled.updates);
    r.update_packs = sampled.update_packs;
    r.update_work = sampled.work;
    r.run_packs = sampled.per_update() * static_cast<double>(forecast.updates);
    r.held_out = sampled.held_out;
    r.train = &train;
    r.valid = valid ? &*valid : nullptr;
    r.hyper = optimizer_hyper(options, options.learning_rate, 1);
    r.time = time;
    r.should_give_up = should_give_up;
    Saving saving;
    r.then = [&](std::vector<float> params) { saving = try_saving(std::move(params)); };
    RunTimes times = wick::rehearse(*step, r);
    if (options.sample_at_evals) times.answers = answer_seconds;
    // The best of the looks so far is saved; most of them are, at first.
    if (options.keep_best || options.early_stop > 0) times.eval += saving.result;
    set_times(times, sampled.seconds, saving);
  }  // the packs that were tried are no part of what the process takes
  forecast.tried = true;
  count_process();
}

}  // namespace wick
