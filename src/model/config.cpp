// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/check.h"

namespace wick {

namespace {

constexpr int64_t kMany = int64_t{1} << 24;  // above any size of a real model

// As in the paper: attention is sharpened by the logarithm of the stretch, unless the file says.
void read_yarn(const Json& scaling, const std::string& where, RopeConfig& rope) {
  rope.scaling = RopeConfig::Scaling::kYarn;
  auto positive = [&](const char* key, double fallback) {
    double value = get_float(scaling, key, where, fallback, {0.0, 1e6});
    return value > 0 ? value : fallback;
  };
  rope.beta_fast = positive("beta_fast", 32.0);
  rope.beta_slow = positive("beta_slow", 1.0);
  rope.truncate = get_bool(scaling, "truncate", where, true);
  auto sharpness = [&](double weight) {
    return rope.factor <= 1 ? 1.0 : 0.1 * weight * std::log(rope.factor) + 1.0;
  };
  const double above = positive("mscale", 0.0), below = positive("mscale_all_dim", 0.0);
  rope.attention_factor =
      positive("attention_factor",
               above > 0 && below > 0 ? sharpness(above) / sharpness(below) : sharpness(1.0));
}

// Newer families give each kind of layer a rope of its own, one object deeper.
void check_rope(const Json& rope, const char* key, const std::string& where) {
  if (!rope.is_object())
    fail(ErrorCode::kCorruptFile, where, ": ", key, " is ", json_kind(rope),
         ", expected an object");
  for (const auto& [name, value] : rope.items())
    if (value.is_object())
      fail(ErrorCode::kUnsupported, where, ": ", key, " has a rope of its own for \"", name,
           "\"; wick computes one rope for all layers");
}

// transformers 5 nests everything under rope_parameters; before, rope_theta stood at the top and
// rope_scaling beside it.
RopeConfig read_rope(const Json& config, const std::string& where) {
  RopeConfig rope;
  const Json* nested = find_member(config, "rope_parameters");
  const Json* scaling = find_member(config, "rope_scaling");
  if (nested) check_rope(*nested, "rope_parameters", where);
  if (scaling) check_rope(*scaling, "rope_scaling", where);
  // Where both stand, transformers goes by rope_scaling alone: a rope_theta that only the other one
  // has would be 10000 there.
  if (scaling && !scaling->empty() && nested && nested->contains("rope_theta") &&
      !scaling->contains("rope_theta") && !config.contains("rope_theta"))
    fail(ErrorCode::kCorruptFile, where,
         ": rope_scaling hides the rope_theta of rope_parameters; write the keys of rope_scaling "
         "into rope_parameters instead");
  if (!scaling || scaling->empty()) scaling = nested;
  rope.theta = get_float(config, "rope_theta", where, 10000.0, {1e-3, 1e12});
  if (!scaling) return rope;
  rope.theta = get_float(*scaling, "rope_theta", where, rope.theta, {1e-3, 1e12});
  std::string type =
      get_string(*scaling, "rope_type", where, get_string(*scaling, "type", where, "default"));
  if (type == "default") return rope;
  constexpr const char* kTypes[] = {"linear", "llama3", "yarn"};
  const int64_t positions = get_int(config, "max_position_embeddings", where, 2048, {1, kMany});
  if (std::find(std::begin(kTypes), std::end(kTypes), type) == std::end(kTypes))
    fail(ErrorCode::kUnsupported, where, ": rope_type \"", type,
         "\" is not computed; wick knows default, linear, llama3 and yarn",
         type == "dynamic" ? cat(" (dynamic is the same as default for rows of up to ", positions,
                                 " tokens: with \"default\" in its place the model runs these)")
                           : "");
  if (get_float(*scaling, "partial_rotary_factor", where,
                get_float(config, "partial_rotary_factor", where, 1.0)) != 1.0)
    fail(ErrorCode::kUnsupported, where,
         ": partial_rotary_factor is not computed with rope_type \"", type, "\"");
  // As transformers: the one outside, which Phi's files have, counts before the one inside.
  constexpr const char* kOriginal = "original_max_position_embeddings";
  rope.original_positions =
      get_int(config, kOriginal, where, get_int(*scaling, kOriginal, where, positions, {1, kMany}),
              {1, kMany});
  std::optional<double> stretch;
  if (type == "yarn")
    stretch = static_cast<double>(positions) / static_cast<double>(rope.original_positions);
  rope.factor = get_float(*scaling, "factor", where, stretch, {1e-6, 1e6});
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
  } else if (type == "llama3") {
    rope.scaling = RopeConfig::Scaling::kLlama3;
    rope.low_freq_factor = get_float(*scaling, "low_freq_factor", where, {}, {1e-6, 1e6});
    rope.high_freq_factor = get_float(*scaling, "high_freq_factor", where, {}, {1e-6, 1e6});
    if (rope.high_freq_factor <= rope.low_freq_factor)
      fail(ErrorCode::kCorruptFile, where, ": high_freq_factor ", rope.high_freq_factor,
           " must be above low_freq_factor ", rope.low_freq_factor);
  } else {
    read_yarn(*scaling, where, rope);
  }
  return rope;
}

// One id or a list of them; a negative one stands for none.
void add_ids(const Json& object, const char* key, const std::string& where,
             std::vector<int32_t>& ids) {
  const Json* member = find_member(object, key);
  if (!member) return;
  auto add = [&](const Json& id) {
    if (!id.is_number_integer() || id.get<int64_t>() >= kMany)
      fail(ErrorCode::kCorruptFile, where, ": \"", key, "\" has ", dump_json(id),
           ", expected a token id or a list of them");
    int32_t value = id.get<int32_t>();
    if (value >= 0 && std::find(ids.begin(), ids.end(), value) == ids.end()) ids.push_back(value);
  };
  if (member->is_array())
    for (const Json& id : *member) add(id);
  else
    add(*member);
}

// Model cards say how to stretch a model by rope_scaling, and leave max_position_embeddings at what
// it was trained with. Llama 3's files have the stretched length there already.
int64_t stretched_positions(const RopeConfig& rope, int64_t positions) {
  if (rope.scaling != RopeConfig::Scaling::kLinear && rope.scaling != RopeConfig::Scaling::kYarn)
    return positions;
  const double reach = static_cast<double>(rope.original_positions) * rope.factor;
  return std::max(positions, static_cast<int64_t>(std::min(reach, static_cast<double>(kMany))));
}

// torch counts a negative one from the end.
int64_t read_pad_row(const Json& config, int64_t vocab) {
  const Json* id = find_member(config, "pad_token_id");
  if (!id || !id->is_number_integer()) return -1;
  const int64_t row = id->get<int64_t>() + (id->get<int64_t>() < 0 ? vocab : 0);
  return row >= 0 && row < vocab ? row : -1;
}

struct Family {
  const char* model_type;
  ModelConfig (*read)(const Json&, const std::string&);
};

constexpr Family kFamilies[] = {
    {"llama", read_llama_config},
    {"mistral", read_mistral_config},
    {"qwen2", read_qwen2_config},
    {"qwen3", read_qwen3_config},
};

}  // namespace

