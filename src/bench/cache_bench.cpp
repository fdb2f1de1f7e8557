// SPDX-License-Identifier: Apache-2.0
// What the KV cache saves, and what sampling and streaming cost beside a forward pass.
#include <cmath>

#include "base/rng.h"
#include "bench/infer_case.h"
#include "bench/plan_case.h"

namespace wick {

namespace {

constexpr int64_t kCachePrompt = 128, kCacheNew = 512;
constexpr int64_t kEntries = 32000;

// The integral of a time that is linear between the measured lengths.
Timing integral(const std::vector<int64_t>& lengths, const std::vector<Timing>& times) {
  Timing sum;
  for (size_t i = 0; i + 1 < lengths.size(); ++i) {
    const double half = 0.5 * static_cast<double>(lengths[i + 1] - lengths[i]);
    sum.median += half * (times[i].median + times[i + 1].median);
    sum.p10 += half * (times[i].p10 + times[i + 1].p10);
    sum.p90 += half * (times[i].p90 + times[i + 1].p90);
    sum.runs += times[i].runs;
  }
  return sum;
}

double decode_ms(const BenchContext& c) {
  const int64_t prompt = std::min(c.options.prompt, c.config().max_positions / 2);
  DecodeCase run(c, 1, std::min(prompt + 64, c.config().max_positions));
  run.prefill_drawn(prompt);
  Effort effort = c.options.effort;
  effort.seconds = std::min(effort.seconds, 1.0);
  return summarize(measure(effort, [&] { run.decode_drawn(1, prompt); })).median;
}

// Where the back end draws tokens itself, a draw is what a hundred more of them add to a run.
std::vector<double> device_draws(const BenchContext& c, const Effort& effort,
                                 const std::vector<float>& logits, const DrawHow& how) {
  constexpr int kFew = 10, kMore = 100;
  int32_t words[kDrawWords];
  to_words(how, words);
  auto time = [&](int calls) {
    PlanCase op(c);
    const ValueId x = op.given("logits", {1, kEntries}, DType::kF32, logits.data());
    const ValueId h =
        how.temperature > 0 ? op.given("how", {1, kDrawWords}, DType::kI32, words) : kNone;
    ValueId token = kNone;
    for (int i = 0; i < calls; ++i) token = op.recorder().sample(x, kNone, kNone, h);
    op.result(token);
    op.compile();
    return measure(effort, [&] { op.run(); });
  };
  const double before = summarize(time(kFew)).median;
  std::vector<double> draws = time(kFew + kMore);
  for (double& ms : draws) ms = std::max(0.0, ms - before) / kMore;
  return draws;
}

}  // namespace

void bench_kv_cache(const BenchContext& c) {
  const int64_t scale = c.config().max_positions >= kCachePrompt + kCacheNew ? 1 : 16;
  const int64_t prompt = kCachePrompt / scale, added = kCacheNew / scale;
  c.check_length("kv-cache", prompt + added);
  // Lengths that need no padding: a program of another size would do more than is asked.
  const std::vector<int64_t> lengths = {prompt, 2 * prompt, 4 * prompt, prompt + added};
  Effort effort = c.options.effort;
  effort.seconds = std::min(effort.seconds, 0.5);
  effort.warmup = 1;
  effort.least = 3;
  DecodeCase run(c, 1, prompt + added + 1);
  std::vector<Timing> with, without;
  for (int64_t length : lengths) {
    without.push_back(summarize(measure(effort, [&] { run.prefill(length); })));
    run.sample({});
    with.push_back(summarize(measure(
        effort, [&] { run.decode(length); },
        [&] {
          run.prefill(length);
          run.sample({});
        })));
  }
  BenchResult r;
  r.bench = "kv-cache";
  r.batch = 1;
  r.seq = prompt;
  r.more["new_tokens"] = added;
  Timing on = integral(lengths, with), off = integral(lengths, without);
  on.median += without[0].median;
  on.p10 += without[0].p10;
  on.p90 += without[0].p90;
  r.what = "with the cache";
  r.ms = on;
  c.emit(r, static_cast<double>(added));
  r.what = "without: every token again";
  r.ms = off;
  r.more["ratio"] = off.median / on.median;
  r.more["note"] = cat("both summed from the times at ", lengths[0], ", ", lengths[1], ", ",
                       lengths[2], " and ", lengths[3], " tokens");
  c.emit(r, static_cast<double>(added));
}

void bench_sampling(const BenchContext& c) {
  const double forward = decode_ms(c);
  std::vector<float> logits(static_cast<size_t>(kEntries)), given;
  Rng rng(mix_key(c.options.seed, name_key("logits")));
  for (float& x : logits) x = 2.0f * rng.normal();
  const std::vector<int32_t> history = {1, 2, 3};
  auto row = [&](const char* what, const SampleOptions& options) {
    Sampler sampler(options, kEntries);
    int64_t position = 0;
    Effort effort = c.options.effort;
    effort.seconds = std::min(effort.seconds, 0.3);
    effort.warmup = std::max<int64_t>(effort.warmup, 5);
    BenchResult r;
    r.bench = "sampling";
    r.what = what;
    r.batch = 1;
    const std::optional<DrawHow> how = sampler.draws();
    r.ms = summarize(c.backend().runs_ahead() && how
                         ? device_draws(c, effort, logits, *how)
                         : measure(
                               effort, [&] { sampler.sample(given, history, position++); },
                               [&] { given = logits; }));
    r.more["entries"] = kEntries;
    r.more["forward_ms"] = forward;
    r.more["percent_of_forward"] = 100 * r.ms.median / forward;
    c.emit(std::move(r));
  };
  row("greedy", {});
  row("temperature 0.7", {.temperature = 0.7f});
  row("top-k 50", {.temperature = 0.7f, .top_k = 50});
  row("top-p 0.9", {.temperature = 0.7f, .top_p = 0.9f});
}

void emit_streaming(const BenchContext& c) {
  // A shape has no tokenizer: the embedded model's turns ids into text all the same.
  std::optional<Model> embedded;
  const Tokenizer* tokenizer = c.model.tokenizer ? &*c.model.tokenizer : nullptr;
  if (!tokenizer) {
    if (embedded_model_files().empty()) return;
    embedded.emplace(Model::load(c.model.engine));
    tokenizer = &embedded->tokenizer();
  }
  const int64_t ids = tokenizer->vocab_size();
  Effort effort = c.options.effort;
  effort.seconds = std::min(effort.seconds, 0.3);
  size_t bytes = 0;
  BenchResult r;
  r.bench = "generate";
  r.what = "what streaming adds per token";
  r.batch = 1;
  r.seq = c.options.prompt;
  r.ms = summarize(measure(effort, [&] {
    StreamDecoder decoder(*tokenizer);
    for (int64_t i = 0; i < c.options.new_tokens; ++i)
      bytes += decoder.push(bench_id(c.options.seed, 0, i, ids)).size();
    bytes += decoder.finish().size();
  }));
  r.ms = scaled(r.ms, 1.0 / static_cast<double>(c.options.new_tokens));
  r.more["note"] =
      embedded ? "text from ids, with the tokenizer of the model inside wick" : "text from ids";
  c.emit(std::move(r));
}

}  // namespace wick
