// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "bench/profile.h"
#include "bench/train_case.h"
#include "train/pack_work.h"

namespace wick {

namespace {

constexpr size_t kLosses = 10;

TrainCaseOptions case_options(const BenchContext& c, int64_t batch) {
  const BenchOptions& o = c.options;
  TrainCaseOptions made{batch, o.seq, o.rank, o.targets, o.seed};
  made.adapters = o.adapters;
  return made;
}

BenchResult row(const BenchContext& c, const char* bench, const char* what, int64_t batch) {
  BenchResult r;
  r.bench = bench;
  r.what = what;
  r.batch = batch;
  r.seq = c.options.seq;
  r.rank = c.options.rank;
  r.targets = joined(c.options.targets);
  return r;
}

}  // namespace

void bench_train(const BenchContext& c) { train_row(c, "train", "step", c.options.batch_size); }

void bench_batch(const BenchContext& c) {
  for (int64_t batch : {1, 4, 8, 16}) train_row(c, "batch", "training step", batch);
  for (int64_t batch : {1, 4, 8, 16, 64})
    decode_row(c, "batch", "decoded token of each row", batch);
}

namespace {

void emit_train_profile(const BenchContext& c, const std::string& what, TrainCase& train) {
  if (!c.options.profile) return;
  StepSeconds runs;
  train.run_alone();
  const std::vector<Pack> packs = train.next_packs();
  for (size_t i = 0; i < kProfiledRuns; ++i)
    runs.push_back(train.step().accumulate_timed(packs.front(), 1e-3f));
  emit_profile(c, what, train.step().micro_plan(), pack_filling(packs.front()), runs);
}

}  // namespace

void train_row(const BenchContext& c, const char* bench, const char* what, int64_t batch) {
  c.check_length("--seq", c.options.seq);
  TrainCase train(c.backend(), c.config(), c.weights(), case_options(c, batch));
  if (!c.options.save_adapter.empty())
    train.adapter().save(c.options.save_adapter, train.start_params(), c.machine.shape);
  train.compile();
  std::vector<double> losses;
  BenchResult r = row(c, bench, what, batch);
  SystemUse warm;
  int64_t steps = 0;
  r.ms = summarize(measure(c.options.effort, [&] {
    const double loss = train.run();
    if (losses.size() < kLosses) losses.push_back(loss);
    if (++steps == std::max<int64_t>(1, c.options.effort.warmup)) warm = system_use();
  }));
  if (c.options.profile) {
    const SystemUse now = system_use();
    r.more["page_faults"] = now.page_faults - warm.page_faults;
    r.more["heap_growth_bytes"] = now.heap_bytes - warm.heap_bytes;
  }
  while (c.options.losses && losses.size() < kLosses) losses.push_back(train.run());
  if (c.options.losses) r.more["losses"] = losses;
  const StepForecast f = train.step().forecast(c.backend());
  r.gflop = train.gflop();
  r.bytes = f.total();
  r.more["packs"] = train.packs_per_step();
  r.more["adapters"] = c.options.adapters;
  r.more["adapter_dtype"] = "f32";
  r.more["moments_dtype"] = "f32";
  c.emit(std::move(r), static_cast<double>(train.tokens()));
  emit_train_profile(c, what, train);
}

// Both ways take turns, so that a machine that is faster or slower for a while is so for both.
void bench_prefix(const BenchContext& c) {
  c.check_length("--seq", c.options.seq);
  const int64_t layers = c.config().layers, top = std::max<int64_t>(1, layers / 3);
  for (const double trained : {1.0, 0.5}) {
    TrainCaseOptions o = case_options(c, c.options.batch_size);
    o.num_layers = top;
    o.trained = trained;
    TrainCase computed(c.backend(), c.config(), c.weights(), o);
    o.keep_prefix = true;
    TrainCase kept(c.backend(), c.config(), c.weights(), o);
    computed.compile();
    kept.compile();
    std::vector<double> without, ratios;
    const std::vector<double> with = measure(
        c.options.effort, [&] { kept.run_alone(); },
        [&] {
          const auto start = std::chrono::steady_clock::now();
          computed.run_alone();
          without.push_back(
              std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                  .count());
        });
    // The warm-up was sampled too.
    without.erase(without.begin(), without.end() - static_cast<ptrdiff_t>(with.size()));
    for (size_t i = 0; i < with.size(); ++i) ratios.push_back(without[i] / with[i]);
    auto emit = [&](TrainCase& train, const char* name, const std::vector<double>& samples) {
      BenchResult r = row(c, "prefix", name, c.options.batch_size);
      r.ms = summarize(samples);
      r.gflop = train.gflop();
      r.more["trained_share"] = trained;
      r.more["trained_blocks"] = top;
      if (&train == &kept) r.more["speedup"] = summarize(ratios).median;
      r.more["note"] = cat("top ", top, " of ", layers, ", ", trained == 1 ? "all" : "half",
                           " of the tokens trained");
      const std::string what = r.what + ", " + r.more["note"].get<std::string>();
      c.emit(std::move(r), static_cast<double>(train.tokens()));
      emit_train_profile(c, what, train);
    };
    emit(computed, "frozen blocks computed", without);
    emit(kept, "frozen blocks kept", with);
  }
}

void bench_gradient(const BenchContext& c) {
  c.check_length("--seq", c.options.seq);
  TrainCase train(c.backend(), c.config(), c.weights(), case_options(c, c.options.batch_size));
  train.compile();
  const Plan& plan = train.step().micro_plan();
  const float weight = 1.0f / static_cast<float>(train.tokens());
  std::vector<double> forward, backward, total;
  measure(c.options.effort, [&] {
    double parts[2] = {0, 0};
    for (const Pack& pack : train.next_packs()) {
      const std::vector<double> seconds = train.step().accumulate_timed(pack, weight);
      for (size_t i = 0; i < seconds.size(); ++i)
        parts[plan.steps[i].dir == Dir::kForward ? 0 : 1] += 1e3 * seconds[i];
    }
    forward.push_back(parts[0]);
    backward.push_back(parts[1]);
    total.push_back(parts[0] + parts[1]);
  });
  double gflop[2] = {0, 0};
  for (const Pack& pack : train.next_packs()) {
    const Filling filling = pack_filling(pack);
    for (const Step& step : plan.steps)
      gflop[step.dir == Dir::kForward ? 0 : 1] += step_flops(plan, step, filling) * 1e-9;
  }
  auto emit = [&](const char* what, const std::vector<double>& samples, double work) {
    // The warm-up was sampled too.
    const auto first =
        samples.begin() + static_cast<ptrdiff_t>(std::min<size_t>(
                              samples.size() - 1, static_cast<size_t>(c.options.effort.warmup)));
    BenchResult r = row(c, "gradient", what, c.options.batch_size);
    r.ms = summarize({first, samples.end()});
    r.gflop = work;
    c.emit(std::move(r), static_cast<double>(train.tokens()));
  };
  emit("forward", forward, gflop[0]);
  emit("backward", backward, gflop[1]);
  emit("total", total, gflop[0] + gflop[1]);
}

}  // namespace wick
