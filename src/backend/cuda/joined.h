// SPDX-License-Identifier: Apache-2.0
// Joined: which neighbouring steps of a plan one launch makes where rows are few. In decoding a
// launch costs as much as its work, so
//
//   norm · linear                          every block norms the few rows for itself
//   norm · linear · gated_act              the product's columns are made in pairs
//   norm · linear · rope · copy · copy     … q rotated, k and v straight into the cache
//
// are one launch each where nobody else reads what lies between, with the roundings of the single
// steps.
#pragma once

#include <vector>

#include "backend/cuda/matvec.h"
#include "backend/flat_program.h"

namespace wick::cuda {

class Joined {
 public:
  // Keeps both; `calls` are the plan's steps.
  Joined(const Plan& plan, std::span<const FlatProgram::Call> calls);

  // Enqueues the steps from `first` on that are made by one launch and says how many; 0: none.
  size_t enqueue(const Queue& queue, size_t first) const;

 private:
  size_t enqueue_rotated(const Queue& queue, const MatvecIn& in, size_t product) const;
  size_t enqueue_gated(const Queue& queue, const MatvecIn& in, size_t product) const;
  const StepArgs& args(size_t step) const { return calls_[step].args; }
  bool is(size_t step, Op op) const;
  // Of the whole of a temp that is no view.
  int reads(ValueId v) const { return reads_[static_cast<size_t>(plan_.root(v))]; }
  bool is_columns(ValueId v, ValueId of, int64_t begin, int64_t count) const;

  const Plan& plan_;
  std::span<const FlatProgram::Call> calls_;
  std::vector<int> reads_;  // by root
};

}  // namespace wick::cuda
