// SPDX-License-Identifier: Apache-2.0
// What stands behind Trainer: trainer_data.cpp reads the rows, trainer_fit.cpp chooses the step
// that fits (trainer_smaller.cpp says what else would), trainer_time.cpp forecasts how long it
// takes, trainer_identity.cpp says what run it is, trainer.cpp declares what is trained, runs it
// and saves the result.
#pragma once

#include "api/internal.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "train/checkpoint.h"
#include "train/fit.h"
#include "train/preference.h"
#include "train/rehearsal.h"
#include "train/run.h"
#include "train/save_trial.h"

namespace wick {

// Bytes that a run puts on the disk.
struct DiskNeed {
  int64_t state = 0, result = 0;  // of one checkpoint, of one result
  int64_t kept = 0;               // at the end: both, the best one, numbered ones
  int64_t beside = 0;             // besides while a file is written that replaces another
  int64_t replaced = 0;           // of an earlier run, that these take the place of
};

// The folder of a run, this run's alone. One that was made for it and got no file goes again.
struct RunFolder {
  NewFolder folder;
  FolderLock lock;
  std::string path;

  // Before something is saved. Throws: kNotFound where it is another run's by now.
  void hold(const std::function<void(const std::string&)>& say);
};

// What a compiled step holds beside its operands, measured.
constexpr int64_t kProgramStepBytes = 800;

// Between which runs lay by estimates, as shares of those.
constexpr double kEstimatedLow = 0.8, kEstimatedHigh = 1.3;

// In the folder of --prefix-cache.
constexpr const char* kPrefixFile = "prefix_rows.bin";

class SpeedProbe;

// The adapter that the options ask for.
LoraOptions lora_options(const TrainOptions& options);

// The kind of adapter: all of it for identity(), or what is not its default.
Json kind_of(const TrainOptions& options, bool all);

struct Trainer::Impl {
  static constexpr size_t kSamples = 3;  // answered before and after, for the report

  std::optional<Model> model;
  TrainOptions options;
  ExampleSet train;
  std::optional<ExampleSet> valid;
  std::shared_ptr<Adapter> adapter;
  std::vector<float> start_params;  // of an adapter; of a new one in start() only
  std::shared_ptr<const Trainable> trainable;
  // What a loss asks beside the trained model.
  std::shared_ptr<Model> beside;
  std::shared_ptr<Adapter> reference_adapter;
  std::vector<float> reference_params;
  std::optional<ReferenceModel> reference;
  std::unique_ptr<TrainStep> step;
  std::unique_ptr<TrainStep> free_step;  // what --memory did not allow; null: it did
  // How updates are computed (kOrder of a checkpoint), but for the packs.
  Json plan_order;
  PackLimits run_limits;    // of the step; of a sweep's other runs, too
  PackLimits joint_limits;  // of all runs of a sweep together
  // The other runs of a sweep; `trainable` and `step` are then those of all together.
  std::vector<Impl*> others;
  Forecast forecast;
  bool timed = false;  // the forecast has seconds
  // That answering the prompts takes beside the step; guessed until they have been answered.
  int64_t answer_bytes = 0;
  int64_t answer_code_bytes = 0;  // of code that ran for the first time then, and stays
  bool answered = false;
  int64_t counted_briefly = 0;        // of them and of copies, in process_bytes
  bool started = false;               // the step is compiled and has the start values
  bool has_run = false;               // … which updates have changed
  std::vector<std::string> messages;  // for on_message, before the first step
  bool replaces_model = false;        // that an earlier full training left in the run's folder

