// SPDX-License-Identifier: Apache-2.0
// How a run is executed within a bound of memory: the size of its packs, and in how many blocks the
// activations are recomputed.
//
// The choice must not change from one start to the next, since the packs decide where sums are cut:
// candidates are compared by arithmetic and by a fixed cost of starting a pack, never by a clock.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "train/step.h"

namespace wick {

// A size of packs, how many of them an update has on average, and what the fullest takes
// (StepOptions::largest_pack).
struct FitCandidate {
  PackLimits limits;
  double packs = 1;
  int64_t largest_pack = 0;
};

// By the packs of the first updates.
double packs_per_update(const ExampleSet& rows, const Order& order, const PackLimits& limits,
                        bool packing);
FitCandidate fit_candidate(const ExampleSet& rows, const Order& order, const PackLimits& limits,
                           bool packing);
// What a pack of that size takes beyond its tokens' arithmetic, as a factor.
double pack_overhead(const PackLimits& limits);

// Sizes between the free plan's and the least that holds every row, the largest first.
std::vector<FitCandidate> fit_candidates(const ExampleSet& rows, const Order& order,
                                         const PackLimits& free, const PackLimits& least,
                                         bool packing);

using StepMaker =
    std::function<std::unique_ptr<TrainStep>(const FitCandidate&, int64_t recompute_blocks)>;

struct Fit {
  FitCandidate candidate;
  int64_t recompute_blocks = 0;
  std::unique_ptr<TrainStep> step;
  StepForecast memory;
  double cost = 0;  // of an update, in units that compare only with each other
  bool fits = false;
};

// The cheapest of all candidates and of all numbers of recomputed blocks from `least_blocks` to
// `blocks` that takes at most `memory_bytes`; the smallest there is where none does.
Fit fit_step(const Backend& backend, const StepMaker& make,
             std::span<const FitCandidate> candidates, int64_t least_blocks, int64_t blocks,
             int64_t memory_bytes);

// What the arena is for when it is fullest; their sum is the arena.
struct ArenaParts {
  int64_t activations = 0;  // and their gradients, and gaps between them
  int64_t head = 0;         // rows of the predicted tokens: inputs of the head and their gradients
  int64_t workspace = 0;    // scratch of the kernel that runs then
};
ArenaParts arena_parts(const Plan& plan, const Backend& backend, int64_t arena_bytes);

}  // namespace wick
