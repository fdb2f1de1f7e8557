// SPDX-License-Identifier: Apache-2.0
// Widened: linears of many rows whose frozen matrix rests in codes. A launch brings the matrix to
// bf16 in the step's scratch, and from there on the step is one of bf16: every kernel that serves
// those serves it.
//
// The launch does not wait for what stands between two such products (norms, attention, an
// activation) but runs beside it: its scratch is nobody else's from the product before on
// (plan/widened.h). For that each of these products begins when all before it is done, which it
// must in any case, since the kernels of bf16 ask for weights before their turn.
#pragma once

#include <optional>
#include <vector>

#include "backend/cuda/queue.h"
#include "backend/flat_program.h"

namespace wick::cuda {

class Widened {
 public:
  // Keeps the plan, and a copy of its steps' calls.
  Widened(const Plan& plan, std::span<const FlatProgram::Call> calls, const Queue& queue);
  Widened(const Widened&) = delete;
  Widened& operator=(const Widened&) = delete;

  // The calls with such matrices in bf16, where prepare() puts them, and the rest of the scratch.
  std::span<const FlatProgram::Call> calls() const { return calls_; }
  // Before steps from `first` on are enqueued, in order: enqueues what they need, and says where
  // they go.
  const Queue& prepare(size_t first);
  // Enqueues the matrix of `step`, if it has one and it is not made yet.
  void make(size_t step);

 private:
  struct Matrix {
    Operand from, to;
    bool free;  // its scratch, as soon as the product before has begun
  };

  const Plan& plan_;
  std::vector<FlatProgram::Call> calls_;
  Queue queue_, late_;  // late_: where kernels wait until all before is done
  std::vector<std::optional<Matrix>> matrices_;  // by step
  std::vector<std::vector<Operand>> inputs_;     // of the steps that have one
  size_t made_ = 0;                              // matrices of steps before this one are made
};

}  // namespace wick::cuda
