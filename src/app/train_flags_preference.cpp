// SPDX-License-Identifier: Apache-2.0
#include "app/train_flags.h"

namespace wick {

void add_preference_flags(Args& args, TrainFlags& flags) {
  TrainOptions& o = flags.train;
  args.group("Preferences and distillation");
  args.text(
          "--loss", o.loss, "NAME",
          "sft learns the answers; dpo, simpo, orpo and kto learn which answer is preferred, "
          "from rows with prompt, chosen and rejected (kto: or with completion and label); distill "
          "learns a teacher's distribution.")
      .one_of({"sft", "dpo", "simpo", "orpo", "kto", "distill"});
  args.number("--beta", o.beta, "X", "How much a difference of log-probabilities counts.",
              {.min = 0.0})
      .shown("0.1, simpo 2");
  args.number("--label-smoothing", o.label_smoothing, "X",
              "Share of pairs that are taken to be the wrong way round (dpo, simpo).",
              {.min = 0.0, .max = 0.5});
  args.number("--simpo-gamma", o.simpo_gamma, "X", "Margin that simpo asks for.", {.min = 0.0});
  args.number("--desirable-weight", o.desirable_weight, "X", "Weight of wanted answers in kto.",
              {.min = 0.0});
  args.number("--undesirable-weight", o.undesirable_weight, "X",
              "Weight of unwanted answers in kto.", {.min = 0.0});
  args.text("--reference", o.reference, "WHAT",
            "What dpo and kto measure against: base is the state before training (with "
            "--init-adapter, that adapter), none, or the folder of an adapter or a model.");
  args.text("--teacher", o.teacher, "FOLDER",
            "The model that distill learns from; it has the same vocabulary. wick-embedded is the "
            "one inside wick.")
      .path();
  args.text("--teacher-adapter", o.teacher_adapter, "FOLDER", "An adapter of the teacher.").path();
  args.number("--distill-temperature", o.distill_temperature, "X",
              "Divides the logits of both in distill.", {.min = 0.01, .max = 100.0});
  args.number("--distill-alpha", o.distill_alpha, "X",
              "Share of the teacher in distill; the rest is the likelihood of the data.",
              {.min = 0.0, .max = 1.0});
}

}  // namespace wick
