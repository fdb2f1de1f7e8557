// SPDX-License-Identifier: Apache-2.0
#include "app/train_flags.h"

#include <algorithm>

#include "app/prompt_file.h"
#include "base/check.h"

namespace wick {

namespace {

constexpr FloatRange kNotNegative{.min = 0.0};

bool read_lora_parameters(Args& args, const Json& value, const std::string& where) {
  check_members(value, where, {"rank", "alpha", "scale", "dropout", "keys"});
  static const std::pair<const char*, const char*> kFlags[] = {{"rank", "rank"},
                                                               {"alpha", "alpha"},
                                                               {"scale", "scale"},
                                                               {"dropout", "lora-dropout"},
                                                               {"keys", "targets"}};
  // mlx-lm's own files had both for a while; there only the scale counts.
  const bool scaled = find_member(value, "scale") != nullptr;
  for (const auto& [key, flag] : kFlags)
    if (const Json* member = find_member(value, key))
      if (!scaled || std::string_view(key) != "alpha")
        args.set_from_config(flag, *member, cat(where, ".", key));
  return true;
}

}  // namespace

void add_epochs_flag(Args& args, TrainOptions& o) {
  args.number("--epochs", o.epochs, "X", "How often the data is gone through; 1.5 is allowed.",
              {.min = 0.001});
}

bool epochs_beat_iters(const Args& args) { return args.source("epochs") > args.source("iters"); }

// Refuses members of a nested mapping that are not in `known`.
void check_members(const Json& value, const std::string& where,
                   const std::vector<std::string>& known) {
  if (!value.is_object())
    throw UsageError(
        cat(where, " got ", json_kind(value), ", wanted a mapping of ", known.front(), ", …"));
  for (const auto& [key, member] : value.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string near = nearest_name(key, known);
    std::string list;
    for (const auto& name : known) list += (list.empty() ? "" : ", ") + name;
    throw UsageError(cat(where, ".", key, " is not a setting",
                         near.empty() ? "; there are " + list : "; did you mean " + near + "?"));
  }
}

void add_train_flags(Args& args, TrainFlags& flags) {
  TrainOptions& o = flags.train;
  add_model_flags(args, flags.model, false);
  args.flag("--random-weights", flags.random_weights,
            "Keep the model's shape and tokenizer, and start from random weights.");
  add_data_flags(args, flags.data);

  args.number("--val-split", o.val_split, "X",
              "Without a valid file: hold out this share of the rows (1 or more: that many rows), "
              "drawn by --seed.",
              kNotNegative)
      .shown("0");

  args.group("Adapter");
  args.text("--adapter-path", o.adapter_path, "FOLDER",
            "Where the adapter, its checkpoints and report.html go.")
      .path_or_empty();
  args.text("--fine-tune-type", o.fine_tune_type, "TYPE",
            "lora or dora train an adapter, full all weights (with --num-layers, the last N "
            "blocks).")
      .one_of({"lora", "dora", "full"});
  args.integer("--rank,--lora-rank", o.rank, "N", "Rank of the adapter.", {.min = 1, .max = 65536});
  args.number("--alpha,--lora-alpha", o.alpha, "X", "The update is scaled by alpha / rank.",
              kNotNegative);
  args.number("--scale", flags.scale, "X", "The factor itself, as in mlx-lm: alpha = scale * rank.",
              kNotNegative)
      .shown("");
  args.number("--lora-dropout", o.dropout, "X", "Dropout on the adapter's input.",
              {.min = 0.0, .max = 0.999});
  args.list("--targets,--target-modules", o.targets, "NAMES",
            "Linears that get an adapter: q_proj,v_proj, all-linear, or expressions.");
  args.integer("--num-layers", o.num_layers, "N", "Only the last N blocks; -1 for all.",
               {.min = -1})
      .shown("-1");
  args.text("--init-adapter,--resume-adapter-file", o.init_adapter, "PATH",
            "Start from the numbers of this adapter.")
      .path();
  add_kinds_flags(args, flags);

  args.group("Run");
  args.integer("--batch-size", o.batch_size, "N", "Rows of a batch.", {.min = 1});
  args.integer("--grad-accumulation-steps", o.grad_accumulation_steps, "N",
               "Batches that form one update, weighted by their tokens.", {.min = 1});
  add_epochs_flag(args, o);
  args.integer("--iters", o.iters, "N", "Number of batches, instead of epochs.", {.min = 1})
      .shown("");
  args.flag("--shuffle", o.shuffle, "A new order of the rows in each epoch.");
  args.flag("--packing", o.packing, "Several rows in one sequence, each seeing only itself.");
  args.size(
      "--memory", o.memory_bytes, "SIZE",
      "Fit the run into this much memory, such as 4GB: smaller packs and recomputing, whichever "
      "costs less time.");
  args.flag("--grad-checkpoint", o.grad_checkpoint,
            "Recompute activations in the backward pass: less memory, more time.");
  args.number("--skip-below", o.skip_below, "X",
              "Leave tokens less likely than this out of the head's gradient; 0 is exact.",
              {.min = 0.0, .max = 0.1});
  args.flag("--resume", o.resume, "Go on from the last checkpoint in --adapter-path.");
  args.flag("--force", o.force, "Resume although options or data are not the checkpoint's.");

  add_sweep_flags(args, flags);
  add_preference_flags(args, flags);

  add_optimizer_flags(args, flags);

  args.group("Looking and saving");
  args.integer("--steps-per-report", o.steps_per_report, "N", "Updates between two reports.",
               {.min = 1});
  args.integer("--steps-per-eval", o.steps_per_eval, "N",
               "Updates between two looks at the held-out rows; 0: at the end only.", {.min = 0});
  args.integer("--val-batches", o.val_batches, "N",
               "Batches of valid.jsonl that are looked at, always the same; -1 for all.",
               {.min = -1});
  args.integer("--early-stop", o.early_stop, "N",
               "Stop after N looks without a lower held-out loss, and keep the best; 0 is off.",
               {.min = 0});
  args.number("--early-stop-delta", o.early_stop_delta, "X",
              "A loss is lower when it is so by more than this.", kNotNegative);
  args.flag(
      "--keep-best", o.keep_best,
      "Keep the adapter with the lowest held-out loss: in the folder's best/ during the run, in "
      "the folder itself at the end.");
  args.integer("--save-every", o.save_every, "N", "Updates between two checkpoints.", {.min = 1});
  args.flag("--save-numbered", o.save_numbered, "Keep every save, in step-0000100 and so on.");
  args.text("--save-dtype", o.save_dtype, "TYPE", "Type of the weights that a full training saves.")
      .one_of({"f32", "bf16", "f16"})
      .shown("the model's");
  args.flag("--test", flags.test,
            "Evaluate test.jsonl with what is in --adapter-path ('': the model alone) and change "
            "nothing; with --train, train first.");
  args.flag("--train", flags.trains, "Train; of use with --test.").shown("on without --test");
  args.integer("--test-batches", flags.test_batches, "N",
               "Batches of test.jsonl that are evaluated; -1 for all.", {.min = -1});
  args.repeat("--sample-prompt", o.sample_prompts, "TEXT",
              "Answered at each look and at the end, for report.html; may be repeated.");
  args.text("--eval-prompts", flags.eval_prompts, "FILE",
            "The same from a file: a prompt a line, or JSON lines with prompt, text or messages.")
      .path();
  args.text("--metrics", o.metrics, "FILE", "Write every update, look and save as JSON lines.")
      .path();
  args.text("--tensorboard", o.tensorboard, "FOLDER",
            "Write an event file that TensorBoard reads, such as out/logs.")
      .path();
  args.text("--hook", o.hook, "COMMAND",
            "Run at each look at the held-out rows, with its JSON on standard input.");
  args.number("--hook-seconds", o.hook_seconds, "X", "Time after which the command is ended.",
              {.min = 0.001});

  add_chat_flags(args, flags.chat, "today; with --resume the day the run was begun");
  add_device_flags(args, flags.device);

  args.accept("--clear-cache-threshold", OptionKind::kSize);
  const char* kNoTracker =
      "it reports to no web service; report.html beside the adapter has the curves, and --json "
      "gives every event to a program of yours";
  args.refuse("--report-to", OptionKind::kText, kNoTracker);
  args.refuse("--wandb", OptionKind::kText, kNoTracker);
  args.refuse("--project-name", OptionKind::kText, kNoTracker);
  args.config_key("hf_dataset", [](const Json& value, const std::string& where) -> bool {
    if (value == false) return true;  // mlx-lm's own default
    throw UsageError(where +
                     ": data sets of the hub are not downloaded by name; fetch their JSON "
                     "lines and give the folder as data");
  });
  args.config_key("lora_parameters", [&args](const Json& value, const std::string& where) {
    return read_lora_parameters(args, value, where);
  });
}

ModelOptions TrainFlags::model_options() const {
  ModelOptions options = model.options();
  options.random_weights = random_weights;
  return options;
}

bool TrainFlags::scale_counts(const Args& args) const {
  return args.given("scale") && args.source("scale") > args.source("alpha");
}

TrainOptions TrainFlags::checked(const Args& args, bool needs_data) const {
  TrainOptions o = train;
  finish_schedule(args, o);
  finish_optimizer(args, o);
  if ((needs_data && sweep_data.empty()) || !data.data.empty()) {
    o.data_sources = data.sources(args);
    o.data = o.data_sources.front().path;
  }
  o.dataset = data.options;
  o.dataset.system_prompt = chat.system_prompt;
  o.dataset.chat_template_config = chat.chat_template_config;
  o.dataset.date = chat.date;
  o.seed = static_cast<uint64_t>(model.seed);
  kinds.apply(o);
  refuse_idle_flags(args, o);
  if (epochs_beat_iters(args)) o.iters = 0;
  if (o.num_layers == 0) o.num_layers = -1;  // as mlx-lm reads it
  if (args.given("memory") && o.memory_bytes == 0)
    throw UsageError("--memory got 0, wanted a size such as 4GB");
  // A file of mlx-lm may have one where nothing is tested.
  if (test && test_batches == 0)
    throw UsageError("--test-batches got 0, wanted a number of batches, or -1 for all");
  if (args.given("scale")) {
    if (args.source("alpha") == args.source("scale"))
      throw UsageError("--scale and --alpha say the same thing (scale = alpha / rank); give one");
    if (scale_counts(args)) o.alpha = scale * static_cast<double>(o.rank);
  }
  for (const auto& [flag, name] : {std::pair{"rank", "rank"},
                                   {"alpha", "alpha"},
                                   {"scale", "alpha"},
                                   {"lora-dropout", "dropout"},
                                   {"targets", "targets"},
                                   {"num-layers", "num_layers"}})
    if (args.given(flag)) o.asked.push_back(name);
  if (random_weights && o.fine_tune_type != "full")
    throw UsageError(
        "--random-weights needs --fine-tune-type full; an adapter on random weights "
        "learns nothing of use");

  if (!eval_prompts.empty()) {
    if (!o.sample_prompts.empty())
      throw UsageError("--eval-prompts and --sample-prompt both name prompts; give one of them");
    o.sample_prompts = read_prompt_texts(eval_prompts);
  }
  o.sample_at_evals = !o.sample_prompts.empty();
  return o;
}

}  // namespace wick
