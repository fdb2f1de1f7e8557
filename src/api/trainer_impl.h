// SPDX-License-Identifier: Apache-2.0
// What stands behind Trainer: trainer_data.cpp reads the rows, trainer_fit.cpp chooses the step
// that fits and forecasts it, trainer.cpp declares what is trained, runs it and saves the result.
#pragma once

#include "api/internal.h"
#include "base/folder_lock.h"
#include "train/fit.h"
#include "train/preference.h"
#include "train/run.h"

namespace wick {

struct Trainer::Impl {
  static constexpr size_t kSamples = 3;  // answered before and after, for the report

  Model* model;
  TrainOptions options;
  ExampleSet train;
  std::optional<ExampleSet> valid;
  std::shared_ptr<Adapter> adapter;
  std::vector<float> start_params;  // of an adapter
  std::shared_ptr<const Trainable> trainable;
  // What a loss asks beside the trained model.
  std::shared_ptr<Model> beside;
  std::shared_ptr<const Adapter> reference_adapter;
  std::optional<ReferenceModel> reference;
  std::unique_ptr<TrainStep> step;
  // The other runs of a sweep; `trainable` and `step` are then those of all together.
  std::vector<const Impl*> others;
  Forecast forecast;
  std::vector<std::string> messages;  // for on_message, before the first step

  // Checks the options, reads the rows, declares what is trained.
  void prepare(Model& on, const TrainOptions& wanted);
  FolderLock check_folder() const;
  // `expected` is the forecast of the step that this run is on.
  RunSetup run_setup(const Forecast& expected, int64_t process_bytes);
  // Answers, and the report.
  void finish(TrainResult& result, const std::vector<PromptAndAnswer>& prompts,
              const std::vector<std::string>& before, BufferPtr params);
  void load_data();
  void declare();
  void assume_rows();
  void add_sizes(int64_t kept_bytes);  // kept: beside the step, under --memory too
  void choose_step();
  StepOptions step_options(const PackLimits& limits, int64_t recompute_blocks) const;
  std::unique_ptr<TrainStep> make_step(const PackLimits& limits, int64_t recompute_blocks) const;
  Order order() const;
  int64_t positions() const;
  PackLimits least_limits() const;
  PackLimits free_limits() const;
  Fit fit_within(int64_t memory_bytes) const;
  void forecast_time(const TrainStep* free_step);
  std::string describe_choice(const PackLimits& free) const;
  std::string what_would_fit(const Fit& smallest, int64_t memory_bytes) const;
  // Throws: kOutOfMemory where the device has not what the run will take.
  void check_device() const;
  int64_t process_bytes() const;
  void plan_prefix();
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
  LossMaker loss_maker() const;
  void identify_loss(Json& identity) const;
  Json identity() const;
  void save_result(const std::string& folder, std::span<const float> params) const;
  // What is answered before and after: the caller's prompts, else the first of the held-out rows.
  std::vector<PromptAndAnswer> sample_prompts() const;
  std::vector<std::string> answer(const std::vector<PromptAndAnswer>& prompts, BufferPtr params);
};

}  // namespace wick
