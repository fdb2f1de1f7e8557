// SPDX-License-Identifier: Apache-2.0
// How long a run takes: wick plan asks a part of the model (train/probe.h), wick train tries the
// step that it is about to run (train/rehearsal.h).
#include <algorithm>
#include <chrono>

#include "api/trainer_impl.h"
#include "base/file.h"
#include "base/process.h"
#include "train/probe.h"
#include "train/rehearsal.h"

namespace wick {

namespace {

// A checkpoint and its result on a common disk: bytes in a second, and what each takes whatever its
// size.
constexpr double kDiskRate = 3e8, kSaveSeconds = 0.02;
// Updates whose packs stand for all.
constexpr int64_t kSampledUpdates = 64;
// Of a pack, estimated, below which trying it takes no time that anyone notices; and of a run, in
// packs, from which on a few more do not matter.
constexpr double kQuickSeconds = 0.3, kUtilisation = 0.5, kLongRun = 50;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double common_saving(int64_t bytes) {
  return kSaveSeconds + static_cast<double>(bytes) / kDiskRate;
}

// One checkpoint with its result, by writing a part of its bytes into the folder. Where that fails
// the checkpoint will, and say which file: a forecast is no reason to stop.
double try_saving(const std::string& folder, int64_t bytes) try {
  constexpr int64_t kMost = int64_t{4} << 20;
  constexpr double kFiles = 3;  // checkpoint, adapter, its config
  const std::filesystem::path path = std::filesystem::path(folder) / ".wick";
  auto write = [&](int64_t size) {
    const auto start = std::chrono::steady_clock::now();
    write_file(path, std::string(static_cast<size_t>(size), '\0'));
    return seconds_since(start);
  };
  const int64_t part = std::min(bytes, kMost);
  const double each = write(0), with_bytes = write(part);
  std::filesystem::remove(path);
  const double rate =
      std::max(0.0, with_bytes - each) / static_cast<double>(std::max<int64_t>(1, part));
  return kFiles * each + rate * static_cast<double>(bytes);
} catch (const Error&) {
  return common_saving(bytes);
}

}  // namespace

// The packs of a run's first updates.
struct Trainer::Impl::FirstPacks {
  std::vector<Pack> packs, held_out;
  int64_t updates = 0;
  double seconds = 0;  // of making those of one update
  double per_update() const {
    return static_cast<double>(packs.size()) / static_cast<double>(updates);
  }
};

Trainer::Impl::FirstPacks Trainer::Impl::first_packs() const {
  const Order order = this->order();
  FirstPacks first;
  const auto start = std::chrono::steady_clock::now();
  first.updates = std::min(
      {kSampledUpdates, order.updates_per_epoch(), std::max<int64_t>(1, forecast.updates)});
  for (int64_t i = 0; i < first.updates; ++i)
    for (Pack& pack :
         pack_rows(train, order.update(i), step->limits(), options.seed, 0, options.packing))
      first.packs.push_back(std::move(pack));
  first.seconds = seconds_since(start) / static_cast<double>(first.updates);
  if (valid) first.held_out = valid_packs(*valid, options, step->limits());
  return first;
}

void Trainer::Impl::set_times(const RunTimes& times, double packing_seconds) {
  const Order order = this->order();
  forecast.step_ms = 1e3 * (times.update + packing_seconds);
  forecast.prefix_ms = 1e3 * times.prefix;
  forecast.eval_ms = 1e3 * times.eval;
  forecast.prepare_ms = 1e3 * times.prepare;
  forecast.cold_ms = 1e3 * (times.cold + times.eval_prefix);
  const double evals = valid ? static_cast<double>(count_evals(options, forecast.updates)) : 0;
  forecast.total_seconds =
      1e-3 * (forecast.step_ms * static_cast<double>(forecast.updates) + forecast.eval_ms * evals +
              forecast.cold_ms + forecast.prepare_ms +
              forecast.save_ms * static_cast<double>(count_saves(options, forecast.updates)) +
              forecast.prefix_ms *
                  static_cast<double>(std::min(forecast.updates, order.updates_per_epoch())));
  timed = true;
}

void Trainer::Impl::forecast_time() {
  const Model::Impl& m = model->impl();
  if (timed || m.backend().peak_gflops(m.weights->compute()) <= 0) return;
  const FirstPacks first = first_packs();
  const double attended = mean_attended(first.packs);
  const SpeedProbe probe(
      m.backend(), m.config, *m.weights, *trainable,
      {step->limits(), attended, forecast.recompute, step->micro_flops(),
       forecast.peak_bytes - forecast.weights, static_cast<float>(options.skip_below),
       optimizer_op(options.optimizer), optimizer_hyper(options, options.learning_rate, 1)});
  RunTimes times;
  for (const Pack& pack : first.packs)
    times.update +=
        probe.seconds(step->micro_plan(pack), attended) / static_cast<double>(first.updates);
  times.update += probe.update_seconds(trainable->layout.size());
  if (free_step) {
    // Both by the rates of one probe, so that its noise cancels.
    const Order order = this->order();
    auto update_seconds = [&](const TrainStep& s) {
      const double each = probe.seconds(s.micro_plan(), attended) * pack_overhead(s.limits());
      return each * fit_candidate(train, order, s.limits(), options.packing).packs;
    };
    forecast.time_factor = update_seconds(*step) / update_seconds(*free_step);
  }
  const auto held_out = static_cast<double>(first.held_out.size());
  const double score = probe.seconds(
      step->score_plan(), first.held_out.empty() ? attended : mean_attended(first.held_out));
  if (const PrefixCache* prefix = step->prefix()) {
    const double one = probe.seconds(prefix->plan(), attended);
    times.prefix = first.per_update() * one;
    times.eval_prefix = held_out * one;
  }
  times.eval = held_out * score;
  if (const Loss* kind = step->loss_kind()) {
    const Plan* beside = kind->beside_plan();
    const double asked = beside ? probe.seconds(*beside, attended) : score;
    const Loss::Passes passes = kind->passes();
    times.update += first.per_update() * (passes.own * score + passes.beside * asked);
    times.eval += held_out * (passes.eval_own * score + passes.eval_beside * asked);
    times.prepare =
        asked * static_cast<double>(kind->count_asked(train, valid ? &*valid : nullptr));
  }
  times.cold = probe.cold_seconds(forecast.peak_bytes - forecast.weights);
  forecast.save_ms = 1e3 * common_saving(forecast.disk_bytes);
  set_times(times, first.seconds);
}

bool Trainer::Impl::can_rehearse() const {
  const Model::Impl& m = model->impl();
  const double peak = 1e9 * kUtilisation * m.backend().peak_gflops(m.weights->compute());
  if (peak <= 0) return false;
  const double packs = static_cast<double>(forecast.updates) *
                       fit_candidate(train, order(), step->limits(), options.packing).packs;
  return packs >= kLongRun || step->micro_flops() / peak < kQuickSeconds;
}

void Trainer::Impl::rehearse_run(double answer_seconds) {
  const FirstPacks first = first_packs();
  Rehearsal r;
  r.packs = first.packs;
  r.updates = static_cast<double>(first.updates);
  r.run_packs = first.per_update() * static_cast<double>(forecast.updates);
  r.held_out = first.held_out;
  r.train = &train;
  r.valid = valid ? &*valid : nullptr;
  r.hyper = optimizer_hyper(options, options.learning_rate, 1);
  RunTimes times = rehearse(*step, r);
  if (options.sample_at_evals) times.eval += answer_seconds;
  forecast.save_ms = 1e3 * try_saving(options.adapter_path, forecast.disk_bytes);
  set_times(times, first.seconds);
  // All of the plan has been touched, where it lies in this process at all.
  release_free_memory();
  const int64_t kept = forecast.prefix_on_disk ? 0 : forecast.prefix_bytes;
  forecast.process_bytes =
      std::max(forecast.process_bytes,
               current_memory_bytes() - (forecast.peak_bytes - kept) + copied_bytes());
}

}  // namespace wick
