// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/tile_gates.h"

#include "backend/cpu/tile_kernels.h"

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

void join_gates(const Plan& plan, std::span<FlatProgram::Call> calls) {
  const std::vector<int> reads = count_reads(plan);
  for (size_t i = 0; i + 1 < calls.size(); ++i) {
    if (!fits(plan, calls[i], calls[i + 1])) continue;
    if (reads[static_cast<size_t>(calls[i].args.step->outputs[0].value)] > 1) continue;
    calls[i].args.next = &calls[i + 1].args;
    calls[i + 1].fn = [](const StepArgs&) {};
  }
}

}  // namespace wick::cpu