ModelConfig read_common_config(const Json& config, const std::string& where) {
  ModelConfig c;
  auto size = [&](const char* key, std::optional<int64_t> fallback = {}) {
    return get_int(config, key, where, fallback, {1, kMany});
  };
  c.layers = get_int(config, "num_hidden_layers", where, {}, {1, 4096});
  c.hidden = size("hidden_size");
  c.heads = size("num_attention_heads");
  c.kv_heads = size("num_key_value_heads", c.heads);
  if (c.heads % c.kv_heads != 0)
    fail(ErrorCode::kCorruptFile, where, ": num_attention_heads ", c.heads,
         " is not a multiple of num_key_value_heads ", c.kv_heads);
  if (!find_member(config, "head_dim") && c.hidden % c.heads != 0)
    fail(ErrorCode::kCorruptFile, where, ": hidden_size ", c.hidden,
         " is not a multiple of num_attention_heads ", c.heads, " and there is no head_dim");
  c.head_dim = size("head_dim", c.hidden / c.heads);
  if (c.head_dim % 2 != 0)
    fail(ErrorCode::kUnsupported, where, ": head_dim ", c.head_dim, " is odd; rope needs pairs");
  c.ffn = size("intermediate_size");
  c.vocab = size("vocab_size");
  c.max_positions = size("max_position_embeddings", 2048);
  c.eps = static_cast<float>(get_float(config, "rms_norm_eps", where, 1e-6, {0.0, 1.0}));
  c.rope = read_rope(config, where);
  c.max_positions = stretched_positions(c.rope, c.max_positions);
  c.tied = get_bool(config, "tie_word_embeddings", where, false);
  c.initializer_range = get_float(config, "initializer_range", where, 0.02, {0.0, 10.0});
  c.windows.assign(static_cast<size_t>(c.layers), 0);
  std::string act = get_string(config, "hidden_act", where, "silu");
  if (act == "silu" || act == "swish")
    c.act = Act::kSilu;
  else if (act == "gelu_pytorch_tanh" || act == "gelu_new")
    c.act = Act::kGeluTanh;
  else
    fail(ErrorCode::kUnsupported, where, ": hidden_act \"", act,
         "\" is not computed; wick knows silu and gelu_pytorch_tanh");
  return c;
}

