// SPDX-License-Identifier: Apache-2.0
// A product with what follows it inside (sm_90, bf16): the adapters that add to it, the gated_act
// or the rope of what it makes. Bits are those of the steps, but that a sum is rounded once, when
// it is whole:
//
//   h = x aᵀ   y = x wᵀ + bias + scale h bᵀ per adapter   made = act(gate) * up, the halves of y
//   turned = rope(y[:, .. cols of turned)), for few rows
#pragma once

#include <vector>

#include "backend/cuda/queue.h"
#include "backend/cuda/widened.h"
#include "backend/flat_program.h"

namespace wick::cuda {

// y[:, first .. first + b.rows) += scale * h[:, first_rank .. first_rank + b.cols) bᵀ
struct FusedAdapter {
  Operand b;  // [N, R] f32
  int64_t first = 0, first_rank = 0;
  float scale = 1.0f;
};
// The same as a kernel that reads b itself is told.
struct AdapterPart {
  const float* b;
  int b_ld, first, cols, first_rank, ranks;
  float scale;
};
inline AdapterPart part_of(const FusedAdapter& adapter) {
  return {.b = adapter.b.as<const float>(),
          .b_ld = static_cast<int>(adapter.b.ld),
          .first = static_cast<int>(adapter.first),
          .cols = static_cast<int>(adapter.b.rows),
          .first_rank = static_cast<int>(adapter.first_rank),
          .ranks = static_cast<int>(adapter.b.cols),
          .scale = adapter.scale};
}

struct FusedTurn {
  Operand turned, table, positions;  // [M, C], cosines and sines of a head by position, [M]
  int64_t head_dim = 0;
};

struct FusedProduct {
  Operand x, w, bias, y;  // [M, K], [N, K], none or [N], [M, N]
  Operand made = {};      // [M, N / 2], or none: no gate
  Act act = Act::kSilu;
  Operand a = {}, h = {};  // [R, K] f32, [M, R]; none without adapters
  std::vector<FusedAdapter> adapters = {};
  // Equal ranges of rows, each with an a and b of its own, lane_bytes behind those of the one
  // before.
  int64_t lanes = 1, lane_bytes = 0;
  FusedTurn turn = {};
};

// False, having done nothing, where the operands are not as it wants them, or where the single
// steps are faster.
bool fused_product(const Queue& queue, const FusedProduct& p);
// The same for few rows, in small tiles; operands as fused_product() checks them.
bool small_adapted(const Queue& queue, const FusedProduct& p);

// Which steps of a plan are such products.
class Fused {
 public:
  // Keeps all; `calls` are the plan's steps.
  Fused(const Plan& plan, std::span<const FlatProgram::Call> calls, Widened& widened);
  // Enqueues the steps from `first` on that are one product and says how many; 0: none.
  size_t enqueue(const Queue& queue, size_t first) const;

 private:
  const StepArgs& args(size_t step) const { return calls_[step].args; }
  bool is_linear(size_t step, OutMode mode) const;
  size_t enqueue_gated(const Queue& queue, size_t first, size_t gate, const FusedProduct& p) const;
  bool can_turn(size_t first, size_t rope, const FusedProduct& p) const;
  std::vector<FusedAdapter> adapters(size_t at, ValueId h, ValueId y, int64_t lane,
                                     int64_t lanes) const;
  size_t add_adapters(size_t step, FusedProduct& p) const;

  const Plan& plan_;
  std::span<const FlatProgram::Call> calls_;
  Widened& widened_;
};

}  // namespace wick::cuda
