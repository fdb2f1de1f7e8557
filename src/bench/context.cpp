// SPDX-License-Identifier: Apache-2.0
#include "bench/context.h"

#include <algorithm>

#include "base/process.h"
#include "base/rng.h"

namespace wick {

void BenchContext::check_length(const char* flag, int64_t tokens) const {
  if (tokens > config().max_positions)
    fail(ErrorCode::kInvalidArgument, flag, " asks for ", tokens, " tokens, but the model has ",
         config().max_positions, " positions");
}

void BenchContext::emit(BenchResult r, double tokens, double read_bytes) const {
  const double seconds = r.ms.median * 1e-3;
  if (seconds > 0) {
    if (tokens > 0) r.tokens_per_second = tokens / seconds;
    double arithmetic = 0, reading = 0;
    if (machine.peak_gflops > 0) arithmetic = r.gflop / machine.peak_gflops / seconds;
    if (machine.read_gbps > 0) reading = read_bytes * 1e-9 / machine.read_gbps / seconds;
    r.percent_of_peak = 100 * arithmetic;
    r.utilisation = std::max(arithmetic, reading);
  }
  r.peak_bytes = peak_memory_bytes();
  on_result(r);
}

int32_t bench_id(uint64_t seed, int64_t batch, int64_t index, int64_t vocab) {
  const uint64_t key = mix_key(seed, static_cast<uint64_t>(batch));
  return static_cast<int32_t>(mix_key(key, static_cast<uint64_t>(index)) %
                              static_cast<uint64_t>(vocab));
}

ModelWeights& BenchContext::resting(bool shortened) const {
  ModelWeights& weights = *model.weights;
  if (weights.shortens() != shortened) weights.release();
  weights.shorten(shortened);
  return weights;
}

double weight_traffic(const Plan& plan, const Backend& backend, const ModelWeights& weights) {
  double bytes = 0;
  const std::vector<WeightForm> forms = backend.weight_forms(plan);
  for (const Step& step : plan.steps) {
    if (step.op != Op::kLinear && step.op != Op::kHead) continue;
    for (ValueId id : step.inputs) {
      if (id == kNone || plan.value(plan.root(id)).kind != Kind::kWeight) continue;
      const int64_t loaded = weights.loaded_bytes(plan.value(id).name);
      bytes += static_cast<double>(
          loaded > 0
              ? loaded
              : backend.weight_bytes(plan.value(id), forms[static_cast<size_t>(plan.root(id))]));
    }
  }
  return bytes;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

}  // namespace wick
