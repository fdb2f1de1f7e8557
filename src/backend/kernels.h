// SPDX-License-Identifier: Apache-2.0
// What a kernel sees, and the ordered candidate list it is chosen from.
#pragma once

#include <span>

#include "backend/backend.h"
#include "plan/plan.h"

namespace wick {

// A matrix in memory: rows x cols, `ld` elements from a row to the next. A value of rank 1 is one
// row. An absent operand is all zero; a present one has ld > 0, also where it has no data yet.
struct Operand {
  void* data = nullptr;
  int64_t rows = 0, cols = 0, ld = 0;
  DType dtype = DType::kF32;
  WeightForm form = WeightForm::kRows;  // kTiles: dtype is bf16 or quantised

  explicit operator bool() const { return ld != 0; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t elements() const { return rows * cols; }
};

struct StepArgs {
  const Step* step = nullptr;  // attributes and output modes
  std::span<const Operand> in = {}, out = {};
  void* scratch = nullptr;
  ThreadPool* pool = nullptr;      // of back ends in the host's memory
  const void* queue = nullptr;     // of a device's: where its launches go (cuda/queue.h)
  const StepArgs* next = nullptr;  // the step after, where the kernel makes both

  bool accumulates(int i) const {
    return step->outputs[static_cast<size_t>(i)].mode == OutMode::kAccumulate;
  }
};

using KernelFn = void (*)(const StepArgs&);

// The first candidate of a (op, dir) whose accepts() holds is used. accepts() and scratch() see
// operands with shapes and dtypes and no data.
struct Candidate {
  Op op;
  Dir dir;
  const char* name;  // "<op>_<fwd|bwd>", with a suffix where there are several
  KernelFn fn;
  bool (*accepts)(const StepArgs&) = nullptr;                 // null: f32 and i32 operands only
  size_t (*scratch)(const StepArgs&, int threads) = nullptr;  // null: none
};

// The first candidate that accepts each step, with its weights in `forms` (empty: all in rows).
// Throws: kUnsupported naming op, direction, operands and `backend_name`.
Selection select_candidates(const Plan& plan, std::span<const Candidate> candidates, int threads,
                            const char* backend_name, std::vector<WeightForm> forms = {});

// The shape, type and form of a value, without memory; absent for kNone.
Operand operand_of(const Plan& plan, std::span<const WeightForm> forms, ValueId id);

// Shapes of a step's operands without memory, for accepts() and scratch().
void describe(const Plan& plan, std::span<const WeightForm> forms, const Step& step,
              std::vector<Operand>& in, std::vector<Operand>& out);

// Frozen matrices that only products and embed read, and products in bf16 at that: those that a
// matrix unit can keep in tiles. By value id.
std::vector<WeightForm> tile_forms(const Plan& plan);

}  // namespace wick
