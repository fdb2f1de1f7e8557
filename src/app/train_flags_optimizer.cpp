// SPDX-License-Identifier: Apache-2.0
// The optimizer and the schedule of its rate: flags, and mlx-lm's nested keys optimizer_config and
// lr_schedule.
#include <algorithm>
#include <map>

#include "app/train_flags.h"
#include "base/check.h"

namespace wick {

namespace {

constexpr FloatRange kNotNegative{.min = 0.0}, kRate{.min = 0.0, .max = 10.0};

// MLX's schedules: our name, and the flags that its arguments are, in order; all but those after
// `needed` must be there.
struct MlxSchedule {
  const char* name;
  std::vector<std::string> arguments;
  size_t needed;
  const char* wanted;
};
const std::map<std::string, MlxSchedule>& mlx_schedules() {
  static const std::map<std::string, MlxSchedule> kSchedules = {
      {"cosine_decay",
       {"cosine", {"learning-rate", "lr-decay-steps", "lr-end"}, 2, "[rate, updates, end rate]"}},
      {"linear_schedule",
       {"linear", {"learning-rate", "lr-end", "lr-decay-steps"}, 3, "[rate, end rate, updates]"}},
      {"exponential_decay",
       {"exponential_decay", {"learning-rate", "lr-decay-rate"}, 2, "[rate, factor per update]"}},
      {"step_decay",
       {"step_decay",
        {"learning-rate", "lr-decay-rate", "lr-step-size"},
        3,
        "[rate, factor, updates of a step]"}}};
  return kSchedules;
}

// mlx-lm: name of an MLX scheduler, its arguments (the peak rate first), updates of warm-up.
bool read_lr_schedule(Args& args, TrainFlags& flags, const Json& value, const std::string& where) {
  if (value.is_string()) return false;
  TrainOptions& o = flags.train;
  check_members(value, where, {"name", "arguments", "warmup", "warmup_init"});
  const Json* name = find_member(value, "name");
  if (!name)
    throw UsageError(cat(where,
                         " has no name; wanted cosine_decay, linear_schedule, exponential_decay, "
                         "step_decay or a name of --lr-schedule"));
  const std::string text =
      checked_value(OptionKind::kText, *name, where + ".name").get<std::string>();
  const Json* arguments = find_member(value, "arguments");
  auto mlx = mlx_schedules().find(text);
  if (mlx == mlx_schedules().end()) {
    // One of wick's own, whose peak alone may stand here.
    const std::vector<std::string> own = {"cosine", "linear", "constant", "cosine_with_restarts",
                                          "wsd"};
    if (std::find(own.begin(), own.end(), text) == own.end())
      throw UsageError(cat(where, ".name got \"", text,
                           "\", wanted cosine_decay, linear_schedule, exponential_decay, "
                           "step_decay, cosine, linear, constant, cosine_with_restarts or wsd"));
    args.set_from_config("lr-schedule", text, where + ".name");
  } else {
    args.set_from_config("lr-schedule", mlx->second.name, where + ".name");
  }
  std::vector<std::string> meanings = {"learning-rate"};
  size_t needed = 0;
  if (mlx != mlx_schedules().end()) {
    meanings = mlx->second.arguments;
    needed = mlx->second.needed;
  } else if (text == "cosine") {
    meanings = {"learning-rate", "lr-decay-steps", "lr-end"};
  } else if (text == "linear") {
    meanings = {"learning-rate", "lr-end", "lr-decay-steps"};
  }
  if (!arguments && needed > 0)
    throw UsageError(cat(where, " has no arguments; ", text, " wants ", mlx->second.wanted));
  if (arguments) {
    if (!arguments->is_array() || arguments->size() > meanings.size() || arguments->size() < needed)
      throw UsageError(cat(where, ".arguments got ", arguments->dump(), ", wanted ",
                           needed > 0 ? mlx->second.wanted
                                      : cat("a list of at most ", meanings.size(), " numbers")));
    for (size_t i = 0; i < arguments->size(); ++i) {
      // The peak may stand at the top as well, as mlx-lm's own example has it; the schedule wins.
      args.override_from_config(meanings[i], (*arguments)[i], cat(where, ".arguments[", i, "]"));
      flags.of_schedule.insert(meanings[i]);
    }
    // MLX's schedules end where they are told to, by default at 0; wick's cosine ends at 10 %.
    if (text == "cosine_decay" && arguments->size() < 3) {
      args.override_from_config("lr-end", 0.0, where + ".name");
      flags.of_schedule.insert("lr-end");
    }
  }
  // mlx-lm has no warm-up unless it is told to, and joins it at warmup + 1.
  o.warmup_from_init = mlx != mlx_schedules().end();
  if (const Json* warmup = find_member(value, "warmup")) {
    args.set_from_config("warmup", *warmup, where + ".warmup");
  } else if (o.warmup_from_init) {
    args.set_from_config("warmup", 0, where + ".warmup");
    flags.of_schedule.insert("warmup");
  }
  if (const Json* init = find_member(value, "warmup_init"))
    args.set_from_config("warmup-init", *init, where + ".warmup_init");
  return true;
}

// The keys that mlx-lm passes on to each of MLX's optimizers, and those of wick's own.
const std::map<std::string, std::vector<std::string>>& config_keys() {
  static const std::map<std::string, std::vector<std::string>> kKeys = {
      {"adam", {"betas", "eps", "bias_correction"}},
      {"adamw", {"betas", "eps", "weight_decay", "bias_correction"}},
      {"adamw_8bit", {"betas", "eps", "weight_decay", "bias_correction"}},
      {"sgd", {"momentum", "weight_decay", "dampening", "nesterov"}},
      {"lion", {"betas", "weight_decay"}},
      {"muon", {"momentum", "weight_decay", "nesterov", "ns_steps"}},
      {"adafactor",
       {"eps", "clip_threshold", "decay_rate", "beta_1", "weight_decay", "scale_parameter",
        "relative_step", "warmup_init"}}};
  return kKeys;
}

// Reads the members of one optimizer's mapping; the command line is stronger.
class ConfigReader {
 public:
  ConfigReader(const Args& args, const Json& own, std::string where)
      : args_(args), own_(own), where_(std::move(where)) {}

