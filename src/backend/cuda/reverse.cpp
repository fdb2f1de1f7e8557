// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/reverse.h"

#include <algorithm>
#include <vector>

#include "backend/cuda/attention_rope.h"
#include "backend/cuda/skinny.h"
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
  for (; is_adapter(end); ++end) {
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

size_t Reverse::enqueue_attention(const Queue& queue, size_t first) const {
  if (!is(first, Op::kAttention) || !is(first + 1, Op::kRope)) return 0;
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
    return 0;
  // Nobody else sees what is not turned back.
  auto reads = [&](const Step& s) {
    return std::any_of(s.inputs.begin(), s.inputs.end(),
                       [&](ValueId v) { return v != kNone && plan_.root(v) == turned; });
  };
  if (std::count_if(plan_.steps.begin(), plan_.steps.end(), reads) != 1) return 0;
  flush(queue);
  return attention_rope_bwd(args(first), args(first + 1)) ? 2 : 0;
}

size_t Reverse::enqueue(const Queue& queue, size_t first) const {
  if (queue.arch != Arch::kSm90) return 0;
  const size_t made = enqueue_sums(queue, first);
  return made > 0 ? made : enqueue_attention(queue, first);
}

}  // namespace wick::cuda
