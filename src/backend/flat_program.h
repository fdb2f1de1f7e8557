// SPDX-License-Identifier: Apache-2.0
// What programs of every device share: a plan as a flat list of kernel calls whose operands were
// resolved, to addresses of that device, when it was compiled.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/kernels.h"

namespace wick {

class FlatProgram : public Program {
 public:
  size_t arena_bytes() const override { return static_cast<size_t>(placement_.arena_bytes); }

  // For tests: a value's first element and the steps' calls, in order.
  std::byte* address(ValueId id) const;
  struct Call {
    KernelFn fn;
    StepArgs args;
  };
  std::span<const Call> calls() const { return calls_; }

 protected:
  // Keeps the plan and the bound buffers, which must be of the device. `candidates` is the list
  // that `selection` was made from and must outlive the program. Throws kInternal where a buffer is
  // missing or too small.
  FlatProgram(Plan plan, const Selection& selection, Bindings bindings, ElementBytes element_bytes);
  // Fills calls_; every args begins as `common`, which says where kernels run. `arena` may be
  // shared with programs that never run at the same time and has at least arena_bytes().
  void resolve(const Selection& selection, std::span<const Candidate> candidates, BufferPtr arena,
               BufferPtr feeds, const StepArgs& common);
  // For a back end whose kernels make several steps at once.
  std::span<Call> joinable_calls() { return calls_; }

  const Plan& plan() const { return plan_; }
  // Of all feeds, one after the other, each aligned to kArenaAlignment.
  size_t feed_bytes() const { return static_cast<size_t>(feed_offset_.back()); }
  // Checks that the whole of a feed is given; its first byte among the feeds.
  size_t feed_offset(ValueId id, size_t bytes) const;
  // Checks that the whole of a value is asked for.
  Operand readable(ValueId id, size_t bytes) const;

 private:
  Operand operand(ValueId id) const;

  Plan plan_;
  Bindings bindings_;
  std::vector<WeightForm> forms_;
  ElementBytes element_bytes_;
  Placement placement_;
  std::vector<int64_t> feed_offset_;  // by value id; -1 for what is not a feed's root; the total
  BufferPtr arena_, feeds_;
  std::vector<Operand> operands_;  // of all steps, in order; calls_ points into it
  std::vector<Call> calls_;
};

}  // namespace wick
