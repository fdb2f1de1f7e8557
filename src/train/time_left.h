// SPDX-License-Identifier: Apache-2.0
// TimeLeft: when a run will be done, from what was forecast and from what its parts took so far.
//
// The forecast counts as much as a few updates. All of it fades with what is measured later, so
// that a machine that becomes slower or faster is noticed within some tens of updates.
#pragma once

#include <cstdint>

namespace wick {

class TimeLeft {
 public:
  // Seconds as forecast; 0: unknown.
  struct Expected {
    double update = 0, prefix = 0, eval = 0, save = 0;
    int64_t prefix_updates = 0;  // the first of them, which take `prefix` more
  };
  explicit TimeLeft(const Expected& expected) : expected_(expected) {}

  // `index` counts the run's updates from 0.
  void update_took(int64_t index, double seconds);
  void eval_took(double seconds) { evals_.add(seconds); }
  void save_took(double seconds) { saves_.add(seconds); }

  // Of updates [done, updates), with that many looks at the held-out rows and checkpoints.
  double seconds(int64_t done, int64_t updates, int64_t evals, int64_t saves) const;

 private:
  struct Mean {
    double sum = 0, weight = 0, faded = 1;  // faded: what is left of the forecast's weight
    void add(double seconds);
    double with(double forecast) const;
  };

  Expected expected_;
  Mean updates_;  // without what keeping rows takes
  Mean evals_, saves_;
};

}  // namespace wick
