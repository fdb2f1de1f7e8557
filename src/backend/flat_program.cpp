// SPDX-License-Identifier: Apache-2.0
#include "backend/flat_program.h"

#include "base/check.h"

namespace wick {
namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Offsets of the feeds, one after the other; the total is at the end.
std::vector<int64_t> lay_out_feeds(const Plan& plan, ElementBytes element_bytes) {
  std::vector<int64_t> offset(plan.values.size() + 1, -1);
  int64_t total = 0;
  for (ValueId id = 0; id < static_cast<ValueId>(plan.values.size()); ++id) {
    const Value& v = plan.value(id);
    if (plan.is_view(id) || v.kind != Kind::kFeed) continue;
    offset[static_cast<size_t>(id)] = total;
    total += round_up(v.shape.elements() * static_cast<int64_t>(element_bytes(v.dtype)),
                      kArenaAlignment);
  }
  offset.back() = total;
  return offset;
}

}  // namespace

FlatProgram::FlatProgram(Plan plan, const Selection& selection, Bindings bindings,
                         ElementBytes element_bytes)
    : plan_(std::move(plan)),
      bindings_(std::move(bindings)),
      forms_(selection.forms),
      element_bytes_(element_bytes),
      placement_(place(plan_, element_bytes, selection.scratch_bytes())),
      feed_offset_(lay_out_feeds(plan_, element_bytes)) {
  WICK_CHECK(selection.steps.size() == plan_.steps.size(), "a selection of another plan");
  bindings_.resize(plan_.values.size());
}

void FlatProgram::resolve(const Selection& selection, std::span<const Candidate> candidates,
                          BufferPtr arena, BufferPtr feeds, const StepArgs& common) {
  arena_ = std::move(arena);
  feeds_ = std::move(feeds);
  WICK_CHECK(arena_->bytes() >= arena_bytes(), "an arena that is too small");
  size_t count = 0;
  for (const Step& step : plan_.steps) count += step.inputs.size() + step.outputs.size();
  operands_.reserve(count);
  calls_.reserve(plan_.steps.size());
  for (size_t i = 0; i < plan_.steps.size(); ++i) {
    const Step& step = plan_.steps[i];
    const Operand* first = operands_.data() + operands_.size();
    for (ValueId id : step.inputs) operands_.push_back(operand(id));
    for (const Output& o : step.outputs) operands_.push_back(operand(o.value));
    const int64_t scratch = selection.steps[i].scratch > 0 ? placement_.scratch_offset[i] : -1;
    const Candidate& candidate = candidates[static_cast<size_t>(selection.steps[i].candidate)];
    StepArgs args = common;
    args.step = &step;
    args.in = {first, step.inputs.size()};
    args.out = {first + step.inputs.size(), step.outputs.size()};
    args.scratch = scratch >= 0 ? arena_->address() + scratch : nullptr;
    calls_.push_back({.fn = candidate.fn, .args = args});
  }
}

std::byte* FlatProgram::address(ValueId id) const {
  const Value& v = plan_.value(id);
  const Value& root = plan_.value(v.root);
  const auto index = static_cast<size_t>(v.root);
  const size_t size = element_bytes_(v.dtype), offset = static_cast<size_t>(v.offset) * size;
  switch (root.kind) {
    case Kind::kFeed:
      return feeds_->address() + feed_offset_[index] + offset;
    case Kind::kTemp:
      WICK_CHECK(placement_.offset[index] >= 0, "value ", v.name, " has no place in the arena");
      return arena_->address() + placement_.offset[index] + offset;
    case Kind::kWeight:
    case Kind::kState:
      break;
  }
  const BufferPtr& bound = bindings_[index];
  WICK_CHECK(bound != nullptr, "value ", root.name, " is bound to no buffer");
  if (forms_[index] != WeightForm::kRows) return bound->address();
  size_t wanted = static_cast<size_t>(root.shape.elements()) * size;
  if (size == 0) {
    WICK_CHECK(v.offset == 0, "value ", v.name, " is a part of a quantised weight");
    wanted = static_cast<size_t>(root.shape.rows()) * row_bytes(root.dtype, root.shape.cols());
  }
  WICK_CHECK(bound->bytes() >= wanted, "value ", root.name, " needs ", wanted,
             " bytes, its buffer has ", bound->bytes());
  return bound->address() + offset;
}

Operand FlatProgram::operand(ValueId id) const {
  if (id == kNone) return {};
  Operand o = operand_of(plan_, forms_, id);
  o.data = address(id);
  const BufferPtr& bound = bindings_[static_cast<size_t>(plan_.root(id))];
  if (o.form == WeightForm::kTiles && bound->is_short()) o.form = WeightForm::kShortTiles;
  return o;
}

size_t FlatProgram::feed_offset(ValueId id, size_t bytes) const {
  const Value& v = plan_.value(id);
  WICK_CHECK(v.kind == Kind::kFeed && !plan_.is_view(id), "value ", v.name, " is no feed");
  const size_t wanted = static_cast<size_t>(v.shape.elements()) * dtype_bytes(v.dtype);
  WICK_CHECK(bytes == wanted, "feed ", v.name, " takes ", wanted, " bytes, got ", bytes);
  return static_cast<size_t>(feed_offset_[static_cast<size_t>(id)]);
}

Operand FlatProgram::readable(ValueId id, size_t bytes) const {
  const Value& v = plan_.value(id);
  const size_t wanted = static_cast<size_t>(v.shape.elements()) * dtype_bytes(v.dtype);
  WICK_CHECK(bytes == wanted, "value ", v.name, " has ", wanted, " bytes, asked for ", bytes);
  return operand(id);
}

}  // namespace wick
