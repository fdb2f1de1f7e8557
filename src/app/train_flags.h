// SPDX-License-Identifier: Apache-2.0
// The flags of a training run, shared by train and plan, with mlx-lm's words and its nested keys
// of a settings file (lora_parameters, lr_schedule, optimizer_config).
#pragma once

#include <string>

#include "app/args.h"
#include "app/options.h"

namespace wick {

struct TrainFlags {
  ModelFlags model;
  DeviceFlags device;
  DataFlags data;
  ChatFlags chat;
  TrainOptions train;
  double scale = 0;  // alpha / rank, when given
  bool test = false;
  bool random_weights = false;
  int64_t test_batches = -1;
  std::string optimizer = "adamw";
  Json optimizer_config;  // of a settings file
  std::string optimizer_config_where;

  // What the library is asked for, once everything is read. Throws: UsageError, Error.
  // `needs_data`: otherwise --data may be left out (a forecast).
  TrainOptions checked(const Args& args, bool needs_data = true) const;
  ModelOptions model_options() const;
};

void add_train_flags(Args& args, TrainFlags& flags);
void add_sweep_flags(Args& args, TrainFlags& flags);
void add_preference_flags(Args& args, TrainFlags& flags);  // part of them

}  // namespace wick
