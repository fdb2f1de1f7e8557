// SPDX-License-Identifier: Apache-2.0
#include "train/scorer.h"

#include <algorithm>

namespace wick {

TargetTail record_targets(DecoderPlan& plan, const HeadAttr& attr) {
  Recorder& r = plan.recorder();
  TargetTail tail;
  tail.x = plan.hidden();
  tail.targets = r.feed("targets", {plan.plan().value(plan.rows()).shape[0]}, DType::kI32);
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
  // Of what is behind the last row of the table nobody would know.
  WICK_CHECK(
      *std::max_element(pack.positions.begin(), pack.positions.end()) < plan.options().positions,
      "a row longer than ", plan.options().positions, " tokens");
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
  feed_first(program, plan, plan.rows(), pack.rows);
  feed_first(program, plan, tail.targets, pack.targets);
  if (plan.context().row_keys == kNone) return;
  std::vector<int32_t> keys(2 * pack.rows.size(), 0);
  for (size_t m = 0; m < pack.rows.size(); ++m)
    if (const int32_t row = pack.rows[m]; row >= 0)
      std::copy_n(pack.keys.begin() + 2 * row, 2, keys.begin() + 2 * static_cast<int64_t>(m));
  feed_first(program, plan, plan.context().row_keys, keys);
}

Scorer::Scorer(const ModelConfig& config, const ModelWeights& weights, ParamSource source,
               const PackLimits& limits, int64_t positions, bool skips_rows, int64_t first_block,
               int64_t stream_rows) {
  DecoderPlanOptions o;
  o.tokens = limits.tokens;
  o.rows = limits.targets;
  o.skips_rows = skips_rows;
  o.positions = positions;
  o.source = source;
  o.first_block = first_block;
  o.stream_rows = stream_rows;
  plan_ = std::make_unique<DecoderPlan>(config, weights, o);
  tail_ = record_targets(*plan_);
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
