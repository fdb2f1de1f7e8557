// SPDX-License-Identifier: Apache-2.0
// PEFT's layout: adapter_config.json and adapter_model.safetensors, tensors named
// base_model.model.<module>.lora_A.weight [r, in] and .lora_B.weight [out, r].
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "adapter/lora.h"
#include "base/half.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace wick {

namespace {

const std::string kPrefix = "base_model.model.";

// Adapter settings that change the result and that wick does not compute yet.
void refuse_unsupported(const Json& config, const std::string& where) {
  std::string type = get_string(config, "peft_type", where, "LORA");
  if (type != "LORA")
    fail(ErrorCode::kUnsupported, where, ": peft_type is ", type, "; wick runs LORA adapters");
  if (get_bool(config, "use_dora", where, false))
    fail(ErrorCode::kUnsupported, where, ": use_dora is true; DoRA adapters are not run yet");
  if (get_bool(config, "fan_in_fan_out", where, false))
    fail(ErrorCode::kUnsupported, where,
         ": fan_in_fan_out is true; no model wick runs has such "
         "weights");
  std::string bias = get_string(config, "bias", where, "none");
  if (bias != "none")
    fail(ErrorCode::kUnsupported, where, ": bias is ", bias, "; only none is run");
}

// alpha of one module: alpha_pattern's entry whose key names it, else lora_alpha. Keys are names
// or suffixes here; a key with expression signs is refused rather than misread.
double module_alpha(const Json& config, const std::string& where, const std::string& module) {
  double alpha = get_float(config, "lora_alpha", where, 8.0);
  const Json* pattern = find_member(config, "alpha_pattern");
  if (!pattern || !pattern->is_object()) return alpha;
  for (const auto& [key, value] : pattern->items()) {
    std::string plain = key;
    if (!plain.empty() && plain[0] == '^') plain.erase(0, 1);
    if (plain.find_first_of("*+?()[]{}|\\$") != std::string::npos)
      fail(ErrorCode::kUnsupported, where, ": alpha_pattern has the expression \"", key,
           "\"; only module names and suffixes are read");
    if (module_matches(module, plain) && value.is_number()) return value.get<double>();
  }
  return alpha;
}

void to_floats(const TensorInfo& info, std::span<const std::byte> bytes, float* out,
               const std::string& where) {
  size_t n = static_cast<size_t>(info.shape.elements());
  auto widen = [&](auto element) {
    using T = decltype(element);
    for (size_t i = 0; i < n; ++i) {
      T x;
      std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
      out[i] = to_float(x);
    }
  };
  if (info.dtype == DType::kF32)
    widen(0.0f);
  else if (info.dtype == DType::kBF16)
    widen(bf16{});
  else if (info.dtype == DType::kF16)
    widen(f16{});
  else
    fail(ErrorCode::kUnsupported, where, ": ", info.name, " has element type ", info.type_name,
         "; wanted F32, BF16 or F16");
  for (size_t i = 0; i < n; ++i)
    if (!std::isfinite(out[i]))
      fail(ErrorCode::kCorruptFile, where, ": ", info.name, " holds a value that is not finite (",
           out[i], " at element ", i, "); the adapter is damaged");
}

struct Pair {
  const TensorInfo *a = nullptr, *b = nullptr;
};

}  // namespace

