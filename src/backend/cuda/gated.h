// SPDX-License-Identifier: Apache-2.0
// A gated_act in the product that makes its input. Bits are those of the product in bf16, then the
// op.
#pragma once

#include <vector>

#include "backend/cuda/queue.h"
#include "backend/flat_program.h"

namespace wick::cuda {

// y [M, 2F] = x wᵀ and made [M, F] = act(gate) * up, gate and up being the halves of y:
// x [M, K], w [2F, K]. False, having done nothing, where the operands are not as it wants them, or
// where the library's product and a pass over y are faster.
bool gated_product(const Queue& queue, Act act, const Operand& x, const Operand& w,
                   const Operand& y, const Operand& made);

// Which steps of a plan are such a product and its op.
class Gated {
 public:
  // Keeps `calls`, the plan's steps.
  Gated(const Plan& plan, std::span<const FlatProgram::Call> calls);
  // Enqueues the steps from `first` on that are one product and says how many; 0: none.
  size_t enqueue(const Queue& queue, size_t first) const;

 private:
  std::span<const FlatProgram::Call> calls_;
  std::vector<char> begins_;  // by step
};

}  // namespace wick::cuda
