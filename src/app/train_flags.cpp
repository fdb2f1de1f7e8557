// SPDX-License-Identifier: Apache-2.0
#include "app/train_flags.h"

#include <algorithm>

#include "base/check.h"

namespace wick {

namespace {

constexpr FloatRange kNotNegative{.min = 0.0};

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

bool read_lora_parameters(Args& args, const Json& value, const std::string& where) {
  check_members(value, where, {"rank", "alpha", "scale", "dropout", "keys"});
  static const std::pair<const char*, const char*> kFlags[] = {{"rank", "rank"},
                                                               {"alpha", "alpha"},
                                                               {"scale", "scale"},
                                                               {"dropout", "lora-dropout"},
                                                               {"keys", "targets"}};
  for (const auto& [key, flag] : kFlags)
    if (const Json* member = find_member(value, key))
      args.set_from_config(flag, *member, cat(where, ".", key));
  return true;
}

// mlx-lm: name of an MLX scheduler, its arguments (the peak rate first), updates of warm-up.
bool read_lr_schedule(Args& args, const Json& value, const std::string& where) {
  if (value.is_string()) return false;
  check_members(value, where, {"name", "arguments", "warmup", "warmup_init"});
  const Json* name = find_member(value, "name");
  if (!name) throw UsageError(cat(where, " has no name; wanted cosine_decay or linear_schedule"));
  std::string text = checked_value(OptionKind::kText, *name, where + ".name").get<std::string>();
  std::vector<std::string> meanings;  // of the arguments
  if (text == "cosine_decay" || text == "cosine") {
    args.set_from_config("lr-schedule", "cosine", where + ".name");
    meanings = {"learning-rate", "lr-decay-steps", "lr-end"};
  } else if (text == "linear_schedule" || text == "linear") {
    args.set_from_config("lr-schedule", "linear", where + ".name");
    meanings = {"learning-rate", "lr-end", "lr-decay-steps"};
  } else if (text == "constant") {
    args.set_from_config("lr-schedule", "constant", where + ".name");
    meanings = {"learning-rate"};
  } else {
    throw UsageError(
        cat(where, ".name got \"", text, "\", wanted cosine_decay, linear_schedule or constant"));
  }
  if (const Json* arguments = find_member(value, "arguments")) {
    if (!arguments->is_array() || arguments->size() > meanings.size())
      throw UsageError(cat(where, ".arguments got ", arguments->dump(),
                           ", wanted a list of at most ", meanings.size(), " numbers"));
    for (size_t i = 0; i < arguments->size(); ++i) {
      // The peak may stand at the top as well, as mlx-lm's own example has it; the schedule wins.
      std::string here = cat(where, ".arguments[", i, "]");
      args.override_from_config(meanings[i], (*arguments)[i], here);
    }
    // MLX's schedules end where they are told to, by default at 0; wick's cosine ends at 10 %.
    if (text == "cosine_decay" && arguments->size() < 3)
      args.override_from_config("lr-end", 0.0, where + ".name");
  } else if (text == "cosine_decay" || text == "linear_schedule") {
    throw UsageError(
        cat(where, " has no arguments; ", text, " wants [",
            text == "cosine_decay" ? "rate, updates, end rate" : "rate, end rate, updates", "]"));
  }
  if (const Json* warmup = find_member(value, "warmup"))
    args.set_from_config("warmup", *warmup, where + ".warmup");
  if (const Json* init = find_member(value, "warmup_init"))
    args.set_from_config("warmup-init", *init, where + ".warmup_init");
  return true;
}

double member_number(const Json& object, const char* key, const std::string& where,
                     double fallback) {
  const Json* member = find_member(object, key);
  return member ? checked_value(OptionKind::kFloat, *member, where + "." + key).get<double>()
                : fallback;
}

}  // namespace

void add_train_flags(Args& args, TrainFlags& flags) {
  TrainOptions& o = flags.train;
  add_model_flags(args, flags.model, false);
  args.flag("--random-weights", flags.random_weights,
            "Keep the model's shape and tokenizer, and start from random weights.");
  add_data_flags(args, flags.data);

  args.group("Adapter");
  args.text("--adapter-path", o.adapter_path, "FOLDER",
            "Where the adapter, its checkpoints and report.html go.")
      .path();
  args.text("--fine-tune-type", o.fine_tune_type, "TYPE",
            "lora trains an adapter, full all weights (with --num-layers, the last N blocks).")
      .one_of({"lora", "full"});
  args.integer("--rank,--lora-rank", o.rank, "N", "Rank of the adapter.", {.min = 1, .max = 65536});
  args.number("--alpha,--lora-alpha", o.alpha, "X", "The update is scaled by alpha / rank.",
              kNotNegative);
  args.number("--scale", flags.scale, "X", "The factor itself, as in mlx-lm: alpha = scale * rank.",
              kNotNegative)
      .shown("");
  args.number("--lora-dropout", o.dropout, "X", "Dropout on the adapter's input.",
              {.min = 0.0, .max = 0.999});
  args.list("--targets", o.targets, "NAMES", "Linears that get an adapter, such as q_proj,v_proj.");
  args.integer("--num-layers", o.num_layers, "N", "Only the last N blocks; -1 for all.",
               {.min = -1})
      .shown("-1");
  args.text("--init-adapter,--resume-adapter-file", o.init_adapter, "PATH",
            "Start from the numbers of this adapter.")
      .path();

  args.group("Run");
  args.integer("--batch-size", o.batch_size, "N", "Rows of a batch.", {.min = 1});
  args.integer("--grad-accumulation-steps", o.grad_accumulation_steps, "N",
               "Batches that form one update, weighted by their tokens.", {.min = 1});
  args.integer("--epochs", o.epochs, "N", "How often the data is gone through.", {.min = 1});
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

  add_sweep_flags(args, flags);
  add_preference_flags(args, flags);

  args.group("Optimizer");
  args.text("--optimizer", flags.optimizer, "NAME", "adamw, or adam: the same without decay.")
      .one_of({"adamw", "adam"});
  args.number("--learning-rate", o.learning_rate, "X", "Highest learning rate.", kNotNegative);
  args.text("--lr-schedule", o.lr_schedule, "NAME",
            "cosine (to 10 %), linear (to 0) or constant, after the warm-up.")
      .one_of({"cosine", "linear", "constant"});
  args.number("--warmup", o.warmup, "N", "Updates in which the rate rises to its height.",
              kNotNegative)
      .shown("3 % of the run");
  args.number("--warmup-init", o.warmup_init, "X", "The rate that the warm-up starts from.",
              kNotNegative);
  args.number("--lr-end", o.lr_end, "X", "The rate that the schedule ends at.", kNotNegative)
      .shown("the schedule's");
  args.integer("--lr-decay-steps", o.lr_decay_steps, "N",
               "Updates after the warm-up until --lr-end is reached.", {.min = 1})
      .shown("the rest of the run");
  args.number("--weight-decay", o.weight_decay, "X", "Weight decay of AdamW.", kNotNegative);
  args.number("--grad-clip", o.grad_clip, "X", "Largest norm of all gradients; 0 is off.",
              kNotNegative);
  args.number("--beta1", o.beta1, "X", "Decay of the first moment.", {.min = 0.0, .max = 0.999999});
  args.number("--beta2", o.beta2, "X", "Decay of the second moment.",
              {.min = 0.0, .max = 0.9999999});
  args.number("--eps", o.eps, "X", "Added to the denominator of the update.", kNotNegative);

  args.group("Looking and saving");
  args.integer("--steps-per-report", o.steps_per_report, "N", "Updates between two reports.",
               {.min = 1});
  args.integer("--steps-per-eval", o.steps_per_eval, "N",
               "Updates between two looks at the held-out rows; 0: at the end only.", {.min = 0});
  args.integer("--val-batches", o.val_batches, "N",
               "Batches of valid.jsonl that are looked at, always the same; -1 for all.",
               {.min = -1});
  args.integer("--save-every", o.save_every, "N", "Updates between two checkpoints.", {.min = 1});
  args.text("--save-dtype", o.save_dtype, "TYPE", "Type of the weights that a full training saves.")
      .one_of({"f32", "bf16", "f16"})
      .shown("the model's");
  args.flag("--test", flags.test, "Evaluate test.jsonl at the end.");
  args.integer("--test-batches", flags.test_batches, "N",
               "Batches of test.jsonl that are evaluated; -1 for all.", {.min = -1});
  args.repeat("--sample-prompt", o.sample_prompts, "TEXT",
              "Answered before and after, for report.html; may be repeated.");

  add_chat_flags(args, flags.chat);
  add_device_flags(args, flags.device);

  args.accept("--train", OptionKind::kFlag);
  args.accept("--clear-cache-threshold", OptionKind::kSize);
  const char* kNoTracker =
      "it reports to no web service; report.html beside the adapter has the curves, and --json "
      "gives every event to a program of yours";
  args.refuse("--report-to", OptionKind::kText, kNoTracker);
  args.refuse("--wandb", OptionKind::kText, kNoTracker);
  args.refuse("--project-name", OptionKind::kText, kNoTracker);
  args.config_key("hf_dataset", [](const Json&, const std::string& where) -> bool {
    throw UsageError(where +
                     ": data sets of the hub are not downloaded by name; fetch their JSON "
                     "lines and give the folder as data");
  });
  args.config_key("lora_parameters", [&args](const Json& value, const std::string& where) {
    return read_lora_parameters(args, value, where);
  });
  args.config_key("lr_schedule", [&args](const Json& value, const std::string& where) {
    return read_lr_schedule(args, value, where);
  });
  args.config_key("optimizer_config", [&flags](const Json& value, const std::string& where) {
    if (!value.is_object())
      throw UsageError(cat(where, " got ", json_kind(value), ", wanted a mapping"));
    flags.optimizer_config = value;
    flags.optimizer_config_where = where;
    return true;
  });
}

ModelOptions TrainFlags::model_options() const {
  ModelOptions options = model.options();
  options.random_weights = random_weights;
  return options;
}

TrainOptions TrainFlags::checked(const Args& args, bool needs_data) const {
  if (needs_data || !data.data.empty()) check_data_path(args, data.data);
  TrainOptions o = train;
  o.data = data.data;
  o.dataset = data.options;
  o.dataset.system_prompt = chat.system_prompt;
  o.dataset.chat_template_config = chat.chat_template_config;
  o.dataset.date = chat.date;
  o.seed = static_cast<uint64_t>(model.seed);
  if (o.num_layers == 0) o.num_layers = -1;  // as mlx-lm reads it
  if (args.given("memory") && o.memory_bytes == 0)
    throw UsageError("--memory got 0, wanted a size such as 4GB");
  if (args.given("scale")) {
    if (args.source("alpha") == args.source("scale"))
      throw UsageError("--scale and --alpha say the same thing (scale = alpha / rank); give one");
    if (args.source("scale") > args.source("alpha")) o.alpha = scale * static_cast<double>(o.rank);
  }
  if (args.given("resume") && o.resume && args.given("init-adapter"))
    throw UsageError("--resume goes on with its own adapter; leave --init-adapter out");
  if (random_weights && o.fine_tune_type != "full")
    throw UsageError(
        "--random-weights needs --fine-tune-type full; an adapter on random weights "
        "learns nothing of use");

  o.optimizer = "adamw";
  if (optimizer == "adam") {
    if (args.source("weight-decay") == Source::kCommandLine)
      throw UsageError("--optimizer adam has no weight decay; use adamw with --weight-decay");
    o.weight_decay = 0;
  }
  if (!optimizer_config.is_null()) {
    // mlx-lm keeps one mapping per optimizer; a flat mapping is that of the chosen one.
    const std::string& where = optimizer_config_where;
    bool by_name = std::all_of(optimizer_config.begin(), optimizer_config.end(),
                               [](const Json& member) { return member.is_object(); });
    const Json* own = by_name ? find_member(optimizer_config, optimizer) : &optimizer_config;
    if (by_name)
      for (const auto& [key, member] : optimizer_config.items())
        check_members(Json::object({{key, member}}), where,
                      {"adam", "adamw", "muon", "sgd", "adafactor"});
    if (own) {
      std::string here = by_name ? cat(where, ".", optimizer) : where;
      check_members(*own, here, {"weight_decay", "betas", "eps", "bias_correction"});
      auto weaker = [&](const char* flag) { return args.source(flag) != Source::kCommandLine; };
      if (weaker("weight-decay") && optimizer != "adam")
        o.weight_decay = member_number(*own, "weight_decay", here, o.weight_decay);
      if (weaker("eps")) o.eps = member_number(*own, "eps", here, o.eps);
      if (const Json* betas = find_member(*own, "betas")) {
        if (!betas->is_array() || betas->size() != 2 || !(*betas)[0].is_number() ||
            !(*betas)[1].is_number())
          throw UsageError(cat(here, ".betas got ", betas->dump(), ", wanted two numbers"));
        if (weaker("beta1")) o.beta1 = (*betas)[0].get<double>();
        if (weaker("beta2")) o.beta2 = (*betas)[1].get<double>();
      }
      if (const Json* corrected = find_member(*own, "bias_correction"))
        if (!checked_value(OptionKind::kFlag, *corrected, here + ".bias_correction").get<bool>())
          throw UsageError(here +
                           ".bias_correction got false; wick's AdamW is always corrected, "
                           "leave the key out");
    }
  }
  return o;
}

}  // namespace wick