Adapter Adapter::load(const std::filesystem::path& folder, std::span<const LinearInfo> linears,
                      std::vector<float>& params) {
  if (!std::filesystem::is_directory(folder))
    fail(ErrorCode::kNotFound, folder.string(),
         std::filesystem::exists(folder) ? ": a file" : ": no such folder",
         "; an adapter is a folder that wick train or PEFT wrote");
  std::filesystem::path config_path = folder / "adapter_config.json";
  std::filesystem::path weights_path = folder / "adapter_model.safetensors";
  if (!std::filesystem::exists(config_path))
    fail(ErrorCode::kNotFound, folder.string(),
         ": has no adapter_config.json; wanted a folder that wick train or PEFT wrote");
  if (!std::filesystem::exists(weights_path))
    fail(ErrorCode::kNotFound, folder.string(), ": has no adapter_model.safetensors",
         std::filesystem::exists(folder / "adapter_model.bin")
             ? "; adapter_model.bin is pickled Python, save it as safetensors with PEFT"
             : "");
  const std::string where = config_path.string(), file_name = weights_path.string();
  Json config = read_json(config_path, size_t{16} << 20);
  refuse_unsupported(config, where);

  SafetensorsFile file(weights_path);
  std::map<std::string, Pair> pairs;
  for (const TensorInfo& t : file.tensors()) {
    std::string name = t.name;
    if (name.rfind(kPrefix, 0) == 0) name.erase(0, kPrefix.size());
    for (const char* kind : {".lora_A", ".lora_B"}) {
      // Older files carry the adapter's name: .lora_A.default.weight
      size_t at = name.rfind(kind);
      if (at == std::string::npos) continue;
      std::string tail = name.substr(at + std::strlen(kind));
      if (tail != ".weight" && tail != ".default.weight") continue;
      Pair& pair = pairs[name.substr(0, at)];
      (kind[6] == 'A' ? pair.a : pair.b) = &t;
      name.clear();
      break;
    }
    if (!name.empty())
      fail(ErrorCode::kUnsupported, file_name, ": holds ", t.name,
           "; only lora_A and lora_B of linears are run");
  }
  if (pairs.empty()) fail(ErrorCode::kCorruptFile, file_name, ": holds no LoRA tensors");

  Adapter adapter;
  adapter.options_.rank = get_int(config, "r", where, 8, {1, 1 << 20});
  adapter.options_.alpha = static_cast<float>(get_float(config, "lora_alpha", where, 8.0));
  adapter.options_.dropout =
      static_cast<float>(get_float(config, "lora_dropout", where, 0.0, {0.0, 1.0}));
  adapter.options_.rslora = get_bool(config, "use_rslora", where, false);
  for (const LinearInfo& l : linears) {
    auto found = pairs.find(l.module);
    if (found == pairs.end()) continue;
    const Pair& p = found->second;
    if (!p.a || !p.b)
      fail(ErrorCode::kCorruptFile, file_name, ": ", l.module, " has lora_", p.a ? "A" : "B",
           " and no lora_", p.a ? "B" : "A");
    bool fits = p.a->shape.rank() == 2 && p.b->shape.rank() == 2 && p.a->shape[1] == l.in &&
                p.b->shape[0] == l.out && p.a->shape[0] == p.b->shape[1] && p.a->shape[0] > 0;
    if (!fits)
      fail(ErrorCode::kInvalidArgument, file_name, ": ", l.module, " has lora_A ", p.a->shape.str(),
           " and lora_B ", p.b->shape.str(), ", this model wants [r, ", l.in, "] and [", l.out,
           ", r]; is the adapter for another model?");
    LoraModule m{l};
    m.rank = p.a->shape[0];
    double r = static_cast<double>(m.rank), alpha = module_alpha(config, where, l.module);
    m.scale = static_cast<float>(alpha / (adapter.options_.rslora ? std::sqrt(r) : r));
    m.dropout = adapter.options_.dropout;
    adapter.modules_.push_back(std::move(m));
  }
  for (const auto& [module, pair] : pairs)
    if (!adapter.find(module))
      fail(ErrorCode::kInvalidArgument, file_name, ": adapts ", module,
           ", which this model does not have; is the adapter for another model?");
  adapter.place();
  params.assign(static_cast<size_t>(adapter.param_count()), 0.0f);
  for (const LoraModule& m : adapter.modules_) {
    const Pair& p = pairs[m.module];
    to_floats(*p.a, file.bytes(*p.a), params.data() + m.a_offset, file_name);
    to_floats(*p.b, file.bytes(*p.b), params.data() + m.b_offset, file_name);
  }
  return adapter;
}

Json Adapter::peft_config(const std::string& base_model) const {
  // Everything that PEFT's LoraConfig needs to rebuild the same modules: suffixes are enough when
  // every block has them, else the full paths.
  std::set<std::string> targets;
  std::set<int64_t> layers;
  int64_t last_layer = -1;
  Json ranks = Json::object(), alphas = Json::object();
  for (const LoraModule& m : modules_) {
    targets.insert(last_part(m.module));
    layers.insert(m.layer);
    last_layer = std::max(last_layer, m.layer);
    double alpha = m.scale * (options_.rslora ? std::sqrt(static_cast<double>(m.rank))
                                              : static_cast<double>(m.rank));
    if (m.rank != options_.rank) ranks[m.module] = m.rank;
    if (std::abs(alpha - options_.alpha) > 1e-6 * std::abs(alpha)) alphas[m.module] = alpha;
  }
  Json config;
  config["alpha_pattern"] = alphas;
  config["auto_mapping"] = nullptr;
  config["base_model_name_or_path"] = base_model;
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  config["init_lora_weights"] = true;
  bool all_layers = static_cast<int64_t>(layers.size()) == last_layer + 1;
  config["layers_to_transform"] = nullptr;
  if (!all_layers)
    config["layers_to_transform"] = std::vector<int64_t>(layers.begin(), layers.end());
  config["layers_pattern"] = nullptr;
  if (!all_layers) config["layers_pattern"] = "layers";
  config["lora_alpha"] = options_.alpha;
  config["lora_dropout"] = options_.dropout;
  config["modules_to_save"] = nullptr;
  config["peft_type"] = "LORA";
  config["r"] = options_.rank;
  config["rank_pattern"] = ranks;
  config["target_modules"] = std::vector<std::string>(targets.begin(), targets.end());
  config["task_type"] = "CAUSAL_LM";
  config["use_dora"] = false;
  config["use_rslora"] = options_.rslora;
  return config;
}

void Adapter::save(const std::filesystem::path& folder, std::span<const float> params,
                   const std::string& base_model) const {
  WICK_CHECK(static_cast<int64_t>(params.size()) == param_count());
  make_folder(folder);
  SafetensorsWriter writer(folder / "adapter_model.safetensors", {{"format", "pt"}});
  auto each = [&](auto&& visit) {
    for (const LoraModule& m : modules_) {
      visit(kPrefix + m.module + ".lora_A.weight", Shape{m.rank, m.in}, m.a_offset);
      visit(kPrefix + m.module + ".lora_B.weight", Shape{m.out, m.rank}, m.b_offset);
    }
  };
  each([&](const std::string& name, Shape shape, int64_t) {
    writer.declare(name, DType::kF32, shape);
  });
  each([&](const std::string& name, Shape shape, int64_t offset) {
    writer.write(name, std::as_bytes(params.subspan(static_cast<size_t>(offset),
                                                    static_cast<size_t>(shape.elements()))));
  });
  writer.commit();
  write_file(folder / "adapter_config.json", dump_json(peft_config(base_model), 2) + "\n");
}

}  // namespace wick