namespace {

// Whether `architectures` names another model than that type, so that the type is no typing
// mistake: LlavaForConditionalGeneration is no llama.
bool names_another(const Json& config, const std::string& type) {
  const Json* classes = find_member(config, "architectures");
  if (!classes || !classes->is_array() || classes->empty() || !classes->front().is_string())
    return false;
  std::string name = classes->front().get<std::string>();
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return !name.starts_with(type);
}

// Whether one name goes on where the other ends, with a part or a number of its own (qwen3_moe and
// qwen3, llama4 and llama, qwen and qwen2), or is one of two that only look alike: not a typing
// mistake then.
bool is_relative(const std::string& type, const std::string& known) {
  if (type == "mixtral" || type.starts_with("ministral")) return true;
  const auto& [head, whole] =
      std::minmax(type, known, [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (head.empty() || head.size() == whole.size() || !whole.starts_with(head)) return false;
  auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const char next = whole[head.size()];
  return next == '_' || (is_digit(next) && !is_digit(head.back()));
}

}  // namespace

namespace {

// Some list every module of the model: then only what kind it is.
std::string quantization_text(const Json& quantization) {
  constexpr size_t kShort = 160;
  std::string text = dump_json(quantization);
  const Json* method = find_member(quantization, "quant_method");
  if (text.size() <= kShort) return text;
  return method ? cat("that of ", dump_json(*method)) : text.substr(0, text.find(',')) + ", …}";
}

}  // namespace

ModelConfig read_config(const Json& config, const Json& generation_config,
                        const std::string& where) {
  std::string type = get_string(config, "model_type", where);
  // mlx says bits and group_size of affine groups, whose tensors say the same; others name a
  // method.
  for (const char* key : {"quantization", "quantization_config"})
    if (const Json* q = find_member(config, key))
      if (!q->is_object() || q->contains("quant_method") || !q->contains("bits") ||
          (q->contains("mode") && (*q)["mode"] != "affine"))
        fail(ErrorCode::kUnsupported, where, ": ", key, " is ", quantization_text(*q),
             "; of quantised weights wick reads mlx's affine groups of 8 and 4 bits");
  for (const Family& family : kFamilies) {
    if (type != family.model_type) continue;
    ModelConfig c = family.read(config, where);
    c.model_type = type;
    if (generation_config.is_object())
      add_ids(generation_config, "eos_token_id",
              std::filesystem::path(where).replace_filename("generation_config.json").string(),
              c.eos_ids);
    add_ids(config, "eos_token_id", where, c.eos_ids);
    std::vector<int32_t> bos;
    add_ids(config, "bos_token_id", where, bos);
    if (!bos.empty()) c.bos_id = bos.front();
    c.pad_row = read_pad_row(config, c.vocab);
    return c;
  }
  std::string all;
  for (const std::string& name : known_model_types()) all += (all.empty() ? "" : ", ") + name;
  std::string near = nearest_name(type, known_model_types());
  if (is_relative(type, near) || names_another(config, near)) near.clear();
  fail(ErrorCode::kUnsupported, where, ": model_type \"", type, "\" is not known",
       near.empty() ? "" : cat("; did you mean ", near, "?"), " (wick runs ", all, ")");
}

std::vector<std::string> known_model_types() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.push_back(family.model_type);
  return names;
}

}  // namespace wick
