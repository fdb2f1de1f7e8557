// SPDX-License-Identifier: Apache-2.0
// Sweep: several adapters trained at once on one base, each as it would be alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "wick/trainer.h"

namespace wick {

struct SweepAdapter {
  std::string name;  // of its folder in the sweep's: "lr=1e-4_rank=8"
  TrainOptions options;
};

// Every combination. An axis is "key=value,value": lr, rank, alpha, dropout, seed, weight_decay,
// warmup, or targets (its values are lists joined by "+": targets=q_proj+v_proj,all-linear). `data`
// are data sets, each for an adapter of its own; empty: the base's. Each adapter goes into
// base.adapter_path/name. Throws: kInvalidArgument naming a wrong axis.
std::vector<SweepAdapter> expand_sweep(const TrainOptions& base,
                                       const std::vector<std::string>& axes,
                                       const std::vector<std::string>& data);

struct SweepEntry {
  std::string name;
  TrainResult result;
  std::string error;  // why it ended early; "" for an adapter that is whole
  // The rows that its loss is of: held out, or without such trained on. Those of one number, from
  // 1, had the same rows, so that their losses compare. 0: it failed.
  int64_t rows = 0;
  std::string rows_file;
  int64_t rank = 0;  // from 1; 0: it failed
};

struct SweepResult {
  // The best first: by held-out loss, behind them those without one by the last loss in training;
  // those that failed last.
  std::vector<SweepEntry> entries;
  int64_t row_sets = 0;  // the highest SweepEntry::rows
  bool interrupted = false;
  double seconds = 0;
  int64_t peak_bytes = 0;
  std::string summary_path;  // summary.json
};

// All optional. `name` is the adapter's.
struct SweepCallbacks {
  std::function<void(const Forecast&)> on_forecast = {};
  std::function<void(const std::string& name, const StepReport&)> on_step = {};
  std::function<void(const std::string& name, const EvalReport&)> on_eval = {};
  std::function<void(const std::string& name, const SaveReport&)> on_save = {};
  std::function<void(const std::string&)> on_message = {};
  std::function<bool()> should_stop = {}, should_give_up = {};  // as Trainer's
};

class Sweep {
 public:
  // Reads the data and records the joined plan. Throws: kInvalidArgument, also for options that
  // cannot differ between adapters of one run; kUnsupported; as Trainer.
  Sweep(Model& model, std::vector<SweepAdapter> adapters);
  ~Sweep();
  Sweep(Sweep&&) noexcept;
  Sweep& operator=(Sweep&&) noexcept;

  const Forecast& forecast() const;
  // As Trainer's.
  const Forecast& rehearse();
  // The printed plan of one joined micro-batch.
  std::string plan() const;
  // Trains all, each into its own adapter_path, and writes summary.json into `folder`. An adapter
  // whose loss is no number any more is left out from then on. Where should_give_up said so before
  // the first update: interrupted, without entries.
  SweepResult run(const std::string& folder, const SweepCallbacks& callbacks = {});

 private:
  struct Impl;
  Handle<Impl> impl_;
};

}  // namespace wick
