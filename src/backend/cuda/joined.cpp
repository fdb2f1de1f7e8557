// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/joined.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/attend.h"
#include "backend/cuda/attention_early.h"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

bool is_few(const StepArgs& args) {
  return args.in[0].dtype == DType::kBF16 && args.in[0].rows <= kMatvecMmaRows;
}

}  // namespace

Joined::Joined(const Plan& plan, std::span<const FlatProgram::Call> calls, const Queue& queue)
    : plan_(plan),
      calls_(calls),
      reads_(plan.values.size(), 0),
      first_write_(plan.values.size(), calls.size()) {
  for (const Step& step : plan.steps)
    for (ValueId in : step.inputs)
      if (in != kNone) ++reads_[static_cast<size_t>(plan.root(in))];
  for (ValueId id : plan.results) ++reads_[static_cast<size_t>(plan.root(id))];
  size_t attend = 0, mlp = 0;
  for (size_t i = calls.size(); i-- > 0;) {
    for (const auto& out : args(i).step->outputs)
      if (out.value != kNone) first_write_[static_cast<size_t>(plan.root(out.value))] = i;
    if (queue.arch != Arch::kSm90 || !may_part(i + 1)) continue;
    const Operand& y = args(i + 1).out[0];
    const auto part = static_cast<size_t>(y.rows * y.cols) * sizeof(float);
    if (is(i, Op::kAttention) && y.rows <= kAttendRows)
      attend =
          std::max(attend, part * static_cast<size_t>(std::min<int64_t>(
                                      kMostParts, attr<AttentionAttr>(*args(i).step).kv_heads)));
    if (is(i, Op::kGatedAct) && y.rows <= kMlpRows)
      mlp = std::max(mlp, part * static_cast<size_t>(std::min<int64_t>(
                                     kMostParts, mlp_parts(args(i).out[0].cols))));
  }
  if (attend > 0) attend_parts_ = std::make_unique<DeviceBuffer>(attend, queue.stream);
  if (mlp > 0) mlp_parts_ = std::make_unique<DeviceBuffer>(mlp, queue.stream);
}

bool Joined::may_part(size_t step) const {
  if (!is(step, Op::kLinear) || !is(step + 1, Op::kAddRmsNorm)) return false;
  const StepArgs& p = args(step);
  const ValueId x = p.step->inputs[0], y = p.step->outputs[0].value;
  return !p.accumulates(0) && attr<LinearAttr>(*p.step).scale == 1.0f && !plan_.is_view(x) &&
         reads(x) == 1 && !plan_.is_view(y) && reads(y) == 1 &&
         args(step + 1).step->inputs[1] == y && p.out[0].dtype == DType::kBF16;
}

bool Joined::is(size_t step, Op op) const {
  return step < calls_.size() && args(step).step->op == op && args(step).step->dir == Dir::kForward;
}

bool Joined::is_columns(ValueId v, ValueId of, int64_t begin, int64_t count) const {
  const Value &view = plan_.value(v), &root = plan_.value(of);
  return view.root == of && view.offset == begin && view.ld == root.ld &&
         view.shape.cols() == count && view.shape.rows() == root.shape.rows();
}

size_t Joined::enqueue(const Queue& queue, size_t first) {
  const Parted before = std::exchange(parted_, {});
  const Operand new_rows = std::exchange(new_rows_, {});
  if (new_rows && attention_fwd_early(args(first), new_rows)) return 1;
  if (size_t made = enqueue_normed(queue, first, before)) return made;
  if (before.value != kNone) sum_parts(queue, before.data, before.count, args(first - 1).out[0]);
  return 0;
}

size_t Joined::enqueue_normed(const Queue& queue, size_t first, const Parted& before) {
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
    in.sum = norm.out[0];
    if (before.value == norm.step->inputs[1]) {
      in.parts = before.data;
      in.part_count = before.count;
    } else {
      in.b = norm.in[1];
    }
  }
  if (reads(x) > 1) in.normed = norm.out[normed];
  flush(queue);
  const std::optional<MatvecRotation> rotation = rotation_from(product);
  if (rotation && enqueue_attended(queue, in, product, *rotation)) return 7;
  if (enqueue_mlp(queue, in, product)) return 4;
  if (in.part_count > 0) {
    sum_parts(queue, in.parts, in.part_count, norm.in[1]);
    in.b = norm.in[1];
    in.parts = nullptr;
    in.part_count = 0;
  }
  if (rotation && matvec_rotated(queue, in, args(product).in[1], args(product).in[2], *rotation)) {
    if (rotation->ahead) new_rows_ = rotation->cache_rows;
    return 5;
  }
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

