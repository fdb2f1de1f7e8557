// SPDX-License-Identifier: Apache-2.0
// Trainer: fine-tunes an adapter (or all weights) of a model on a data set.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "wick/dataset.h"
#include "wick/forecast.h"
#include "wick/model.h"

namespace wick {

struct TrainOptions {
  std::string data = {};  // folder with train.jsonl (valid.jsonl, test.jsonl), or a file; "" for a
                          // forecast alone: rows of max_seq_length tokens, all trained, are assumed
  std::string adapter_path = "adapters";  // where the result, checkpoints and the report go
  std::string fine_tune_type = "lora";    // lora, full
  DatasetOptions dataset = {};  // its date, if "": the day the run was begun, also on resume

  // The adapter.
  int64_t rank = 8;
  double alpha = 16.0;   // the update is scaled by alpha / rank
  double dropout = 0.0;  // on the adapter's input
  std::vector<std::string> targets = {"all-linear"};
  int64_t num_layers = -1;        // the last N blocks; -1: all
  std::string init_adapter = {};  // start from this adapter's numbers

  // The run.
  int64_t batch_size = 4;               // rows of a micro-batch
  int64_t grad_accumulation_steps = 1;  // times batch_size rows form an update
  int64_t epochs = 3;
  int64_t iters = 0;  // > 0: that many batches instead of epochs
  uint64_t seed = 0;
  bool shuffle = true;
  bool packing = true;
  int64_t memory_bytes = 0;      // > 0: recompute and smaller micro-batches until it fits
  bool grad_checkpoint = false;  // recompute, whatever the memory
  double skip_below = 0;         // > 0: less likely tokens are left out of the head's gradient
  // With adapters in the last blocks only, what the blocks below give is kept by row for later
  // epochs: auto (in memory, where it fits and is of use), off, memory, or a folder.
  std::string prefix_cache = "auto";
  int64_t prefix_cache_bytes = 0;  // 0: a quarter of the memory that is free, or all on disk

  // What is minimised: sft, the likelihood of what is trained; dpo, simpo, orpo, kto on rows of
  // preferences (docs/preference.md); distill, the distance from a teacher.
  std::string loss = "sft";
  double beta = -1;            // of preferences; < 0: the loss's own, 0.1 and simpo's 2
  double label_smoothing = 0;  // dpo, simpo: the share of pairs that are taken to be wrong
  double simpo_gamma = 0.5;    // simpo: the margin
  double desirable_weight = 1, undesirable_weight = 1;  // kto
  std::string reference = "base";  // dpo, kto: base (the state before training), none, or the
                                   // folder of an adapter or a model
  std::string teacher = {}, teacher_adapter = {};  // distill: folders
  double distill_temperature = 2;                  // distill: of both distributions
  double distill_alpha = 0.5;  // distill: alpha T² KL + (1 - alpha) cross-entropy

  // The optimizer.
  std::string optimizer = "adamw";
  double learning_rate = 1e-4;
  std::string lr_schedule = "cosine";  // cosine (to 10 %), linear (to 0), constant
  double warmup = -1;                  // updates; < 0: 3 % of the run
  double warmup_init = 0;              // the rate that the warm-up starts from
  double lr_end = -1;                  // the rate after the decay; < 0: the schedule's own
  int64_t lr_decay_steps = 0;          // > 0: updates of the decay instead of the rest of the run
  double weight_decay = 0.01;
  double grad_clip = 1.0;  // 0: off
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  // Looking and saving.
  int64_t steps_per_report = 10;
  int64_t steps_per_eval = 200;  // 0: only at the end
  int64_t val_batches = 25;      // batches of a fixed subset of valid.jsonl; -1: all
  int64_t save_every = 100;
  std::string save_dtype = {};  // of a full training's weights: f32, bf16, f16; "": as they were
  bool resume = false;          // go on from adapter_path's last checkpoint
  std::vector<std::string> sample_prompts = {};  // answered before and after, for the report;
                                                 // empty: the first of valid.jsonl
};

// Rewards of answers; accuracy is the share of pairs whose chosen answer has the higher one.
struct PreferenceReport {
  bool present = false;
  double chosen = 0, rejected = 0, margin = 0, accuracy = 0;
  double divergence = 0;  // kto's estimate
};

struct StepReport {
  int64_t step = 0, steps = 0;  // updates done, of all
  int64_t epoch = 0;
  double loss = 0;  // mean over the trained tokens since the last report
  double learning_rate = 0, grad_norm = 0;
  int64_t tokens = 0, trained_tokens = 0;  // so far
  double tokens_per_second = 0;
  double utilisation = 0;      // share of the device's measured peak; 0 if unknown
  int64_t peak_bytes = 0;      // of the process, so far
  int64_t forecast_bytes = 0;  // the plan's, on top of what the process had before it
  double seconds = 0, seconds_left = 0;
  PreferenceReport preference = {};  // since the last report
};

struct EvalReport {
  int64_t step = 0;
  double loss = 0, perplexity = 0;
  int64_t tokens = 0, rows = 0;
  bool best = false;
  PreferenceReport preference = {};
};

struct SaveReport {
  int64_t step = 0;
  std::string path;
};

struct TrainSample {
  std::string prompt, expected, before, after;
};

struct TrainResult {
  int64_t steps = 0;
  bool interrupted = false;
  double first_loss = 0, final_loss = 0;        // training
  double first_valid_loss = 0, valid_loss = 0;  // held out; 0 without valid.jsonl
  int64_t tokens = 0;
  double seconds = 0;
  int64_t peak_bytes = 0;
  std::string adapter_path, report_path;
  std::vector<StepReport> history;
  std::vector<EvalReport> evals;
  std::vector<TrainSample> samples;
};

// All optional. Called on the thread that runs.
struct TrainCallbacks {
  std::function<void(const Forecast&)> on_forecast = {};
  std::function<void(const StepReport&)> on_step = {};      // every steps_per_report updates
  std::function<void(const StepReport&)> on_progress = {};  // every update, for a live line
  std::function<void(const EvalReport&)> on_eval = {};
  std::function<void(const SaveReport&)> on_save = {};
  std::function<void(const std::string&)> on_message = {};  // a line for people
  std::function<bool()> should_stop = {};  // asked after each update; true: save and return
};

class Trainer {
 public:
  // Reads the data and records the plan. Throws: kInvalidArgument naming a wrong option, and as
  // Dataset::load. The model must outlive this.
  Trainer(Model& model, const TrainOptions& options);
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  const Forecast& forecast() const;
  // The printed plan of one micro-batch.
  std::string plan() const;

  // Trains, saves into adapter_path and leaves the adapter attached to the model.
  // Throws: kInternal when the loss is not finite (the last good checkpoint stays), kIo.
  TrainResult run(const TrainCallbacks& callbacks = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace wick
