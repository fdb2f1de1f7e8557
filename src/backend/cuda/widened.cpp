// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/widened.h"

#include "backend/cuda/matvec.h"
#include "backend/cuda/product.h"
#include "backend/cuda/skinny.h"
#include "backend/cuda/widen.h"
#include "base/check.h"
#include "plan/widened.h"

namespace wick::cuda {
namespace {

// Of a reverse pass (reverse.h).
bool goes_before(const Step& step) {
  return step.op == Op::kGatedAct || (step.op == Op::kLinear && step.dir == Dir::kBackward);
}

}  // namespace

Widened::Widened(const Plan& plan, std::span<const FlatProgram::Call> calls, const Queue& queue)
    : plan_(plan),
      calls_(calls.begin(), calls.end()),
      queue_(queue),
      late_(queue),
      matrices_(calls.size()) {
  late_.early = false;
  for (size_t i = 0; i < calls.size(); ++i) {
    StepArgs& args = calls_[i].args;
    if (quantized_matrix(plan, *args.step) == kNone) continue;
    const size_t at = args.step->dir == Dir::kForward ? 1 : 2;
    const Operand &x = args.in[0], &w = args.in[at];
    if (x.dtype != DType::kBF16 || x.rows <= kMatvecMmaRows || w.elements() == 0) continue;
    const Operand made{
        .data = args.scratch, .rows = w.rows, .cols = w.cols, .ld = w.cols, .dtype = DType::kBF16};
    const int32_t before = widened_from(plan, i);
    matrices_[i] =
        Matrix{w, made, before >= 0 && matrices_[static_cast<size_t>(before)].has_value()};
    args.scratch = static_cast<std::byte*>(args.scratch) + widened_bytes(x, w);
    inputs_.emplace_back(args.in.begin(), args.in.end())[at] = made;
    args.in = inputs_.back();
    args.queue = &late_;
  }
}

const Queue& Widened::prepare(size_t first) {
  if (first == 0) made_ = 0;
  for (size_t i = made_; i < first; ++i)
    WICK_CHECK(!matrices_[i], "a product without its matrix: step ", i);
  size_t at = first;
  while (at < first + kBeforeProduct && at + 1 < matrices_.size() && !matrices_[at] &&
         goes_before(plan_.steps[at]))
    ++at;
  if (!matrices_[at] || (at > first && plan_.steps[at].dir == Dir::kForward)) return queue_;
  make(at);
  return late_;
}

void Widened::make(size_t step) {
  if (!matrices_[step] || step < made_) return;
  flush(late_);
  const Matrix& m = *matrices_[step];
  widen(queue_, m.from, m.to, m.free);
  made_ = step + 1;
}

}  // namespace wick::cuda
