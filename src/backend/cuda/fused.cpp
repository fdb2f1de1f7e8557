// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/fused.h"

#include <algorithm>

#include "backend/cuda/apart.h"
#include "backend/cuda/gated_sums.h"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

// Where columns `part` of the rows of `all` begin, or of the lane-th of `lanes` equal ranges of
// them; -1 where it is no such part.
int64_t column(const Plan& plan, ValueId part, ValueId all, int64_t lane = 0, int64_t lanes = 1) {
  const Value &p = plan.value(part), &a = plan.value(all);
  const int64_t rows = a.shape.rows() / lanes, at = p.offset - a.offset - lane * rows * a.ld;
  const bool is_part = p.root == a.root && p.ld == a.ld && p.shape.rows() == rows && at >= 0 &&
                       at + p.shape.cols() <= a.shape.cols();
  return is_part ? at : -1;
}
bool is_rows(const Plan& plan, ValueId part, ValueId all, int64_t lane, int64_t lanes) {
  return column(plan, part, all, lane, lanes) == 0 &&
         plan.value(part).shape.cols() == plan.value(all).shape.cols();
}

}  // namespace

Fused::Fused(const Plan& plan, std::span<const FlatProgram::Call> calls, Widened& widened)
    : plan_(plan), calls_(calls), widened_(widened) {}

bool Fused::is_linear(size_t step, OutMode mode) const {
  return step < plan_.steps.size() && plan_.steps[step].op == Op::kLinear &&
         plan_.steps[step].dir == Dir::kForward && plan_.steps[step].outputs[0].mode == mode;
}

// The adapters that add columns of h to y, for a lane, from step `at` on.
std::vector<FusedAdapter> Fused::adapters(size_t at, ValueId h, ValueId y, int64_t lane,
                                          int64_t lanes) const {
  std::vector<FusedAdapter> found;
  for (int64_t after = 0; is_linear(at, OutMode::kAccumulate); ++at) {
    const Step& wide = plan_.steps[at];
    const int64_t first = column(plan_, wide.outputs[0].value, y, lane, lanes),
                  rank = column(plan_, wide.inputs[0], h, lane, lanes);
    if (wide.inputs[2] != kNone || rank < 0 || first < after) break;
    found.push_back({.b = args(at).in[1],
                     .first = first,
                     .first_rank = rank,
                     .scale = attr<LinearAttr>(wide).scale});
    after = first + args(at).out[0].cols;
  }
  return found;
}

// How many steps after a product make h of its input and add adapters to its output, lane by lane
// and in order; p gets what they read.
size_t Fused::add_adapters(size_t step, FusedProduct& p) const {
  const Step& product = plan_.steps[step];
  if (!is_linear(step + 1, OutMode::kWrite)) return 0;
  const ValueId x = product.inputs[0], y = product.outputs[0].value,
                h = plan_.root(plan_.steps[step + 1].outputs[0].value);
  const int64_t rows = args(step + 1).in[0].rows, lanes = rows > 0 ? p.x.rows / rows : 0;
  if (lanes < 1 || lanes * rows != p.x.rows) return 0;
  auto bytes_between = [](const Operand& from, const Operand& to) {
    return to.as<const std::byte>() - from.as<const std::byte>();
  };
  const Operand& a = args(step + 1).in[1];
  const int64_t apart = lanes > 1 && is_linear(step + 2, OutMode::kWrite)
                            ? bytes_between(a, args(step + 2).in[1])
                            : 0;
  for (int64_t k = 0; k < lanes; ++k) {
    const size_t at = step + 1 + static_cast<size_t>(k);
    if (!is_linear(at, OutMode::kWrite)) return 0;
    const Step& narrow = plan_.steps[at];
    if (!is_rows(plan_, narrow.inputs[0], x, k, lanes) ||
        !is_rows(plan_, narrow.outputs[0].value, h, k, lanes) || narrow.inputs[2] != kNone ||
        attr<LinearAttr>(narrow).scale != 1.0f || bytes_between(a, args(at).in[1]) != k * apart)
      return 0;
  }
  size_t end = step + 1 + static_cast<size_t>(lanes);
  const std::vector<FusedAdapter> first = adapters(end, h, y, 0, lanes);
  if (first.empty()) return 0;
  end += first.size();
  for (int64_t k = 1; k < lanes; ++k) {
    const std::vector<FusedAdapter> own = adapters(end, h, y, k, lanes);
    const bool alike = std::equal(first.begin(), first.end(), own.begin(), own.end(),
                                  [&](const FusedAdapter& one, const FusedAdapter& other) {
                                    return bytes_between(one.b, other.b) == k * apart &&
                                           one.b.rows == other.b.rows &&
                                           one.b.cols == other.b.cols && one.first == other.first &&
                                           one.first_rank == other.first_rank &&
                                           one.scale == other.scale;
                                  });
    if (!alike) return 0;
    end += own.size();
  }
  p.a = a;
  p.h = args(step + 1).out[0];
  p.h.rows = p.x.rows;
  p.adapters = first;
  p.lanes = lanes;
  p.lane_bytes = apart;
  return end - step - 1;
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
      column(plan_, s.inputs[0], y) != 0)
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
  widened_.make(next);
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
  const size_t adding = add_adapters(first, p);
  const size_t end = first + 1 + adding;
  if (end < plan_.steps.size() && plan_.steps[end].op == Op::kGatedAct &&
      plan_.steps[end].dir == Dir::kForward && plan_.steps[end].inputs[0] == y &&
      plan_.steps[end].outputs[0].mode == OutMode::kWrite && !p.bias) {
    FusedProduct gated = p;
    gated.made = args(end).out[0];
    gated.act = attr<GatedActAttr>(plan_.steps[end]).act;
    if (fused_product(queue, gated)) return adding + 2;
    if (p.lanes == 1)
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
