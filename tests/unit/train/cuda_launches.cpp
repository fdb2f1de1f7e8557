// SPDX-License-Identifier: Apache-2.0
#include "unit/train/cuda_launches.h"

#include <algorithm>

#include "base/check.h"
#include "plan/widened.h"

namespace wick {
namespace {

class Decomposer {
 public:
  Decomposer(const Plan& plan, StepGroup group)
      : plan_(plan), first_(group.first), behind_(group.second) {}

  std::vector<Launch> run() {
    const Op op = step(first_).op;
    if (behind_ == first_ + 1) return {all_of(first_, behind_, true)};
    if (op == Op::kRmsNorm || op == Op::kAddRmsNorm) return joined();
    if (const size_t gate = find(Op::kGatedAct, Dir::kBackward); gate < behind_)
      return behind_ > gate + 1 ? gated_reverse(gate) : std::vector{within(small(first_, behind_))};
    if (const size_t attention = find(Op::kAttention, Dir::kBackward); attention < behind_)
      return attention_reverse(attention);
    if (step(first_).dir == Dir::kBackward) return reverse_sums();
    const size_t gate = find(Op::kGatedAct, Dir::kForward);
    if (gate == behind_) return {small(first_, behind_)};
    return gated_forward(gate);
  }

 private:
  const Step& step(size_t i) const { return plan_.steps[i]; }
  size_t find(Op op, Dir dir) const {
    size_t i = first_;
    while (i < behind_ && (step(i).op != op || step(i).dir != dir)) ++i;
    return i;
  }
  void add_step(Launch& to, size_t i) const {
    to.reads.insert(to.reads.end(), step(i).inputs.begin(), step(i).inputs.end());
    for (const Output& out : step(i).outputs) to.writes.push_back(out.value);
  }
  Launch all_of(size_t first, size_t behind, bool scratch) const {
    Launch all;
    for (size_t i = first; i < behind; ++i) {
      add_step(all, i);
      if (scratch) all.scratch.push_back(i);
    }
    return all;
  }
  // One kernel of ours, which needs no scratch but that of its matrix.
  Launch small(size_t first, size_t behind) const {
    Launch one = all_of(first, behind, false);
    for (size_t i = first; i < behind; ++i)
      if (matrix_bytes(plan_, i) > 0) one.matrices.push_back(i);
    return one;
  }
  // What only these steps know of is in no memory.
  Launch within(Launch all) const {
    auto is_inner = [&](ValueId v) {
      if (v == kNone) return false;
      const ValueId root = plan_.root(v);
      auto uses = [&](ValueId used) { return used != kNone && plan_.root(used) == root; };
      if (std::any_of(plan_.results.begin(), plan_.results.end(), uses)) return false;
      bool made = false;
      for (size_t i = 0; i < plan_.steps.size(); ++i) {
        const Step& s = step(i);
        const bool writes = std::any_of(s.outputs.begin(), s.outputs.end(),
                                        [&](const Output& o) { return uses(o.value); });
        const bool touches = writes || std::any_of(s.inputs.begin(), s.inputs.end(), uses);
        if (touches && (i < first_ || i >= behind_)) return false;
        made |= writes;
      }
      return made;
    };
    std::erase_if(all.reads, is_inner);
    std::erase_if(all.writes, is_inner);
    return all;
  }

  // Of cuda/joined.h. A second product leaves its result in parts, which who comes next adds.
  std::vector<Launch> joined() const {
    Launch all = within(all_of(first_, behind_, false));
    const Step& last = step(behind_ - 1);
    if (behind_ < first_ + 4 || last.op != Op::kLinear) return {all};
    const ValueId parted = last.outputs[0].value;
    std::erase(all.writes, parted);
    return {all, {.writes = {parted}}};
  }

  // Of cuda/reverse.h: adapters of one product, in the last one's scratch; or a product's dx with
  // an adapter's, whose dA comes before.
  std::vector<Launch> reverse_sums() const {
    const bool adapted = step(behind_ - 1).outputs[1].value == kNone;
    if (!adapted) {
      Launch sums = all_of(first_, behind_, false);
      sums.scratch = {behind_ - 1};
      return {sums};
    }
    WICK_CHECK(behind_ == first_ + 2, "steps that are not known to be made together");
    std::vector<Launch> launches;
    const Step &narrow = step(first_), &product = step(behind_ - 1);
    if (narrow.outputs[1].value != kNone)
      launches.push_back({.reads = {narrow.inputs[0], narrow.inputs[1]},
                          .writes = {narrow.outputs[1].value},
                          .scratch = {first_}});
    launches.push_back(
        {.reads = {narrow.inputs[0], narrow.inputs[2], product.inputs[0], product.inputs[2]},
         .writes = {product.outputs[0].value},
         .scratch = {behind_ - 1}});
    return launches;
  }

