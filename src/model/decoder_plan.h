// SPDX-License-Identifier: Apache-2.0
// DecoderPlan: a plan around one recording of the decoder, with what every program over it needs:
// the token feeds, the values of its weights, the rope table, the flat parameter state. Trainer and
// generator each record their own tail behind it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "model/decoder.h"
#include "model/weights.h"

namespace wick {

// What of a model is not frozen, if anything: an adapter, or weights of these names. Its numbers
// are the flat state `params`.
struct ParamSource {
  const Adapter* adapter = nullptr;
  const ParamLayout* trained = nullptr;
  // Several adapters in place of one; tokens are cut into as many equal ranges, one for each, and
  // their numbers lie one after the other.
  std::vector<const Adapter*> lanes = {};
  int64_t count() const {
    int64_t all = 0;
    for (const Adapter* lane : lanes) all += lane->param_count();
    if (all > 0) return all;
    return adapter ? adapter->param_count() : trained ? trained->size() : 0;
  }
};

struct DecoderPlanOptions {
  int64_t tokens = 0;
  int64_t positions = 0;  // rows of the rope table: the bound of every position
  bool training = false;  // record what backward reads
  int64_t recompute_first = 0, recompute_end = 0;  // blocks, as in DecoderContext
  ParamSource source;
  int64_t first_block = 0, end_block = -1;  // a part of the model, as in DecoderContext
  int64_t stream_rows = 0;  // of the state that a part above the first block starts from
  int64_t cache_rows = 0;   // > 0: decode over a cache of that many rows per layer
  int64_t rows = 0;         // > 0: of hidden(), that many, which the feed rows() names
  // What of the last block is made row by row, of those alone, where they are fewer by far.
  bool skips_rows = true;
  // Ids, positions, ends and cache rows are the rows of one state `place` [4, T] (op sample),
  // begins another, so that a step may make the next one's.
  bool walks = false;
};

class DecoderPlan {
 public:
  DecoderPlan(const ModelConfig& config, const ModelWeights& weights,
              const DecoderPlanOptions& options);

  Recorder& recorder() { return recorder_; }
  Plan& plan() { return plan_; }
  const Plan& plan() const { return plan_; }
  const ModelConfig& config() const { return config_; }
  const DecoderPlanOptions& options() const { return options_; }

  // [T, D], behind the last norm, or the residual stream of a part that ends below it; [M, D] with
  // `rows` of the options.
  ValueId hidden() const { return hidden_; }
  ValueId rows() const { return context_.rows; }  // i32 [M]; kNone without them
  ValueId head_weight() const { return head_; }   // kNone for such a part
  // Behind the hidden rows x [M, D], with an adapter's share: logits f32 [M, V], or the
  // log-probabilities [M] of targets.
  ValueId logits(ValueId x);
  ValueId head(ValueId x, ValueId targets, const HeadAttr& attr = {});
  // The divergence from a teacher; heads.w is head_weight() or a copy of it.
  ValueId kl_head(const KlHeads& heads, const KlAttr& attr);
  ValueId params() const { return context_.adapter.params; }  // f32 [P]; kNone without any
  const DecoderContext& context() const { return context_; }
  ValueId place() const { return place_; }  // i32 [4, T]; kNone unless the plan walks

  // Buffers of the weights and the rope table, by value id; states are the caller's to add.
  // Reads the weights that no earlier call has read.
  Bindings bind(Backend& backend, ModelWeights& weights) const;

 private:
  void add_keys();
  void add_lanes(DType compute);

  ModelConfig config_;
  DecoderPlanOptions options_;
  Plan plan_;
  Recorder recorder_;
  DecoderContext context_;
  std::map<std::string, std::pair<WeightSpec, ValueId>> weights_, squares_;
  ValueId hidden_ = kNone, head_ = kNone, place_ = kNone;
};

}  // namespace wick
