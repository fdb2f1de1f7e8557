// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: pure functions of the update's index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace wick {

struct Schedule {
  std::string name = "cosine";  // cosine (to 10 %), linear (to 0), constant
  double peak = 1e-4;
  int64_t warmup = 0;  // updates of linear rise; the first has rate peak / warmup
  int64_t updates = 1;
  double warmup_init = 0;  // the rise starts from here instead of 0
  double end = -1;         // the rate after the decay; < 0: the name's own
  int64_t decay = 0;       // > 0: updates of the decay; 0: the rest of the run

  // The rate of update `index`, from 0.
  double rate(int64_t index) const;
};

std::vector<std::string> schedule_names();
// Throws: kInvalidArgument with the nearest name.
void check_schedule_name(const std::string& name);

}  // namespace wick
