// SPDX-License-Identifier: Apache-2.0
// Which steps must wait for which: through values, and through bytes of the arena that placement
// gave to two of them one after the other.
#include "plan/plan.h"

namespace wick {

namespace {

struct Access {
  ValueId value = kNone;       // kNone: scratch
  int64_t begin = 0, end = 0;  // bytes of the arena; none for what lies elsewhere
  bool writes = false;
};

bool conflict(const Plan& plan, const Access& a, const Access& b) {
  if (!a.writes && !b.writes) return false;
  if (a.value != kNone && b.value != kNone && plan.root(a.value) == plan.root(b.value))
    return overlap(plan, a.value, b.value);
  return a.begin < b.end && b.begin < a.end;
}

bool conflict(const Plan& plan, const std::vector<Access>& a, const std::vector<Access>& b) {
  for (const Access& x : a)
    for (const Access& y : b)
      if (conflict(plan, x, y)) return true;
  return false;
}

}  // namespace

std::vector<std::vector<int32_t>> step_dependencies(const Plan& plan,
                                                    size_t (*element_bytes)(DType),
                                                    const std::vector<size_t>& scratch,
                                                    const Placement& placement) {
  const size_t count = plan.steps.size();
  std::vector<std::vector<Access>> accesses(count);
  for (size_t i = 0; i < count; ++i) {
    auto add = [&](ValueId id, bool writes) {
      if (id == kNone) return;
      const Value& root = plan.value(plan.root(id));
      const int64_t at = placement.offset[static_cast<size_t>(plan.root(id))];
      const int64_t bytes = root.shape.elements() * static_cast<int64_t>(element_bytes(root.dtype));
      accesses[i].push_back({id, at < 0 ? 0 : at, at < 0 ? 0 : at + bytes, writes});
    };
    for (ValueId id : plan.steps[i].inputs) add(id, false);
    for (const Output& out : plan.steps[i].outputs) add(out.value, true);
    if (i < scratch.size() && scratch[i] > 0) {
      const int64_t at = placement.scratch_offset[i];
      accesses[i].push_back({kNone, at, at + static_cast<int64_t>(scratch[i]), true});
    }
  }
  std::vector<std::vector<int32_t>> needs(count);
  std::vector<std::vector<bool>> before(count);  // every step that must be done before this one
  for (size_t i = 0; i < count; ++i) {
    before[i].resize(i);
    // From the latest on: what a chosen step already waits for needs no edge of its own.
    for (size_t j = i; j-- > 0;) {
      if (before[i][j] || !conflict(plan, accesses[i], accesses[j])) continue;
      needs[i].push_back(static_cast<int32_t>(j));
      before[i][j] = true;
      for (size_t k = 0; k < j; ++k)
        if (before[j][k]) before[i][k] = true;
    }
  }
  return needs;
}

}  // namespace wick
