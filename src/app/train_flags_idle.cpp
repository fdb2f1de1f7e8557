// SPDX-License-Identifier: Apache-2.0
// Flags that only some choice of another flag reads.
#include <algorithm>
#include <string_view>

#include "app/train_flags.h"
#include "base/check.h"

namespace wick {

namespace {

struct Dependent {
  const char* flag;
  std::vector<std::string_view> read_by;  // values of the flag that chooses
};

const std::vector<Dependent>& of_the_kind() {
  static const std::vector<Dependent> kFlags = {
      {"rank", {"lora", "dora"}},    {"alpha", {"lora", "dora"}},
      {"scale", {"lora", "dora"}},   {"lora-dropout", {"lora", "dora"}},
      {"targets", {"lora", "dora"}}, {"save-dtype", {"full"}}};
  return kFlags;
}

const std::vector<Dependent>& of_the_loss() {
  static const std::vector<Dependent> kFlags = {{"beta", {"dpo", "simpo", "orpo", "kto"}},
                                                {"label-smoothing", {"dpo", "simpo"}},
                                                {"simpo-gamma", {"simpo"}},
                                                {"desirable-weight", {"kto"}},
                                                {"undesirable-weight", {"kto"}},
                                                {"reference", {"dpo", "kto"}},
                                                {"teacher-adapter", {"distill"}},
                                                {"distill-temperature", {"distill"}},
                                                {"distill-alpha", {"distill"}}};
  return kFlags;
}

const std::vector<Dependent>& of_the_schedule() {
  static const std::vector<Dependent> kFlags = {
      {"lr-end", {"cosine", "linear", "cosine_with_restarts", "wsd"}},
      {"lr-decay-steps", {"cosine", "linear", "cosine_with_restarts", "wsd"}},
      {"lr-cycles", {"cosine_with_restarts"}},
      {"lr-decay-share", {"wsd"}},
      {"lr-decay-rate", {"exponential_decay", "step_decay"}},
      {"lr-step-size", {"step_decay"}}};
  return kFlags;
}

// What beta1, momentum and the like are to an optimizer, the trainer says.
const std::vector<Dependent>& of_the_optimizer() {
  static const std::vector<Dependent> kFlags = {{"eps", {"adamw", "adam", "adamw_8bit"}},
                                                {"dampening", {"sgd"}},
                                                {"ns-steps", {"muon"}},
                                                {"nesterov", {"sgd", "muon"}}};
  return kFlags;
}

}  // namespace

void refuse_idle_flags(const Args& args, const TrainOptions& o) {
  auto check = [&](const char* chooser, const std::string& chosen,
                   const std::vector<Dependent>& flags) {
    for (const Dependent& d : flags) {
      // A settings file may hold more than one run needs: mlx-lm's always has lora_parameters.
      if (args.source(d.flag) != Source::kCommandLine) continue;
      if (std::find(d.read_by.begin(), d.read_by.end(), chosen) != d.read_by.end()) continue;
      std::string list;
      for (const std::string_view each : d.read_by) list += cat(list.empty() ? "" : ", ", each);
      throw UsageError(cat("--", d.flag, " has no effect with --", chooser, " ", chosen,
                           "; it is for ", list, ": choose that, or leave it out"));
    }
  };
  check("fine-tune-type", o.fine_tune_type, of_the_kind());
  check("loss", o.loss, of_the_loss());
  check("lr-schedule", o.lr_schedule, of_the_schedule());
  check("optimizer", o.optimizer, of_the_optimizer());
}

}  // namespace wick
