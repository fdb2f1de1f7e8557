// SPDX-License-Identifier: Apache-2.0
#include "train/scorer.h"

namespace wick {

TargetTail record_targets(DecoderPlan& plan, int64_t targets, const HeadAttr& attr) {
  Recorder& r = plan.recorder();
  TargetTail tail;
  tail.rows = r.feed("rows", {targets}, DType::kI32);
  tail.targets = r.feed("targets", {targets}, DType::kI32);
  tail.x = r.gather_rows(plan.hidden(), tail.rows);
  tail.logp = plan.head(tail.x, tail.targets, attr);
  return tail;
}

void feed_tokens(Program& program, const DecoderPlan& plan, const Pack& pack) {
  auto feed = [&](ValueId id, const std::vector<int32_t>& data) {
    program.feed(id, data.data(), data.size() * sizeof(int32_t));
  };
  const DecoderContext& c = plan.context();
  if (c.ids != kNone) feed(c.ids, pack.ids);
  feed(c.positions, pack.positions);
  feed(c.begin, pack.begin);
  feed(c.end, pack.end);
  if (c.adapter.keys != kNone) feed(c.adapter.keys, pack.keys);
}

void feed_pack(Program& program, const DecoderPlan& plan, const TargetTail& tail, const Pack& pack,
               std::span<const std::byte> stream) {
  auto feed = [&](ValueId id, const std::vector<int32_t>& data) {
    program.feed(id, data.data(), data.size() * sizeof(int32_t));
  };
  feed_tokens(program, plan, pack);
  if (plan.context().stream != kNone)
    program.feed(plan.context().stream, stream.data(), stream.size());
  feed(tail.rows, pack.rows);
  feed(tail.targets, pack.targets);
}

Scorer::Scorer(const ModelConfig& config, const ModelWeights& weights, ParamSource source,
               const PackLimits& limits, int64_t positions, int64_t first_block) {
  DecoderPlanOptions o;
  o.tokens = limits.tokens;
  o.positions = positions;
  o.source = source;
  o.first_block = first_block;
  plan_ = std::make_unique<DecoderPlan>(config, weights, o);
  tail_ = record_targets(*plan_, limits.targets);
  plan_->plan().results.push_back(tail_.logp);
  fuse(plan_->plan());
  check(plan_->plan());
}

void Scorer::compile(Backend& backend, ModelWeights& weights, BufferPtr params, BufferPtr arena) {
  Bindings b = plan_->bind(backend, weights);
  if (plan_->params() != kNone) b[static_cast<size_t>(plan_->params())] = std::move(params);
  program_ = backend.compile(plan_->plan(), b, std::move(arena));
}

void Scorer::score(const Pack& pack, std::span<float> logp, std::span<const std::byte> stream) {
  feed_pack(*program_, *plan_, tail_, pack, stream);
  program_->run();
  program_->wait();
  program_->read(tail_.logp, logp.data(), logp.size_bytes());
}

}  // namespace wick
