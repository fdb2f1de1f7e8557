// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/joined.h"

#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

bool is_few(const StepArgs& args) {
  return args.in[0].dtype == DType::kBF16 && args.in[0].rows <= kMatvecMmaRows;
}

}  // namespace

Joined::Joined(const Plan& plan, std::span<const FlatProgram::Call> calls)
    : plan_(plan), calls_(calls), reads_(plan.values.size(), 0) {
  for (const Step& step : plan.steps)
    for (ValueId in : step.inputs)
      if (in != kNone) ++reads_[static_cast<size_t>(plan.root(in))];
  for (ValueId id : plan.results) ++reads_[static_cast<size_t>(plan.root(id))];
}

bool Joined::is(size_t step, Op op) const {
  return step < calls_.size() && args(step).step->op == op && args(step).step->dir == Dir::kForward;
}

bool Joined::is_columns(ValueId v, ValueId of, int64_t begin, int64_t count) const {
  const Value &view = plan_.value(v), &root = plan_.value(of);
  return view.root == of && view.offset == begin && view.ld == root.ld &&
         view.shape.cols() == count && view.shape.rows() == root.shape.rows();
}

size_t Joined::enqueue(const Queue& queue, size_t first) const {
  const bool adds = is(first, Op::kAddRmsNorm);
  if (!adds && !is(first, Op::kRmsNorm)) return 0;
  const StepArgs& norm = args(first);
  const size_t normed = adds ? 1 : 0, rstd = normed + 1, product = first + 1;
  const bool keeps_rstd = rstd < norm.out.size() && norm.out[rstd];
  if (!is_few(norm) || attr<NormAttr>(*norm.step).groups != 1 || keeps_rstd ||
      !is(product, Op::kLinear))
    return 0;
  const ValueId x = norm.step->outputs[normed].value;
  if (args(product).step->inputs[0] != x || plan_.is_view(x)) return 0;
  MatvecIn in{
      .a = norm.in[0], .gain = norm.in[adds ? 2 : 1], .eps = attr<NormAttr>(*norm.step).eps};
  if (adds) {
    in.b = norm.in[1];
    in.sum = norm.out[0];
  }
  if (reads(x) > 1) in.normed = norm.out[normed];
  flush(queue);
  if (size_t more = enqueue_rotated(queue, in, product)) return 1 + more;
  if (size_t more = enqueue_gated(queue, in, product)) return 1 + more;
  const StepArgs& p = args(product);
  const float scale = attr<LinearAttr>(*p.step).scale;
  return matvec_mma(queue, in, scale, p.accumulates(0), p.in[1], p.in[2], p.out[0]) ? 2 : 0;
}

size_t Joined::enqueue_gated(const Queue& queue, const MatvecIn& in, size_t product) const {
  const StepArgs& p = args(product);
  const ValueId y = p.step->outputs[0].value;
  if (!is(product + 1, Op::kGatedAct) || args(product + 1).step->inputs[0] != y ||
      plan_.is_view(y) || reads(y) != 1 || p.accumulates(0) ||
      attr<LinearAttr>(*p.step).scale != 1.0f)
    return 0;
  const StepArgs& gate = args(product + 1);
  const Act act = attr<GatedActAttr>(*gate.step).act;
  return matvec_gated(queue, in, p.in[1], p.in[2], act, gate.out[0]) ? 2 : 0;
}

size_t Joined::enqueue_rotated(const Queue& queue, const MatvecIn& in, size_t product) const {
  const size_t rope = product + 1, copy_k = rope + 1, copy_v = copy_k + 1, attention = copy_v + 1;
  if (!is(rope, Op::kRope) || !is(copy_k, Op::kCopy) || !is(copy_v, Op::kCopy) ||
      !is(attention, Op::kAttention))
    return 0;
  const StepArgs &p = args(product), &r = args(rope), &k = args(copy_k), &v = args(copy_v);
  const AttentionAttr& a = attr<AttentionAttr>(*args(attention).step);
  const int64_t e = a.head_dim, q_width = a.heads * e, kv_width = a.kv_heads * e;
  const ValueId y = p.step->outputs[0].value, rotated = r.step->outputs[0].value;
  if (plan_.is_view(y) || plan_.is_view(rotated) || p.accumulates(0) || r.accumulates(0) ||
      attr<LinearAttr>(*p.step).scale != 1.0f || attr<RopeAttr>(*r.step).head_dim != e ||
      p.out[0].cols != q_width + 2 * kv_width)
    return 0;
  // Nobody but these reads the product and what is rotated of it.
  if (reads(y) != 2 || !is_columns(r.step->inputs[0], y, 0, q_width + kv_width) ||
      !is_columns(v.step->inputs[0], y, q_width + kv_width, kv_width) || reads(rotated) != 2 ||
      !is_columns(k.step->inputs[0], rotated, q_width, kv_width) ||
      !is_columns(args(attention).step->inputs[0], rotated, 0, q_width) ||
      k.step->inputs[1] != v.step->inputs[1])
    return 0;
  const MatvecRotation rotation{.q = args(attention).in[0],
                                .table = r.in[1],
                                .positions = r.in[2],
                                .cache_k = k.out[0],
                                .cache_v = v.out[0],
                                .cache_rows = k.in[1],
                                .heads = a.heads,
                                .kv_heads = a.kv_heads,
                                .head_dim = e};
  return matvec_rotated(queue, in, p.in[1], p.in[2], rotation) ? 4 : 0;
}

}  // namespace wick::cuda
