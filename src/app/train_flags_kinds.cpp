// SPDX-License-Identifier: Apache-2.0
// Kinds of adapter.
#include <charconv>

#include "app/train_flags.h"
#include "base/check.h"

namespace wick {

namespace {

// "q_proj=16" of --rank-pattern. The last "=" divides, since an expression may have one.
template <typename T>
std::vector<std::pair<std::string, T>> read_pattern(const std::vector<std::string>& words,
                                                    const char* flag, T least) {
  std::vector<std::pair<std::string, T>> patterns;
  for (const std::string& word : words) {
    const size_t equals = word.rfind('=');
    T value{};
    bool good = equals != std::string::npos && equals > 0;
    if (good) {
      const char *begin = word.data() + equals + 1, *end = word.data() + word.size();
      const auto [stop, error] = std::from_chars(begin, end, value);
      good = error == std::errc() && stop == end && begin < end && value >= least;
    }
    if (!good)
      throw UsageError(cat(flag, " got \"", word, "\", wanted PATTERN=NUMBER such as q_proj=16"));
    patterns.emplace_back(word.substr(0, equals), value);
  }
  return patterns;
}

std::vector<int64_t> read_numbers(const std::vector<std::string>& words, const char* flag) {
  std::vector<int64_t> numbers;
  for (const std::string& word : words) {
    int64_t number = -1;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || stop != word.data() + word.size() || number < 0)
      throw UsageError(cat(flag, " got \"", word, "\", wanted numbers from 0"));
    numbers.push_back(number);
  }
  return numbers;
}

// PEFT's mapping, as the flag's list.
bool read_mapping(Args& args, const char* flag, const Json& value, const std::string& where) {
  if (!value.is_object()) return false;
  Json words = Json::array();
  for (const auto& [pattern, number] : value.items()) {
    if (!number.is_number())
      throw UsageError(cat(where, ".", pattern, " got ", number.dump(), ", wanted a number"));
    words.push_back(cat(pattern, "=", number.dump()));
  }
  args.set_from_config(flag, words, where);
  return true;
}

// Numbers as YAML and PEFT write them: one, or a list.
bool read_whole_numbers(Args& args, const char* flag, const Json& value, const std::string& where) {
  const Json list = value.is_number_integer() ? Json::array({value}) : value;
  if (!list.is_array()) return false;
  Json words = Json::array();
  for (const Json& number : list)
    words.push_back(number.is_number_integer() ? Json(number.dump()) : number);
  args.set_from_config(flag, words, where);
  return true;
}

// PEFT also takes a mapping from the module to its tokens.
bool read_tokens(Args& args, const Json& value, const std::string& where) {
  if (!value.is_object()) return read_whole_numbers(args, "trainable-token-indices", value, where);
  check_members(value, where, {"embed_tokens", "model.embed_tokens"});
  if (value.size() != 1)
    throw UsageError(cat(where, " got ", value.dump(), ", wanted embed_tokens and its tokens"));
  const Json* tokens = &*value.begin();
  return read_whole_numbers(args, "trainable-token-indices", *tokens, where);
}

}  // namespace

void add_kinds_flags(Args& args, TrainFlags& flags) {
  TrainOptions& o = flags.train;
  KindFlags& k = flags.kinds;
  args.flag("--rslora,--use-rslora", o.rslora, "Scale by alpha / sqrt(rank), for high ranks.");
  args.flag("--dora,--use-dora", o.dora, "DoRA: lengths of W's rows are trained apart.");
  args.text("--init,--init-lora-weights", o.init, "NAME",
            "Start of A and B: default, gaussian, or pissa (largest singular vectors of W).")
      .one_of({"default", "gaussian", "pissa"});
  args.number("--lora-plus-ratio", o.lora_plus_ratio, "X",
              "LoRA+: learning rate of B by that of A, such as 16.", {.min = 1e-6});
  args.list("--rank-pattern", k.rank_pattern, "LIST",
            "Ranks of their own, as in PEFT: q_proj=16,layers\\.0\\..*=4; the first match counts.");
  args.list("--alpha-pattern", k.alpha_pattern, "LIST", "The same for alpha.");
  args.list("--layers-to-transform", k.layers, "LIST", "Only blocks of these numbers, from 0.");
  args.list("--exclude-modules", o.exclude_modules, "NAMES",
            "Linears left out of --targets: names or expressions.");
  args.list("--modules-to-save", o.modules_to_save, "NAMES",
            "Trained whole beside the adapter: norms, embed_tokens, lm_head.");
  args.text("--bias", o.bias, "WHICH",
            "Biases of the model trained whole: none, all, or lora_only (of adapted linears).")
      .one_of({"none", "all", "lora_only"});
  args.list("--trainable-token-indices", k.tokens, "IDS",
            "Tokens whose rows of the embedding are trained, such as new special ones.");
  args.config_key("rank_pattern", [&args](const Json& value, const std::string& where) {
    return read_mapping(args, "rank-pattern", value, where);
  });
  args.config_key("alpha_pattern", [&args](const Json& value, const std::string& where) {
    return read_mapping(args, "alpha-pattern", value, where);
  });
  args.config_key("layers_to_transform", [&args](const Json& value, const std::string& where) {
    return read_whole_numbers(args, "layers-to-transform", value, where);
  });
  args.config_key("trainable_token_indices", [&args](const Json& value, const std::string& where) {
    return read_tokens(args, value, where);
  });
  // PEFT's word for its usual start.
  args.config_key("init_lora_weights", [&args](const Json& value, const std::string& where) {
    if (value != true) return false;
    args.set_from_config("init", "default", where);
    return true;
  });
}

void KindFlags::apply(TrainOptions& o) const {
  o.rank_pattern = read_pattern<int64_t>(rank_pattern, "--rank-pattern", 1);
  o.alpha_pattern = read_pattern<double>(alpha_pattern, "--alpha-pattern", 0.0);
  o.layers_to_transform = read_numbers(layers, "--layers-to-transform");
  o.trainable_token_indices = read_numbers(tokens, "--trainable-token-indices");
}

}  // namespace wick
