// SPDX-License-Identifier: Apache-2.0
// The whole autodiff: one reverse rule per op, in one switch without a default. A rule names what
// its backward step reads and which gradients it makes; Reverser keeps the books: who needs a
// gradient, where it lies, and whether a step writes it first or adds to it.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "plan/recorder.h"
#include "plan/sums_last.h"

namespace wick {

namespace {

class Reverser {
 public:
  Reverser(Recorder& recorder, ValueId params, ValueId grads)
      : r_(recorder), plan_(recorder.plan()), params_(params), grads_(grads) {}

  void run(ValueId loss) {
    const size_t forward_steps = plan_.steps.size();
    find_needs(forward_steps);
    for (size_t i = 0; i < forward_steps; ++i)
      if (plan_.steps[i].op == Op::kGatedAct) gates_[plan_.steps[i].outputs[0].value] = i;
    WICK_CHECK(needs(loss), "the loss does not depend on a parameter");
    bool is_sum = false;
    for (const Step& step : plan_.steps)
      is_sum |= step.op == Op::kSegmentSum && step.outputs[0].value == loss;
    WICK_CHECK(is_sum, "the loss must be a segment_sum");
    loss_ = loss;
    for (size_t i = forward_steps; i-- > 0;) {
      enter_block(static_cast<int32_t>(i));
      // A copy: appending steps moves the vector.
      Step step = plan_.steps[i];
      if (!needs_any(step)) continue;
      reverse(step);
      add_pending();
    }
  }

 private:
  // The gradient of one root: which temp holds it and which parts have been written.
  struct Slot {
    ValueId grad = kNone;
    std::vector<ValueId> written;  // views of the forward root, disjoint
    bool shared = false;           // another root's gradient is the same temp
  };

  void find_needs(size_t steps) {
    for (size_t i = 0; i < steps; ++i) {
      const Step& step = plan_.steps[i];
      if (!op_is_differentiable(step.op) || !needs_any(step)) continue;
      for (const Output& out : step.outputs)
        if (out.value != kNone) needed_[plan_.root(out.value)].push_back(out.value);
    }
  }

  bool needs_any(const Step& step) const {
    for (ValueId in : step.inputs)
      if (needs(in)) return true;
    return false;
  }

  bool needs(ValueId v) const {
    if (v == kNone) return false;
    if (plan_.root(v) == params_) return true;
    auto found = needed_.find(plan_.root(v));
    if (found == needed_.end()) return false;
    for (ValueId part : found->second)
      if (overlap(plan_, part, v)) return true;
    return false;
  }

  // The same part of another root that `v` is of its own.
  ValueId same_part(ValueId v, ValueId other_root) {
    if (!plan_.is_view(v)) return other_root;
    auto [at, fresh] = parts_.try_emplace({v, other_root}, kNone);
    if (fresh) {
      Value made = plan_.value(v);
      const Value& of = plan_.value(other_root);
      made.name = cat("d:", made.name);
      made.dtype = of.dtype;
      made.kind = of.kind;
      made.root = other_root;
      plan_.values.push_back(std::move(made));
      at->second = static_cast<ValueId>(plan_.values.size() - 1);
    }
    return at->second;
  }

  bool is_written(const Slot& slot, ValueId v, bool& partly) const {
    int64_t covered = 0;
    partly = false;
    for (ValueId part : slot.written) {
      if (!overlap(plan_, part, v)) continue;
      partly = true;
      if (covers(plan_, part, v)) return true;
      if (covers(plan_, v, part)) covered += plan_.value(part).shape.elements();
    }
    return covered == plan_.value(v).shape.elements();
  }

  // The gradient of an output, complete since all its readers have been reversed; kNone if none of
  // them passed one on.
  ValueId gradient(ValueId v) {
    if (v == kNone) return kNone;
    auto found = slots_.find(plan_.root(v));
    if (found == slots_.end()) return kNone;
    bool partly;
    if (is_written(found->second, v, partly)) return same_part(v, found->second.grad);
    WICK_CHECK(!partly, "only a part of the gradient of ", plan_.value(v).name, " was made");
    return kNone;
  }

