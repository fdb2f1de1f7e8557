// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/joined.h"

#include <algorithm>

#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

// How far weights are asked for ahead of the products that read them: what memory gives in the time
// of a few launches, and less than half of an H200's second-level cache.
constexpr int64_t kAheadBytes = int64_t{16} << 20;

bool is_few(const StepArgs& args) {
  return args.in[0].dtype == DType::kBF16 && args.in[0].rows <= kMatvecMmaRows;
}

int64_t matrix_bytes(const Operand& w) {
  const auto row = static_cast<int64_t>(dtype_is_quantized(w.dtype)
                                            ? device_row_bytes(w.dtype, w.cols)
                                            : static_cast<size_t>(w.ld) * dtype_bytes(w.dtype));
  return w.rows * row / 16 * 16;
}

}  // namespace

Joined::Joined(const Plan& plan, std::span<const FlatProgram::Call> calls)
    : plan_(plan), calls_(calls), reads_(plan.values.size(), 0), ahead_(calls.size()) {
  for (const Step& step : plan.steps)
    for (ValueId in : step.inputs)
      if (in != kNone) ++reads_[static_cast<size_t>(plan.root(in))];
  for (ValueId id : plan.results) ++reads_[static_cast<size_t>(plan.root(id))];
  look_ahead();
}

bool Joined::is(size_t step, Op op) const {
  return step < calls_.size() && args(step).step->op == op && args(step).step->dir == Dir::kForward;
}

bool Joined::is_columns(ValueId v, ValueId of, int64_t begin, int64_t count) const {
  const Value &view = plan_.value(v), &root = plan_.value(of);
  return view.root == of && view.offset == begin && view.ld == root.ld &&
         view.shape.cols() == count && view.shape.rows() == root.shape.rows();
}

void Joined::look_ahead() {
  struct Matrix {
    size_t step;
    const std::byte* data;
    int64_t begin, end;  // among all of them, one after the other
  };
  std::vector<Matrix> all;
  int64_t total = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (!is(i, Op::kLinear) || !is_few(args(i))) continue;
    if (plan_.value(args(i).step->inputs[1]).kind != Kind::kWeight) continue;
    const Operand& w = args(i).in[1];
    const int64_t bytes = matrix_bytes(w);
    all.push_back({i, w.as<const std::byte>(), total, total + bytes});
    total += bytes;
  }
  int64_t asked = all.empty() ? 0 : all[0].end;
  for (const Matrix& now : all) {
    asked = std::max(asked, now.end);
    const int64_t until = now.end + kAheadBytes;
    int count = 0;
    for (const Matrix& next : all) {
      const int64_t begin = std::max(asked, next.begin), end = std::min(until, next.end);
      if (begin >= end || count == WeightsAhead::kMost) continue;
      ahead_[now.step].at[count++] = {next.data + (begin - next.begin), end - begin};
      asked = end;
    }
  }
}

const WeightsAhead* Joined::ahead(size_t step) const {
  return ahead_[step].at[0].bytes > 0 ? &ahead_[step] : nullptr;
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
  Queue to = queue;
  to.ahead = ahead(product);
  if (size_t more = enqueue_rotated(to, in, product)) return 1 + more;
  if (size_t more = enqueue_gated(to, in, product)) return 1 + more;
  const StepArgs& p = args(product);
  const float scale = attr<LinearAttr>(*p.step).scale;
  return matvec_mma(to, in, scale, p.accumulates(0), p.in[1], p.in[2], p.out[0]) ? 2 : 0;
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
