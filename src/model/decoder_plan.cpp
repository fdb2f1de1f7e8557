// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_plan.h"

namespace wick {

DecoderPlan::DecoderPlan(const ModelConfig& config, const ModelWeights& weights,
                         const DecoderPlanOptions& options)
    : config_(config), options_(options), recorder_(plan_, options.training, weights.compute()) {
  Recorder& r = recorder_;
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
  if (options.first_block > 0)
    context_.stream = r.feed("stream", {t, config.hidden}, weights.compute());
  else
    context_.ids = row("ids", 0);
  context_.positions = row("positions", 1);
  context_.begin =
      options.walks ? r.state("begin", {t}, DType::kI32) : r.feed("begin", {t}, DType::kI32);
  context_.end = row("end", 2);
  context_.rope_table = r.weight("rope", {options.positions, config.head_dim}, DType::kF32);
  context_.recompute_first = options.recompute_first;
  context_.recompute_end = options.recompute_end;

  const Adapter* adapter = options.source.adapter;
  if (int64_t params = options.source.count(); params > 0)
    context_.adapter.params = r.state("params", {params}, DType::kF32);
  if (adapter) {
    context_.adapter.adapter = adapter;
    bool drops = false;
    for (const LoraModule& m : adapter->modules()) drops |= m.dropout > 0;
    if (drops && options.training) context_.adapter.keys = r.feed("keys", {t, 2}, DType::kI32);
  }
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
  hidden_ = record_decoder(r, config_, context_);
  if (options.end_block < 0) head_ = wick::head_weight(config_, context_);
  context_.weight = nullptr;
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
  std::vector<float> table = rope_table(config_, options_.positions);
  BufferPtr rope = backend.allocate(DType::kF32, static_cast<int64_t>(table.size()));
  backend.upload(*rope, DType::kF32, 0, static_cast<int64_t>(table.size()), table.data());
  bindings[static_cast<size_t>(context_.rope_table)] = rope;
  return bindings;
}

}  // namespace wick