  // Checks the options, reads the rows, declares what is trained.
  void prepare(Model& on, const TrainOptions& wanted);
  // trainer_disk.cpp
  void look_at_folder();
  RunFolder check_folder() const;
  int64_t result_bytes(const std::string& save_dtype) const;
  DiskNeed disk_need(const TrainOptions& o) const;
  // By this run and the others.
  DiskNeed saved_at_once(const std::function<void(TrainOptions&)>& change = {}) const;
  // Throws: kIo where the disk has not the room that the run takes when it is most, saying what
  // fits.
  void check_disk() const;
  // `expected` is the forecast of the step that this run is on.
  RunSetup run_setup(const Forecast& expected);
  // This and the others.
  std::vector<Impl*> runs();
  std::vector<const Impl*> runs() const;
  // Answers, and the report.
  void finish(TrainResult& result, const std::vector<PromptAndAnswer>& prompts,
              const std::vector<std::string>& before, BufferPtr params,
              const std::function<void(const std::string&)>& say);
  void load_data();
  void declare();
  void assume_rows();
  void add_sizes(int64_t kept_bytes);  // kept: beside the step, under --memory too
  void choose_step();
  // `base`: in place of the model's weights, where they are others.
  StepOptions step_options(const PackLimits& limits, int64_t recompute_blocks,
                           ModelWeights* base = nullptr) const;
  std::unique_ptr<TrainStep> make_step(const FitCandidate& size, int64_t recompute_blocks) const;
  Order order() const;
  int64_t positions() const;
  PackLimits least_limits() const;
  PackLimits free_limits() const;
  Fit fit_within(int64_t memory_bytes) const;
  // trainer_time.cpp. By a part of the model, from its shape alone; does nothing a second time.
  void forecast_time();
  double guessed_pack_seconds() const;
  double decompose_seconds() const;
  // Whether the run is long enough, or so quick, that its own step may be tried before it; and
  // without a run, whether weights and step fit into memory and a few seconds.
  bool can_rehearse() const;
  bool can_try_now() const;
  // Reads the weights, compiles the step and gives it the start values, once. False: stopped.
  bool start(const StopAsked& stop = {});
  void start_step();
  // The forecast by the step itself if it can be tried now, else forecast_time().
  void try_now();
  // By the compiled step, which is left as it was. `answer_seconds`: of the prompts, at each look.
  void rehearse_run(double answer_seconds, const RehearsalTime& time = {},
                    const std::function<bool()>& should_give_up = {});
  Checkpoint part_of_checkpoint(double part) const;
  // Of the run's checkpoints and results, with these numbers. Requires: a step that has been tried.
  Saving try_saving(std::vector<float> params) const;
  struct SampledPacks;
  SampledPacks sample_packs() const;
  void set_times(const RunTimes& times, double packing_seconds, const Saving& saving);
  std::string describe_choice(const PackLimits& free) const;
  // trainer_smaller.cpp. What else would make the smallest plan smaller: each by itself, and
  // together where none of them is enough.
  std::string what_would_fit(const Fit& smallest, int64_t memory_bytes);
  struct Smaller;
  struct ShorterRows;
  int64_t smaller_bytes(const Smaller& run, FitCandidate size);
  // Throws: kOutOfMemory where the device has not what the run will take.
  void check_device();
  int64_t process_bytes() const;
  // Of this run's own numbers, what its optimizer keeps, and the best so far.
  struct OwnBytes {
    int64_t params = 0, states = 0, best = 0;
  };
  OwnBytes own_bytes() const;
  int64_t written_bytes() const;
  int64_t copied_bytes() const;  // while a checkpoint is written
  // What the process takes beside the plan, now that the step is compiled.
  void count_process();
  // The same where nothing but the prompts has been run, and how long these took.
  void count_untried(double took);
  int64_t briefly_bytes()
      const;  // copied_bytes(), or while prompts are answered, whichever is more
  int64_t stream_bytes() const;
  void plan_prefix();
  int64_t prefix_tokens() const;
  uint64_t data_key() const;
  std::vector<const Impl*> runs_of_other_data() const;
  uint64_t prefix_key() const;
  // Gives the step the place where rows are kept. Throws: kIo.
  void open_prefix();
  // trainer_loss.cpp
  void check_loss();
  PairRows pair_rows() const;
  PackLimits loss_limits() const;  // what the loss needs beside the rows' own
  void open_reference();
  ReferenceModel open_beside(const char* flag, const std::string& path,
                             const std::string& with_adapter);
  bool has_pairs() const;                          // two sequences in a row
  LossMaker loss_maker(ModelWeights& base) const;  // that or others in place of the model's
  void identify_loss(Json& identity) const;
  // trainer_identity.cpp. A checkpoint's `run`, but for what the step adds.
  Json identity() const;
  void identify_init(Json& identity) const;
  std::string trained_key() const;
  // Among the messages: adapter_note(), if it says anything.
  void note_adapter(const Model::Impl& base, const Adapter& loaded, const std::string& path);
  Json describe_order() const;
  std::string pack_key() const;
  void save_result(const std::string& folder, std::span<const float> params) const;
  // trainer_answers.cpp. What is answered before and after: the caller's prompts, else the first of
  // the held-out rows.
  std::vector<PromptAndAnswer> sample_prompts() const;
  // Fewer answers where it is stopped.
  std::vector<std::string> answer(const std::vector<PromptAndAnswer>& prompts, BufferPtr params,
                                  const StopAsked& stop = {});
  struct AnswerPlan {
    int64_t tokens = 0;     // at once
    double count = 0;       // runs, of all prompts together
    int64_t positions = 0;  // of the longest prompt with its answer
    std::unique_ptr<DecoderPlan> plan;
  };
  std::vector<AnswerPlan> answer_plans() const;
  int64_t guessed_answer_bytes() const;
  double guessed_answer_seconds(const SpeedProbe& probe) const;
  void set_answer_seconds(double seconds);  // in a forecast that has another number of them
};

}  // namespace wick
