// SPDX-License-Identifier: Apache-2.0
// TrainRun: the loop. Rows to packs to updates, with reports, held-out losses, checkpoints and a
// way to stop. What it computes depends on options and data alone; a checkpoint is the index of the
// next update plus parameters, the optimizer's states and what was seen of the held-out rows,
// because the order of the rows, the rate and every random number follow from the index.
//
// On a device that runs ahead of the host the next update is packed and started while it works on
// this one, wherever nothing between the two looks at the parameters.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <memory>

#include "train/checkpoint.h"
#include "train/loss.h"
#include "train/run_step.h"
#include "train/schedule.h"
#include "train/time_left.h"
#include "wick/trainer.h"

namespace wick {

struct RunSetup {
  const ExampleSet* train = nullptr;
  const ExampleSet* valid = nullptr;  // null: none
  TrainOptions options;
  Json identity;           // what must be the same on resume
  double peak_gflops = 0;  // of the device; 0: unknown
  int64_t forecast_bytes = 0;
  TimeLeft::Expected expected = {};
  // Writes a result into a folder that users look into: adapter_path, its best, a numbered one.
  std::function<void(const std::string& folder, std::span<const float> params)> save_result;
  // Asked while a loss is prepared and at the look before the first update.
  StopAsked should_give_up = {};
  // The prompts of the run, answered as the parameters are now; may be empty.
  std::function<std::vector<EvalSample>()> answer_prompts = {};
  // Called before something is saved: the folder may have gone, or be another run's by now.
  std::function<void()> hold_folder = {};
};

// Updates of a run: --iters batches, or --epochs times the data (a part of an epoch has the updates
// that it begins).
int64_t count_updates(const TrainOptions& options, int64_t rows);
// Looks at the held-out rows in a run of that many updates.
int64_t count_evals(const TrainOptions& options, int64_t updates);
// Checkpoints of a run of that many updates.
int64_t count_saves(const TrainOptions& options, int64_t updates);
// The held-out rows that are looked at, the same each time: all, or as many as --val-batches says,
// drawn once from the seed.
std::vector<int64_t> valid_rows(const ExampleSet& valid, const TrainOptions& options);
std::vector<Pack> valid_packs(const ExampleSet& valid, const TrainOptions& options,
                              const PackLimits& limits);
Schedule make_schedule(const TrainOptions& options, int64_t updates);

class TrainRun {
 public:
  // `step` is compiled and holds the start values. Throws: kCancelled where setup.should_give_up
  // said so; as resuming does.
  TrainRun(RunStep& step, RunSetup setup);

  // Throws: kInvalidArgument when a checkpoint to resume from does not fit; kInternal when the loss
  // is no finite number, kIo when something cannot be written: the last checkpoint stays as it is.
  // kCancelled as above, with nothing written.
  TrainResult run(const TrainCallbacks& callbacks);
  // Updates that were done before, by the run that is resumed.
  int64_t first_update() const { return first_update_; }
  // Whether that run was stopped at the look behind them, which comes first now.
  bool look_due() const { return look_due_; }

 private:
  // In run_state.cpp.
  void resume();
  void restore_states(const Checkpoint& checkpoint);
  void forget_best(const Checkpoint& checkpoint);
  void save(int64_t step, const TrainCallbacks& callbacks);
  void hold_folder() const {
    if (setup_.hold_folder) setup_.hold_folder();
  }
  void save_numbered(int64_t step, std::span<const float> params);
  bool keeps_best() const { return setup_.options.keep_best || setup_.options.early_stop > 0; }

  EvalReport evaluate(int64_t step, const StopAsked& stop);
  // Throws: kCancelled.
  void held_out(int64_t step, const TrainCallbacks& callbacks, const StopAsked& stop);
  // The same, with what has to follow; false: stopped, and the look is still due.
  bool look(int64_t step, const TrainCallbacks& callbacks);
  // The updates and all that comes between them.
  int64_t train_all(const TrainCallbacks& callbacks);
  // Whether the held-out loss has stopped falling.
  bool is_stale() const;
  void finish(int64_t step, const TrainCallbacks& callbacks);
  double seconds_so_far() const;
  double seconds_left(int64_t step) const;
  StepReport make_report(int64_t step, double rate, double norm) const;
  void report(StepReport r, const TrainCallbacks& callbacks);
  // Takes the update's rows, packs them and gives them to the step.
  void start_update(int64_t index);
  // Waits for the oldest that was started, and counts it; returns the norm of its gradients.
  float finish_update();
  // After update `step`, counted from 1.
  bool eval_due(int64_t step) const;
  bool save_due(int64_t step) const;
  // Whether the update behind that one may be started before that one is finished.
  bool may_start_behind(int64_t step) const;
  // What a run that fails leaves behind, as the end of a message.
  std::string kept_words() const;
  // After `index` updates; `what` says which number is not finite.
  [[noreturn]] void fail_not_finite(int64_t index, const std::string& what) const;
  std::string lines_of(int64_t index) const;  // of an update's rows, the first few

  RunStep& step_;
  RunSetup setup_;
  Order order_;
  int64_t updates_;
  Schedule schedule_;
  std::vector<Pack> valid_packs_;
  TrainResult result_;
  int64_t first_update_ = 0, trained_tokens_ = 0;
  double best_valid_ = 0;
  int64_t best_step_ = -1;  // -1: no held-out loss yet
  // Looks at the held-out rows since the loss was lower by --early-stop-delta, and what it was
  // then.
  int64_t stale_evals_ = 0;
  double lower_valid_ = std::numeric_limits<double>::infinity();
  std::vector<float> best_params_;  // where the best is kept
  std::vector<std::string> messages_;
  bool saved_ = false;             // the result, by this process
  bool look_due_ = false;          // at the held-out rows after the last update: it was stopped
  std::vector<int64_t> numbered_;  // updates whose results this run has kept by number
  bool knows_numbered_ = true;     // whether numbered_ has them all
  int64_t checkpoint_step_ = -1;   // of the last whole checkpoint; -1: none
  struct Started {
    int64_t index = 0;
    std::vector<Pack> packs;
    int64_t targets = 0, counted = 0;
    double since = 0;  // seconds
  };
  std::deque<Started> under_way_;  // two at most
  double finished_ = 0;            // when the last update was
  // Since the last report.
  double loss_sum_ = 0, window_seconds_ = 0, window_flops_ = 0, update_loss_ = 0;
  int64_t loss_tokens_ = 0, window_tokens_ = 0;
  TimeLeft time_left_;
  double earlier_seconds_ = 0;  // of runs before a resume
  double started_ = 0;
};

}  // namespace wick
