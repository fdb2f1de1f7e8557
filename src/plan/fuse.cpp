// SPDX-License-Identifier: Apache-2.0
// Named rewrites on the forward steps. Each is a pattern and a replacement; random plans and every
// golden compare before and after.
#include <algorithm>

#include "plan/recorder.h"

namespace wick {

namespace {

// How often each root is read or written, by whole root.
struct Uses {
  explicit Uses(const Plan& plan) : reads(plan.values.size(), 0), writes(plan.values.size(), 0) {
    for (const Step& step : plan.steps) {
      for (ValueId in : step.inputs)
        if (in != kNone) ++reads[static_cast<size_t>(plan.root(in))];
      for (const Output& out : step.outputs)
        if (out.value != kNone) ++writes[static_cast<size_t>(plan.root(out.value))];
    }
    for (ValueId id : plan.results) ++reads[static_cast<size_t>(plan.root(id))];
  }
  std::vector<int> reads, writes;
};

void remove_step(Plan& plan, size_t at) {
  plan.steps.erase(plan.steps.begin() + static_cast<ptrdiff_t>(at));
  for (Block& block : plan.blocks) {
    if (static_cast<size_t>(block.begin) > at) --block.begin;
    if (static_cast<size_t>(block.end) > at) --block.end;
  }
}

const Block* block_of(const Plan& plan, size_t step) {
  for (const Block& block : plan.blocks)
    if (static_cast<int32_t>(step) >= block.begin && static_cast<int32_t>(step) < block.end)
      return &block;
  return nullptr;
}

// The first step after `from` that reads `v` whole as its input 0 and is `op`, or 0.
size_t reader(const Plan& plan, size_t from, Op op, ValueId v) {
  for (size_t j = from + 1; j < plan.steps.size(); ++j) {
    const Step& step = plan.steps[j];
    if (step.op == op && step.dir == Dir::kForward && step.inputs[0] == v) return j;
  }
  return 0;
}

}  // namespace

int fuse_linear_bias(Plan& plan) {
  int count = 0;
  Uses uses(plan);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    Step& product = plan.steps[i];
    if (product.op != Op::kLinear || product.dir != Dir::kForward || product.inputs[2] != kNone ||
        product.outputs[0].mode != OutMode::kWrite)
      continue;
    ValueId y = product.outputs[0].value;
    size_t at = static_cast<size_t>(plan.root(y));
    if (plan.is_view(y) || uses.reads[at] != 1 || uses.writes[at] != 1) continue;
    size_t j = reader(plan, i, Op::kBias, y);
    if (j == 0) continue;
    product.inputs[2] = plan.steps[j].inputs[1];
    product.outputs = plan.steps[j].outputs;
    remove_step(plan, j);
    ++count;
  }
  return count;
}

int fuse_add_rms_norm(Plan& plan) {
  int count = 0;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    Step& sum = plan.steps[i];
    if (sum.op != Op::kAdd || sum.dir != Dir::kForward) continue;
    ValueId s = sum.outputs[0].value;
    if (plan.is_view(s)) continue;
    size_t j = reader(plan, i, Op::kRmsNorm, s);
    if (j == 0 || attr<NormAttr>(plan.steps[j]).groups != 1) continue;
    // Across the border of a recomputed block the norm would have to be kept beside the sum.
    const Block* home = block_of(plan, j);
    if (home && home->recompute && home != block_of(plan, i)) continue;
    const Step norm = plan.steps[j];
    Step fused{Op::kAddRmsNorm,
               Dir::kForward,
               {sum.inputs[0], sum.inputs[1], norm.inputs[1]},
               {sum.outputs[0], norm.outputs[0], norm.outputs[1]},
               norm.attr};
    sum = std::move(fused);
    remove_step(plan, j);
    ++count;
  }
  return count;
}

void fuse(Plan& plan) {
  fuse_linear_bias(plan);
  fuse_add_rms_norm(plan);
}

}  // namespace wick
