// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_plan.h"

#include <algorithm>
#include <numeric>

namespace wick {

DecoderPlan::DecoderPlan(const ModelConfig& config, const ModelWeights& weights,
                         const DecoderPlanOptions& options)
    : config_(config), options_(options), recorder_(plan_, options.training, weights.compute()) {
  Recorder& r = recorder_;
  if (options.cache_rows > 0) r.narrow_linears();
  const int64_t t = options.tokens;
  context_.tokens = t;
  ValueId places = kNone;
  if (options.walks) {
    places = r.state("places", {4 * t}, DType::kI32);
    place_ = r.flat(places, 0, {4, t}, "place");
  }
  auto row = [&](const char* name, int64_t at) {
    return options.walks ? r.flat(places, at * t, {t}, name) : r.feed(name, {t}, DType::kI32);
  };
  context_.first_block = options.first_block;
  context_.end_block = options.end_block;
  if (options.first_block > 0) {
    context_.stream_state =
        r.state("stream", {options.stream_rows, config.hidden}, weights.compute());
    context_.stream_rows = r.feed("stream_rows", {t}, DType::kI32);
    context_.stream = r.gather_rows(context_.stream_state, context_.stream_rows);
  } else {
    context_.ids = row("ids", 0);
  }
  context_.positions = row("positions", 1);
  context_.begin =
      options.walks ? r.state("begin", {t}, DType::kI32) : r.feed("begin", {t}, DType::kI32);
  context_.end = row("end", 2);
  context_.rope_table = r.weight("rope", {options.positions, config.head_dim}, DType::kF32);
  if (options.rows > 0) {
    context_.rows = r.feed("rows", {options.rows}, DType::kI32);
    // To pick nearly all of them from two values, and to put them back in reverse, saves nothing.
    context_.skips_rows = options.skips_rows && 4 * options.rows <= 3 * t;
  }
  context_.recompute_first = options.recompute_first;
  context_.recompute_end = options.recompute_end;

  const Adapter* adapter = options.source.adapter;
  if (int64_t params = options.source.count(); params > 0)
    context_.adapter.params = r.state("params", {params}, DType::kF32);
  if (adapter) {
    context_.adapter.adapter = adapter;
    bool drops = false;
    for (const LoraModule& m : adapter->modules()) drops |= m.dropout > 0;
    if (drops && options.training) add_keys();
    if (!adapter->frozen().empty())
      context_.adapter.frozen =
          r.weight("adapter.frozen", {static_cast<int64_t>(adapter->frozen().size())}, DType::kF32);
    context_.adapter.tied = config.tied;
    if ((adapter->options().dora || adapter->tokens()) && weights.compute() != DType::kF32) {
      int64_t ranks = adapter->tokens() ? adapter->tokens()->count() : 0;
      for (const LoraModule& m : adapter->modules()) ranks += m.rank;
      context_.adapter.count = r.weight("count", {ranks}, DType::kI32);
    }
  }
  if (!options.source.lanes.empty()) add_lanes(weights.compute());
  if (options.cache_rows > 0) {
    context_.cache_rows = row("cache_rows", 3);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      Shape shape{options.cache_rows, config.kv_width()};
      context_.cache_k.push_back(r.state(cat("cache_k.", layer), shape, weights.compute()));
      context_.cache_v.push_back(r.state(cat("cache_v.", layer), shape, weights.compute()));
    }
  }
  context_.weight = [this, &weights](const WeightSpec& spec) {
    auto found = weights_.find(spec.name);
    if (found != weights_.end()) return found->second.second;
    ValueId id;
    const ParamLayout* trained = options_.source.trained;
    const ParamLayout::Entry* entry = trained ? trained->find(spec.name) : nullptr;
    if (entry)
      id = recorder_.flat(context_.adapter.params, entry->offset, spec.shape, spec.name);
    else
      id = recorder_.weight(spec.name, spec.shape, weights.dtype(spec));
    weights_[spec.name] = {spec, id};
    return id;
  };
  context_.squares = [this](const WeightSpec& spec) {
    ValueId id = recorder_.weight(spec.name + ".squares", {spec.shape.rows()}, DType::kF32);
    squares_[spec.name] = {spec, id};
    return id;
  };
  hidden_ = record_decoder(r, config_, context_);
  if (options.end_block < 0) head_ = wick::head_weight(r, config_, context_);
  context_.weight = context_.squares = nullptr;
}

