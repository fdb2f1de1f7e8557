// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "api/report_text.h"
#include "api/trainer_impl.h"
#include "base/check.h"
#include "train/probe.h"

namespace wick {

namespace {

int64_t longest_row(const ExampleSet& set) {
  int64_t longest = 0;
  for (int64_t i = 0; i < set.size(); ++i)
    longest = std::max(longest, static_cast<int64_t>(set[i].ids.size()));
  return longest;
}

PackLimits larger(PackLimits a, PackLimits b) {
  return {std::max(a.tokens, b.tokens), std::max(a.targets, b.targets)};
}

}  // namespace

// The step that fits --memory: as it is, then with recompute, then with smaller packs. Which rows
// form an update does not change.
void Trainer::Impl::choose_step() {
  const Model::Impl& m = model->impl();
  Order order(train.size(), options.batch_size * options.grad_accumulation_steps, options.seed,
              options.shuffle);
  PackLimits least = smallest_limits(train);
  if (valid) least = larger(least, smallest_limits(*valid));
  PackLimits chosen = options.packing
                          ? larger(choose_limits(train, order, m.backend().tokens_at_once()), least)
                          : least;
  int64_t positions = longest_row(train);
  if (valid) positions = std::max(positions, longest_row(*valid));

  struct Try {
    PackLimits limits;
    bool recompute;
  };
  std::vector<Try> tries = {{chosen, options.grad_checkpoint}};
  if (options.memory_bytes > 0) {
    tries.push_back({chosen, true});
    tries.push_back({least, false});
    tries.push_back({least, true});
  }
  StepForecast f;
  for (const Try& t : tries) {
    StepOptions s;
    s.limits = t.limits;
    s.positions = positions;
    s.recompute = t.recompute;
    s.skip_below = static_cast<float>(options.skip_below);
    step = std::make_unique<TrainStep>(m.config, *m.weights, *trainable, s);
    f = step->forecast(m.backend());
    forecast.recompute = t.recompute;
    if (options.memory_bytes <= 0 || f.total() <= options.memory_bytes) break;
    step.reset();
  }
  if (!step)
    fail(ErrorCode::kOutOfMemory, "--memory ", report::bytes(options.memory_bytes),
         ": the smallest plan (recompute, one row at a time) takes ", report::bytes(f.total()),
         "; shorten rows with --max-seq-length or train fewer --targets");
  forecast.weights = f.weights;
  forecast.params = f.params;
  forecast.gradients = f.grads;
  forecast.moments = f.moments;
  forecast.feeds = f.feeds;
  forecast.arena = f.arena;
  forecast.peak_bytes = f.total();
  forecast.tokens_per_step = step->limits().tokens;
  forecast.targets_per_step = step->limits().targets;
  forecast.gflop = step->micro_flops() / 1e9;
  forecast.updates =
      forecast.assumed_rows && options.iters <= 0 ? 1 : count_updates(options, train.size());
  // Adapter or model, and the checkpoint with its two moments.
  forecast.disk_bytes = 4 * f.params;
  forecast_time(order);
}

void Trainer::Impl::forecast_time(const Order& order) {
  const Model::Impl& m = model->impl();
  if (m.backend().peak_gflops(m.weights->compute()) <= 0) return;
  std::vector<Pack> packs;
  const int64_t sampled = std::min<int64_t>(8, order.updates_per_epoch());
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < sampled; ++i)
    for (Pack& pack :
         pack_rows(train, order.update(i), step->limits(), options.seed, 0, options.packing))
      packs.push_back(std::move(pack));
  const std::chrono::duration<double> packing = std::chrono::steady_clock::now() - start;
  const double attended = mean_attended(packs);
  const SpeedProbe probe(m.backend(), m.config, *m.weights, *trainable,
                         {step->limits(), attended, forecast.recompute, step->micro_flops(),
                          static_cast<float>(options.skip_below)});
  const double packs_per_update = static_cast<double>(packs.size()) / static_cast<double>(sampled);
  forecast.step_ms = 1e3 * (packing.count() / static_cast<double>(sampled) +
                            packs_per_update * probe.seconds(step->micro_plan(), attended) +
                            probe.update_seconds(trainable->layout.size()));
  double evals = 0;
  if (valid) {
    const std::vector<Pack> held_out = valid_packs(*valid, options, step->limits());
    forecast.eval_ms = 1e3 * static_cast<double>(held_out.size()) *
                       probe.seconds(step->score_plan(), mean_attended(held_out));
    evals = static_cast<double>(count_evals(options, forecast.updates));
  }
  forecast.total_seconds =
      1e-3 * (forecast.step_ms * static_cast<double>(forecast.updates) + forecast.eval_ms * evals);
}

}  // namespace wick
