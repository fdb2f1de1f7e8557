// SPDX-License-Identifier: Apache-2.0
// The flags of what is shared between rows and between adapters: kept rows, several adapters.
#include <algorithm>

#include "app/train_flags.h"
#include "base/check.h"

namespace wick {

namespace {

struct Axis {
  const char *key, *flag;
};
// A seed is also that of weights that are drawn.
constexpr Axis kAxes[] = {{"lr", "learning-rate"},
                          {"learning_rate", "learning-rate"},
                          {"rank", "rank"},
                          {"alpha", "alpha"},
                          {"alpha", "scale"},
                          {"dropout", "lora-dropout"},
                          {"weight_decay", "weight-decay"},
                          {"warmup", "warmup"},
                          {"targets", "targets"}};

bool has_axis(const std::vector<std::string>& sweep, const std::string& key) {
  return std::any_of(sweep.begin(), sweep.end(),
                     [&](const std::string& axis) { return axis.starts_with(key + "="); });
}

}  // namespace

std::vector<SweepAdapter> TrainFlags::sweep_adapters(const Args& args,
                                                     const TrainOptions& o) const {
  for (const Axis& axis : kAxes)
    if (has_axis(sweep, axis.key) && args.source(axis.flag) == Source::kCommandLine)
      throw UsageError(cat("--", axis.flag, " has no effect beside --sweep ", axis.key,
                           "=…, which says it for each adapter; leave one of them out"));
  if (!sweep_data.empty() && args.source("data") == Source::kCommandLine)
    throw UsageError(
        "--data has no effect beside --sweep-data, which names the data of each adapter; leave one "
        "of them out");
  std::vector<SweepAdapter> adapters = expand_sweep(o, sweep, sweep_data);
  if (scale_counts(args) && !has_axis(sweep, "alpha"))
    for (SweepAdapter& a : adapters) a.options.alpha = scale * static_cast<double>(a.options.rank);
  return adapters;
}

void add_sweep_flags(Args& args, TrainFlags& flags) {
  TrainOptions& o = flags.train;
  args.group("Sharing");
  args.text("--prefix-cache", o.prefix_cache, "WHERE",
            "Outputs of the frozen blocks below the adapters, kept for later epochs: auto, off, "
            "memory, or a folder.")
      .path();
  args.size("--prefix-cache-size", o.prefix_cache_bytes, "SIZE",
            "Most that is kept; rows beyond it are computed each time.")
      .shown("a quarter of the free memory");
  args.repeat("--sweep", flags.sweep, "KEY=A,B",
              "Train an adapter for each combination at once: lr, rank, alpha, dropout, seed, "
              "weight_decay, warmup, targets (q_proj+v_proj,all-linear).")
      .takes_all();
  args.repeat("--sweep-data", flags.sweep_data, "PATH",
              "Train an adapter on each of these data sets at once.")
      .takes_all()
      .path();
}

}  // namespace wick