  std::vector<Launch> attention_reverse(size_t attention) const {
    std::vector<Launch> launches;
    if (attention > first_) {
      Launch product = small(first_, attention);
      product.scratch.push_back(attention);
      for (size_t i : {size_t{4}, size_t{5}, size_t{6}})
        product.reads.push_back(step(attention).inputs[i]);
      launches.push_back(product);
    }
    Launch turned = within(all_of(attention, behind_, false));
    turned.scratch = {attention};
    launches.push_back(turned);
    return launches;
  }

  // Of cuda/gated_sums.h.
  std::vector<Launch> gated_forward(size_t gate) const {
    const ValueId y = step(first_).outputs[0].value, made = step(gate).outputs[0].value;
    Launch act = all_of(first_, gate + 1, false);
    act.scratch = {first_, gate};
    if (behind_ == gate + 1) return {act};
    WICK_CHECK(behind_ == gate + 3, "steps that are not known to be made together");
    Launch h, product = all_of(first_, first_ + 1, true);
    for (size_t i = first_ + 1; i < gate; ++i)
      if (plan_.root(step(i).outputs[0].value) != plan_.root(y)) add_step(h, i);
    act.scratch = {gate};
    std::erase(act.reads, step(first_).inputs[0]);
    std::erase(act.reads, step(first_).inputs[1]);
    Launch more{.reads = {made}, .writes = {step(gate + 2).outputs[0].value}, .scratch = {gate}};
    return {h, product, act, more, all_of(gate + 1, gate + 2, true)};
  }
  std::vector<Launch> gated_reverse(size_t gate) const {
    const size_t narrow = gate - 2, product = gate - 1;
    const Launch dmade{.reads = {step(product).inputs[0], step(product).inputs[2]},
                       .writes = {step(product).outputs[0].value},
                       .scratch = {product}};
    Launch act{
        .reads = step(gate).inputs, .writes = {step(gate).outputs[0].value}, .scratch = {gate}};
    Launch sums{.writes = {step(narrow).outputs[1].value}, .scratch = {gate}};
    act.reads.insert(act.reads.end(), {step(narrow).inputs[0], step(narrow).inputs[2]});
    for (size_t i = gate + 1; i < behind_; ++i) {
      act.reads.insert(act.reads.end(), {step(i).inputs[1], step(i).inputs[2]});
      for (const Output& out : step(i).outputs) sums.writes.push_back(out.value);
    }
    return {dmade, act, sums};
  }

  const Plan& plan_;
  size_t first_, behind_;
};

}  // namespace

std::vector<StepGroup> groups_of(Program& program) {
  std::vector<StepGroup> groups;
  const std::vector<double> seconds = program.run_timed();
  for (size_t i = 0; i < seconds.size(); ++i)
    if (seconds[i] > 0)
      groups.emplace_back(i, i + 1);
    else
      ++groups.back().second;
  return groups;
}

std::string name_of(const Plan& plan, StepGroup group) {
  std::string name;
  for (size_t i = group.first; i < group.second; ++i)
    name += cat(name.empty() ? "" : " ", op_name(plan.steps[i].op),
                plan.steps[i].dir == Dir::kBackward ? "'" : "");
  return name;
}

std::vector<Launch> launches_of(const Plan& plan, StepGroup group) {
  return Decomposer(plan, group).run();
}

size_t matrix_bytes(const Plan& plan, size_t step) {
  const Step& s = plan.steps[step];
  const ValueId w = quantized_matrix(plan, s);
  constexpr int64_t kFewRows = 16;  // read the codes themselves
  if (w == kNone || plan.value(s.inputs[0]).dtype != DType::kBF16 ||
      plan.value(s.inputs[0]).shape.rows() <= kFewRows)
    return 0;
  return static_cast<size_t>(plan.value(w).shape.elements()) * dtype_bytes(DType::kBF16);
}

}  // namespace wick