  void number(const char* key, const char* flag, double& to) const {
    const Json* m = member(key, flag);
    if (!m) return;
    to = checked_value(OptionKind::kFloat, *m, where_ + "." + key).get<double>();
    check_sign(key, flag, to);
  }
  void integer(const char* key, const char* flag, int64_t& to) const {
    if (const Json* m = member(key, flag))
      to = checked_value(OptionKind::kInt, *m, where_ + "." + key).get<int64_t>();
  }
  void flag(const char* key, const char* flag, bool& to) const {
    if (const Json* m = member(key, flag))
      to = checked_value(OptionKind::kFlag, *m, where_ + "." + key).get<bool>();
  }
  // A list of two numbers, each with its flag ("": none).
  void pair(const char* key, const char* first_flag, const char* second_flag, double& first,
            double& second) const {
    const Json* m = find_member(own_, key);
    if (!m) return;
    if (!m->is_array() || m->size() != 2 || !(*m)[0].is_number() || !(*m)[1].is_number())
      throw UsageError(cat(where_, ".", key, " got ", m->dump(), ", wanted two numbers"));
    if (weaker(first_flag)) first = (*m)[0].get<double>();
    if (weaker(second_flag)) second = (*m)[1].get<double>();
    check_sign(key, first_flag, first);
    check_sign(key, second_flag, second);
  }

 private:
  // What is also a flag is not negative: that stands for the optimizer's default.
  void check_sign(const char* key, const char* flag, double value) const {
    if (value < 0 && *flag != '\0' && args_.source(flag) != Source::kCommandLine)
      throw UsageError(cat(where_, ".", key, " got ", value, ", wanted at least 0"));
  }
  bool weaker(const std::string& flag) const {
    return flag.empty() || args_.source(flag) != Source::kCommandLine;
  }
  const Json* member(const char* key, const char* flag) const {
    return weaker(flag) ? find_member(own_, key) : nullptr;
  }

