// SPDX-License-Identifier: Apache-2.0
// Trainer: fine-tunes an adapter (or all weights) of a model on a data set.
#pragma once

#include <cstdint>
#include <functional>
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
  std::vector<DataSource> data_sources = {};  // several, with weights; empty: `data` alone
  double val_split = 0;  // without a valid file: held-out rows drawn from the training rows by the
                         // seed; below 1 their share, else their number; 0: none
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
  // Of rank, alpha, dropout, targets and num_layers those that were chosen, though they may be the
  // defaults: an init_adapter that has others is refused.
  std::vector<std::string> asked = {};
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
  std::string bias = "none";                          // trained whole as PEFT: none, all, lora_only
  std::vector<std::string> modules_to_save = {};      // trained whole: norms, embed_tokens, lm_head

  // The run.
  int64_t batch_size = 4;               // rows of a micro-batch
  int64_t grad_accumulation_steps = 1;  // times batch_size rows form an update
  double epochs = 3;                    // times the data; of a part, the updates that it begins
  int64_t iters = 0;                    // > 0: that many batches instead of epochs
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
  std::string optimizer = "adamw";  // adam, adamw, adamw_8bit, sgd, lion, muon, adafactor
  double learning_rate = 1e-4;
  std::string lr_schedule = "cosine";  // see docs/training.md for all
  double warmup = -1;                  // updates; < 0: 3 % of the run
  double warmup_init = 0;              // the rate that the warm-up starts from
  double lr_end = -1;                  // the rate after the decay; < 0: the schedule's own
  int64_t lr_decay_steps = 0;          // > 0: updates of the decay instead of the rest of the run
  int64_t lr_cycles = 2;               // of cosine_with_restarts
  double lr_decay_share = 0.2;         // of wsd: the last part of the run, in which the rate falls
  double lr_decay_rate = 0.1;          // of exponential_decay (an update) and step_decay (a step)
  int64_t lr_step_size = 100;          // of step_decay: updates of a step
  bool warmup_from_init = false;       // mlx-lm's warm-up: update 1 has warmup_init itself, and the
                                       // schedule begins after update warmup + 1
  double weight_decay = -1;            // < 0: the optimizer's own; 0.01 for adamw
  double grad_clip = 1.0;              // 0: off
  double beta1 = -1, beta2 = -1;       // < 0: the optimizer's own; 0.9 and 0.999 for adamw
  double eps = 1e-8;
  bool bias_correction = true;  // of adam and adamw; mlx-lm's do without
  double momentum = -1;         // of sgd (0) and muon (0.95); < 0: the optimizer's own
  double dampening = 0;         // of sgd
  int nesterov = -1;            // of sgd and muon: 0, 1, or < 0: the optimizer's own
  int64_t ns_steps = 5;         // Newton-Schulz steps of muon
  double clip_threshold = 1.0;  // of adafactor: largest root mean square of a tensor's step
  double decay_rate = -0.8;     // of adafactor: beta2 = 1 - update^decay_rate
  double adafactor_eps1 = 1e-30, adafactor_eps2 = 1e-3;
  bool scale_parameter = false;       // of adafactor: the rate is times the parameter's size
  bool relative_step = false;         // of adafactor: min(0.01, 1/sqrt(update)) for a rate …
  bool relative_step_warmup = false;  // … or at first 1e-6 times the update

  // Looking and saving.
  int64_t steps_per_report = 10;
  int64_t steps_per_eval = 200;  // 0: only at the end
  int64_t val_batches = 25;      // batches of a fixed subset of valid.jsonl, at least 1; -1: all
  int64_t save_every = 100;
  std::string save_dtype = {};  // of a full training's weights: f32, bf16, f16; "": as they were
  bool resume = false;          // go on from adapter_path's last checkpoint
  std::vector<std::string> sample_prompts = {};  // answered before and after, for the report;
                                                 // empty: the first of valid.jsonl
  bool sample_at_evals = false;  // the prompts are answered at every look at the held-out rows too
  bool force = false;            // resume although options or data are not those of the checkpoint
  int64_t early_stop = 0;  // > 0: stop after that many looks at the held-out rows without a better
                           // loss; keeps the best
  double early_stop_delta = 0;   // a loss is better when it is lower by more than this
  bool keep_best = false;        // adapter_path/best has the best so far, and adapter_path the same
                                 // at the end
  bool save_numbered = false;    // every save stays, in adapter_path/step-0000100 and so on
  std::string metrics = {};      // a file of JSON lines: every update, evaluation and save
  std::string tensorboard = {};  // a folder for an event file of TensorBoard
  std::string hook = {};         // a shell command that gets each evaluation as JSON on its input
  double hook_seconds = 60;      // after which it is ended
};

// Rewards of answers; accuracy is the share of pairs whose chosen answer has the higher one. Not a
// number where there is nothing that it would be of: a mean of no answers, an accuracy of no pairs.
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
  double update_loss = 0;            // of this update alone
  PreferenceReport preference = {};  // since the last report; to on_progress of this update alone
};

struct EvalSample {
  std::string prompt, answer;
};

struct EvalReport {
  int64_t step = 0;
  double loss = 0, perplexity = 0;  // of preferences, whose loss is not one of tokens: 0
  int64_t tokens = 0, rows = 0;
  bool best = false;
  std::vector<EvalSample> samples = {};  // with sample_at_evals
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
  bool stopped_early = false;  // by early_stop
  int64_t kept_step = -1;      // the update that the result is of: the last, or the best
  int64_t best_step = -1;      // of the lowest held-out loss; -1 without one
  double best_valid_loss = 0;
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
  // Asked once for each update but the last, and while held-out rows are looked at; true: save
  // after that update and return. After the update, or while a device that runs ahead works on it.
  std::function<bool()> should_stop = {};
  // Asked until the first update, also while the step is tried, a reference reads the rows and the
  // held-out ones are looked at; true: return with nothing done (interrupted, no adapter_path).
  std::function<bool()> should_give_up = {};
};

class Trainer {
 public:
  // Reads the data and records the plan. Throws: kInvalidArgument naming a wrong option, and as
  // Dataset::load.
  Trainer(Model& model, const TrainOptions& options);
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  // Its times are measured the first time it is asked for, on a part of the model; run() gives
  // on_forecast those of the step itself where the run is long enough to try it first.
  const Forecast& forecast() const;
  // The same by trying the step itself now, where weights and step fit into the memory that is
  // free and into a few seconds: Forecast::tried. Reads the weights and writes nothing.
  const Forecast& rehearse();
  // The printed plan of one micro-batch.
  std::string plan() const;

  // Trains, saves into adapter_path and leaves the adapter attached to the model. Once: a trainer
  // that has made updates is refused.
  // Throws: kInternal when the loss is not finite (the last checkpoint stays), kIo.
  TrainResult run(const TrainCallbacks& callbacks = {});

 private:
  friend class Sweep;
  struct Impl;
  Handle<Impl> impl_;
};

}  // namespace wick
