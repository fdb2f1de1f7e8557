// SPDX-License-Identifier: Apache-2.0
// Times that mean something: warm-up, repetition, order statistics, and when two of them differ.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace wick {

struct Timing {
  double median = 0, p10 = 0, p90 = 0;  // milliseconds
  int64_t runs = 0;
};

// Linear between the two nearest of the sorted samples. Requires: samples, share in [0, 1].
double quantile(const std::vector<double>& sorted, double share);
// All zero without samples.
Timing summarize(std::vector<double> samples);
// The times of a timing multiplied, for figures per token or per call of many.
Timing scaled(const Timing& timing, double factor);

// How long a case is run. Stops after `iters` runs, or, with 0, once `seconds` have passed and
// there are at least `least` runs. A case whose single runs take long is not run that often: its
// warm-up ends after `seconds`, two runs are enough after kPatience times that (and a second), and
// a run of kLong seconds counts even as the first, unless the next one shows that it had costs of
// its own (weights that were read and quantised).
struct Effort {
  static constexpr double kPatience = 5, kLong = 5;
  int64_t warmup = 2, iters = 0;
  double seconds = 2;
  int64_t least = 5, most = 10'000;

  bool enough_warmup(int64_t runs, double spent) const {
    return runs >= warmup || (iters == 0 && runs > 0 && spent >= seconds);
  }
  bool counts(double warmup_seconds) const { return iters == 0 && warmup_seconds >= kLong; }
  static bool had_own_costs(double first, double second) { return second < 0.85 * first; }
  bool enough(int64_t runs, double spent) const {
    if (iters > 0) return runs >= iters;
    return (runs >= least && spent >= seconds) ||
           (runs >= 2 && spent >= 1 && spent >= kPatience * seconds);
  }
};

// Milliseconds of each run after the warm-up. F: void(); the clock stands while `between` works.
template <typename F, typename Between>
std::vector<double> measure(const Effort& effort, F&& run, Between&& between) {
  using Clock = std::chrono::steady_clock;
  auto seconds_since = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  auto timed = [&] {
    between();
    const Clock::time_point t0 = Clock::now();
    run();
    return seconds_since(t0);
  };
  std::vector<double> samples;
  Clock::time_point start = Clock::now(), counted = start;
  for (int64_t i = 0; !effort.enough_warmup(i, seconds_since(start)); ++i) {
    const double seconds = timed();
    if (effort.counts(seconds))
      samples.push_back(1e3 * seconds);
    else
      counted = Clock::now();
  }
  const bool first_counts = !samples.empty();
  while (static_cast<int64_t>(samples.size()) < effort.most &&
         !effort.enough(static_cast<int64_t>(samples.size()), seconds_since(counted))) {
    samples.push_back(1e3 * timed());
    if (first_counts && samples.size() == 2 && Effort::had_own_costs(samples[0], samples[1])) {
      samples.erase(samples.begin());
      counted = Clock::now();
    }
  }
  return samples;
}
template <typename F>
std::vector<double> measure(const Effort& effort, F&& run) {
  return measure(effort, run, [] {});
}

enum class Change { kNoise, kSlower, kFaster };
// Slower or faster only where the ranges from p10 to p90 do not meet and the medians are at least
// two percent apart.
Change compare(const Timing& now, const Timing& before);

}  // namespace wick
