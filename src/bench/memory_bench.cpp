// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"
#include "base/threads.h"
#include "bench/infer_case.h"
#include "bench/train_case.h"
#include "model/random_weights.h"
#include "model/save.h"

namespace wick {

namespace {

constexpr int64_t kCacheTokens = 2048;

void emit_bytes(const BenchContext& c, const char* what, int64_t batch, int64_t seq, int64_t bytes,
                int64_t resident, const char* note) {
  BenchResult r;
  r.bench = "memory";
  r.what = what;
  r.batch = batch;
  r.seq = seq;
  r.bytes = bytes;
  r.more["resident_bytes"] = resident;
  if (note) r.more["note"] = note;
  c.emit(std::move(r));
}

}  // namespace

void bench_memory(const BenchContext& c) {
  const BenchOptions& o = c.options;
  c.check_length("--seq", o.seq);
  c.weights().release();
  {
    const int64_t start = current_memory_bytes();
    DecodeCase run(c, o.batch_size, o.seq);
    const MemoryForecast forward = forecast_memory(run.engine().plan(o.seq), c.backend());
    const int64_t loaded = current_memory_bytes();
    emit_bytes(c, "weights", 0, 0, c.generating_weights().loaded_bytes(), loaded - start,
               "resident_bytes is what the process grew by");
    run.prefill(o.seq);
    emit_bytes(c, "forward, on top of the weights", o.batch_size, o.seq,
               forward.total() - forward.weights, current_memory_bytes() - loaded,
               "activations, inputs and the KV cache");
  }
  {
    const TrainCaseOptions step{o.batch_size, o.seq, o.rank, o.targets, o.seed};
    // Reads the weights as training has them.
    TrainCase(c.backend(), c.config(), c.weights(), step).compile();
    const int64_t before = current_memory_bytes();
    TrainCase train(c.backend(), c.config(), c.weights(), step);
    train.compile();
    train.run_alone();
    const StepForecast f = train.step().forecast(c.backend());
    emit_bytes(c, "training step, on top of the weights", o.batch_size, o.seq,
               f.total() - f.weights, current_memory_bytes() - before,
               "activations, adapter, gradients, moments, inputs");
  }
  const int64_t tokens = std::min(kCacheTokens, c.config().max_positions);
  const int64_t before = current_memory_bytes();
  DecoderEngine engine(c.backend(), c.config(), c.weights(), ParamSource{}, nullptr, 1, tokens);
  emit_bytes(c, "KV cache", 1, tokens, engine.cache_bytes(), current_memory_bytes() - before,
             "resident once it is filled");
}

void bench_merge(const BenchContext& c) {
  const BenchOptions& o = c.options;
  TrainCase train(c.backend(), c.config(), c.weights(), {1, 16, o.rank, o.targets, o.seed});
  const Adapter& adapter = train.adapter();
  struct Linear {
    const LoraModule* module;
    std::vector<std::byte> base, merged;
  };
  std::vector<Linear> linears;
  DType dtype = c.weights().dtype(weight_specs(c.config()).front());
  if (dtype_is_quantized(dtype)) dtype = DType::kBF16;
  double bytes = 0, gflop = 0;
  for (const LoraModule& m : adapter.modules()) {
    Linear l{&m, {}, {}};
    l.base.resize(static_cast<size_t>(m.in * m.out) * dtype_bytes(dtype));
    bytes += static_cast<double>(l.base.size());
    gflop += 2e-9 * static_cast<double>(m.in * m.out * m.rank);
    linears.push_back(std::move(l));
  }
  auto emit = [&](const char* what, const Timing& ms, double work, const char* note) {
    BenchResult r;
    r.bench = "merge";
    r.what = what;
    r.rank = o.rank;
    r.targets = joined(o.targets);
    r.ms = ms;
    r.gflop = work;
    r.more["linears"] = linears.size();
    r.more["bytes"] = static_cast<int64_t>(bytes);
    r.more["gb_per_second"] = bytes * 1e-6 / std::max(ms.median, 1e-9);
    r.more["note"] = note;
    c.emit(std::move(r));
  };
  Effort effort = o.effort;
  effort.warmup = 1;
  effort.least = 3;
  size_t largest = 0;
  for (const Linear& l : linears)
    largest = std::max(largest, static_cast<size_t>(l.module->in * l.module->out));
  std::vector<float> base(largest), values;
  ThreadPool pool(c.backend().info().threads);
  fill_random(o.seed, "base", 0.02, DType::kF32, largest,
              reinterpret_cast<std::byte*>(base.data()));
  emit("merge",
       summarize(measure(effort,
                         [&] {
                           for (Linear& l : linears) {
                             const auto size = static_cast<ptrdiff_t>(l.module->in * l.module->out);
                             values.assign(base.begin(), base.begin() + size);
                             adapter.merge(*l.module, train.start_params(), values.data(), pool);
                             l.merged = narrow(values, dtype);
                           }
                         })),
       gflop, "W + scale * B A of every adapted linear, rounded; without the files around it");
  emit("unmerge",
       summarize(measure(effort,
                         [&] {
                           for (Linear& l : linears)
                             for (size_t i = 0; i < l.base.size(); ++i) l.base[i] ^= l.merged[i];
                         })),
       0, "the base to the bit, from the differences of a reversible merge");
}

}  // namespace wick
