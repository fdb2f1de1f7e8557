// SPDX-License-Identifier: Apache-2.0
// LoRA: y = x Wᵀ + scale * (dropout(x) Aᵀ) Bᵀ,  A [R, in], B [out, R], scale = alpha / R.
//
// An Adapter is the declaration of a set of such pairs over the linears of one model and their
// places in a flat f32 parameter vector; the numbers themselves are the caller's. The A matrices of
// linears that share an input lie next to each other, so that one skinny product serves them all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapter/param_layout.h"
#include "io/json.h"

namespace wick {

class ThreadPool;

// A linear that an adapter may be attached to, as the model names it.
struct LinearInfo {
  std::string module;  // "model.layers.3.self_attn.q_proj"
  int64_t in = 0, out = 0;
  int64_t layer = -1;  // -1: outside the blocks
  int64_t group = 0;   // linears of one group share their input
};

struct LoraOptions {
  int64_t rank = 8;
  float alpha = 16.0f;
  float dropout = 0.0f;
  bool rslora = false;                             // scale = alpha / sqrt(rank)
  std::vector<std::string> targets{"all-linear"};  // names or suffixes of modules
  int64_t num_layers = -1;                         // the last N blocks; -1: all
};

// The linear it adapts, and the pair of matrices.
struct LoraModule : LinearInfo {
  int64_t rank = 0;
  float scale = 1.0f, dropout = 0.0f;
  uint64_t site = 0;                   // of its dropout
  int64_t a_offset = 0, b_offset = 0;  // in the parameter vector
};

class Adapter {
 public:
  // Throws: kInvalidArgument naming a target that no linear has (and the nearest that one has), a
  // rank < 1, more layers than the model has.
  static Adapter create(const LoraOptions& options, std::span<const LinearInfo> linears);

  // Reads a PEFT folder; `params` receives the numbers. Throws: kNotFound, kCorruptFile,
  // kUnsupported (kinds of adapter that wick does not run), kInvalidArgument (made for another
  // model: names the first module or shape that does not fit).
  static Adapter load(const std::filesystem::path& folder, std::span<const LinearInfo> linears,
                      std::vector<float>& params);

  // Kaiming-uniform A (a = sqrt 5, i.e. uniform in ±1/sqrt(in)), zero B, from `seed` and the
  // module's name alone.
  std::vector<float> initial_params(uint64_t seed) const;

  // Writes adapter_model.safetensors and adapter_config.json as PEFT does, each atomically.
  void save(const std::filesystem::path& folder, std::span<const float> params,
            const std::string& base_model) const;
  Json peft_config(const std::string& base_model) const;

  const std::vector<LoraModule>& modules() const { return modules_; }
  const LoraModule* find(const std::string& module) const;
  const ParamLayout& layout() const { return layout_; }
  int64_t param_count() const { return layout_.size(); }

  // w += scale * B A for the module's rows of a weight, in f32. `w` is [out, in].
  void merge(const LoraModule& module, std::span<const float> params, float* w,
             ThreadPool& pool) const;

 private:
  void place();
  std::vector<LoraModule> modules_;
  ParamLayout layout_;
  LoraOptions options_;
};

// "q_proj" of "model.layers.3.self_attn.q_proj".
std::string last_part(const std::string& module);
// Whether `module` is `target` or ends in "." + target.
bool module_matches(const std::string& module, const std::string& target);

}  // namespace wick
