// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/joined.h"

#include <algorithm>

#include "backend/cpu/tile_kernels.h"
#include "plan/added.h"

namespace wick::cpu {
namespace {

// How often a value's memory is read, by root; a result counts as read.
std::vector<int> count_reads(const Plan& plan) {
  std::vector<int> reads(plan.values.size(), 0);
  auto read = [&](ValueId id) {
    if (id != kNone) ++reads[static_cast<size_t>(plan.root(id))];
  };
  for (const Step& step : plan.steps)
    for (ValueId id : step.inputs) read(id);
  for (ValueId id : plan.results) read(id);
  return reads;
}

bool in_panels(const Operand& o) {
  return is_bf16(o) && o.cols % kTileBlock == 0 && o.rows > kFewRows;
}

// Whether the sums of `product` may have this added: whole panels from a panel on.
bool fits_panels(const StepArgs& product, const StepArgs& added) {
  const Operand &y = product.out[0], &part = added.out[0];
  const int64_t col = (part.as<bf16>() - y.as<bf16>()) % y.ld;
  return is_bf16(added.in[0]) && is_weight(added.in[1]) && col % kTileBlock == 0;
}

// Moves the product at calls[i] behind what is made of its input, and gives it what is added; says
// where it is then.
size_t join_added(const Plan& plan, std::span<FlatProgram::Call> calls, size_t i) {
  const size_t end = added_end(plan, i);
  if (end == i + 1 || !takes_addends(calls[i].fn, calls[i].args)) return i;
  const Step& product = plan.steps[i];
  const auto group = calls.subspan(i, end - i);
  auto adds = [&](const FlatProgram::Call& c) { return adds_to(plan, *c.args.step, product); };
  const int64_t added = std::count_if(group.begin(), group.end(), adds);
  const bool all_fit = std::all_of(group.begin(), group.end(), [&](const FlatProgram::Call& c) {
    return !adds(c) || fits_panels(calls[i].args, c.args);
  });
  if (added > kMostAddends || !all_fit) return i;
  // First what makes, then the product, then what adds: each in its order.
  std::stable_partition(group.begin(), group.end(), [&](const FlatProgram::Call& c) {
    return !adds(c) && c.args.step != &product;
  });
  const size_t at = end - static_cast<size_t>(added) - 1;
  for (size_t j = at; j + 1 < end; ++j) {
    calls[j].args.next = &calls[j + 1].args;
    calls[j + 1].fn = [](const StepArgs&) {};
  }
  return at;
}

// Whether `gate` takes what `product` writes, all of it.
bool fits(const Plan& plan, const FlatProgram::Call& product, const FlatProgram::Call& gate) {
  const Step &a = *product.args.step, &b = *gate.args.step;
  if (b.op != Op::kGatedAct || b.dir != Dir::kForward) return false;
  const bool in_tiles =
      takes_gate(product.fn) && in_panels(product.args.out[0]) && in_panels(gate.args.out[0]);
  if (!in_tiles && !rows_take_gate(product.fn, product.args)) return false;
  const ValueId y = a.outputs[0].value;
  return !plan.is_view(y) && plan.value(y).kind == Kind::kTemp && b.inputs[0] == y &&
         !product.args.accumulates(0) && !gate.args.accumulates(0) &&
         attr<GatedActAttr>(b).act == Act::kSilu;
}

}  // namespace

void join_steps(const Plan& plan, std::span<FlatProgram::Call> calls) {
  const std::vector<int> reads = count_reads(plan);
  for (size_t i = 0; i < calls.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.op != Op::kLinear || step.dir != Dir::kForward) continue;
    const size_t gate = added_end(plan, i), at = join_added(plan, calls, i);
    if (gate >= calls.size() || (gate > i + 1 && calls[at].args.next == nullptr)) continue;
    if (!fits(plan, calls[at], calls[gate])) continue;
    if (reads[static_cast<size_t>(step.outputs[0].value)] > 1) continue;
    calls[gate - 1].args.next = &calls[gate].args;
    calls[gate].fn = [](const StepArgs&) {};
  }
}

}  // namespace wick::cpu
