// SPDX-License-Identifier: Apache-2.0
// ModelConfig: the differences between families as data. A family file maps its config.json onto
// it; the block itself is recorded by model/decoder.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/json.h"
#include "plan/op.h"

namespace wick {

struct RopeConfig {
  double theta = 10000.0;
  enum class Scaling { kNone, kLinear, kLlama3, kYarn } scaling = Scaling::kNone;
  double factor = 1.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_positions = 8192;
  // YaRN: turns within the original positions above which a frequency is left, and below which it
  // is stretched; whether the border lies at whole pairs; and what cosine and sine are scaled by.
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;
  double attention_factor = 1.0;
};

struct ModelConfig {
  std::string model_type;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t max_positions = 0;
  float eps = 1e-6f;
  RopeConfig rope;
  Act act = Act::kSilu;
  bool tied = false;  // the head is the embedding
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;          // rms_norm over each head of q and k before rope
  std::vector<int64_t> windows;  // by layer; 0: none
  double initializer_range = 0.02;
  std::vector<int32_t> eos_ids;  // from config.json and generation_config.json
  int32_t bos_id = -1;
  // The row of the embedding that learns nothing from being looked up, as torch has it; -1: none.
  int64_t pad_row = -1;

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

// Reads config.json (and generation_config.json for the stop tokens). Throws: kUnsupported for an
// architecture or a setting that wick does not compute, naming it; kCorruptFile for nonsense sizes.
ModelConfig read_config(const Json& config, const Json& generation_config,
                        const std::string& where);

// model_type values that read_config accepts.
std::vector<std::string> known_model_types();

// What the family files share: sizes, rope and eps, checked against each other.
ModelConfig read_common_config(const Json& config, const std::string& where);

// One function per family; called through read_config.
ModelConfig read_llama_config(const Json& config, const std::string& where);
ModelConfig read_mistral_config(const Json& config, const std::string& where);
ModelConfig read_qwen2_config(const Json& config, const std::string& where);
ModelConfig read_qwen3_config(const Json& config, const std::string& where);

}  // namespace wick
