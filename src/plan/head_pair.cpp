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

void kl_head_into(Recorder& r, ValueId kl, const KlHeads& of, const KlAttr& attr) {
  const int64_t m = r.shape(of.x).rows(), v = r.shape(of.w).rows();
  WICK_CHECK(r.shape(of.x).cols() == r.shape(of.w).cols() &&
                 r.shape(of.teacher_x).cols() == r.shape(of.teacher_w).cols() &&
                 r.shape(of.teacher_w).rows() == v && r.shape(of.teacher_x).rows() == m &&
                 r.shape(of.targets).elements() == m && r.shape(kl).elements() == m,
             "kl_head wants x [M, D], w [V, D], the teacher's [M, E] and [V, E], targets [M], got ",
             r.shape(of.x).str(), ", ", r.shape(of.w).str(), ", ", r.shape(of.teacher_x).str(),
             ", ", r.shape(of.teacher_w).str(), " and ", r.shape(of.targets).str());
  const bool pair = of.h != kNone;
  WICK_CHECK(!pair || (r.shape(of.h).rows() == m && r.shape(of.b).rows() == v &&
                       r.shape(of.h).cols() == r.shape(of.b).cols()),
             "kl_head wants h [M, R], b [V, R]");
  Step step{Op::kKlHead,
            Dir::kForward,
            {of.x, of.w, of.teacher_x, of.teacher_w, of.targets, of.h, of.b},
            {{kl}, {kNone}, {kNone}, {kNone}},
            attr};
  auto like = [&](ValueId id, const char* name) {
    const Value value = r.plan().value(id);
    return r.temp(name, value.shape, value.dtype);
  };
  if (r.training()) step.outputs[1] = {like(of.x, "kl_head.dkl_dx")};
  // The sums are for gradients of weights.
  if (r.training() && (pair || r.plan().value(of.w).kind != Kind::kWeight))
    step.outputs[2] = {r.temp("kl_head.lse", {m, 2}, DType::kF32)};
  if (r.training() && pair) step.outputs[3] = {like(of.h, "kl_head.dkl_dh")};
  r.append(std::move(step));
}

}  // namespace wick
