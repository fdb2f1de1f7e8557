// SPDX-License-Identifier: Apache-2.0
#include "model/shapes.h"

#include "base/check.h"

namespace wick {

namespace {

struct ModelShape {
  const char* name;
  const char* model_type;
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  bool tied;
  int64_t positions;
  double theta, eps;
  double stretch;  // factor of llama3's rope scaling; 0: none
};

constexpr ModelShape kShapes[] = {
    {"qwen2.5-0.5b", "qwen2", 24, 896, 14, 2, 64, 4864, 151936, true, 32768, 1e6, 1e-6, 0},
    {"qwen2.5-3b", "qwen2", 36, 2048, 16, 2, 128, 11008, 151936, true, 32768, 1e6, 1e-6, 0},
    {"qwen2.5-7b", "qwen2", 28, 3584, 28, 4, 128, 18944, 152064, false, 131072, 1e6, 1e-6, 0},
    {"llama-3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256, true, 131072, 5e5, 1e-5, 32},
    {"llama-3.1-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, false, 131072, 5e5, 1e-5, 8},
    {"qwen3-4b", "qwen3", 36, 2560, 32, 8, 128, 9728, 151936, true, 40960, 1e6, 1e-6, 0},
};

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const ModelShape& s : kShapes) names.emplace_back(s.name);
  return names;
}

Json shape_config(const std::string& name) {
  for (const ModelShape& s : kShapes) {
    if (name != s.name) continue;
    Json c = {{"model_type", s.model_type},
              {"num_hidden_layers", s.layers},
              {"hidden_size", s.hidden},
              {"num_attention_heads", s.heads},
              {"num_key_value_heads", s.kv_heads},
              {"head_dim", s.head_dim},
              {"intermediate_size", s.ffn},
              {"vocab_size", s.vocab},
              {"tie_word_embeddings", s.tied},
              {"max_position_embeddings", s.positions},
              {"rope_theta", s.theta},
              {"rms_norm_eps", s.eps},
              {"hidden_act", "silu"}};
    if (s.stretch > 0)
      c["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", s.stretch},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 8192}};
    return c;
  }
  const std::vector<std::string> names = shape_names();
  std::string list;
  for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
  const std::string near = nearest_name(name, names);
  fail(ErrorCode::kNotFound, "--shape ", name, " is not known; ",
       near.empty() ? "there are " + list : "did you mean " + near + "? (there are " + list + ")");
}

}  // namespace wick