  // Where a backward step puts the gradient of its input `v`, and how; absent if nobody needs it.
  Output target(ValueId v) {
    if (!needs(v)) return {};
    if (plan_.root(v) == params_) return {same_part(v, grads_), OutMode::kAccumulate};
    ValueId root = plan_.root(v);
    Slot& slot = slots_[root];
    if (slot.grad == kNone) slot.grad = new_gradient(root);
    if (slot.shared) unshare(slot, root);
    bool partly;
    bool written = is_written(slot, v, partly);
    if (!written && partly) {
      clear_rest(v);
      written = true;
    }
    if (!written) slots_[root].written.push_back(v);
    return {same_part(v, slots_[root].grad), written ? OutMode::kAccumulate : OutMode::kWrite};
  }

  // Rows of the gradient of `v` that nobody has written become zero: of several adapters that share
  // a product only some have a pair for it.
  void clear_rest(ValueId v) {
    const Value of = plan_.value(v);
    const ValueId root = plan_.root(v);
    std::vector<char> covered(static_cast<size_t>(of.shape.rows()), 0);
    for (ValueId part : slots_[root].written) {
      if (!overlap(plan_, part, v)) continue;
      const Value& p = plan_.value(part);
      WICK_CHECK(covers(plan_, v, part) && p.shape.cols() == of.shape.cols(), "the gradient of ",
                 of.name, " is written in part");
      const int64_t first = (p.offset - of.offset) / of.ld;
      std::fill_n(covered.begin() + first, p.shape.rows(), 1);
    }
    const int64_t rows = of.shape.rows();
    for (int64_t begin = 0, end; begin < rows; begin = end) {
      end = begin + 1;
      while (end < rows && covered[static_cast<size_t>(end)] == covered[static_cast<size_t>(begin)])
        ++end;
      if (covered[static_cast<size_t>(begin)]) continue;
      const ValueId part = r_.rows(v, begin, end);
      r_.append({Op::kScale,
                 Dir::kBackward,
                 {saved(part)},
                 {{same_part(part, slots_[root].grad)}},
                 ScaleAttr{0.0f}});
      slots_[root].written.push_back(part);
    }
  }

  // The same for ops that can only write: where there is a gradient already, theirs goes into a
  // temp of its own and add_pending() adds it.
  Output written_target(ValueId v) {
    Output to = target(v);
    if (to.value == kNone || to.mode == OutMode::kWrite) return to;
    Value of = plan_.value(v);
    ValueId part = r_.temp(cat("d:", of.name, ".part"), of.shape, plan_.value(to.value).dtype);
    pending_.push_back({part, to});
    return {part, OutMode::kWrite};
  }

  void add_pending() {
    for (const auto& [part, to] : pending_)
      r_.append({Op::kScale, Dir::kBackward, {part}, {to}, ScaleAttr{1.0f}});
    pending_.clear();
  }

  // The gradient of `v` gets `dy` as it is: by sharing the temp where that is possible.
  void pass_on(ValueId v, ValueId dy) {
    if (!needs(v)) return;
    ValueId root = plan_.root(v);
    if (root != params_ && !plan_.is_view(v) && !plan_.is_view(dy) && !slots_.count(root)) {
      slots_[root] = {dy, {v}, true};
      return;
    }
    r_.append({Op::kScale, Dir::kBackward, {dy}, {target(v)}, ScaleAttr{1.0f}});
  }

  ValueId new_gradient(ValueId root) {
    Value of = plan_.value(root);
    return r_.temp(cat("d:", of.name), of.shape, of.dtype);
  }

  void unshare(Slot& slot, ValueId root) {
    ValueId own = new_gradient(root);
    r_.append({Op::kScale, Dir::kBackward, {slot.grad}, {{own}}, ScaleAttr{1.0f}});
    slot.grad = own;
    slot.shared = false;
  }

  // The forward value that a backward step reads: the recomputed one inside such a block.
  ValueId saved(ValueId v) {
    if (v == kNone) return kNone;
    auto found = recomputed_.find(plan_.root(v));
    return found == recomputed_.end() ? v : same_part(v, found->second);
  }

