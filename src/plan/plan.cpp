// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.h"

#include <algorithm>

namespace wick {

const char* op_name(Op op) {
  switch (op) {
    case Op::kEmbed:
      return "embed";
    case Op::kLinear:
      return "linear";
    case Op::kRmsNorm:
      return "rms_norm";
    case Op::kAddRmsNorm:
      return "add_rms_norm";
    case Op::kLayerNorm:
      return "layer_norm";
    case Op::kSoftmax:
      return "softmax";
    case Op::kRope:
      return "rope";
    case Op::kAttention:
      return "attention";
    case Op::kGatedAct:
      return "gated_act";
    case Op::kAdd:
      return "add";
    case Op::kScale:
      return "scale";
    case Op::kBias:
      return "bias";
    case Op::kDropout:
      return "dropout";
    case Op::kGatherRows:
      return "gather_rows";
    case Op::kHead:
      return "head";
    case Op::kSegmentSum:
      return "segment_sum";
    case Op::kColumnScale:
      return "column_scale";
    case Op::kPreferenceLoss:
      return "preference_loss";
    case Op::kKlHead:
      return "kl_head";
    case Op::kColumnNorm:
      return "column_norm";
    case Op::kGradNorm:
      return "grad_norm";
    case Op::kAdamw:
      return "adamw";
    case Op::kSgd:
      return "sgd";
    case Op::kLion:
      return "lion";
    case Op::kMuon:
      return "muon";
    case Op::kAdafactor:
      return "adafactor";
    case Op::kAdamw8:
      return "adamw8";
    case Op::kSample:
      return "sample";
    case Op::kCopy:
      return "copy";
  }
  return "?";
}

bool op_is_differentiable(Op op) { return op < Op::kColumnNorm || op > Op::kCopy; }

namespace {

// A view as a rectangle. Contiguous views (flat ranges, whole rows) are stretches of one line.
struct Extent {
  int64_t row, rows, col, cols;
};

bool contiguous(const Value& v) { return v.ld == v.shape.cols() || v.shape.rows() <= 1; }

Extent stretch(const Value& v) { return {0, 1, v.offset, v.shape.elements()}; }

Extent rectangle(const Value& v, int64_t ld) {
  return {v.offset / ld, v.shape.rows(), v.offset % ld, v.shape.cols()};
}

// Both as stretches when they can be, else both as rectangles of the leading dimension that the
// view with gaps has.
std::pair<Extent, Extent> extents(const Value& a, const Value& b) {
  if (contiguous(a) && contiguous(b)) return {stretch(a), stretch(b)};
  int64_t ld = contiguous(a) ? b.ld : a.ld;
  auto as_rectangle = [&](const Value& v) {
    if (v.ld == ld) return rectangle(v, ld);
    // A stretch inside a rectangle's root: the rows it touches, all columns when it crosses rows.
    int64_t first = v.offset / ld, last = (v.offset + v.shape.elements() - 1) / ld;
    if (first == last) return Extent{first, 1, v.offset % ld, v.shape.elements()};
    return Extent{first, last - first + 1, 0, ld};
  };
  return {as_rectangle(a), as_rectangle(b)};
}

}  // namespace

bool overlap(const Plan& plan, ValueId ia, ValueId ib) {
  if (plan.root(ia) != plan.root(ib)) return false;
  auto [a, b] = extents(plan.value(ia), plan.value(ib));
  return a.row < b.row + b.rows && b.row < a.row + a.rows && a.col < b.col + b.cols &&
         b.col < a.col + a.cols;
}

bool covers(const Plan& plan, ValueId outer, ValueId inner) {
  if (plan.root(outer) != plan.root(inner)) return false;
  if (!plan.is_view(outer)) return true;
  auto [a, b] = extents(plan.value(outer), plan.value(inner));
  return a.row <= b.row && b.row + b.rows <= a.row + a.rows && a.col <= b.col &&
         b.col + b.cols <= a.col + a.cols;
}

void remove_dead_steps(Plan& plan) {
  std::vector<char> live(plan.values.size(), 0);
  for (ValueId id : plan.results) live[static_cast<size_t>(plan.root(id))] = 1;
  std::vector<char> keep(plan.steps.size(), 0);
  for (size_t i = plan.steps.size(); i-- > 0;) {
    const Step& step = plan.steps[i];
    bool needed = false;
    for (const Output& out : step.outputs) {
      if (out.value == kNone) continue;
      ValueId root = plan.root(out.value);
      needed |= plan.value(root).kind != Kind::kTemp || live[static_cast<size_t>(root)];
    }
    if (!needed) continue;
    keep[i] = 1;
    for (ValueId in : step.inputs)
      if (in != kNone) live[static_cast<size_t>(plan.root(in))] = 1;
  }
  std::vector<int32_t> moved(plan.steps.size() + 1, 0);
  std::vector<Step> kept;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    moved[i] = static_cast<int32_t>(kept.size());
    if (keep[i]) kept.push_back(std::move(plan.steps[i]));
  }
  moved[plan.steps.size()] = static_cast<int32_t>(kept.size());
  for (Block& block : plan.blocks) {
    block.begin = moved[static_cast<size_t>(block.begin)];
    block.end = moved[static_cast<size_t>(block.end)];
  }
  plan.steps = std::move(kept);
}

}  // namespace wick
