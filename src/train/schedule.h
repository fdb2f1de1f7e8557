// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: pure functions of the update's index. With at counted from the end of
// the warm-up and done = at / span, from 0 to 1:
//
//   constant              peak
//   linear                from peak to end (0)
//   cosine                from peak to end (10 % of the peak) along half a cosine
//   cosine_with_restarts  the same `cycles` times over
//   wsd                   peak, and in the last `decay_share` of the span linearly to end (0)
//   exponential_decay     peak * decay_rate^at
//   step_decay            peak * decay_rate^floor(at / step_size)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace wick {

struct Schedule {
  std::string name = "cosine";
  double peak = 1e-4;
  int64_t warmup = 0;  // updates of linear rise; the first has rate peak / warmup
  int64_t updates = 1;
  double warmup_init = 0;         // the rise starts from here instead of 0
  bool warmup_from_init = false;  // mlx-lm's way: the first update has warmup_init itself, update
                                  // warmup + 1 the peak, and the schedule begins one later
  double end = -1;                // the rate after the decay; < 0: the name's own
  int64_t decay = 0;              // > 0: updates of the decay (span); 0: the rest of the run
  int64_t cycles = 2;
  double decay_share = 0.2;
  double decay_rate = 0.1;
  int64_t step_size = 100;

  // The rate of update `index`, from 0.
  double rate(int64_t index) const;
};

std::vector<std::string> schedule_names();
// Throws: kInvalidArgument with the nearest name.
void check_schedule_name(const std::string& name);

}  // namespace wick
