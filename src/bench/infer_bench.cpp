// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <optional>

#include "bench/infer_case.h"
#include "bench/profile.h"
#include "bench/read_probe.h"

namespace wick {

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

BenchResult row(const char* bench, const char* what, int64_t batch, int64_t seq) {
  BenchResult r;
  r.bench = bench;
  r.what = what;
  r.batch = batch;
  r.seq = seq;
  return r;
}

// Tokens behind the prompt before decoding starts over there.
constexpr int64_t kDecodeRoom = 256;
// Tokens that a back end which draws them itself makes before the host reads them, as `generate`.
constexpr int64_t kStepsAtOnce = 16;

template <typename F>
void profile(const BenchContext& c, DecodeCase& run, const char* of, const Plan& plan,
             const Filling& filling, F&& once) {
  StepSeconds runs(kProfiledRuns);
  for (std::vector<double>& seconds : runs) {
    run.time_steps(&seconds);
    once();
    run.time_steps(nullptr);
    run.sample({});
  }
  emit_profile(c, of, plan, filling, runs);
}

}  // namespace

void decode_row(const BenchContext& c, const char* bench, const char* what, int64_t batch) {
  const BenchOptions& o = c.options;
  const int64_t room = std::min(kDecodeRoom, c.config().max_positions - o.prompt);
  c.check_length("--prompt-tokens", o.prompt + 1);
  DecodeCase run(c, batch, o.prompt + room);
  run.prefill_drawn(o.prompt);
  BenchResult r = row(bench, what, batch, o.prompt);
  const int64_t steps = run.engine().can_walk() ? std::min(kStepsAtOnce, room) : 1;
  const Plan& plan = run.engine().plan(batch);
  const double bytes = weight_traffic(plan, c.backend(), c.generating_weights());
  std::optional<ReadProbe> probe;
  if (!c.backend().runs_ahead()) probe.emplace(c, plan);
  if (probe && !probe->is_useful()) probe.reset();
  std::vector<double> reads;
  const std::vector<double> ms = measure(
      o.effort, [&] { run.decode_drawn(steps, o.prompt); },
      [&] {
        if (probe) reads.push_back(probe->gb_per_second());
      });
  r.ms = scaled(summarize(ms), 1.0 / static_cast<double>(steps));
  if (probe) {
    // The warm-up was probed too.
    reads.erase(reads.begin(), reads.end() - static_cast<ptrdiff_t>(ms.size()));
    std::vector<double> shares;
    for (size_t i = 0; i < ms.size(); ++i)
      shares.push_back(100 * bytes * static_cast<double>(steps) * 1e-6 / ms[i] / reads[i]);
    r.more["read_gb_per_second"] = summarize(reads).median;
    r.more["percent_of_reads"] = summarize(shares).median;
  }
  const Filling filling = token_filling(o.prompt, o.prompt + 1, batch);
  r.gflop = plan_flops(plan, filling) * 1e-9;
  r.more["weight_bytes"] = bytes;
  r.more["gb_per_second"] = bytes * 1e-6 / r.ms.median;
  c.emit(std::move(r), static_cast<double>(batch), bytes);
  if (o.profile) profile(c, run, what, plan, filling, [&] { run.decode(o.prompt); });
}

void bench_prefill(const BenchContext& c) {
  const BenchOptions& o = c.options;
  c.check_length("--seq", o.seq);
  DecodeCase run(c, o.batch_size, o.seq);
  BenchResult r = row("prefill", "prompt", o.batch_size, o.seq);
  run.engine().plan(o.seq);  // reads and packs the weights, which is no part of a prompt
  r.ms = summarize(measure(o.effort, [&] { run.prefill(o.seq); }));
  r.gflop = run.engine().flops(o.seq) * static_cast<double>(o.batch_size) * 1e-9;
  c.emit(std::move(r), static_cast<double>(o.batch_size * o.seq));
  if (!o.profile) return;
  // The steps that are timed are those of the last chunk.
  const int64_t last = (o.seq - 1) / DecoderEngine::kMostTokens * DecoderEngine::kMostTokens;
  profile(c, run, "prompt", run.engine().plan(o.seq - last), token_filling(last, o.seq, 1),
          [&] { run.prefill(o.seq); });
}

void bench_decode(const BenchContext& c) { decode_row(c, "decode", "token", c.options.batch_size); }

void bench_generate(const BenchContext& c) {
  const BenchOptions& o = c.options;
  c.check_length("--prompt-tokens and --max-tokens", o.prompt + o.new_tokens);
  DecodeCase run(c, o.batch_size, o.prompt + o.new_tokens);
  SampleOptions sampling;
  sampling.temperature = 0.7f;
  sampling.top_p = 0.9f;
  sampling.seed = o.seed;
  std::vector<double> first, rest;
  Effort effort = o.effort;
  effort.warmup = 1;
  effort.least = 3;
  std::vector<double> total = measure(effort, [&] {
    const Clock::time_point start = Clock::now();
    run.prefill_drawn(o.prompt, sampling);
    first.push_back(ms_since(start));
    const Clock::time_point after = Clock::now();
    for (int64_t left = o.new_tokens - 1; left > 0; left -= kStepsAtOnce)
      run.decode_drawn(std::min(left, kStepsAtOnce), o.prompt, sampling);
    rest.push_back(ms_since(after));
  });
  first.erase(first.begin());
  rest.erase(rest.begin());
  const double batch = static_cast<double>(o.batch_size);
  BenchResult r = row("generate", "first token, greedy", o.batch_size, o.prompt);
  effort.least = 5;
  r.ms = summarize(measure(effort, [&] { run.prefill_drawn(o.prompt); }));
  c.emit(r, batch * static_cast<double>(o.prompt));
  r.what = "first token";
  r.ms = summarize(first);
  c.emit(r, batch * static_cast<double>(o.prompt));
  if (o.new_tokens > 1) {
    r.what = "per token";
    r.ms = scaled(summarize(rest), 1.0 / static_cast<double>(o.new_tokens - 1));
    c.emit(r, batch);
  }
  r.what = "total";
  r.ms = summarize(total);
  r.more["new_tokens"] = o.new_tokens;
  c.emit(r, batch * static_cast<double>(o.new_tokens));
  emit_streaming(c);
}

}  // namespace wick
