// SPDX-License-Identifier: Apache-2.0
// Writes PEFT's layout (peft.cpp).
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "adapter/lora.h"
#include "adapter/select.h"
#include "io/safetensors_writer.h"

namespace wick {

namespace {

const std::string kPrefix = "base_model.model.";

// target_modules and layers_to_transform that PEFT resolves to exactly these modules: suffixes
// where every one of them is adapted in the same blocks, else whole names. `blocks`: of the model.
void write_targets(const std::vector<LoraModule>& modules, int64_t blocks, Json& config) {
  std::map<std::string, std::set<int64_t>> layers;
  bool outside = false;
  for (const LoraModule& m : modules) {
    layers[last_part(m.module)].insert(m.layer);
    outside |= m.layer < 0;
  }
  const std::set<int64_t>& first = layers.begin()->second;
  bool even = !outside;
  for (const auto& [suffix, own] : layers) even &= own == first;
  std::vector<std::string> targets;
  config["layers_to_transform"] = nullptr;
  config["layers_pattern"] = nullptr;
  if (even) {
    for (const auto& [suffix, own] : layers) targets.push_back(suffix);
    if (static_cast<int64_t>(first.size()) != blocks) {
      config["layers_to_transform"] = std::vector<int64_t>(first.begin(), first.end());
      config["layers_pattern"] = "layers";
    }
  } else {
    for (const LoraModule& m : modules) targets.push_back(m.module);
  }
  config["target_modules"] = targets;
}

}  // namespace

Json Adapter::peft_config(const std::string& base_model) const {
  const LoraOptions& o = options_;
  // PiSSA's pair and the one it started from are one pair of twice the rank and alpha.
  const int64_t twice = o.init == "pissa" ? 2 : 1;
  Json ranks = Json::object(), alphas = Json::object();
  for (const auto& [pattern, rank] : o.rank_pattern) ranks[pattern] = twice * rank;
  for (const auto& [pattern, alpha] : o.alpha_pattern) alphas[pattern] = alpha;
  // What the patterns do not say of a module is said under its own name, which then comes first.
  Json own_ranks = Json::object(), own_alphas = Json::object();
  auto alpha_of = [&](const LoraModule& m) {
    const double r = static_cast<double>(m.rank);
    return m.scale * (o.rslora ? std::sqrt(r) : r);
  };
  for (const LoraModule& m : modules_) {
    const double alpha = alpha_of(m), said = by_pattern(o.alpha_pattern, m.module,
                                                        static_cast<double>(o.alpha), "alphas");
    if (by_pattern(o.rank_pattern, m.module, o.rank, "ranks") != m.rank)
      own_ranks[m.module] = twice * m.rank;
    if (std::abs(alpha - said) > 1e-6 * std::abs(alpha)) own_alphas[m.module] = alpha;
  }
  own_ranks.update(ranks);
  own_alphas.update(alphas);
  if (twice == 2) {
    // The factor on the pair stays what it was.
    const double factor = o.rslora ? std::sqrt(2.0) : 2.0;
    for (auto& [pattern, alpha] : own_alphas.items()) alpha = factor * alpha.get<double>();
  }
  Json config;
  config["alpha_pattern"] = own_alphas;
  config["auto_mapping"] = nullptr;
  config["base_model_name_or_path"] = base_model;
  config["bias"] = o.bias;
  config["exclude_modules"] = nullptr;
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  config["init_lora_weights"] = true;
  if (o.init == "gaussian") config["init_lora_weights"] = "gaussian";
  write_targets(modules_, layers_, config);
  config["lora_alpha"] = twice == 2
                             ? (o.rslora ? std::sqrt(2.0) : 2.0) * static_cast<double>(o.alpha)
                             : static_cast<double>(o.alpha);
  config["lora_dropout"] = o.dropout;
  config["modules_to_save"] = nullptr;
  std::vector<std::string> names;
  for (const WholeModule& m : wholes_)
    if (m.kind != ModuleKind::kBias) names.push_back(m.module);
  if (!names.empty()) config["modules_to_save"] = names;
  config["peft_type"] = "LORA";
  config["r"] = twice * o.rank;
  config["rank_pattern"] = own_ranks;
  config["task_type"] = "CAUSAL_LM";
  config["trainable_token_indices"] = nullptr;
  if (tokens_) config["trainable_token_indices"] = tokens_->ids;
  config["use_dora"] = o.dora;
  config["use_rslora"] = o.rslora;
  return config;
}

int64_t Adapter::saved_bytes() const {
  int64_t numbers = param_count();
  for (const LoraModule& m : modules_)
    if (m.a0_offset >= 0) numbers += m.rank * (m.in + m.out);
  return numbers * static_cast<int64_t>(sizeof(float));
}

void Adapter::save(const std::filesystem::path& folder, std::span<const float> params,
                   const std::string& base_model, const std::string& base_sketch) const {
  WICK_CHECK(static_cast<int64_t>(params.size()) == param_count());
  make_folder(folder);
  std::vector<std::pair<std::string, std::string>> metadata{{"format", "pt"}};
  if (options_.init != "default") metadata.emplace_back("wick_init", options_.init);
  if (!base_sketch.empty()) metadata.emplace_back(kBaseSketchKey, base_sketch);
  SafetensorsWriter writer(folder / "adapter_model.safetensors",
                           {metadata.begin(), metadata.end()});
  struct Tensor {
    std::string name;
    Shape shape;
    std::function<std::vector<float>()> values;
  };
  std::vector<Tensor> tensors;
  auto part = [&](int64_t offset, int64_t count) {
    auto from = params.subspan(static_cast<size_t>(offset), static_cast<size_t>(count));
    return std::vector<float>(from.begin(), from.end());
  };
  // What lies as [rows, cols], as [cols, rows].
  auto turned = [&](int64_t offset, int64_t rows, int64_t cols) {
    std::vector<float> out(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        out[static_cast<size_t>(c * rows + r)] = params[static_cast<size_t>(offset + r * cols + c)];
    return out;
  };
  for (const LoraModule& m : modules_) {
    const std::string at = kPrefix + m.module;
    if (m.kind == ModuleKind::kEmbedding) {
      tensors.push_back({at + ".lora_embedding_A", {m.rank, m.in}, [&, turned] {
                           return turned(m.a_offset, m.in, m.rank);
                         }});
      tensors.push_back({at + ".lora_embedding_B", {m.out, m.rank}, [&, part] {
                           return part(m.b_offset, m.out * m.rank);
                         }});
      continue;
    }
    if (m.a0_offset >= 0) {
      tensors.push_back({at + ".lora_A.weight", {2 * m.rank, m.in}, [&, part] {
                           std::vector<float> a = part(m.a_offset, m.rank * m.in);
                           a.insert(a.end(), frozen_.begin() + m.a0_offset,
                                    frozen_.begin() + m.a0_offset + m.rank * m.in);
                           return a;
                         }});
      tensors.push_back(
          {at + ".lora_B.weight", {m.out, 2 * m.rank}, [&] {
             std::vector<float> b;
             for (int64_t o = 0; o < m.out; ++o) {
               for (int64_t r = 0; r < m.rank; ++r)
                 b.push_back(params[static_cast<size_t>(m.b_offset + o * m.rank + r)]);
               for (int64_t r = 0; r < m.rank; ++r)
                 b.push_back(-frozen_[static_cast<size_t>(m.b0_offset + o * m.rank + r)]);
             }
             return b;
           }});
      continue;
    }
    tensors.push_back({at + ".lora_A.weight", {m.rank, m.in}, [&, part] {
                         return part(m.a_offset, m.rank * m.in);
                       }});
    tensors.push_back({at + ".lora_B.weight", {m.out, m.rank}, [&, part] {
                         return part(m.b_offset, m.out * m.rank);
                       }});
    if (m.m_offset >= 0)
      tensors.push_back(
          {at + ".lora_magnitude_vector", {m.out}, [&, part] { return part(m.m_offset, m.out); }});
  }
  for (const WholeModule& m : wholes_)
    tensors.push_back({kPrefix + tensor_of(m), m.weight_shape(),
                       [&, part] { return part(m.offset, m.weight_shape().elements()); }});
  if (tokens_)
    tensors.push_back(
        {kPrefix + tokens_->module + ".token_adapter.trainable_tokens_delta",
         {tokens_->count(), tokens_->hidden},
         [&, turned] { return turned(tokens_->offset, tokens_->hidden, tokens_->count()); }});
  for (const Tensor& t : tensors) writer.declare(t.name, DType::kF32, t.shape);
  for (const Tensor& t : tensors) {
    const std::vector<float> values = t.values();
    writer.write(t.name, std::as_bytes(std::span(values)));
  }
  writer.commit();
  write_file(folder / "adapter_config.json", dump_json(peft_config(base_model), 2) + "\n");
}

}  // namespace wick