  const Args& args_;
  const Json& own_;
  std::string where_;
};

}  // namespace

void add_optimizer_flags(Args& args, TrainFlags& flags) {
  TrainOptions& o = flags.train;
  args.group("Optimizer");
  args.text("--optimizer", o.optimizer, "NAME",
            "adamw; adam (no decay); adamw_8bit (moments in 8 bits); sgd; lion; muon; adafactor.")
      .one_of({"adamw", "adam", "adamw_8bit", "sgd", "lion", "muon", "adafactor"});
  args.number("--learning-rate", o.learning_rate, "X", "Highest learning rate.", kRate);
  args.text("--lr-schedule", o.lr_schedule, "NAME",
            "After the warm-up: cosine (to 10 %), linear (to 0), constant, cosine_with_restarts, "
            "wsd (constant, then to 0), exponential_decay, step_decay.")
      .one_of({"cosine", "linear", "constant", "cosine_with_restarts", "wsd", "exponential_decay",
               "step_decay"});
  args.number("--warmup", o.warmup, "N", "Updates over which the rate rises to its highest.",
              kNotNegative)
      .shown("3 % of the run");
  args.number("--warmup-init", o.warmup_init, "X", "The rate that the warm-up starts from.", kRate);
  args.number("--lr-end", o.lr_end, "X", "The rate that the schedule ends at.", kRate)
      .shown("the schedule's");
  args.integer("--lr-decay-steps", o.lr_decay_steps, "N",
               "Updates after the warm-up until --lr-end is reached.", {.min = 1})
      .shown("the rest of the run");
  args.integer("--lr-cycles", o.lr_cycles, "N", "Cosines of cosine_with_restarts.", {.min = 1});
  args.number("--lr-decay-share", o.lr_decay_share, "X",
              "The last share of the run, in which the rate of wsd falls.",
              {.min = 0.001, .max = 1.0});
  args.number("--lr-decay-rate", o.lr_decay_rate, "X",
              "Factor of exponential_decay at each update, of step_decay at each step.",
              {.min = 0.0, .max = 1.0});
  args.integer("--lr-step-size", o.lr_step_size, "N", "Updates of a step of step_decay.",
               {.min = 1});
  args.number("--weight-decay", o.weight_decay, "X", "Weight decay, apart from the gradient.",
              kNotNegative)
      .shown("0.01; sgd, adafactor 0");
  args.number("--grad-clip", o.grad_clip, "X", "Largest norm of all gradients; 0 is off.",
              kNotNegative);
  args.number("--beta1", o.beta1, "X", "Decay of the first moment.", {.min = 0.0, .max = 0.999999})
      .shown("0.9");
  args.number("--beta2", o.beta2, "X", "Decay of the second moment.",
              {.min = 0.0, .max = 0.9999999})
      .shown("0.999; lion 0.99");
  args.number("--eps", o.eps, "X", "Added to the denominator of the update.", kNotNegative);
  args.flag("--bias-correction", o.bias_correction,
            "Correct adam's first updates for moments that began at 0; mlx-lm's does not.");
  args.number("--momentum", o.momentum, "X", "Momentum of sgd and muon.",
              {.min = 0.0, .max = 0.999999})
      .shown("sgd 0, muon 0.95");
  args.number("--dampening", o.dampening, "X", "Dampening of sgd's momentum.",
              {.min = 0.0, .max = 1.0});
  args.flag("--nesterov", flags.nesterov, "Nesterov's momentum, of sgd and muon.")
      .shown("sgd no, muon yes");
  args.integer("--ns-steps", o.ns_steps, "N", "Newton-Schulz steps of muon.", {.min = 1, .max = 8});

  args.config_key("lr_schedule", [&args, &flags](const Json& value, const std::string& where) {
    return read_lr_schedule(args, flags, value, where);
  });
  // mlx-lm takes names in any case.
  args.config_key("optimizer", [&args](const Json& value, const std::string& where) {
    if (!value.is_string()) return false;
    std::string name = value.get<std::string>();
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    args.set_from_config("optimizer", name, where);
    return true;
  });
  args.config_key("optimizer_config", [&flags](const Json& value, const std::string& where) {
    if (!value.is_object())
      throw UsageError(cat(where, " got ", json_kind(value), ", wanted a mapping"));
    flags.optimizer_config = Json::object();
    // `adamw:` with nothing after it, or with comments only, leaves the defaults.
    for (const auto& [name, member] : value.items())
      if (!member.is_null()) flags.optimizer_config[name] = member;
    flags.optimizer_config_where = where;
    return true;
  });
}

// A schedule of the command line takes the place of a file's; of that the peak stays, and what it
// says of a warm-up.
void TrainFlags::finish_schedule(const Args& args, TrainOptions& o) const {
  if (args.source("lr-schedule") != Source::kCommandLine) return;
  const TrainOptions usual;
  auto leave = [&](const char* flag, auto TrainOptions::*member) {
    if (of_schedule.contains(flag) && args.source(flag) != Source::kCommandLine)
      o.*member = usual.*member;
  };
  leave("lr-end", &TrainOptions::lr_end);
  leave("lr-decay-steps", &TrainOptions::lr_decay_steps);
  leave("lr-decay-rate", &TrainOptions::lr_decay_rate);
  leave("lr-step-size", &TrainOptions::lr_step_size);
  leave("warmup", &TrainOptions::warmup);
  o.warmup_from_init = false;
}

void TrainFlags::finish_optimizer(const Args& args, TrainOptions& o) const {
  if (args.given("nesterov")) o.nesterov = nesterov;
  if (o.optimizer == "adam") {
    if (args.source("weight-decay") == Source::kCommandLine)
      throw UsageError("--optimizer adam has no weight decay; use adamw with --weight-decay");
    o.weight_decay = -1;
  }
  if (optimizer_config.is_null()) return;
  // mlx-lm keeps one mapping per optimizer; a flat mapping is that of the chosen one.
  const std::string& where = optimizer_config_where;
  const bool by_name = std::all_of(optimizer_config.begin(), optimizer_config.end(),
                                   [](const Json& member) { return member.is_object(); });
  std::vector<std::string> names;
  for (const auto& [name, keys] : config_keys()) names.push_back(name);
  if (by_name) {
    check_members(optimizer_config, where, names);
    for (const auto& [name, member] : optimizer_config.items())
      check_members(member, cat(where, ".", name), config_keys().at(name));
  }
  const Json* own = by_name ? find_member(optimizer_config, o.optimizer) : &optimizer_config;
  if (!own) return;
  const std::string here = by_name ? cat(where, ".", o.optimizer) : where;
  check_members(*own, here, config_keys().at(o.optimizer));
  const ConfigReader read(args, *own, here);
  read.number("weight_decay", "weight-decay", o.weight_decay);
  read.pair("betas", "beta1", "beta2", o.beta1, o.beta2);
  read.flag("bias_correction", "bias-correction", o.bias_correction);
  read.number("momentum", "momentum", o.momentum);
  read.number("dampening", "dampening", o.dampening);
  bool wants_nesterov = o.nesterov > 0;
  read.flag("nesterov", "nesterov", wants_nesterov);
  if (find_member(*own, "nesterov") || args.given("nesterov")) o.nesterov = wants_nesterov;
  read.integer("ns_steps", "ns-steps", o.ns_steps);
  if (o.optimizer == "adafactor") {
    read.pair("eps", "", "", o.adafactor_eps1, o.adafactor_eps2);
    read.number("clip_threshold", "", o.clip_threshold);
    read.number("decay_rate", "", o.decay_rate);
    read.flag("scale_parameter", "", o.scale_parameter);
    read.flag("relative_step", "", o.relative_step);
    read.flag("warmup_init", "", o.relative_step_warmup);
    if (find_member(*own, "beta_1"))
      throw UsageError(here + ".beta_1: wick's adafactor keeps no first moment; leave it out");
  } else {
    read.number("eps", "eps", o.eps);
  }
}

}  // namespace wick
