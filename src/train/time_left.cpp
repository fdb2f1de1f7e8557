// SPDX-License-Identifier: Apache-2.0
#include "train/time_left.h"

#include <algorithm>

namespace wick {

namespace {

constexpr double kForecastWeight = 3;
constexpr double kFading = 0.97;  // of a measurement's weight, with each that follows

}  // namespace

void TimeLeft::Mean::add(double seconds) {
  sum = kFading * sum + seconds;
  weight = kFading * weight + 1;
  faded *= kFading;
}

double TimeLeft::Mean::with(double forecast) const {
  const double counted = forecast > 0 ? kForecastWeight * faded : 0;
  return weight + counted > 0 ? (sum + counted * forecast) / (weight + counted) : 0;
}

void TimeLeft::update_took(int64_t index, double seconds) {
  // Of an update that also keeps rows, its usual share is the rest's.
  if (index < expected_.prefix_updates && expected_.update > 0)
    seconds *= expected_.update / (expected_.update + expected_.prefix);
  updates_.add(seconds);
}

double TimeLeft::seconds(int64_t done, int64_t updates, int64_t evals, int64_t saves) const {
  const double each = updates_.with(expected_.update);
  double left = static_cast<double>(updates - done) * each;
  if (expected_.update > 0)
    left += static_cast<double>(
                std::max<int64_t>(0, std::min(expected_.prefix_updates, updates) - done)) *
            expected_.prefix * each / expected_.update;
  left += static_cast<double>(evals) * evals_.with(expected_.eval);
  return left + static_cast<double>(saves) * saves_.with(expected_.save);
}

}  // namespace wick
