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

namespace {

// As much as the plan has room for.
void feed_first(Program& program, const DecoderPlan& plan, ValueId id,
                std::span<const int32_t> data) {
  const auto count = static_cast<size_t>(plan.plan().value(id).shape.elements());
  WICK_CHECK(data.size() >= count, "a pack of other limits");
  program.feed(id, data.data(), count * sizeof(int32_t));
}

}  // namespace

void feed_tokens(Program& program, const DecoderPlan& plan, const Pack& pack) {
  auto feed = [&](ValueId id, const std::vector<int32_t>& data) {
    feed_first(program, plan, id, data);
  };
  const DecoderContext& c = plan.context();
  if (c.ids != kNone) feed(c.ids, pack.ids);
  feed(c.positions, pack.positions);
  feed(c.begin, pack.begin);
  feed(c.end, pack.end);
  if (c.adapter.keys != kNone) feed(c.adapter.keys, pack.keys);
}

void feed_pack(Program& program, const DecoderPlan& plan, const TargetTail& tail, const Pack& pack,
               std::span<const int32_t> stream) {
  feed_tokens(program, plan, pack);
  if (plan.context().stream_rows != kNone)
    feed_first(program, plan, plan.context().stream_rows, stream);
  feed_first(program, plan, tail.rows, pack.rows);
  feed_first(program, plan, tail.targets, pack.targets);
}

Scorer::Scorer(const ModelConfig& config, const ModelWeights& weights, ParamSource source,
               const PackLimits& limits, int64_t positions, int64_t first_block,
               int64_t stream_rows) {
  DecoderPlanOptions o;
  o.tokens = limits.tokens;
  o.positions = positions;
  o.source = source;
  o.first_block = first_block;
  o.stream_rows = stream_rows;
  plan_ = std::make_unique<DecoderPlan>(config, weights, o);
  tail_ = record_targets(*plan_, limits.targets);
  plan_->plan().results.push_back(tail_.logp);
  fuse(plan_->plan());
  check(plan_->plan());
}

void Scorer::compile(Backend& backend, ModelWeights& weights, BufferPtr params, BufferPtr arena,
                     BufferPtr stream) {
  Bindings b = plan_->bind(backend, weights);
  if (plan_->params() != kNone) b[static_cast<size_t>(plan_->params())] = std::move(params);
  if (stream) b[static_cast<size_t>(plan_->context().stream_state)] = std::move(stream);
  program_ = backend.compile(plan_->plan(), b, std::move(arena));
}

void Scorer::score(const Pack& pack, std::span<float> logp, std::span<const int32_t> stream) {
  feed_pack(*program_, *plan_, tail_, pack, stream);
  program_->run();
  program_->wait();
  program_->read(tail_.logp, logp.data(), logp.size_bytes());
}

}  // namespace wick
