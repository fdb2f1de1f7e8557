// SPDX-License-Identifier: Apache-2.0
#include "bench/profile.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <numeric>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace wick {

namespace {

constexpr size_t kSlowestSteps = 5;

std::string step_name(const Plan& plan, const Step& step) {
  std::string name = cat(op_name(step.op), step.dir == Dir::kForward ? " fwd " : " bwd ");
  for (ValueId id : step.inputs)
    if (id != kNone && plan.value(plan.root(id)).kind == Kind::kWeight)
      return name + plan.value(id).name;
  for (const Output& o : step.outputs)
    if (o.value != kNone) return name + plan.value(o.value).name;
  return name;
}

// Kernels of step `first` and of those behind it that are made together with it.
std::string kernels_of(const Selection& selection, const std::vector<double>& seconds,
                       size_t first) {
  std::vector<std::string> names;
  size_t s = first;
  do {
    const std::string& name = selection.steps[s].kernel;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  } while (++s < seconds.size() && seconds[s] == 0);
  std::string all = names.front();
  for (size_t i = 1; i < names.size(); ++i) all += " + " + names[i];
  return all;
}

}  // namespace

std::vector<double> median_seconds(const StepSeconds& runs, size_t steps) {
  std::vector<double> medians(steps, 0.0), one;
  for (size_t s = 0; s < steps; ++s) {
    one.clear();
    for (const std::vector<double>& run : runs)
      if (s < run.size()) one.push_back(run[s]);
    medians[s] = summarize(one).median;
  }
  return medians;
}

void emit_profile(const BenchContext& c, const std::string& of, const Plan& plan,
                  const Filling& filling, const StepSeconds& runs) {
  const std::vector<double> seconds = median_seconds(runs, plan.steps.size());
  const Selection selection = c.backend().select(plan);
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  if (total <= 0) return;
  struct Kernel {
    double seconds = 0, gflop = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Kernel> kernels;
  std::string together;
  for (size_t s = 0; s < seconds.size(); ++s) {
    const bool first = s == 0 || seconds[s] > 0;
    if (first) together = kernels_of(selection, seconds, s);
    Kernel& k = kernels[together];
    k.seconds += seconds[s];
    k.gflop += step_flops(plan, plan.steps[s], filling) * 1e-9;
    k.calls += first;
  }
  std::vector<std::pair<std::string, Kernel>> order(kernels.begin(), kernels.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second.seconds > b.second.seconds;
  });
  auto emit = [&](const std::string& what, double s, double gflop, Json more) {
    BenchResult r;
    r.bench = "profile";
    r.what = cat(of, ": ", what);
    r.ms = {1e3 * s, 1e3 * s, 1e3 * s, static_cast<int64_t>(runs.size())};
    r.gflop = gflop;
    r.more = std::move(more);
    r.more["share"] = s / total;
    c.emit(std::move(r));
  };
  for (const auto& [name, k] : order) emit(name, k.seconds, k.gflop, {{"calls", k.calls}});
  std::vector<size_t> slowest(seconds.size());
  std::iota(slowest.begin(), slowest.end(), size_t{0});
  std::stable_sort(slowest.begin(), slowest.end(),
                   [&](size_t a, size_t b) { return seconds[a] > seconds[b]; });
  slowest.resize(std::min(slowest.size(), kSlowestSteps));
  for (size_t s : slowest)
    emit(cat("step ", s, " ", step_name(plan, plan.steps[s])), seconds[s],
         step_flops(plan, plan.steps[s], filling) * 1e-9, Json::object());
}

SystemUse system_use() {
  SystemUse use;
  struct rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) == 0) use.page_faults = usage.ru_minflt + usage.ru_majflt;
#ifdef __GLIBC__
  const struct mallinfo2 heap = mallinfo2();
  use.heap_bytes = static_cast<int64_t>(heap.uordblks + heap.hblkhd);
#endif
  return use;
}

}  // namespace wick
