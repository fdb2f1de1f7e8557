// SPDX-License-Identifier: Apache-2.0
// Plan: a training or inference step written down once. Data only: values, steps, blocks.
//
// A value is a name for elements; it owns no memory. A value may be a view: a row or column range
// of another (offset and leading dimension), or a range of a flat one. Views always point at a
// root, never at another view.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "plan/op.h"

namespace wick {

using ValueId = int32_t;
constexpr ValueId kNone = -1;

enum class Kind : uint8_t {
  kWeight,  // frozen; prepared once per device and shared between programs
  kState,   // owned by the caller, bound to several programs: parameters, moments, KV cache
  kFeed,    // given before each run
  kTemp,    // placed in the arena
};

struct Value {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  Kind kind = Kind::kTemp;
  ValueId root = kNone;  // itself, unless this is a view
  int64_t offset = 0;    // elements from the root's first
  int64_t ld = 0;        // elements from a row to the next
};

enum class OutMode : uint8_t {
  kWrite,       // what was there before does not matter
  kAccumulate,  // adds to what is there
  kUpdate,      // reads and changes what is there (states)
};

struct Output {
  ValueId value = kNone;
  OutMode mode = OutMode::kWrite;
};

struct Step {
  Op op;
  Dir dir = Dir::kForward;
  std::vector<ValueId> inputs;  // kNone where an operand is absent
  std::vector<Output> outputs;
  Attr attr;
};

// A stretch of forward steps [begin, end) whose temps the reverse pass may recompute.
struct Block {
  int32_t begin = 0, end = 0;
  bool recompute = false;
};

struct Plan {
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<Block> blocks;
  std::vector<ValueId> results;  // temps that the caller reads after a run; alive to the end

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  ValueId root(ValueId id) const { return value(id).root; }
  bool is_view(ValueId id) const { return value(id).root != id; }
};

// The rectangle or stretch of a root that a view covers.
bool overlap(const Plan& plan, ValueId a, ValueId b);
// Whether `outer` covers every element of `inner`. Both are views of one root.
bool covers(const Plan& plan, ValueId outer, ValueId inner);

template <typename A>
const A& attr(const Step& step) {
  return std::get<A>(step.attr);
}

// Where every temp's root and every step's scratch lies in one arena.
struct Placement {
  std::vector<int64_t> offset;          // bytes, by value id; -1 for what is not a temp root
  std::vector<int64_t> scratch_offset;  // bytes, by step; -1 where the step has none
  int64_t arena_bytes = 0;
};

constexpr int64_t kArenaAlignment = 64;

// Live ranges to offsets. `element_bytes(dtype)` is the device's size of an element (ref widens),
// `scratch` the bytes each step's kernel asks for.
Placement place(const Plan& plan, size_t (*element_bytes)(DType),
                const std::vector<size_t>& scratch);

// Throws kInternal naming the step where the plan is not legal: operand shapes, a read before a
// write, a read between a write and an accumulation, an output that is a weight or a feed, a view
// outside its root.
void check(const Plan& plan);
// Throws kInternal where two things alive at once share bytes of the arena.
void check_placement(const Plan& plan, size_t (*element_bytes)(DType),
                     const std::vector<size_t>& scratch, const Placement& placement);

// Removes steps whose every output is a temp that nobody reads.
void remove_dead_steps(Plan& plan);

// One line per step, for people.
std::string print(const Plan& plan);

// The multiplications and additions of one step, counted as 2 * M * N * K for products; 0 for steps
// whose arithmetic does not matter beside their bytes. The slots are taken for one causal row,
// every one of which the head sees.
double step_flops(const Plan& plan, const Step& step);
double plan_flops(const Plan& plan);

// What a run puts into the slots, where it is not that.
struct Filling {
  // Rows that all slots attend to together where attention has this window (0: none).
  std::function<double(int64_t window)> attended;
  double targets = 0;  // rows that the head sees
};
// Tokens `first` to `last` of so many sequences, each of which attends to itself and those before.
Filling token_filling(int64_t first, int64_t last, int64_t sequences);
double step_flops(const Plan& plan, const Step& step, const Filling& filling);
double plan_flops(const Plan& plan, const Filling& filling);

}  // namespace wick
