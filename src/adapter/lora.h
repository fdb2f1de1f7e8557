// SPDX-License-Identifier: Apache-2.0
// LoRA and its kin: y = x Wᵀ + scale * (dropout(x) Aᵀ) Bᵀ,  A [R, in], B [out, R],
// scale = alpha / R, or alpha / sqrt R for rsLoRA.
//
//   DoRA    y = (x Wᵀ + scale * (x Aᵀ) Bᵀ) * m / ‖W + scale B A‖, per row of W; m [out] is trained,
//           the norm is a constant to the gradient
//   PiSSA   A and B start from the largest singular vectors of W, and W without them is what is
//           frozen: y = x Wᵀ + scale * ((x Aᵀ) Bᵀ - (x A0ᵀ) B0ᵀ). W itself stays as it is, so that
//           the result is a plain LoRA of rank 2R, [B, -B0] [A; A0]
//   embedding  y[t] = W[id] + scale * B A[:, id], A [R, vocab], B [hidden, R]
//   tokens  some rows of the embedding (and of a head tied to it) trained as they are
//   whole   a module (a norm's gain, the embedding, the head) trained as it is, beside the pairs
//
// An Adapter is the declaration of a set of such pairs over the modules of one model and their
// places in a flat f32 parameter vector; the numbers themselves are the caller's. The A matrices of
// linears that share an input lie next to each other, so that one skinny product serves them all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "adapter/param_layout.h"
#include "io/json.h"

namespace wick {

class ThreadPool;

// In the metadata of an adapter's weights: a sketch of the base.
constexpr const char* kBaseSketchKey = "wick_base";

// What a module is to an adapter. kGain, kBias: vectors that can only be trained whole. A bias is a
// module of its own here, called as its tensor is.
enum class ModuleKind : uint8_t { kLinear, kEmbedding, kHead, kGain, kBias };

// A module that an adapter may be attached to, as the model names it. Its weight is [out, in], the
// embedding's [in, out] with in = vocab, a gain's and a bias's [out].
struct LinearInfo {
  std::string module;  // "model.layers.3.self_attn.q_proj"
  int64_t in = 0, out = 0;
  int64_t layer = -1;  // -1: outside the blocks
  int64_t group = 0;   // linears of one group share their input
  ModuleKind kind = ModuleKind::kLinear;
  bool tied = false;  // a head whose weight is the embedding's

  Shape weight_shape() const {
    if (kind == ModuleKind::kGain || kind == ModuleKind::kBias) return {out};
    return kind == ModuleKind::kEmbedding ? Shape{in, out} : Shape{out, in};
  }
};

constexpr int64_t kMostRank = 1 << 20;  // no weight has more rows or columns

struct LoraOptions {
  int64_t rank = 8;
  float alpha = 16.0f;
  float dropout = 0.0f;
  bool rslora = false;  // scale = alpha / sqrt(rank)
  bool dora = false;
  // all-linear (of the blocks), names or suffixes of modules, or expressions that match a whole
  // name: what has one of the signs \ ^ $ * + ? ( ) [ ] { } |
  std::vector<std::string> targets{"all-linear"};
  int64_t num_layers = -1;  // the last N blocks; -1: all
  // As PEFT's fields of these names. The first pattern that matches a module's name, or its end
  // from a dot on, gives its rank or alpha.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  std::vector<int64_t> layers_to_transform = {};      // empty: all
  std::vector<std::string> exclude_modules = {};      // as targets
  std::vector<std::string> modules_to_save = {};      // trained whole
  std::vector<int64_t> trainable_token_indices = {};  // rows of the embedding, trained as they are
  std::string bias = "none";     // of the model, trained whole: none, all, lora_only
  std::string init = "default";  // default, gaussian, pissa
  float lora_plus_ratio = 1.0f;  // of the learning rate of B, and of vectors, to A's
};

// The module it adapts, and the pair of matrices.
struct LoraModule : LinearInfo {
  int64_t rank = 0;
  float scale = 1.0f, dropout = 0.0f;
  uint64_t site = 0;                       // of its dropout
  int64_t a_offset = 0, b_offset = 0;      // in the parameter vector
  int64_t m_offset = -1;                   // of DoRA's magnitudes [out]; -1: none
  int64_t a0_offset = -1, b0_offset = -1;  // of PiSSA's start, in frozen()
};

struct WholeModule : LinearInfo {
  int64_t offset = 0;  // in the parameter vector
};

// Trained rows of the embedding. A recording puts them in place by products with `selector`, which
// has a one where a token is one of them, since that is what every form of the table leaves room
// for.
struct TokenRows {
  std::vector<int64_t> ids;
  std::string module;
  int64_t vocab = 0, hidden = 0;
  int64_t offset = 0;  // in the parameter vector: [hidden, n], transposed
  // In frozen(): [vocab, n], the base's rows [n, hidden] and transposed, and ones [n, n].
  int64_t selector = 0, rows = 0, turned = 0, ones = 0;
  int64_t count() const { return static_cast<int64_t>(ids.size()); }
};

// A frozen table of the base that PEFT saved with an adapter.
struct BaseCopy {
  std::string module;
  std::filesystem::path file;
  std::string tensor;
};

class Adapter {
 public:
  // Throws: kInvalidArgument naming a target that no module has (and the nearest that one has), a
  // rank < 1, more layers than the model has, kinds that do not go together.
  static Adapter create(const LoraOptions& options, std::span<const LinearInfo> linears);