std::optional<MatvecRotation> Joined::rotation_from(size_t product) const {
  const size_t rope = product + 1, copy_k = rope + 1, copy_v = copy_k + 1, attention = copy_v + 1;
  if (!is(rope, Op::kRope) || !is(copy_k, Op::kCopy) || !is(copy_v, Op::kCopy) ||
      !is(attention, Op::kAttention))
    return {};
  const StepArgs &p = args(product), &r = args(rope), &k = args(copy_k), &v = args(copy_v);
  const AttentionAttr& a = attr<AttentionAttr>(*args(attention).step);
  const int64_t e = a.head_dim, q_width = a.heads * e, kv_width = a.kv_heads * e;
  const ValueId y = p.step->outputs[0].value, rotated = r.step->outputs[0].value;
  if (plan_.is_view(y) || plan_.is_view(rotated) || p.accumulates(0) || r.accumulates(0) ||
      attr<LinearAttr>(*p.step).scale != 1.0f || attr<RopeAttr>(*r.step).head_dim != e ||
      p.out[0].cols != q_width + 2 * kv_width)
    return {};
  // Nobody but these reads the product and what is rotated of it.
  if (reads(y) != 2 || !is_columns(r.step->inputs[0], y, 0, q_width + kv_width) ||
      !is_columns(v.step->inputs[0], y, q_width + kv_width, kv_width) || reads(rotated) != 2 ||
      !is_columns(k.step->inputs[0], rotated, q_width, kv_width) ||
      !is_columns(args(attention).step->inputs[0], rotated, 0, q_width) ||
      k.step->inputs[1] != v.step->inputs[1])
    return {};
  return MatvecRotation{.q = args(attention).in[0],
                        .table = r.in[1],
                        .positions = r.in[2],
                        .cache_k = k.out[0],
                        .cache_v = v.out[0],
                        .cache_rows = k.in[1],
                        .heads = a.heads,
                        .kv_heads = a.kv_heads,
                        .head_dim = e,
                        .ahead = keeps_cache(rope)};
}

std::optional<Mlp> Joined::mlp_from(const MatvecIn& in, size_t product) const {
  const size_t gate = product + 1, down = gate + 1;
  if (!mlp_parts_ || !is(product, Op::kLinear) || !is(gate, Op::kGatedAct) || !may_part(down))
    return {};
  const StepArgs &p = args(product), &d = args(down);
  const ValueId y = p.step->outputs[0].value;
  if (args(gate).step->inputs[0] != y || plan_.is_view(y) || reads(y) != 1 || p.accumulates(0) ||
      attr<LinearAttr>(*p.step).scale != 1.0f ||
      d.step->inputs[0] != args(gate).step->outputs[0].value)
    return {};
  return Mlp{.in = in,
             .gate_up = p.in[1],
             .gate_up_bias = p.in[2],
             .down = d.in[1],
             .down_bias = d.in[2],
             .act = attr<GatedActAttr>(*args(gate).step).act,
             .parts = reinterpret_cast<float*>(mlp_parts_->address())};
}

bool Joined::enqueue_mlp(const Queue& queue, const MatvecIn& in, size_t product) {
  if (in.part_count == 0) return false;  // no attend before it
  const std::optional<Mlp> step = mlp_from(in, product);
  if (!step || !mlp(queue, *step)) return false;
  parted_ = {args(product + 2).step->outputs[0].value, step->parts,
             static_cast<int>(mlp_parts(step->down.cols))};
  return true;
}

bool Joined::keeps_cache(size_t rope) const {
  const size_t copy_k = rope + 1, copy_v = copy_k + 1, attention = copy_v + 1;
  const Step &r = *args(rope).step, &k = *args(copy_k).step, &v = *args(copy_v).step,
             &a = *args(attention).step;
  if (a.inputs[1] != k.outputs[0].value || a.inputs[2] != v.outputs[0].value ||
      first_write(k.outputs[0].value) != copy_k || first_write(v.outputs[0].value) != copy_v)
    return false;
  for (ValueId fed : {r.inputs[1], r.inputs[2], k.inputs[1], a.inputs[3], a.inputs[4]})
    if (first_write(fed) < attention) return false;
  return true;
}

bool Joined::enqueue_attended(const Queue& queue, const MatvecIn& in, size_t product,
                              const MatvecRotation& rotation) {
  const size_t attention = product + 4, out = attention + 1;
  if (!attend_parts_ || !may_part(out)) return false;
  // The two launches gain as a pair: either alone waits for the others' shared memory.
  MatvecIn next = in;
  next.normed = {};
  const std::optional<Mlp> behind = mlp_from(next, out + 2);
  if (!behind || args(out + 2).step->inputs[0] != args(out + 1).step->outputs[1].value ||
      reads(args(out + 2).step->inputs[0]) != 1 || !mlp(queue, *behind, false))
    return false;
  const StepArgs &a = args(attention), &o = args(out);
  const AttentionAttr& how = attr<AttentionAttr>(*a.step);
  if (how.causal_self || (a.out.size() > 1 && a.out[1]) ||
      o.step->inputs[0] != a.step->outputs[0].value)
    return false;
  if (!rotation.ahead) return false;
  const Attend step{.in = in,
                    .qkv = args(product).in[1],
                    .qkv_bias = args(product).in[2],
                    .out = o.in[1],
                    .out_bias = o.in[2],
                    .rotation = rotation,
                    .begin = a.in[3],
                    .end = a.in[4],
                    .window = how.window,
                    .scale = how.scale,
                    .parts = reinterpret_cast<float*>(attend_parts_->address())};
  if (!attend(queue, step)) return false;
  parted_ = {o.step->outputs[0].value, step.parts, static_cast<int>(how.kv_heads)};
  return true;
}

}  // namespace wick::cuda
