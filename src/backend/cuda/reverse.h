// SPDX-License-Identifier: Apache-2.0
// Which neighbouring steps of a reverse pass are made together (sm_90):
//
//   linear · linear …    adapters of one product: dh and dB of all of them in one reading of dy
//   attention · rope     dq and dk are turned back as they leave
//   linear · linear      dx = dh A, and the product that adds to it; of many tokens in turn
//   linear · attention · rope   what attention needs to know of its gradient is made with it
//   linear · linear · gated_act   the last as what the product makes leaves (gated_round.h)
//   gated_act again · linear · linear · gated_act · linear · linear   an adapted product of what
//     gated_act made, and the adapters of the product before it (gated_sums.h)
#pragma once

#include "backend/cuda/queue.h"
#include "backend/flat_program.h"

namespace wick::cuda {

class Reverse {
 public:
  // Keeps both; `calls` are the plan's steps.
  Reverse(const Plan& plan, std::span<const FlatProgram::Call> calls)
      : plan_(plan), calls_(calls) {}
  // Enqueues the steps from `first` on that are made together and says how many; 0: none.
  size_t enqueue(const Queue& queue, size_t first) const;

 private:
  const StepArgs& args(size_t step) const { return calls_[step].args; }
  bool is(size_t step, Op op) const;
  bool is_adapter(size_t step) const;
  size_t enqueue_sums(const Queue& queue, size_t first) const;
  bool is_gradient(size_t step) const;
  bool is_adapted(size_t step) const;
  bool turns_back(size_t attention) const;
  size_t enqueue_attention(const Queue& queue, size_t first) const;
  size_t enqueue_product(const Queue& queue, size_t first) const;
  size_t enqueue_adapted(const Queue& queue, size_t first) const;
  bool is_read_once(ValueId v) const;
  size_t enqueue_gated(const Queue& queue, size_t first) const;
  size_t enqueue_round(const Queue& queue, size_t first) const;

  const Plan& plan_;
  std::span<const FlatProgram::Call> calls_;
};

}  // namespace wick::cuda
