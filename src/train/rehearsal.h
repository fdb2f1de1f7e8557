// SPDX-License-Identifier: Apache-2.0
// How long the parts of a run take: by running each of them a few times before the first update,
// results thrown away. Afterwards the step is what it was: same numbers, states and bits to come.
#pragma once

#include <functional>
#include <span>

#include "train/step.h"

namespace wick {

// Seconds of the parts of a run; 0 where it has none of them.
struct RunTimes {
  double update = 0;       // all packs of one update, what its loss asks before them, the optimizer
  double prefix = 0;       // of one update where the frozen blocks' outputs are not kept yet
  double eval = 0;         // one look at all held-out rows
  double answers = 0;      // to the prompts, at each look
  double eval_prefix = 0;  // once, as prefix
  double prepare = 0;      // what a loss asks before the first update
  double cold = 0;         // once: memory that is touched the first time
  // Between which the packs' times moved while they were tried, as shares of their mean: a
  // processor that is held back for seconds shows here. 1 where they were tried once.
  double low = 1, high = 1;
  double others = 0;  // what other processes took of the processors meanwhile, as a share
};

// The least and the largest mean of a stretch, as shares of the mean of all: consecutive durations
// of about `stretch` seconds in sum; of ten and more, a tenth at both ends left out. A single
// stretch has no range.
struct Spread {
  double low = 1, high = 1;
};
Spread spread_of(std::span<const double> seconds, double stretch);

// Durations of tasks of different work as if each had had `work`: a straight line through them says
// what more of it costs, at most in proportion and at least nothing. Dividing each by its own work
// would count the small ones too much wherever a part of their time is the same for all.
// Requires: as many works, all above 0.
std::vector<double> seconds_at(double work, std::span<const double> seconds,
                               std::span<const double> works);

// What trying may take: a share of a short run up to some seconds, a small one of a long run up to
// more of them, and of one that ends at once as much as the run.
struct RehearsalTime {
  double short_share = 0.2, short_seconds = 2;
  double share = 0.04, most_seconds = 20;
};

struct Rehearsal {
  std::span<const Pack> packs;            // of updates that are spread over the run
  double updates = 1;                     // that many
  std::vector<size_t> update_packs = {};  // of each of them, where whole updates may be tried
  double update_work = 0;                 // of the run's, on average (pack_work); 0: of these
  double run_packs = 1;                   // of the whole run
  std::span<const Pack> held_out;         // all that are looked at
  const ExampleSet* train = nullptr;
  const ExampleSet* valid = nullptr;  // null: none
  Hyper hyper = {};
  RehearsalTime time = {};
  std::function<bool()> should_give_up = {};  // asked between tries; true: what is known must do
  // Called last, while the optimizer's states are like those of a run, with such parameters; the
  // step has those of its start again.
  std::function<void(std::vector<float> params)> then = {};
};

// Requires: a compiled step before its first update. What its frozen blocks' outputs are kept in is
// to be given to it afterwards.
RunTimes rehearse(TrainStep& step, const Rehearsal& run);

// Packs of one program, each a sample of its part of the spread of attention.
std::vector<const Pack*> typical_packs(std::vector<const Pack*> packs, size_t most);

}  // namespace wick
