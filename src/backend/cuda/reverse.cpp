// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/reverse.h"

#include <algorithm>
#include <vector>

#include "backend/cuda/attention_rope.h"
#include "backend/cuda/gated_round.h"
#include "backend/cuda/gated_sums.h"
#include "backend/cuda/skinny.h"
#include "backend/cuda/small_product.h"
#include "backend/cuda/token_sums.h"
#include "base/check.h"

namespace wick::cuda {
namespace {

// Of bf16: whether rows can be read 16 bytes at a time.
bool in_eights(const Operand& o) {
  return reinterpret_cast<uintptr_t>(o.data) % 16 == 0 && o.ld % 8 == 0 && o.cols % 8 == 0;
}

}  // namespace

bool Reverse::is(size_t step, Op op) const {
  return step < plan_.steps.size() && plan_.steps[step].op == op &&
         plan_.steps[step].dir == Dir::kBackward;
}

// The reverse of y += scale * h Bᵀ: dh and dB.
bool Reverse::is_adapter(size_t step) const {
  return is(step, Op::kLinear) && args(step).in[2] && args(step).in[2].cols <= kSkinny &&
         args(step).out[0] && args(step).out[1] && !args(step).out[2];
}

size_t Reverse::enqueue_sums(const Queue& queue, size_t first) const {
  std::vector<TokenSum> sums;
  // Adapters of one product: what the earlier of these steps read lives as long as the last, whose
  // scratch is used.
  const Step& begin = plan_.steps[first];
  size_t end = first;
  for (; is_adapter(end) && sums.size() < kMostTokenSums; ++end) {
    const Step& s = plan_.steps[end];
    if (plan_.root(s.inputs[0]) != plan_.root(begin.inputs[0]) ||
        plan_.root(s.inputs[1]) != plan_.root(begin.inputs[1]))
      break;
    sums.push_back({.a = args(end).in[0],
                    .b = args(end).in[1],
                    .y = args(end).out[1],
                    .y_adds = args(end).accumulates(1),
                    .alpha = attr<LinearAttr>(s).scale,
                    .w = args(end).in[2],
                    .made = args(end).out[0],
                    .made_adds = args(end).accumulates(0)});
  }
  return !sums.empty() && token_sums(queue, sums, args(end - 1).scratch) ? end - first : 0;
}

bool Reverse::turns_back(size_t first) const {
  if (!is(first, Op::kAttention) || !is(first + 1, Op::kRope)) return false;
  const Step &attention = plan_.steps[first], &rope = plan_.steps[first + 1];
  const AttentionAttr& a = attr<AttentionAttr>(attention);
  const ValueId dq = attention.outputs[0].value, dk = attention.outputs[1].value,
                dv = attention.outputs[2].value, turned = rope.inputs[0];
  if (dq == kNone || dk == kNone || dv == kNone || plan_.is_view(turned) ||
      plan_.root(dq) != turned || plan_.root(dk) != turned || plan_.value(dq).offset != 0 ||
      plan_.value(dk).offset != a.heads * a.head_dim ||
      attr<RopeAttr>(rope).head_dim != a.head_dim || rope.outputs[0].mode != OutMode::kWrite ||
      // Where it is written the step before must have the room.
      plan_.root(rope.outputs[0].value) != plan_.root(dv))
    return false;
  // Nobody else sees what is not turned back.
  auto reads = [&](const Step& s) {
    return std::any_of(s.inputs.begin(), s.inputs.end(),
                       [&](ValueId v) { return v != kNone && plan_.root(v) == turned; });
  };
  return std::count_if(plan_.steps.begin(), plan_.steps.end(), reads) == 1;
}

size_t Reverse::enqueue_attention(const Queue& queue, size_t first) const {
  if (!turns_back(first)) return 0;
  flush(queue);
  return attention_rope_bwd(args(first), args(first + 1)) ? 2 : 0;
}

// The reverse of a product that makes dx alone.
bool Reverse::is_gradient(size_t step) const {
  return is(step, Op::kLinear) && args(step).in[2] && args(step).out[0] && !args(step).out[1] &&
         !args(step).out[2];
}

// Whether `step` is an adapter's part of dx, to which the product behind it adds.
bool Reverse::is_adapted(size_t step) const {
  return args(step).in[2].rows <= kSkinny && !args(step).accumulates(0) && is_gradient(step + 1) &&
         plan_.steps[step + 1].outputs[0].value == plan_.steps[step].outputs[0].value &&
         args(step + 1).accumulates(0);
}

size_t Reverse::enqueue_product(const Queue& queue, size_t first) const {
  if (!is_gradient(first)) return 0;
  SmallProduct p{};
  size_t at = first;
  const ValueId dx = plan_.steps[first].outputs[0].value;
  const bool adapted = is_adapted(first);
  if (adapted) {
    p.more = args(first).in[0];
    p.more_b = args(first).in[2];
    p.scale = attr<LinearAttr>(plan_.steps[first]).scale;
    ++at;
  }
  const StepArgs& product = args(at);
  p.how = {Trans::kNN, attr<LinearAttr>(plan_.steps[at]).scale, !adapted && product.accumulates(0)};
  p.a = product.in[0];
  p.b = product.in[2];
  p.y = product.out[0];
  if (is(at + 1, Op::kAttention) && plan_.steps[at + 1].inputs[0] == dx && turns_back(at + 1)) {
    p.attention = &args(at + 1);
    if (small_product(queue, p))
      return at - first + (attention_rope_bwd(args(at + 1), args(at + 2), true) ? 3 : 1);
    p.attention = nullptr;
  }
  return adapted && small_product(queue, p) ? 2 : 0;
}

bool Reverse::is_read_once(ValueId v) const {
  const ValueId root = plan_.root(v);
  size_t reads = 0;
  for (const Step& s : plan_.steps)
    for (ValueId in : s.inputs) reads += in != kNone && plan_.root(in) == root;
  for (ValueId result : plan_.results) reads += plan_.root(result) == root;
  return reads == 1;
}

// Of many tokens: the product of frozen weights writes, and the adapter's adds to it, where it is
// in the second cache still; the other way round the product would have to read. dA comes before
// both. (plan/place.cpp lets dh live as long as the product.)
size_t Reverse::enqueue_adapted(const Queue& queue, size_t first) const {
  constexpr int64_t kManyTokens = 2048, kLarge = int64_t{1} << 35;
  if (!is(first, Op::kLinear) || !is_gradient(first + 1)) return 0;
  const StepArgs &n = args(first), &p = args(first + 1);
  const Operand &dh = n.in[0], &a = n.in[2], &dx = n.out[0], &da = n.out[1];
  if (!a || a.rows > kSkinny || a.dtype != DType::kF32 || dh.dtype != DType::kBF16 || !dx ||
      dx.rows < kManyTokens || dx.dtype != DType::kBF16 || !in_eights(dx) || n.accumulates(0) ||
      n.out[2] || dx.elements() * p.in[0].cols < kLarge ||
      n.step->outputs[0].value != p.step->outputs[0].value || !p.accumulates(0))
    return 0;
  const float scale = attr<LinearAttr>(*n.step).scale;
  if (da) {
    const TokenSum sum{.a = n.in[1],
                       .b = dh,
                       .y = da,
                       .y_by_rank = true,
                       .y_adds = n.accumulates(1),
                       .alpha = scale};
    if (!token_sums(queue, {&sum, 1}, n.scratch)) return 0;
  }
  flush(queue);
  product(queue, {Trans::kNN, attr<LinearAttr>(*p.step).scale}, p.in[0], p.in[2], dx, p.scratch);
  WICK_CHECK(wide_product(queue, scale, true, true, dh, a, dx), "dx of an adapter");
  return 2;
}

// (plan/place.cpp lets what these steps share live from the first to the last.)
size_t Reverse::enqueue_gated(const Queue& queue, size_t first) const {
  auto makes = [&](const Step& s, ValueId made, ValueId y) {
    return s.op == Op::kGatedAct && s.dir == Dir::kForward && s.inputs[0] == y &&
           s.outputs[0].value == made;
  };
  const bool again = first < plan_.steps.size() && plan_.steps[first].op == Op::kGatedAct &&
                     plan_.steps[first].dir == Dir::kForward;
  const size_t narrow = first + (again ? 1 : 0), product = narrow + 1, gate = product + 1,
               adapter = gate + 1;
  if (!is(gate, Op::kGatedAct) || !is(narrow, Op::kLinear) || !is_gradient(product) ||
      !is_adapter(adapter) || !is_adapter(adapter + 1))
    return 0;
  const StepArgs &n = args(narrow), &p = args(product), &d = args(gate);
  const ValueId dmade = n.step->outputs[0].value, made = n.step->inputs[1], y = d.step->inputs[1],
                dy = d.step->outputs[0].value;
  if (made == kNone || !n.in[2] || !n.out[0] || !n.out[1] || n.out[2] || n.accumulates(0) ||
      p.step->outputs[0].value != dmade || !p.accumulates(0) || d.step->inputs[0] != dmade ||
      d.accumulates(0) || plan_.is_view(dmade) || plan_.is_view(y) || plan_.is_view(dy) ||
      !is_read_once(dmade))
    return 0;
  if (again ? !makes(plan_.steps[first], made, y) || !is_read_once(made)
            : std::none_of(plan_.steps.begin(), plan_.steps.end(),
                           [&](const Step& s) { return makes(s, made, y); }))
    return 0;
  GatedReverse g{.dz = p.in[0],
                 .w = p.in[2],
                 .w_scale = attr<LinearAttr>(*p.step).scale,
                 .dmade = d.in[0],
                 .y = d.in[1],
                 .dy = d.out[0],
                 .act = attr<GatedActAttr>(*d.step).act,
                 .dmore = n.in[0],
                 .c = n.in[2],
                 .dc = n.out[1],
                 .c_scale = attr<LinearAttr>(*n.step).scale,
                 .dc_adds = n.accumulates(1),
                 .product_scratch = p.scratch,
                 .scratch = d.scratch};
  for (size_t i = adapter; i < adapter + 2; ++i) {
    const StepArgs& s = args(i);
    const ValueId part = s.step->inputs[0];
    const int64_t half = plan_.value(dy).shape.cols() / 2;
    if (plan_.root(part) != dy || !plan_.is_view(part) || plan_.value(part).offset % half != 0)
      return 0;
    GatedReverse::Half& to = g.half[plan_.value(part).offset == 0 ? 0 : 1];
    if (to.b || s.in[0].cols != half || s.in[0].ld != d.out[0].ld) return 0;
    to = {.h = s.in[1],
          .b = s.in[2],
          .dh = s.out[0],
          .db = s.out[1],
          .scale = attr<LinearAttr>(*s.step).scale,
          .dh_adds = s.accumulates(0),
          .db_adds = s.accumulates(1)};
  }
  return gated_reverse(queue, g) ? adapter + 2 - first : 0;
}

// A product whose dx nobody but gated_act's reverse reads, an adapter's part of it before. (As
// above.)
size_t Reverse::enqueue_round(const Queue& queue, size_t first) const {
  if (!is_gradient(first)) return 0;
  const bool adapted = is_adapted(first);
  const size_t product = first + (adapted ? 1 : 0), gate = product + 1;
  if (!is(gate, Op::kGatedAct)) return 0;
  const StepArgs &p = args(product), &g = args(gate);
  const ValueId dmade = p.step->outputs[0].value;
  if (g.step->inputs[0] != dmade || plan_.is_view(dmade) || !is_read_once(dmade) ||
      g.accumulates(0) || p.accumulates(0) != adapted || attr<LinearAttr>(*p.step).scale != 1.0f)
    return 0;
  GatedRound round{.dz = p.in[0],
                   .w = p.in[2],
                   .y = g.in[1],
                   .dy = g.out[0],
                   .act = attr<GatedActAttr>(*g.step).act};
  if (adapted) {
    round.dh = args(first).in[0];
    round.a = args(first).in[2];
    round.scale = attr<LinearAttr>(*args(first).step).scale;
  }
  return gated_round(queue, round) ? gate + 1 - first : 0;
}

size_t Reverse::enqueue(const Queue& queue, size_t first) const {
  if (queue.arch != Arch::kSm90) return 0;
  if (const size_t made = enqueue_gated(queue, first)) return made;
  if (const size_t made = enqueue_sums(queue, first)) return made;
  if (const size_t made = enqueue_attention(queue, first)) return made;
  if (const size_t made = enqueue_adapted(queue, first)) return made;
  if (const size_t made = enqueue_round(queue, first)) return made;
  return enqueue_product(queue, first);
}

}  // namespace wick::cuda