  // The same, but that a wide gated_act is made again from what its reverse needs in any case: the
  // products around it take a hundred times as long, and what it made is a sixth of all that is
  // kept.
  ValueId saved_or_again(ValueId v) {
    constexpr int64_t kWide = 16384;
    auto gate = gates_.find(v);
    if (gate == gates_.end() || recomputed_.count(v) || plan_.value(v).shape.cols() < kWide)
      return saved(v);
    Step step = plan_.steps[gate->second];
    const Value of = plan_.value(v);
    const ValueId made = r_.temp(cat(of.name, ".again"), of.shape, of.dtype);
    step.inputs[0] = saved(step.inputs[0]);
    step.outputs[0].value = made;
    r_.append(std::move(step));
    return recomputed_[v] = made;
  }

  // On entering a block from behind: its forward is recorded again, into new temps.
  void enter_block(int32_t i) {
    for (const Block& block : plan_.blocks) {
      if (i < block.begin || i >= block.end) continue;
      if (block.begin == current_block_) return;
      current_block_ = block.begin;
      recomputed_.clear();
      if (block.recompute) record_again(block.begin, block.end);
      return;
    }
    current_block_ = -1;
    recomputed_.clear();
  }

  void record_again(int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; ++i) {
      Step step = plan_.steps[static_cast<size_t>(i)];
      for (Output& out : step.outputs) {
        if (out.value == kNone) continue;
        ValueId root = plan_.root(out.value);
        if (plan_.value(root).kind == Kind::kTemp && !recomputed_.count(root)) {
          Value of = plan_.value(root);
          recomputed_[root] = r_.temp(cat(of.name, ".again"), of.shape, of.dtype);
        }
      }
      for (ValueId& in : step.inputs) in = saved(in);
      for (Output& out : step.outputs) out.value = saved(out.value);
      r_.append(std::move(step));
    }
  }

  void reverse(const Step& s);