  // Reads a PEFT folder, named itself or by its adapter_model.safetensors; `params` receives the
  // numbers. Throws: kNotFound, kCorruptFile, kUnsupported (kinds of adapter that wick does not
  // run), kInvalidArgument (made for another model: names the first module or shape that does not
  // fit). `lora_plus_ratio` is for going on to train it; with `to_train`, tables that the adapter
  // brings and does not train are base_copies().
  static Adapter load(const std::filesystem::path& path, std::span<const LinearInfo> linears,
                      std::vector<float>& params, float lora_plus_ratio = 1.0f,
                      bool to_train = false);

  // Kaiming-uniform A (a = sqrt 5, i.e. uniform in ±1/sqrt(in)) or a normal one of deviation 1 / R,
  // zero B; of an embedding zero A, normal B. From `seed` and the module's name alone. What starts
  // from the model's weights (needs_weights()) is left zero.
  std::vector<float> initial_params(uint64_t seed) const;

  // Whether start_module() and start_whole() have to be called before the first step: for every
  // module of a new adapter, and where frozen() is not empty, of a loaded one too.
  bool needs_weights() const;
  // DoRA's magnitudes and PiSSA's pair from the module's weight [out, in]. With `fresh` false only
  // what is not saved with an adapter: PiSSA's start. Throws: kInvalidArgument for DoRA on a row of
  // zeros.
  void start_module(const LoraModule& module, const float* w, bool fresh, std::span<float> params);
  void start_whole(const WholeModule& module, const float* w, std::span<float> params) const;
  // Of the embedding [vocab, hidden].
  void start_tokens(const float* table, bool fresh, std::span<float> params);
  // Numbers that a recording reads and nothing trains.
  const std::vector<float>& frozen() const { return frozen_; }

  // Writes adapter_model.safetensors and adapter_config.json as PEFT does, each atomically. PiSSA
  // is written as the plain LoRA that it amounts to.
  // `base_sketch`, where there is one, stands in the metadata of the weights' file.
  void save(const std::filesystem::path& folder, std::span<const float> params,
            const std::string& base_model, const std::string& base_sketch = {}) const;
  // What save() would write, headers apart.
  int64_t saved_bytes() const;
  Json peft_config(const std::string& base_model) const;

  const LoraOptions& options() const { return options_; }
  const std::vector<LoraModule>& modules() const { return modules_; }
  const std::vector<WholeModule>& wholes() const { return wholes_; }
  const std::optional<TokenRows>& tokens() const { return tokens_; }
  // Of a loaded adapter: they say which base it was trained on, and are used for nothing else.
  const std::vector<BaseCopy>& base_copies() const { return base_copies_; }
  // The base that a loaded adapter's files name, and its sketch (model/base_sketch.h); may be "".
  const std::string& base_model() const { return base_model_; }
  const std::string& base_sketch() const { return base_sketch_; }
  // Of a loaded adapter: linears of the blocks that its config targets and its file has nothing of.
  // They stay the base's own, as in PEFT.
  const std::vector<std::string>& absent() const { return absent_; }
  const LoraModule* find(const std::string& module) const;
  const WholeModule* find_whole(const std::string& module) const;
  // The module is the base's own again. Its numbers keep their place among the parameters.
  void leave_whole(const std::string& module);
  // The name of its tensor in the layout, and behind a prefix in PEFT's file.
  std::string tensor_of(const WholeModule& module) const;
  const ParamLayout& layout() const { return layout_; }
  int64_t param_count() const { return layout_.size(); }

  // w += scale * B A for the module's rows of a weight, in f32, and what its kind does besides.
  // `w` has weight_shape().
  void merge(const LoraModule& module, std::span<const float> params, float* w,
             ThreadPool& pool) const;
  // The trained rows into the table [vocab, hidden].
  void merge_tokens(std::span<const float> params, float* table) const;

 private:
  void place();
  void declare_tokens(std::span<const LinearInfo> linears);
  void count_layers(std::span<const LinearInfo> linears);
  std::vector<LoraModule> modules_;
  std::vector<WholeModule> wholes_;
  std::optional<TokenRows> tokens_;
  std::vector<BaseCopy> base_copies_;
  std::string base_model_, base_sketch_;
  std::vector<std::string> absent_;
  ParamLayout layout_;
  LoraOptions options_;
  std::vector<float> frozen_;
  int64_t layers_ = 0;  // blocks of the model, adapted or not
};

}  // namespace wick
