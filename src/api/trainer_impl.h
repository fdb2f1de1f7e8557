// SPDX-License-Identifier: Apache-2.0
// What stands behind Trainer: trainer_data.cpp reads the rows, trainer_fit.cpp chooses the step
// that fits and forecasts it, trainer.cpp declares what is trained, runs it and saves the result.
#pragma once

#include "api/internal.h"
#include "train/run.h"

namespace wick {

struct Trainer::Impl {
  static constexpr size_t kSamples = 3;  // answered before and after, for the report

  Model* model;
  TrainOptions options;
  ExampleSet train;
  std::optional<ExampleSet> valid;
  std::shared_ptr<const Adapter> adapter;
  std::vector<float> start_params;  // of an adapter
  std::shared_ptr<const Trainable> trainable;
  std::unique_ptr<TrainStep> step;
  Forecast forecast;
  std::vector<std::string> messages;  // for on_message, before the first step

  void load_data();
  void declare();
  void assume_rows();
  void choose_step();
  void forecast_time(const Order& order);
  Json identity() const;
  void save_result(std::span<const float> params) const;
  // What is answered before and after: the caller's prompts, else the first of the held-out rows.
  std::vector<PromptAndAnswer> sample_prompts() const;
  std::vector<std::string> answer(const std::vector<PromptAndAnswer>& prompts, BufferPtr params);
};

}  // namespace wick
