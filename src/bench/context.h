// SPDX-License-Identifier: Apache-2.0
// What every table is given, and the arithmetic that their rows share.
#pragma once

#include <span>
#include <vector>

#include "api/internal.h"
#include "bench/bench.h"

namespace wick {

struct BenchContext {
  Model::Impl& model;
  const BenchMachine& machine;
  const BenchOptions& options;
  const OnResult& on_result;

  Backend& backend() const { return model.backend(); }
  const ModelConfig& config() const { return model.config; }
  // As training takes them, and as generation does (ModelWeights::shorten()).
  ModelWeights& weights() const { return resting(false); }
  ModelWeights& generating_weights() const { return resting(true); }
  // Whether the model has positions for that many tokens. Throws: kInvalidArgument, naming `flag`.
  void check_length(const char* flag, int64_t tokens) const;

  // Fills what follows from the time: percent of peak and utilisation from `result.gflop` and the
  // bytes that must be read, tokens per second from `tokens`, peak memory; then hands it on.
  void emit(BenchResult result, double tokens = 0, double read_bytes = 0) const;

 private:
  ModelWeights& resting(bool shortened) const;
};

// The random ids of bench.h.
int32_t bench_id(uint64_t seed, int64_t batch, int64_t index, int64_t vocab);

// Bytes of frozen weights that one run of a plan reads, each as often as a product reads it.
double weight_traffic(const Plan& plan, const Backend& backend, const ModelWeights& weights);

std::string joined(const std::vector<std::string>& parts);

// The tables.
void bench_train(const BenchContext& context);
void bench_gradient(const BenchContext& context);
void bench_prefix(const BenchContext& context);
void bench_prefill(const BenchContext& context);
void bench_decode(const BenchContext& context);
void bench_generate(const BenchContext& context);
void bench_lora(const BenchContext& context);
void bench_ops(const BenchContext& context);
void bench_components(const BenchContext& context);
void bench_attention(const BenchContext& context);
void bench_kv_cache(const BenchContext& context);
void bench_sampling(const BenchContext& context);
void bench_memory(const BenchContext& context);
void bench_batch(const BenchContext& context);
void bench_merge(const BenchContext& context);
void bench_packing(const BenchContext& context);
// One row each, for several tables.
void train_row(const BenchContext& context, const char* bench, const char* what, int64_t batch);
void decode_row(const BenchContext& context, const char* bench, const char* what, int64_t batch);
void emit_streaming(const BenchContext& context);

}  // namespace wick