  Recorder& r_;
  Plan& plan_;
  ValueId params_, grads_, loss_ = kNone;
  std::unordered_map<ValueId, std::vector<ValueId>> needed_;  // by root
  std::unordered_map<ValueId, Slot> slots_;                   // by root
  std::unordered_map<ValueId, ValueId> recomputed_;           // root to its second self
  std::unordered_map<ValueId, size_t> gates_;                 // what a gated_act makes to its step
  std::map<std::pair<ValueId, ValueId>, ValueId> parts_;
  std::vector<std::pair<ValueId, Output>> pending_;
  int32_t current_block_ = -1;
};

void Reverser::reverse(const Step& s) {
  auto in = [&](size_t i) { return i < s.inputs.size() ? s.inputs[i] : kNone; };
  auto out = [&](size_t i) { return s.outputs[i].value; };
  auto record = [&](std::vector<ValueId> inputs, std::vector<Output> outputs) {
    r_.append({s.op, Dir::kBackward, std::move(inputs), std::move(outputs), s.attr});
  };
  // The seed: a loss nobody reads has gradient 1, which segment_sum_bwd takes as an absent dy.
  const bool is_loss = s.op == Op::kSegmentSum && out(0) == loss_;
  const ValueId dy = gradient(s.op == Op::kAddRmsNorm ? out(1) : out(0));
  const ValueId dsum = s.op == Op::kAddRmsNorm ? gradient(out(0)) : kNone;
  if (dy == kNone && dsum == kNone && !is_loss) return;

  switch (s.op) {
    case Op::kEmbed:
      record({dy, in(1)}, {target(in(0))});
      return;
    case Op::kLinear: {
      Output dx = target(in(0)), dw = target(in(1)), dbias = target(in(2));
      const ValueId x = dw.value == kNone ? kNone : saved_or_again(in(0));
      record({dy, x, dx.value == kNone ? kNone : saved(in(1))}, {dx, dw, dbias});
      return;
    }
    case Op::kRmsNorm:
      record({dy, saved(in(0)), in(1), saved(out(1))}, {target(in(0)), target(in(1))});
      return;
    case Op::kAddRmsNorm: {
      ValueId d = dsum;
      if (dy != kNone) {
        Value of = plan_.value(out(0));
        d = r_.temp(cat("d:", of.name), of.shape, of.dtype);
        record({dy, dsum, saved(out(0)), in(2), saved(out(2))}, {{d}, target(in(2))});
      }
      pass_on(in(0), d);
      pass_on(in(1), d);
      return;
    }
    case Op::kLayerNorm:
      record({dy, saved(in(0)), in(1), saved(out(1))},
             {target(in(0)), target(in(1)), target(in(2))});
      return;
    case Op::kSoftmax:
      record({dy, saved(out(0))}, {target(in(0))});
      return;
    case Op::kRope:
      record({dy, in(1), in(2)}, {target(in(0))});
      return;
    case Op::kAttention: {
      WICK_CHECK(attr<AttentionAttr>(s).causal_self, "attention over a cache has no backward");
      Output dq = written_target(in(0)), dk = written_target(in(1)), dv = written_target(in(2));
      record({dy, saved(in(0)), saved(in(1)), saved(in(2)), saved(out(0)), saved(out(1)), in(3),
              in(4)},
             {dq, dk, dv});
      return;
    }
    case Op::kGatedAct:
      record({dy, saved(in(0))}, {written_target(in(0))});
      return;
    case Op::kAdd:
      pass_on(in(0), dy);
      pass_on(in(1), dy);
      return;
    case Op::kScale:
      record({dy}, {target(in(0))});
      return;
    case Op::kBias:
      if (needs(in(1))) record({dy}, {target(in(1))});
      pass_on(in(0), dy);
      return;
    case Op::kDropout:
      record({dy, in(1)}, {target(in(0))});
      return;
    case Op::kGatherRows:
      record({dy, in(1)}, {written_target(in(0))});
      return;
    case Op::kHead: {
      Output dx = written_target(in(0)), dw = target(in(1));
      std::vector<ValueId> reads = {dy, saved(in(0)), in(1), in(2), saved(out(1)), saved(out(2))};
      if (in(3) == kNone) {
        record(std::move(reads), {dx, dw});
        return;
      }
      reads.insert(reads.end(), {saved(in(3)), in(4), saved(out(3))});
      Output dh = written_target(in(3)), db = target(in(4));
      record(std::move(reads), {dx, dw, dh, db});
      return;
    }
    case Op::kSegmentSum:
      record({dy, in(1), in(2)}, {written_target(in(0))});
      return;
    case Op::kColumnScale:
      record({dy, saved(in(0)), in(1), in(2)}, {target(in(0)), target(in(1))});
      return;
    case Op::kPreferenceLoss:
      record({dy, saved(out(2))}, {written_target(in(0))});
      return;
    case Op::kKlHead: {
      Output dx = written_target(in(0)), dw = target(in(1));
      Output dh = written_target(in(5)), db = target(in(6));
      // Logits are made again for gradients of weights alone.
      const bool again = dw.value != kNone || db.value != kNone;
      auto kept = [&](ValueId v) { return again ? saved(v) : kNone; };
      record({dy, saved(out(1)), kept(in(0)), kept(in(1)), kept(in(2)), kept(in(3)), kept(in(4)),
              kept(out(2)), kept(in(5)), kept(in(6)), saved(out(3))},
             {dx, dw, dh, db});
      return;
    }
    case Op::kColumnNorm:
    case Op::kGradNorm:
    case Op::kAdamw:
    case Op::kSgd:
    case Op::kLion:
    case Op::kMuon:
    case Op::kAdafactor:
    case Op::kAdamw8:
    case Op::kSample:
    case Op::kCopy:
      WICK_CHECK(false, op_name(s.op), " is outside differentiation and depends on a parameter");
      return;
  }
}

}  // namespace

void backward(Recorder& recorder, ValueId loss, ValueId params, ValueId grads) {
  Plan& plan = recorder.plan();
  WICK_CHECK(plan.value(params).shape == plan.value(grads).shape, "one gradient per parameter");
  Reverser(recorder, params, grads).run(loss);
  plan.results.push_back(loss);
  remove_dead_steps(plan);
  sums_last(plan);
}

}  // namespace wick
