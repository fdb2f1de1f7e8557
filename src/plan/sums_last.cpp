// SPDX-License-Identifier: Apache-2.0
#include "plan/sums_last.h"

#include <algorithm>
#include <limits>

namespace wick {
namespace {

constexpr int64_t kNarrow = 64;
// Of more columns the gradient that is summed would have to live too long.
constexpr int64_t kFewColumns = 2048;
// More tokens whose narrowest x has as many elements keep a device busy by themselves, and are
// better summed together with what else reads them (decisions/033).
constexpr int64_t kFewTokens = 1024, kManyElements = int64_t{1} << 22;

bool writes(const Plan& plan, const Step& step, ValueId root) {
  return std::any_of(step.outputs.begin(), step.outputs.end(), [&](const Output& out) {
    return out.value != kNone && plan.root(out.value) == root;
  });
}

bool has_narrow_rows(const Shape& dw) { return dw.rows() <= kNarrow && dw.rows() < dw.cols(); }

// One answer for all sums of a pass, so that what is made together stays together.
bool are_few(const Plan& plan, size_t first) {
  int64_t tokens = 0, columns = std::numeric_limits<int64_t>::max();
  for (size_t i = first; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.op != Op::kLinear || step.dir != Dir::kBackward || step.outputs[1].value == kNone)
      continue;
    const Shape &dw = plan.value(step.outputs[1].value).shape,
                &x = plan.value(step.inputs[1]).shape;
    tokens = std::max(tokens, x.rows());
    if (has_narrow_rows(dw)) columns = std::min(columns, dw.cols());
  }
  return tokens <= kFewTokens || (tokens <= kLateTokens && columns < kManyElements / tokens);
}

// Whether step `at`, of a reverse pass that begins at `first`, makes such a sum.
bool can_wait(const Plan& plan, size_t first, size_t at) {
  const Step& step = plan.steps[at];
  if (step.op != Op::kLinear || step.dir != Dir::kBackward || step.inputs[1] == kNone ||
      step.outputs[1].value == kNone || step.outputs[2].value != kNone ||
      step.outputs[1].mode != OutMode::kAccumulate)
    return false;
  const Shape& dw = plan.value(step.outputs[1].value).shape;
  const bool b = dw.cols() <= kNarrow && dw.cols() < dw.rows() && dw.rows() <= kFewColumns;
  if (!has_narrow_rows(dw) && !b) return false;
  const ValueId dy = plan.root(step.inputs[0]), x = plan.root(step.inputs[1]);
  for (size_t i = first; i < plan.steps.size(); ++i)
    if (writes(plan, plan.steps[i], x) || (i > at && writes(plan, plan.steps[i], dy))) return false;
  return true;
}

}  // namespace

int sums_last(Plan& plan) {
  const auto begin = std::find_if(plan.steps.begin(), plan.steps.end(),
                                  [](const Step& step) { return step.dir == Dir::kBackward; });
  const auto first = static_cast<size_t>(begin - plan.steps.begin());
  if (!are_few(plan, first)) return 0;
  std::vector<Step> kept(plan.steps.begin(), begin), sums;
  for (size_t i = first; i < plan.steps.size(); ++i) {
    Step step = plan.steps[i];
    if (can_wait(plan, first, i)) {
      sums.push_back(step);
      sums.back().outputs[0] = {};
      sums.back().inputs[2] = kNone;
      if (step.outputs[0].value == kNone) continue;
      step.outputs[1] = {};
      step.inputs[1] = kNone;
    }
    kept.push_back(std::move(step));
  }
  // Those of one narrow side beside each other.
  auto narrow = [&](const Step& step) {
    const Shape& dw = plan.value(step.outputs[1].value).shape;
    return std::min(dw.rows(), dw.cols());
  };
  std::stable_sort(sums.begin(), sums.end(),
                   [&](const Step& a, const Step& b) { return narrow(a) < narrow(b); });
  kept.insert(kept.end(), sums.begin(), sums.end());
  plan.steps = std::move(kept);
  return static_cast<int>(sums.size());
}

}  // namespace wick
