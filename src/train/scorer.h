// SPDX-License-Identifier: Apache-2.0
// Scorer: log-probabilities of a pack's targets, forward only.
#pragma once

#include <memory>
#include <span>

#include "data/packing.h"
#include "model/decoder_plan.h"

namespace wick {

// What is behind a DecoderPlan whose rows() are those that predict the targets.
struct TargetTail {
  ValueId targets = kNone;
  ValueId x = kNone;     // [M, D]: the targets' rows of the hidden state
  ValueId logp = kNone;  // f32 [M]
};
TargetTail record_targets(DecoderPlan& plan, const HeadAttr& attr = {});
// Ids, positions, ranges and keys, as far as the plan has them; of a pack that has more slots, or
// targets, than the plan the first ones, which are those that are used.
void feed_tokens(Program& program, const DecoderPlan& plan, const Pack& pack);
// Those and the targets; `stream` as PrefixCache::rows() for a plan that starts above the first
// block.
void feed_pack(Program& program, const DecoderPlan& plan, const TargetTail& tail, const Pack& pack,
               std::span<const int32_t> stream = {});

class Scorer {
 public:
  // Records only. `positions` is above every position in the data; `skips_rows` as in
  // DecoderPlanOptions.
  Scorer(const ModelConfig& config, const ModelWeights& weights, ParamSource source,
         const PackLimits& limits, int64_t positions, bool skips_rows = true,
         int64_t first_block = 0, int64_t stream_rows = 0);

  const Plan& plan() const { return plan_->plan(); }
  MemoryForecast forecast(const Backend& backend) const {
    return forecast_memory(plan_->plan(), backend);
  }

  // `params` holds the source's numbers; null without any. `arena` may be shared; null: its own.
  // `stream` is what a plan above the first block starts from.
  void compile(Backend& backend, ModelWeights& weights, BufferPtr params, BufferPtr arena,
               BufferPtr stream = nullptr);
  // log p of each target, [M]; 0 beyond used_targets. Requires compile().
  void score(const Pack& pack, std::span<float> logp, std::span<const int32_t> stream = {});

 private:
  std::unique_ptr<DecoderPlan> plan_;
  TargetTail tail_;
  std::unique_ptr<Program> program_;
};

}  // namespace wick
