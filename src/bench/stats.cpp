// SPDX-License-Identifier: Apache-2.0
#include "bench/stats.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace wick {

namespace {

constexpr double kLeastChange = 0.02;

}  // namespace

double quantile(const std::vector<double>& sorted, double share) {
  WICK_CHECK(!sorted.empty() && share >= 0 && share <= 1);
  const double at = share * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(at), high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Timing summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {quantile(samples, 0.5), quantile(samples, 0.1), quantile(samples, 0.9),
          static_cast<int64_t>(samples.size())};
}

Timing scaled(const Timing& t, double factor) {
  return {t.median * factor, t.p10 * factor, t.p90 * factor, t.runs};
}

Change compare(const Timing& now, const Timing& before) {
  const double apart = std::abs(now.median - before.median);
  if (apart < kLeastChange * std::min(now.median, before.median)) return Change::kNoise;
  if (now.p10 > before.p90) return Change::kSlower;
  if (now.p90 < before.p10) return Change::kFaster;
  return Change::kNoise;
}

}  // namespace wick
