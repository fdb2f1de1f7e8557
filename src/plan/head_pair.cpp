// SPDX-License-Identifier: Apache-2.0
#include "plan/head_pair.h"

namespace wick {

ValueId head_with_pair(Recorder& r, ValueId x, ValueId w, ValueId targets, const HeadAttr& attr,
                       ValueId h, ValueId b) {
  const ValueId logp = r.temp("logp", {r.shape(x)[0]}, DType::kF32);
  head_into(r, logp, x, w, targets, attr, h, b);
  return logp;
}

void head_into(Recorder& r, ValueId logp, ValueId x, ValueId w, ValueId targets,
               const HeadAttr& attr, ValueId h, ValueId b) {
  const int64_t m = r.shape(x)[0];
  WICK_CHECK(r.shape(x)[1] == r.shape(w)[1] && r.shape(targets)[0] == m && r.shape(logp)[0] == m,
             "head wants x [M, D], w [V, D], targets [M], got ", r.shape(x).str(), ", ",
             r.shape(w).str(), " and ", r.shape(targets).str());
  WICK_CHECK(h == kNone || (r.shape(h)[1] == r.shape(b)[1] && r.shape(h)[0] == m &&
                            r.shape(b)[0] == r.shape(w)[0]),
             "head wants h [M, R], b [V, R]");
  Step step{Op::kHead, Dir::kForward, {x, w, targets}, {{logp}, {kNone}, {kNone}}, attr};
  if (r.training()) {
    step.outputs[1] = {r.temp("head.lse", {m}, DType::kF32)};
    step.outputs[2] = {r.temp("head.dlogp_dx", r.shape(x), r.plan().value(x).dtype)};
  }
  if (h != kNone) {
    const Value of = r.plan().value(h);
    step.inputs.insert(step.inputs.end(), {h, b});
    step.outputs.push_back({r.training() ? r.temp("head.dlogp_dh", of.shape, of.dtype) : kNone});
  }
  r.append(std::move(step));
}

}  // namespace wick
