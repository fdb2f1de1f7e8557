// SPDX-License-Identifier: Apache-2.0
// Trainer: fine-tunes an adapter (or all weights) of a model on a data set.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "wick/dataset.h"
#include "wick/forecast.h"
#include "wick/model.h"

namespace wick {

struct TrainOptions {
  std::string data = {};  // folder with train.jsonl (valid.jsonl, test.jsonl), or a file; "" for a
                          // forecast alone: rows of max_seq_length tokens, all trained, are assumed
  std::string adapter_path = "adapters";  // where the result, checkpoints and the report go
  std::string fine_tune_type = "lora";    // lora, dora, full
  DatasetOptions dataset = {};  // its date, if "": the day the run was begun, also on resume

  // The adapter.
  int64_t rank = 8;
  double alpha = 16.0;   // the update is scaled by alpha / rank
  double dropout = 0.0;  // on the adapter's input
  std::vector<std::string> targets = {"all-linear"};
  int64_t num_layers = -1;        // the last N blocks; -1: all
  std::string init_adapter = {};  // start from this adapter's numbers
  // Kinds of adapter; the lists are PEFT's fields of these names (docs/adapters.md).
  bool rslora = false;           // scaled by alpha / sqrt(rank)
  bool dora = false;             // magnitudes are trained apart from directions
  std::string init = "default";  // default, gaussian, pissa
  double lora_plus_ratio = 1.0;  // of B's learning rate to A's
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  std::vector<int64_t> layers_to_transform = {};
  std::vector<std::string> exclude_modules = {};
  std::vector<int64_t> trainable_token_indices = {};  // rows of the embedding
  std::vector<std::string> modules_to_save = {};      // trained whole: norms, embed_tokens, lm_head

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
};

struct EvalReport {
  int64_t step = 0;
  double loss = 0, perplexity = 0;
  int64_t tokens = 0, rows = 0;
  bool best = false;
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
