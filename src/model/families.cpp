// SPDX-License-Identifier: Apache-2.0
// Families whose block is the common decoder block: each is a mapping of its config.
#include <algorithm>

#include "base/check.h"
#include "model/config.h"

namespace wick {

namespace {

// Null means none; a file that does not mention it means what transformers takes then.
int64_t sliding_window(const Json& config, const std::string& where) {
  if (!config.contains("sliding_window")) return 4096;
  return get_int(config, "sliding_window", where, 0, {0, int64_t{1} << 40});
}

constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

void check_layer_types(const Json& types, const std::string& where, int64_t layers) {
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
    fail(ErrorCode::kCorruptFile, where, ": layer_types is ", json_kind(types),
         types.is_array() ? cat(" of ", types.size()) : "", ", expected an array of ", layers,
         ", one for each layer");
  for (const Json& type : types)
    if (type != kSliding && type != kFull)
      fail(ErrorCode::kUnsupported, where, ": layer_types has ", dump_json(type),
           ", which is not computed; wick knows ", kFull, " and ", kSliding);
}

}  // namespace

ModelConfig read_llama_config(const Json& config, const std::string& where) {
  ModelConfig c = read_common_config(config, where);
  c.qkv_bias = c.o_bias = get_bool(config, "attention_bias", where, false);
  c.mlp_bias = get_bool(config, "mlp_bias", where, false);
  return c;
}

ModelConfig read_mistral_config(const Json& config, const std::string& where) {
  ModelConfig c = read_common_config(config, where);
  if (!config.contains("num_key_value_heads")) c.kv_heads = std::min<int64_t>(8, c.heads);
  const int64_t window = sliding_window(config, where);
  // As transformers: with layer_types it is a Ministral, whose layers differ.
  const Json* types = find_member(config, "layer_types");
  if (types) check_layer_types(*types, where, c.layers);
  for (size_t i = 0; i < c.windows.size(); ++i)
    if (!types || (*types)[i] == kSliding) c.windows[i] = window;
  return c;
}

namespace {

// Qwen: a window only with use_sliding_window, and then by layer_types, or above max_window_layers.
void read_qwen_windows(const Json& config, const std::string& where, ModelConfig& c) {
  const Json* types = find_member(config, "layer_types");
  if (types) check_layer_types(*types, where, c.layers);
  if (!get_bool(config, "use_sliding_window", where, false)) return;
  int64_t window = sliding_window(config, where);
  int64_t first = get_int(config, "max_window_layers", where, 28, {0, 4096});
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const size_t i = static_cast<size_t>(layer);
    if (types ? (*types)[i] == kSliding : layer >= first) c.windows[i] = window;
  }
}

}  // namespace

ModelConfig read_qwen2_config(const Json& config, const std::string& where) {
  ModelConfig c = read_common_config(config, where);
  c.qkv_bias = true;
  read_qwen_windows(config, where, c);
  return c;
}

ModelConfig read_qwen3_config(const Json& config, const std::string& where) {
  ModelConfig c = read_common_config(config, where);
  // Unlike the others it does not derive its head size from the hidden size.
  c.head_dim = get_int(config, "head_dim", where, 128, {2, 4096});
  c.qkv_bias = c.o_bias = get_bool(config, "attention_bias", where, false);
  c.qk_norm = true;
  read_qwen_windows(config, where, c);
  return c;
}

}  // namespace wick
