// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace wick {

namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr double kFloor = 0.1;  // of the peak, where a cosine ends

double half_cosine(double from, double to, double done) {
  return to + (from - to) * 0.5 * (1.0 + std::cos(kPi * done));
}

}  // namespace

double Schedule::rate(int64_t index) const {
  const int64_t begin = warmup > 0 && warmup_from_init ? warmup + 1 : warmup;
  if (index < begin) {
    const auto risen = static_cast<double>(warmup_from_init ? index : index + 1);
    return warmup_init + (peak - warmup_init) * risen / static_cast<double>(warmup);
  }
  const int64_t at = index - begin;
  const int64_t span = std::max<int64_t>(1, decay > 0 ? decay : updates - begin);
  const double done = std::min(1.0, static_cast<double>(at) / static_cast<double>(span));
  const double floor = end < 0 ? kFloor * peak : end, bottom = std::max(end, 0.0);
  if (name == "linear") return peak + (bottom - peak) * done;
  if (name == "cosine") return half_cosine(peak, floor, done);
  if (name == "cosine_with_restarts") {
    const double turn = done * static_cast<double>(cycles);
    return half_cosine(peak, floor, done < 1 ? turn - std::floor(turn) : 1.0);
  }
  if (name == "wsd") {
    const double falling = (done - (1.0 - decay_share)) / decay_share;
    return falling > 0 ? peak + (bottom - peak) * falling : peak;
  }
  if (name == "exponential_decay") return peak * std::pow(decay_rate, static_cast<double>(at));
  if (name == "step_decay") {
    const int64_t steps = at / std::max<int64_t>(1, step_size);
    return peak * std::pow(decay_rate, static_cast<double>(steps));
  }
  return peak;
}

std::vector<std::string> schedule_names() {
  return {"cosine",    "linear", "constant", "cosine_with_restarts", "wsd", "exponential_decay",
          "step_decay"};
}

void check_schedule_name(const std::string& name) {
  std::vector<std::string> names = schedule_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  std::string near = nearest_name(name, names), all;
  for (const std::string& each : names) all += (all.empty() ? "" : ", ") + each;
  fail(ErrorCode::kInvalidArgument, "--lr-schedule is \"", name, "\", wanted one of ", all,
       near.empty() ? "" : cat("; did you mean ", near, "?"));
}

}  // namespace wick
