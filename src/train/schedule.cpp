// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace wick {

double Schedule::rate(int64_t index) const {
  if (index < warmup)
    return warmup_init +
           (peak - warmup_init) * static_cast<double>(index + 1) / static_cast<double>(warmup);
  int64_t span = std::max<int64_t>(1, decay > 0 ? decay : updates - warmup);
  double done = std::min(1.0, static_cast<double>(index - warmup) / static_cast<double>(span));
  if (name == "linear") return peak + (std::max(end, 0.0) - peak) * done;
  if (name == "cosine") {
    constexpr double kFloor = 0.1;
    double floor = end < 0 ? kFloor * peak : end;
    return floor + (peak - floor) * 0.5 * (1.0 + std::cos(3.14159265358979323846 * done));
  }
  return peak;
}

std::vector<std::string> schedule_names() { return {"cosine", "linear", "constant"}; }

void check_schedule_name(const std::string& name) {
  std::vector<std::string> names = schedule_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  std::string near = nearest_name(name, names);
  fail(ErrorCode::kInvalidArgument, "--lr-schedule is \"", name,
       "\", wanted cosine, linear or constant",
       near.empty() ? "" : cat("; did you mean ", near, "?"));
}

}  // namespace wick
