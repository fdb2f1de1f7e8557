// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/fused.h"

#include "backend/cuda/apart.h"
#include "backend/cuda/gated_sums.h"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

// Where columns `part` of the rows of `all` begin.
int64_t column(const Plan& plan, ValueId part, ValueId all) {
  return part == all ? 0 : plan.value(part).offset;
}
bool is_columns(const Plan& plan, ValueId part, ValueId all) {
  const Value &p = plan.value(part), &a = plan.value(all);
  return part == all || (p.root == all && p.ld == a.ld && p.shape.rows() == a.shape.rows() &&
                         p.offset + p.shape.cols() <= a.ld);
}

}  // namespace

Fused::Fused(const Plan& plan, std::span<const FlatProgram::Call> calls)
    : plan_(plan), calls_(calls) {}

bool Fused::is_linear(size_t step, OutMode mode) const {
  return step < plan_.steps.size() && plan_.steps[step].op == Op::kLinear &&
         plan_.steps[step].dir == Dir::kForward && plan_.steps[step].outputs[0].mode == mode;
}

// How many steps after a product make h of its input and add adapters to its output, in order.
size_t Fused::adapters_after(size_t step) const {
  const Step& product = plan_.steps[step];
  if (!is_linear(step + 1, OutMode::kWrite)) return 0;
  const Step& narrow = plan_.steps[step + 1];
  const ValueId y = product.outputs[0].value, h = narrow.outputs[0].value;
  if (narrow.inputs[0] != product.inputs[0] || narrow.inputs[2] != kNone ||
      attr<LinearAttr>(narrow).scale != 1.0f || plan_.is_view(h))
    return 0;
  size_t end = step + 2;
  for (int64_t after = 0; is_linear(end, OutMode::kAccumulate); ++end) {
    const Step& wide = plan_.steps[end];
    if (wide.inputs[2] != kNone || !is_columns(plan_, wide.inputs[0], h) ||
        !is_columns(plan_, wide.outputs[0].value, y) ||
        column(plan_, wide.outputs[0].value, y) < after)
      break;
    after = column(plan_, wide.outputs[0].value, y) + args(end).out[0].cols;
  }
  return end > step + 2 ? end - step - 1 : 0;
}

// Whether step `rope` turns the first columns of what product `first` makes, into a place that is
// free by then. Not where a product of the library stands before the norm before: after it launches
// come late, and a rope of its own hides the start of attention (decision 021).
bool Fused::can_turn(size_t first, size_t rope, const FusedProduct& p) const {
  if (rope >= plan_.steps.size() || (first >= 2 && is_linear(first - 2, OutMode::kWrite)))
    return false;
  const Step& s = plan_.steps[rope];
  const ValueId y = plan_.steps[first].outputs[0].value;
  if (s.op != Op::kRope || s.dir != Dir::kForward || s.outputs[0].mode != OutMode::kWrite ||
      !is_columns(plan_, s.inputs[0], y) || column(plan_, s.inputs[0], y) != 0)
    return false;
  const Operand& turned = args(rope).out[0];
  return apart(turned, p.x) && apart(turned, p.h) && apart(turned, p.y);
}

// From the product `first` to the gated_act of it, and where an adapted product of what that makes
// follows, this product and its h. (plan/place.cpp gives h its place from the gated_act on.)
size_t Fused::enqueue_gated(const Queue& queue, size_t first, size_t gate,
                            const FusedProduct& p) const {
  GatedForward g{
      .product = p, .product_scratch = args(first).scratch, .scratch = args(gate).scratch};
  const ValueId made = plan_.steps[gate].outputs[0].value;
  const size_t next = gate + 1, narrow = gate + 2;
  const bool more = is_linear(next, OutMode::kWrite) && is_linear(narrow, OutMode::kWrite) &&
                    plan_.steps[next].inputs[0] == made && plan_.steps[narrow].inputs[0] == made &&
                    plan_.steps[narrow].inputs[2] == kNone && args(narrow).out[0].cols <= kSkinny &&
                    attr<LinearAttr>(plan_.steps[narrow]).scale == 1.0f;
  if (more) {
    g.c = args(narrow).in[1];
    g.more = args(narrow).out[0];
  }
  if (!gated_forward(queue, g)) return 0;
  if (!more) return gate + 1 - first;
  calls_[next].fn(args(next));
  return narrow + 1 - first;
}

size_t Fused::enqueue(const Queue& queue, size_t first) const {
  if (queue.arch != Arch::kSm90 || !is_linear(first, OutMode::kWrite)) return 0;
  const StepArgs& product = args(first);
  const ValueId y = product.step->outputs[0].value;
  if (attr<LinearAttr>(*product.step).scale != 1.0f || plan_.is_view(y)) return 0;
  FusedProduct p{
      .x = product.in[0], .w = product.in[1], .bias = product.in[2], .y = product.out[0]};
  const size_t adding = adapters_after(first);
  if (adding > 0) {
    p.a = args(first + 1).in[1];
    p.h = args(first + 1).out[0];
    for (size_t i = first + 2; i <= first + adding; ++i) {
      const Step& wide = plan_.steps[i];
      p.adapters.push_back(
          {.b = args(i).in[1],
           .first = column(plan_, wide.outputs[0].value, y),
           .first_rank = column(plan_, wide.inputs[0], plan_.steps[first + 1].outputs[0].value),
           .scale = attr<LinearAttr>(wide).scale});
    }
  }
  const size_t end = first + 1 + adding;
  if (end < plan_.steps.size() && plan_.steps[end].op == Op::kGatedAct &&
      plan_.steps[end].dir == Dir::kForward && plan_.steps[end].inputs[0] == y &&
      plan_.steps[end].outputs[0].mode == OutMode::kWrite && !p.bias) {
    FusedProduct gated = p;
    gated.made = args(end).out[0];
    gated.act = attr<GatedActAttr>(plan_.steps[end]).act;
    if (fused_product(queue, gated)) return adding + 2;
    if (const size_t made = enqueue_gated(queue, first, end, gated)) return made;
  }
  if (adding == 0) return 0;
  if (can_turn(first, end, p)) {
    FusedProduct turned = p;
    turned.turn = {.turned = args(end).out[0],
                   .table = args(end).in[1],
                   .positions = args(end).in[2],
                   .head_dim = attr<RopeAttr>(plan_.steps[end]).head_dim};
    if (fused_product(queue, turned)) return adding + 2;
  }
  return fused_product(queue, p) ? adding + 1 : 0;
}

}  // namespace wick::cuda
