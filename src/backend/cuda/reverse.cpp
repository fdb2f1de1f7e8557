// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/reverse.h"

#include <algorithm>
#include <vector>

#include "backend/cuda/attention_rope.h"
#include "backend/cuda/skinny.h"
#include "backend/cuda/small_product.h"
#include "backend/cuda/token_sums.h"

namespace wick::cuda {

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

size_t Reverse::enqueue_product(const Queue& queue, size_t first) const {
  if (!is_gradient(first)) return 0;
  SmallProduct p{};
  size_t at = first;
  const ValueId dx = plan_.steps[first].outputs[0].value;
  const bool adapted = args(first).in[2].rows <= kSkinny && !args(first).accumulates(0) &&
                       is_gradient(first + 1) && plan_.steps[first + 1].outputs[0].value == dx &&
                       args(first + 1).accumulates(0);
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

size_t Reverse::enqueue(const Queue& queue, size_t first) const {
  if (queue.arch != Arch::kSm90) return 0;
  if (const size_t made = enqueue_sums(queue, first)) return made;
  if (const size_t made = enqueue_attention(queue, first)) return made;
  return enqueue_product(queue, first);
}

}  // namespace wick::cuda
