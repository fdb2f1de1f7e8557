// SPDX-License-Identifier: Apache-2.0
// The flags of a training run, shared by train and plan, with mlx-lm's words and its nested keys
// of a settings file (lora_parameters, lr_schedule, optimizer_config).
#pragma once

#include <set>
#include <string>

#include "app/args.h"
#include "app/options.h"

namespace wick {

// Kinds of adapter: lists as they are written.
struct KindFlags {
  std::vector<std::string> rank_pattern, alpha_pattern, layers, tokens;
  // Throws: UsageError.
  void apply(TrainOptions& options) const;
};

struct TrainFlags {
  ModelFlags model;
  DeviceFlags device;
  DataFlags data;
  ChatFlags chat;
  TrainOptions train;
  KindFlags kinds;
  double scale = 0;    // alpha / rank, when given
  bool trains = true;  // false: only what `test` asks for, with what is in the folder
  bool test = false;
  std::vector<std::string> sweep, sweep_data;  // of several adapters at once
  bool random_weights = false;
  int64_t test_batches = -1;
  std::set<std::string> of_schedule;  // flags that a settings file's lr_schedule has set
  Json optimizer_config;              // of a settings file
  std::string optimizer_config_where;
  bool nesterov = true;  // when given; on, so that it can be turned off
  std::string eval_prompts = {};

  // What the library is asked for, once everything is read. Throws: UsageError, Error.
  // `needs_data`: otherwise --data may be left out (a forecast).
  TrainOptions checked(const Args& args, bool needs_data = true) const;
  ModelOptions model_options() const;
  // The adapters of a sweep with these options: a --scale is each one's, whatever its rank.
  // Throws: UsageError, Error.
  std::vector<SweepAdapter> sweep_adapters(const Args& args, const TrainOptions& o) const;

 private:
  bool scale_counts(const Args& args) const;  // rather than alpha
  void finish_schedule(const Args& args, TrainOptions& o) const;
  void finish_optimizer(const Args& args, TrainOptions& o) const;
};

void add_train_flags(Args& args, TrainFlags& flags);
void add_sweep_flags(Args& args, TrainFlags& flags);
// The optimizer and its schedule (train_flags_optimizer.cpp).
void add_optimizer_flags(Args& args, TrainFlags& flags);
// Refuses members of a nested mapping of a settings file that are not in `known`.
void check_members(const Json& value, const std::string& where,
                   const std::vector<std::string>& known);
void add_epochs_flag(Args& args, TrainOptions& options);
// Whether --epochs counts although a settings file has iters: a flag beats the file.
bool epochs_beat_iters(const Args& args);
// Refuses a flag that does nothing because of what another one chooses. Throws: UsageError.
void refuse_idle_flags(const Args& args, const TrainOptions& o);
void add_kinds_flags(Args& args, TrainFlags& flags);
void add_preference_flags(Args& args, TrainFlags& flags);  // part of them

}  // namespace wick
