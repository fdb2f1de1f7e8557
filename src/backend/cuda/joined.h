// SPDX-License-Identifier: Apache-2.0
// Joined: which neighbouring steps of a plan one launch makes where rows are few. In decoding a
// launch costs as much as its work, so
//
//   norm · linear                          every block norms the few rows for itself
//   norm · linear · gated_act              the product's columns are made in pairs
//   norm · linear · rope · copy · copy     … q rotated, k and v straight into the cache
//   … · attention · linear                 with these, by clusters of blocks (attend.h)
//   norm · linear · gated_act · linear     the same (mlp.h)
//
// are one launch each where nobody else reads what lies between, with the roundings of the single
// steps. The last two leave their result in parts, for the norm behind them to add.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/cuda/matvec.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/mlp.h"
#include "backend/flat_program.h"

namespace wick::cuda {

class Joined {
 public:
  // Keeps both; `calls` are the plan's steps. Throws: kOutOfMemory, kDevice.
  Joined(const Plan& plan, std::span<const FlatProgram::Call> calls, const Queue& queue);

  // Enqueues the steps from `first` on that are made by one launch and says how many; 0: none.
  // Steps are asked for in order.
  size_t enqueue(const Queue& queue, size_t first);

 private:
  // A result that lies in parts, for a norm to add.
  struct Parted {
    ValueId value = kNone;
    float* data = nullptr;
    int count = 0;
  };
  size_t enqueue_normed(const Queue& queue, size_t first, const Parted& before);
  size_t enqueue_gated(const Queue& queue, const MatvecIn& in, size_t product) const;
  // What becomes of the step `product` where rope and both copies are made with it.
  std::optional<MatvecRotation> rotation_from(size_t product) const;
  // Whether what attention reads, from `rope` on, was there before the run but for the rows of the
  // cache that the two copies write: it may be read before its turn has come.
  bool keeps_cache(size_t rope) const;
  bool enqueue_attended(const Queue& queue, const MatvecIn& in, size_t product,
                        const MatvecRotation& rotation);
  // The mlp whose first product is the step `product`, if it is one.
  std::optional<Mlp> mlp_from(const MatvecIn& in, size_t product) const;
  bool enqueue_mlp(const Queue& queue, const MatvecIn& in, size_t product);
  // Whether the linear `step` makes a result that the norm behind it alone reads.
  bool may_part(size_t step) const;
  const StepArgs& args(size_t step) const { return calls_[step].args; }
  bool is(size_t step, Op op) const;
  size_t first_write(ValueId v) const { return first_write_[static_cast<size_t>(plan_.root(v))]; }
  // Of the whole of a temp that is no view.
  int reads(ValueId v) const { return reads_[static_cast<size_t>(plan_.root(v))]; }
  bool is_columns(ValueId v, ValueId of, int64_t begin, int64_t count) const;

  const Plan& plan_;
  std::span<const FlatProgram::Call> calls_;
  std::vector<int> reads_;           // by root
  std::vector<size_t> first_write_;  // by root: a step
  std::unique_ptr<DeviceBuffer> attend_parts_, mlp_parts_;
  Parted parted_;     // by the last launch
  Operand new_rows_;  // of the cache, which the last launch wrote; attention is next
};

}  // namespace wick::cuda
