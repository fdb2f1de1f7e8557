// SPDX-License-Identifier: Apache-2.0
// Live ranges to arena offsets: the largest first, each at the lowest offset where nothing that is
// alive at the same time lies. Within a few percent of the lower bound on transformer steps, and
// deterministic, so the peak is known before anything is allocated.
#include <algorithm>
#include <numeric>

#include "plan/added.h"
#include "plan/widened.h"

namespace wick {

namespace {

struct Item {
  int64_t bytes = 0;
  int32_t first = -1, last = -1;  // steps, inclusive
  int64_t offset = -1;
};

int64_t align(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

constexpr int64_t kNarrow = 64;
constexpr int64_t kFewRows = 16;

bool is_product(const Step& step) { return step.op == Op::kLinear && step.dir == Dir::kForward; }
bool is_gate(const Step& step) { return step.op == Op::kGatedAct && step.dir == Dir::kForward; }

bool is_gradient(const Step& step) { return step.op == Op::kLinear && step.dir == Dir::kBackward; }
bool is_narrow(const Plan& plan, ValueId id) {
  return id != kNone && plan.value(id).shape.cols() <= kNarrow;
}

// A device may make the small products of adapters on both sides of a gated_act in its kernel: h of
// the product after it; and in the reverse pass what comes of the gradient of that h, and the
// gradients of h of the product before it. These, which are small, live as long as it does; and so
// does what the product after it makes its gradient of, which it may be made with.
template <typename Touch>
void touch_around(const Plan& plan, size_t gate, const Touch& touch) {
  const Step& at = plan.steps[gate];
  const auto step = static_cast<int32_t>(gate);
  if (at.op != Op::kGatedAct) return;
  if (at.dir == Dir::kBackward)
    for (size_t j = gate; j > 0 && is_gradient(plan.steps[j - 1]); --j)
      if (j == gate || is_narrow(plan, plan.steps[j - 1].inputs[0]))
        touch(plan.steps[j - 1].inputs[0], step);
  const ValueId made = plan.root(at.outputs[0].value);
  for (size_t j = gate + 1; j < plan.steps.size(); ++j) {
    const Step& after = plan.steps[j];
    if (after.op != Op::kLinear || after.dir != at.dir || plan.root(after.inputs[0]) != made) break;
    if (is_narrow(plan, after.outputs[0].value)) touch(after.outputs[0].value, step);
  }
}

// A device may make a product's dx before what an adapter of it adds: its dh lives as long.
template <typename Touch>
void touch_adapted(const Plan& plan, size_t product, const Touch& touch) {
  if (product == 0 || !is_gradient(plan.steps[product]) || !is_gradient(plan.steps[product - 1]))
    return;
  const Step &at = plan.steps[product], &before = plan.steps[product - 1];
  if (at.outputs[0].value == before.outputs[0].value && is_narrow(plan, before.inputs[0]))
    touch(before.inputs[0], static_cast<int32_t>(product));
}

// A device may make a product after what its adapters make of its input, and add theirs in it, and
// make the gated_act of that, too: what any of them reads lasts until the last.
template <typename Touch>
void touch_added(const Plan& plan, size_t product, const Touch& touch) {
  size_t end = added_end(plan, product);
  if (end == product + 1) return;
  if (end < plan.steps.size() && is_gate(plan.steps[end])) ++end;
  const auto last = static_cast<int32_t>(end - 1);
  for (ValueId in : plan.steps[product].inputs) touch(in, last);
  for (size_t j = product + 1; j < end; ++j)
    if (adds_to(plan, plan.steps[j], plan.steps[product])) touch(plan.steps[j].inputs[0], last);
}

// Of few rows a device may make a norm in the product behind it, each part of that for itself, and
// with it the gated_act or the rope of the product: what is normed lasts until the last part.
template <typename Touch>
void touch_normed(const Plan& plan, size_t norm, const Touch& touch) {
  const Step& at = plan.steps[norm];
  const bool adds = at.op == Op::kAddRmsNorm;
  if ((!adds && at.op != Op::kRmsNorm) || at.dir != Dir::kForward ||
      plan.value(at.inputs[0]).shape.rows() > kFewRows)
    return;
  size_t last = norm + 1;
  if (last >= plan.steps.size() || !is_product(plan.steps[last]) ||
      plan.steps[last].inputs[0] != at.outputs[adds ? 1 : 0].value)
    return;
  if (last + 1 < plan.steps.size())
    if (const Step& after = plan.steps[last + 1];
        after.dir == Dir::kForward && (after.op == Op::kGatedAct || after.op == Op::kRope))
      ++last;
  touch(at.inputs[0], static_cast<int32_t>(last));
  if (adds) touch(at.inputs[1], static_cast<int32_t>(last));
}

// A device may bring a quantised matrix to floats in its step's scratch, some steps ahead
// (plan/widened.h), and read it there in a kernel that makes steps behind it, too.
void keep_matrix(const Plan& plan, size_t step, Item& scratch) {
  const ValueId w = quantized_matrix(plan, plan.steps[step]);
  if (w == kNone || scratch.bytes < 2 * plan.value(w).shape.elements()) return;
  if (const int32_t from = widened_from(plan, step); from >= 0)
    scratch.first = from;
  else if (plan.steps[step].dir == Dir::kBackward)
    scratch.first = static_cast<int32_t>(step - std::min(step, kBeforeProduct));
  auto goes_with = [&](const Step& s) {
    return s.op == Op::kGatedAct || s.op == Op::kRope || s.op == Op::kAttention ||
           (s.op == Op::kLinear && quantized_matrix(plan, s) == kNone);
  };
  size_t last = step;
  while (last + 1 < plan.steps.size() && goes_with(plan.steps[last + 1])) ++last;
  scratch.last = std::max(scratch.last, static_cast<int32_t>(last));
}

// One item per value (temp roots only), then one per step (scratch).
std::vector<Item> live_items(const Plan& plan, size_t (*element_bytes)(DType),
                             const std::vector<size_t>& scratch) {
  std::vector<Item> items(plan.values.size() + plan.steps.size());
  auto touch = [&](ValueId id, int32_t step) {
    if (id == kNone || plan.value(plan.root(id)).kind != Kind::kTemp) return;
    Item& item = items[static_cast<size_t>(plan.root(id))];
    item.first = item.first < 0 ? step : std::min(item.first, step);
    item.last = std::max(item.last, step);
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    for (ValueId in : plan.steps[i].inputs) touch(in, static_cast<int32_t>(i));
    for (const Output& out : plan.steps[i].outputs) touch(out.value, static_cast<int32_t>(i));
    // A device may make a product, what is added to it, and the gated_act of that in one kernel:
    // all that the first of them uses lasts until the last.
    if (is_gate(plan.steps[i]))
      for (size_t j = i; j > 0 && is_product(plan.steps[j - 1]); --j)
        for (ValueId in : plan.steps[j - 1].inputs) touch(in, static_cast<int32_t>(i));
    touch_around(plan, i, touch);
    touch_adapted(plan, i, touch);
    touch_added(plan, i, touch);
    touch_normed(plan, i, touch);
  }
  for (ValueId id : plan.results)
    items[static_cast<size_t>(plan.root(id))].last = static_cast<int32_t>(plan.steps.size());
  for (size_t id = 0; id < plan.values.size(); ++id) {
    const Value& v = plan.values[id];
    if (items[id].first >= 0)
      items[id].bytes = align(v.shape.elements() * static_cast<int64_t>(element_bytes(v.dtype)));
  }
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    Item& item = items[plan.values.size() + i];
    if (i < scratch.size() && scratch[i] > 0) {
      item.first = static_cast<int32_t>(i);
      size_t end = added_end(plan, i);
      if (is_product(plan.steps[i]) && end < plan.steps.size() && is_gate(plan.steps[end])) ++end;
      item.last = static_cast<int32_t>(end - 1);
      item.bytes = align(static_cast<int64_t>(scratch[i]));
      keep_matrix(plan, i, item);
    }
  }
  return items;
}

bool alive_together(const Item& a, const Item& b) { return a.first <= b.last && b.first <= a.last; }

}  // namespace

Placement place(const Plan& plan, size_t (*element_bytes)(DType),
                const std::vector<size_t>& scratch) {
  std::vector<Item> items = live_items(plan, element_bytes, scratch);
  std::vector<size_t> order;
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].bytes > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (items[a].bytes != items[b].bytes) return items[a].bytes > items[b].bytes;
    return items[a].last - items[a].first > items[b].last - items[b].first;
  });

  Placement placement;
  std::vector<const Item*> placed;  // by offset
  std::vector<const Item*> rivals;
  for (size_t i : order) {
    Item& item = items[i];
    rivals.clear();
    for (const Item* other : placed)
      if (alive_together(item, *other)) rivals.push_back(other);
    // The tightest gap between rivals that is large enough, else the end.
    int64_t best = -1, best_gap = 0, end = 0;
    for (const Item* rival : rivals) {
      int64_t gap = rival->offset - end;
      if (gap >= item.bytes && (best < 0 || gap < best_gap)) {
        best = end;
        best_gap = gap;
      }
      end = std::max(end, rival->offset + rival->bytes);
    }
    item.offset = best >= 0 ? best : end;
    placement.arena_bytes = std::max(placement.arena_bytes, item.offset + item.bytes);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), &item,
                         [](const Item* a, const Item* b) { return a->offset < b->offset; }),
        &item);
  }
  placement.offset.assign(plan.values.size(), -1);
  placement.scratch_offset.assign(plan.steps.size(), -1);
  for (size_t id = 0; id < plan.values.size(); ++id) placement.offset[id] = items[id].offset;
  for (size_t i = 0; i < plan.steps.size(); ++i)
    placement.scratch_offset[i] = items[plan.values.size() + i].offset;
  return placement;
}

void check_placement(const Plan& plan, size_t (*element_bytes)(DType),
                     const std::vector<size_t>& scratch, const Placement& placement) {
  std::vector<Item> items = live_items(plan, element_bytes, scratch);
  auto name = [&](size_t i) {
    return i < plan.values.size() ? plan.values[i].name
                                  : cat("scratch of step ", i - plan.values.size());
  };
  std::vector<size_t> used;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].bytes == 0) continue;
    items[i].offset = i < plan.values.size() ? placement.offset[i]
                                             : placement.scratch_offset[i - plan.values.size()];
    WICK_CHECK(items[i].offset >= 0 && items[i].offset % kArenaAlignment == 0 &&
                   items[i].offset + items[i].bytes <= placement.arena_bytes,
               name(i), " at ", items[i].offset);
    used.push_back(i);
  }
  for (size_t a = 0; a < used.size(); ++a)
    for (size_t b = a + 1; b < used.size(); ++b) {
      const Item &x = items[used[a]], &y = items[used[b]];
      if (!alive_together(x, y)) continue;
      WICK_CHECK(x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset, name(used[a]),
                 " and ", name(used[b]), " are alive together and share bytes");
    }
}

}  // namespace wick