ValueId DecoderPlan::logits(ValueId x) {
  return nn::logits(recorder_, context_.adapter, "lm_head", head_, x);
}

ValueId DecoderPlan::head(ValueId x, ValueId targets, const HeadAttr& attr) {
  return nn::head(recorder_, context_.adapter, "lm_head", head_, x, targets, attr);
}

ValueId DecoderPlan::kl_head(const KlHeads& heads, const KlAttr& attr) {
  return nn::kl_head(recorder_, context_.adapter, "lm_head", heads, attr);
}

void DecoderPlan::add_keys() {
  context_.adapter.keys = recorder_.feed("keys", {options_.tokens, 2}, DType::kI32);
  if (context_.skips_rows)
    context_.row_keys = recorder_.feed("row_keys", {options_.rows, 2}, DType::kI32);
}

void DecoderPlan::add_lanes(DType compute) {
  const std::vector<const Adapter*>& lanes = options_.source.lanes;
  bool drops = false, counts = false;
  int64_t most_ranks = 0;
  for (const Adapter* lane : lanes) {
    int64_t ranks = lane->tokens() ? lane->tokens()->count() : 0;
    for (const LoraModule& m : lane->modules()) {
      drops |= m.dropout > 0;
      ranks += m.rank;
    }
    counts |= lane->options().dora || lane->tokens();
    most_ranks = std::max(most_ranks, ranks);
  }
  nn::AdapterBinding& all = context_.adapter;
  if (drops && options_.training) add_keys();
  if (counts && compute != DType::kF32)
    all.count = recorder_.weight("count", {most_ranks}, DType::kI32);
  int64_t offset = 0;
  for (size_t k = 0; k < lanes.size(); ++k) {
    nn::AdapterBinding lane;
    lane.count = all.count;
    if (const auto frozen = static_cast<int64_t>(lanes[k]->frozen().size()); frozen > 0)
      lane.frozen = recorder_.weight(cat("adapter.frozen.", k), {frozen}, DType::kF32);
    const int64_t count = lanes[k]->param_count();
    lane.adapter = lanes[k];
    lane.params = recorder_.flat(all.params, offset, {count}, cat("params.", k));
    lane.tied = config_.tied;
    all.lanes.push_back(std::move(lane));
    offset += count;
  }
  if (all.keys != kNone)
    for (size_t k = 0; k < lanes.size(); ++k)
      all.lanes[k].keys = all.rows_of_lane(recorder_, k, all.keys);
}

Bindings DecoderPlan::bind(Backend& backend, ModelWeights& weights) const {
  Bindings bindings(plan_.values.size());
  const std::vector<WeightForm> forms = backend.weight_forms(plan_);
  for (const auto& [name, made] : weights_) {
    const auto& [spec, id] = made;
    if (plan_.value(id).kind == Kind::kWeight)
      bindings[static_cast<size_t>(id)] =
          weights.buffer(spec, plan_.value(id), forms[static_cast<size_t>(id)], backend);
  }
  for (const auto& [name, made] : squares_)
    bindings[static_cast<size_t>(made.second)] = weights.squares(made.first, backend);
  auto put = [&](ValueId id, DType dtype, const auto& numbers) {
    const auto count = static_cast<int64_t>(numbers.size());
    BufferPtr buffer = backend.allocate(dtype, count);
    backend.upload(*buffer, dtype, 0, count, numbers.data());
    bindings[static_cast<size_t>(id)] = buffer;
  };
  put(context_.rope_table, DType::kF32, rope_table(config_, options_.positions));
  if (context_.adapter.frozen != kNone)
    put(context_.adapter.frozen, DType::kF32, options_.source.adapter->frozen());
  for (const nn::AdapterBinding& lane : context_.adapter.lanes)
    if (lane.frozen != kNone) put(lane.frozen, DType::kF32, lane.adapter->frozen());
  if (context_.adapter.count != kNone) {
    std::vector<int32_t> count(
        static_cast<size_t>(plan_.value(context_.adapter.count).shape.elements()));
    std::iota(count.begin(), count.end(), 0);
    put(context_.adapter.count, DType::kI32, count);
  }
  return bindings;
}

}  // namespace wick
