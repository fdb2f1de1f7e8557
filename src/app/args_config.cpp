// SPDX-License-Identifier: Apache-2.0
// The settings file of --config.
#include <algorithm>

#include "app/args.h"
#include "base/check.h"
#include "io/yaml.h"

namespace wick {

namespace {

std::string as_key(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string as_name(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

}  // namespace

void Args::set_from_config(const std::string& name, const Json& value, const std::string& where) {
  if (value.is_null()) return;  // `key:` with nothing after it leaves the default
  Option* option = find(name);
  WICK_CHECK(option, "no option --", name);
  if (option->pinned) {
    // It has no effect, but a mistake in it is one all the same.
    const Json checked = checked_value(option->kind, value, where);
    if (option->check) option->check(checked, where);
    return;
  }
  if (option->source == Source::kConfig)
    throw UsageError(cat(where, " sets ", as_key(option->name()), " a second time"));
  // A flag given with a value that leaves things as they are is not a use of it.
  if (!option->refusal.empty() && value.is_boolean() && !value.get<bool>()) return;
  if (!option->refusal.empty()) option->set(Json(), where);
  option->set(checked_value(option->kind, value, where), where);
  option->source = Source::kConfig;
}

void Args::override_from_config(const std::string& name, const Json& value,
                                const std::string& where) {
  Option* option = find(name);
  WICK_CHECK(option, "no option --", name);
  option->pinned = false;
  option->source = Source::kDefault;
  set_from_config(name, value, where);
  option->pinned = true;
}

void Args::read_config(const std::string& file) {
  Json settings = read_yaml(file);
  if (settings.is_null()) return;
  if (!settings.is_object())
    throw UsageError(cat(file, " holds ", json_kind(settings), ", wanted a mapping: key: value"));
  std::vector<std::string> unused;
  for (const auto& [key, value] : settings.items()) {
    std::string where = cat(file, ": ", key);
    auto special = config_keys_.find(key);
    if (special != config_keys_.end() && (value.is_null() || special->second(value, where)))
      continue;
    std::string name = as_name(key);
    // mlx-lm writes there what file it read.
    if (name == "config") continue;
    if (name == "help" || name == "version")
      throw UsageError(cat(where, " cannot be set in a settings file"));
    if (find(name)) {
      set_from_config(name, value, where);
    } else if (other_verbs && !other_verbs(name).empty()) {
      unused.push_back(key);
    } else {
      unknown_key(key, where);
    }
  }
  if (unused.empty()) return;
  std::string note = cat(file, ": not used by wick ", verb_, ": ");
  for (size_t i = 0; i < unused.size(); ++i) note += (i ? ", " : "") + unused[i];
  notes_.push_back(note);
}

std::string Args::name_here(const std::string& key) const {
  // Words of the trainers of transformers, TRL and PEFT that are not near to wick's own.
  static const std::map<std::string_view, std::string_view> kElsewhere = {
      {"bf16", "dtype"},
      {"eval_steps", "steps_per_eval"},
      {"gradient_checkpointing", "grad_checkpoint"},
      {"load_in_4bit", "quantize"},
      {"load_in_8bit", "quantize"},
      {"logging_steps", "steps_per_report"},
      {"lora_r", "rank"},
      {"lr", "learning_rate"},
      {"max_grad_norm", "grad_clip"},
      {"max_length", "max_seq_length"},
      {"max_steps", "iters"},
      {"num_epochs", "epochs"},
      {"num_train_epochs", "epochs"},
      {"optim", "optimizer"},
      {"output_dir", "adapter_path"},
      {"per_device_train_batch_size", "batch_size"},
      {"resume_from_checkpoint", "resume"},
      {"save_steps", "save_every"},
      {"train_file", "data"},
      {"warmup_ratio", "warmup"},
      {"warmup_steps", "warmup"}};
  const auto found = kElsewhere.find(key);
  if (found == kElsewhere.end()) return {};
  const std::string name(found->second);
  return find(as_name(name)) ? name : "";
}

void Args::unknown_key(const std::string& key, const std::string& where) const {
  std::vector<std::string> known;
  for (const auto& option : options_)
    if (option.refusal.empty())
      for (const auto& name : option.names) known.push_back(as_key(name));
  for (const auto& [name, read] : config_keys_) known.push_back(name);
  std::string near = name_here(key);
  if (near.empty()) near = nearest_name(key, known);
  throw UsageError(
      cat(where, " is not a setting of wick ", verb_,
          near.empty() ? "; see wick " + verb_ + " --help" : "; did you mean " + near + "?"));
}

}  // namespace wick
