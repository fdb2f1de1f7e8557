// SPDX-License-Identifier: Apache-2.0
// From rows to updates (Order) and from the rows of an update to micro-batches (Pack).
//
// An update is defined by its rows alone. Packing is only how it is executed: rows are laid one
// after the other into T slots, each its own segment, and never split. A row takes no slot for what
// cannot change its loss: its last trained token is only predicted, never read, and nothing after
// it matters to causal attention. The two sequences of a preference are two segments of attention
// and one row: they are never apart.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace wick {

// The static bounds of a plan: T token slots and M predicted tokens.
struct PackLimits {
  int64_t tokens = 0;
  int64_t targets = 0;
  bool operator==(const PackLimits&) const = default;
};

// What one row takes of them.
PackLimits row_size(const Example& example);

// The feeds of one micro-batch; all vectors are as long as the limits say, whatever is used of
// them.
struct Pack {
  // [T]. Slot t attends to [begin[t], end[t]): end[t] = t + 1 and begin never decreases, which is
  // what attention's causal_self asks for. An unused slot is a segment of its own: id 0, position
  // 0, begin[t] = t.
  std::vector<int32_t> ids, positions, begin, end;
  // [T, 2]: low and high word of a key made of (seed, epoch, row, its repetition, position), for
  // dropout. 0 where unused.
  std::vector<int32_t> keys;
  // [M]: the slot whose next token is predicted, that token, and the index of its row in
  // `examples`; all -1 beyond used_targets. Slots ascend.
  std::vector<int32_t> rows, targets, segment;
  // [M]: Example::trained of the target, with kRejected where it is of a rejected sequence; 0
  // beyond used_targets.
  std::vector<uint8_t> marks;
  static constexpr uint8_t kRejected = 4;
  std::vector<int64_t> examples;  // indices into the data set
  // By row of `examples`, ascending: the slots that all its sequences take together.
  struct Slots {
    int32_t first = 0, count = 0;
  };
  std::vector<Slots> slots;
  std::vector<int32_t> lanes;  // by row of `examples`, where packs were joined; empty: one lane
  int64_t used_tokens = 0, used_targets = 0;
};

// Best-fit decreasing: the longest row first, each into the pack that it fills best. Depends on the
// arguments alone. Without `packing` each row has a pack of its own.
// `copies` (Order::copies) tells the repetitions of a row in an epoch apart, for their keys; empty:
// every row is the first.
// Throws: kInvalidArgument, naming file and line, for a row that the limits cannot hold.
std::vector<Pack> pack_rows(const ExampleSet& dataset, std::span<const int64_t> row_indices,
                            const PackLimits& limits, uint64_t seed, int64_t epoch, bool packing,
                            std::span<const int64_t> copies = {});

// Which rows form which update. Every epoch has every row exactly once (as often as its weight
// says, where it has one), in an order that depends on (seed, epoch) alone; its last update has the
// rows that remain. Not for several threads at once: it remembers the order of one epoch.
class Order {
 public:
  // `batch_rows` counts all rows of an update, over all its micro-batches.
  // Throws: kInvalidArgument unless rows and batch_rows are positive.
  Order(int64_t rows, int64_t batch_rows, uint64_t seed, bool shuffle);
  // The same with the weights of a data set; keeps no reference to it. The run has
  // `run_updates` updates; 0: at least an epoch.
  Order(const ExampleSet& dataset, int64_t batch_rows, uint64_t seed, bool shuffle,
        int64_t run_updates = 0);

  std::vector<int64_t> update(int64_t index) const;
  // Of each row of update(index): how often the epoch had it before, in the order of the files.
  std::vector<int64_t> copies(int64_t index) const;
  int64_t updates_per_epoch() const;
  // Of all epochs; one where nobody said how many there are.
  int64_t run_updates() const;
  // Of the first epoch, those that the run has: what packs are judged by.
  int64_t first_updates() const;
  int64_t rows_per_epoch() const { return rows_; }
  int64_t epoch_of(int64_t update) const { return update / updates_per_epoch(); }

 private:
  Order(std::vector<DataPart> parts, int64_t batch_rows, uint64_t seed, bool shuffle);
  std::vector<int64_t> rows_of_epoch(int64_t epoch) const;
  std::vector<int64_t> slice(int64_t index) const;

  std::vector<DataPart> parts_;
  int64_t rows_ = 0, batch_rows_;
  uint64_t seed_;
  bool shuffle_;
  int64_t run_updates_ = 0;
  int64_t distinct_ = 0;                      // rows of all parts
  mutable std::vector<int64_t> permutation_;  // row + distinct_ * its copy
  mutable int64_t permutation_epoch_ = -1;
};

// Token slots of the first epoch (of its first 1,024 updates): what the rows need, what packs take,
// and what padding each update's rows to the longest takes, in the order of the run and with the
// rows sorted by length. Widths are multiples of 16.
// `sizes`, ascending, are those in which packs lie; one that none of them holds takes the limits'.
struct SlotCount {
  int64_t useful = 0, packed = 0, padded = 0, sorted = 0;
};
SlotCount count_slots(const ExampleSet& dataset, const Order& order, const PackLimits& limits,
                      std::span<const int64_t> sizes, bool packing);

// Token slots, a multiple of 16, that hold every pack of the run: those of the limits, or fewer
// (32 or more) where it ends without a pack that needs as many, since held-out rows may be longer
// than what is trained on. Packs of more than 1,024 updates are not looked at one by one.
int64_t largest_pack(const ExampleSet& dataset, const Order& order, const PackLimits& limits,
                     bool packing);

// Token budgets below `largest`, ascending, in which the run's packs (of its first 1,024 updates)
// lie with the least left empty: multiples of 16 from 32 on, 32 of them at most, each of which
// saves something. A long row that comes now and then must not make every update as long.
std::vector<int64_t> smaller_sizes(const ExampleSet& dataset, const Order& order,
                                   const PackLimits& limits, int64_t largest, bool packing);

// The least limits that hold every row of the data set: those for runs without packing. T is a
// multiple of 16. With an order, every row that its run has.
PackLimits smallest_limits(const ExampleSet& dataset);
PackLimits smallest_limits(const ExampleSet& dataset, const Order& order);

// The limits under which the first epoch wastes least: packs times (T + M + a fixed cost of
// starting one), over a few T between the longest row's and max_tokens. T is a multiple of 16, and
// is above max_tokens only where a single row is. `sized`: packs will lie in smaller_sizes(), and
// count as they do there.
PackLimits choose_limits(const ExampleSet& dataset, const Order& order, int64_t max_tokens,
                         bool sized = false);

}  // namespace wick
