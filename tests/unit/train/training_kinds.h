// SPDX-License-Identifier: Apache-2.0
// Kinds of training whose programs differ, for tests that follow programs.
#pragma once

#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/lora.h"
#include "base/check.h"
#include "train/step.h"

namespace wick {

struct TrainingKind {
  std::string name;
  LoraOptions lora = {};
  bool full = false;
  size_t lanes = 1;

  // What is trained of the model; `adapter` is of `lora`.
  Trainable trained(const ModelConfig& config, const Adapter& adapter) const {
    if (full) return train_weights(config, -1);
    if (lanes == 1) return train_adapter(adapter);
    return train_adapters(std::vector<const Adapter*>(lanes, &adapter));
  }
  friend void PrintTo(const TrainingKind& kind, std::ostream* out) { *out << kind.name; }
};

// Those of these names.
inline std::vector<TrainingKind> training_kinds(std::initializer_list<std::string_view> names) {
  LoraOptions plain, two, top, drops, dora, ends, wide, pissa;
  two.targets = {"q_proj", "v_proj"};
  top.num_layers = 1;
  drops.dropout = 0.25f;
  dora.dora = true;
  dora.dropout = 0.25f;
  ends.targets = {"gate_proj", "q_proj", "lm_head", "model.embed_tokens"};
  ends.bias = "all";
  wide.rank = 64;
  pissa.init = "pissa";
  LoraOptions one_half = drops;
  one_half.targets = {"gate_proj", "v_proj"};
  const std::vector<TrainingKind> all = {{.name = "plain", .lora = plain},
                                         {.name = "two", .lora = two},
                                         {.name = "top", .lora = top},
                                         {.name = "dropout", .lora = drops},
                                         {.name = "dropout_in_one_half", .lora = one_half},
                                         {.name = "dora", .lora = dora},
                                         {.name = "ends", .lora = ends},
                                         {.name = "wide", .lora = wide},
                                         {.name = "pissa", .lora = pissa},
                                         {.name = "full", .full = true},
                                         {.name = "lanes", .lora = plain, .lanes = 3},
                                         {.name = "lanes_dropout", .lora = drops, .lanes = 2}};
  std::vector<TrainingKind> found;
  for (const TrainingKind& kind : all)
    for (std::string_view name : names)
      if (kind.name == name) found.push_back(kind);
  WICK_CHECK(found.size() == names.size());
  return found;
}

}  // namespace wick
