// SPDX-License-Identifier: Apache-2.0
// Reads PEFT's layout: adapter_config.json and adapter_model.safetensors, tensors named
// base_model.model.<module>.lora_A.weight [r, in] and .lora_B.weight [out, r].
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "adapter/lora.h"
#include "adapter/select.h"
#include "base/half.h"
#include "base/path_status.h"
#include "io/model_files.h"
#include "io/safetensors.h"

namespace wick {

namespace {

const std::string kPrefix = "base_model.model.";

// The only kinds of start that leave the base as it is, or that wick follows (pissa).
std::string read_init(const Json& config, const std::string& where) {
  const Json* init = find_member(config, "init_lora_weights");
  if (!init || init->is_null() || init->is_boolean()) return "default";
  const std::string name = init->is_string() ? init->get<std::string>() : init->dump();
  if (name == "pissa") return name;
  for (const char* harmless : {"gaussian", "orthogonal", "eva"})
    if (name == harmless) return "default";
  fail(ErrorCode::kUnsupported, where, ": init_lora_weights is ", name,
       ", which changes the base's weights; convert the adapter to plain LoRA with PEFT "
       "(save_pretrained with path_initial_model_for_weight_conversion)");
}

// Whether a setting that is on makes another adapter than the ones that wick computes. PEFT names
// its kinds use_… or …_config, so that one of a later version is not taken for plain LoRA.
bool may_change_result(std::string_view key) {
  constexpr std::string_view kDoes[] = {"lora_bias", "layer_replication", "target_parameters",
                                        "alora_invocation_tokens"};
  // Computed here, about the start of the training (init_lora_weights says which), or about memory.
  constexpr std::string_view kDoesNot[] = {"use_rslora",    "use_dora",     "loftq_config",
                                           "eva_config",    "corda_config", "lora_ga_config",
                                           "runtime_config"};
  const auto is = [&](std::string_view name) { return name == key; };
  if (std::any_of(std::begin(kDoesNot), std::end(kDoesNot), is)) return false;
  return std::any_of(std::begin(kDoes), std::end(kDoes), is) || key.starts_with("use_") ||
         key.ends_with("_config");
}

// Adapter settings that change the result and that wick does not compute.
void refuse_unsupported(const Json& config, const std::string& where) {
  std::string type = get_string(config, "peft_type", where, "LORA");
  if (type != "LORA")
    fail(ErrorCode::kUnsupported, where, ": peft_type is ", type, "; wick runs LORA adapters");
  if (get_bool(config, "fan_in_fan_out", where, false))
    fail(ErrorCode::kUnsupported, where,
         ": fan_in_fan_out is true; no model wick runs has such "
         "weights");
  if (!config.is_object()) return;
  for (const auto& [key, value] : config.items()) {
    const bool absent = value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
                        (value.is_structured() && value.empty());
    if (!absent && may_change_result(key))
      fail(ErrorCode::kUnsupported, where, ": ", key, " is ", dump_json(value),
           "; wick does not run such adapters");
  }
}

// Of a tied table PEFT then has one adapter for both of its uses, and wick one for each. Token rows
// are both's in any case.
void refuse_tied_adapters(const Json& config, const Adapter& adapter,
                          std::span<const LinearInfo> linears, const std::string& where) {
  if (!get_bool(config, "ensure_weight_tying", where, false)) return;
  for (const LinearInfo& head : linears) {
    if (!head.tied) continue;
    for (const LinearInfo& l : linears)
      if ((l.kind == ModuleKind::kEmbedding || l.tied) &&
          (adapter.find(l.module) || adapter.find_whole(l.module)))
        fail(ErrorCode::kUnsupported, where, ": ensure_weight_tying is true, and the adapter has ",
             l.module, ", whose table the model has for embedding and head at once; wick does not ",
             "run one adapter on both: train without ensure_weight_tying, or without ", l.module);
  }
}

// As PEFT matches them: by the ends of names, within a word too.
bool trained_whole(const Json& config, const std::string& module) {
  const Json* names = find_member(config, "modules_to_save");
  return names && names->is_array() &&
         std::any_of(names->begin(), names->end(), [&](const Json& name) {
           return name.is_string() && module.ends_with(name.get<std::string>());
         });
}

// The names of a field that is a name or a list of names; nothing where one is an expression.
std::optional<std::vector<std::string>> plain_names(const Json& config, const char* key) {
  std::vector<std::string> names;
  const Json* member = find_member(config, key);
  if (!member || member->is_null()) return names;
  for (const Json& name : member->is_array() ? *member : Json::array({*member})) {
    if (!name.is_string() || is_expression(name.get<std::string>())) return std::nullopt;
    names.push_back(name.get<std::string>());
  }
  return names;
}

// See Adapter::absent(). Nothing is said of fields that would have to be guessed at.
std::vector<std::string> find_absent(const Json& config, const Adapter& adapter,
                                     std::span<const LinearInfo> linears) {
  const auto targets = plain_names(config, "target_modules");
  const auto excluded = plain_names(config, "exclude_modules");
  const Json* layers = find_member(config, "layers_to_transform");
  const bool some_layers = layers && !layers->is_null();
  if (!targets || !excluded) return {};
  auto among = [](const std::vector<std::string>& names, const LinearInfo& l) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name == "all-linear" || module_matches(l.module, name);
    });
  };
  auto chosen = [&](int64_t layer) {
    if (!some_layers) return true;
    if (!layers->is_array()) return *layers == layer;
    return std::find(layers->begin(), layers->end(), Json(layer)) != layers->end();
  };
  std::vector<std::string> absent;
  for (const LinearInfo& l : linears)
    if (l.kind == ModuleKind::kLinear && l.layer >= 0 && among(*targets, l) &&
        !among(*excluded, l) && chosen(l.layer) && !adapter.find(l.module))
      absent.push_back(l.module);
  return absent;
}

bool is_float(const TensorInfo& t) {
  return t.dtype == DType::kF32 || t.dtype == DType::kBF16 || t.dtype == DType::kF16;
}

// A list, or a mapping with embed_tokens alone.
std::vector<int64_t> read_tokens(const Json& config, const std::string& where) {
  const char* key = "trainable_token_indices";
  const Json* list = find_member(config, key);
  if (!list || list->is_null()) return {};
  if (list->is_object()) {
    if (list->size() != 1 || !module_matches("model.embed_tokens", list->begin().key()))
      fail(ErrorCode::kUnsupported, where, ": ", key, " is ", list->dump(),
           "; only rows of embed_tokens are run");
    list = &*list->begin();
  }
  std::vector<int64_t> ids;
  if (list->is_array())
    for (const Json& id : *list)
      if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  if (!list->is_array() || ids.size() != list->size())
    fail(ErrorCode::kCorruptFile, where, ": ", key, " is ", list->dump(), ", wanted a list of ids");
  return ids;
}

template <typename T>
std::vector<std::pair<std::string, T>> read_pattern(const Json& config, const char* key,
                                                    const std::string& where) {
  std::vector<std::pair<std::string, T>> patterns;
  const Json* member = find_member(config, key);
  if (!member || member->is_null()) return patterns;
  if (!member->is_object())
    fail(ErrorCode::kCorruptFile, where, ": ", key, " is ", json_kind(*member),
         ", wanted an object");
  for (const auto& [pattern, value] : member->items()) {
    if (!value.is_number())
      fail(ErrorCode::kCorruptFile, where, ": ", key, ".", pattern, " is ", json_kind(value),
           ", wanted a number");
    patterns.emplace_back(pattern, value.template get<T>());
  }
  return patterns;
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

// What the file has of one module.
struct Found {
  const TensorInfo *a = nullptr, *b = nullptr, *m = nullptr;
  bool embedding = false;
};

// Sorts the tensors of a file by module and by what they are to it.
struct Sorted {
  std::map<std::string, Found> pairs;
  std::map<std::string, const TensorInfo*> wholes;  // by module
  const TensorInfo* tokens = nullptr;
  std::vector<BaseCopy> copies;

  Sorted(const SafetensorsFile& file, std::span<const LinearInfo> linears) {
    for (const TensorInfo& t : file.tensors()) {
      std::string name = t.name;
      if (name.rfind(kPrefix, 0) == 0) name.erase(0, kPrefix.size());
      if (take_pair(name, t) || take_whole(name, t, linears, file.path())) continue;
      fail(ErrorCode::kUnsupported, file.path().string(), ": holds ", t.name,
           "; wick runs lora_A, lora_B, lora_embedding_A, lora_embedding_B, "
           "lora_magnitude_vector, and biases, norms, embed_tokens and lm_head trained whole");
    }
  }

 private:
  bool take_pair(const std::string& name, const TensorInfo& t) {
    struct Suffix {
      const char* kind;
      const TensorInfo* Found::*slot;
      bool embedding;
    };
    constexpr Suffix kSuffixes[] = {{".lora_A", &Found::a, false},
                                    {".lora_B", &Found::b, false},
                                    {".lora_embedding_A", &Found::a, true},
                                    {".lora_embedding_B", &Found::b, true},
                                    {".lora_magnitude_vector", &Found::m, false}};
    for (const Suffix& s : kSuffixes) {
      size_t at = name.rfind(s.kind);
      if (at == std::string::npos) continue;
      // Older files carry the adapter's name (.lora_A.default.weight), and magnitudes a .weight.
      std::string tail = name.substr(at + std::strlen(s.kind));
      if (tail != "" && tail != ".weight" && tail != ".default" && tail != ".default.weight")
        continue;
      Found& found = pairs[name.substr(0, at)];
      found.*s.slot = &t;
      found.embedding |= s.embedding;
      return true;
    }
    return false;
  }

  bool take_whole(const std::string& name, const TensorInfo& t, std::span<const LinearInfo> linears,
                  const std::filesystem::path& file) {
    for (const LinearInfo& l : linears) {
      if (l.kind == ModuleKind::kBias) {
        const std::string of = l.module.substr(0, l.module.rfind('.'));
        if (name != l.module && name != of + ".base_layer.bias") continue;
        wholes[l.module] = &t;
        return true;
      }
      if (l.kind == ModuleKind::kLinear || name.rfind(l.module + ".", 0) != 0) continue;
      const std::string tail = name.substr(l.module.size());
      // A head that is tied to the embedding has its rows.
      if (l.tied && tail == ".token_adapter.trainable_tokens_delta") return true;
      if (l.kind == ModuleKind::kEmbedding && tail == ".token_adapter.trainable_tokens_delta") {
        tokens = &t;
        return true;
      }
      // Of a module that it trains whole PEFT saves the original too, which nothing runs.
      if (tail == ".original_module.weight") return true;
      // PEFT saves the frozen table beside a LoRA or token rows on it, and puts it back into the
      // model.
      if ((tail == ".base_layer.weight" || tail == ".token_adapter.base_layer.weight") &&
          t.shape == l.weight_shape() && is_float(t)) {
        copies.push_back({l.module, file, t.name});
        return true;
      }
      if (tail == ".weight" || tail == ".modules_to_save.default.weight" ||
          tail == ".modules_to_save.weight") {
        wholes[l.module] = &t;
        return true;
      }
    }
    return false;
  }
};

LoraModule read_module(const LinearInfo& l, const Found& f, const LoraOptions& o,
                       const std::string& where, const std::string& file_name) {
  if (!f.a || !f.b)
    fail(ErrorCode::kCorruptFile, file_name, ": ", l.module, " has lora_", f.a ? "A" : "B",
         " and no lora_", f.a ? "B" : "A");
  const bool fits = f.embedding == (l.kind == ModuleKind::kEmbedding) && f.a->shape.rank() == 2 &&
                    f.b->shape.rank() == 2 && f.a->shape[1] == l.in && f.b->shape[0] == l.out &&
                    f.a->shape[0] == f.b->shape[1] && f.a->shape[0] > 0;
  if (!fits)
    fail(ErrorCode::kInvalidArgument, file_name, ": ", l.module, " has lora_A ", f.a->shape.str(),
         " and lora_B ", f.b->shape.str(), ", this model wants [r, ", l.in, "] and [", l.out,
         ", r]; is the adapter for another model?");
  if (o.dora != (f.m != nullptr))
    fail(ErrorCode::kCorruptFile, file_name, ": ", l.module, " has ", f.m ? "a" : "no",
         " lora_magnitude_vector, but ", where, " says use_dora ", o.dora ? "true" : "false");
  if (f.m && f.m->shape.elements() != l.out)
    fail(ErrorCode::kInvalidArgument, file_name, ": ", l.module, " has lora_magnitude_vector ",
         f.m->shape.str(), ", this model wants [", l.out, "]; is the adapter for another model?");
  LoraModule m{l};
  m.rank = f.a->shape[0];
  // The factor alpha / r would be a guess; PEFT refuses such files too. PiSSA's start has no more
  // rows than the weight has singular vectors, and PEFT's factor is still that of the rank given.
  const int64_t said = by_pattern(o.rank_pattern, l.module, o.rank, where + ": rank_pattern");
  const int64_t most = o.init == "pissa" ? std::min({said, l.in, l.out}) : said;
  if (m.rank != most)
    fail(ErrorCode::kCorruptFile, file_name, ": ", l.module, " has lora_A ", f.a->shape.str(),
         ", but ", where, " gives it rank ", said, "; do the two files belong together?");
  const double alpha = by_pattern(o.alpha_pattern, l.module, static_cast<double>(o.alpha),
                                  where + ": alpha_pattern");
  m.scale = lora_scale(alpha, said, o.rslora);
  m.dropout = l.kind == ModuleKind::kEmbedding ? 0.0f : o.dropout;
  return m;
}

}  // namespace

Adapter Adapter::load(const std::filesystem::path& path, std::span<const LinearInfo> linears,
                      std::vector<float>& params, float lora_plus_ratio, bool to_train) {
  // mlx-lm's option wants the file; what is beside it says how to read it.
  const bool named_by_file = path.filename() == "adapter_model.safetensors" && !is_folder_at(path);
  const std::filesystem::path folder = !named_by_file           ? path
                                       : path.has_parent_path() ? path.parent_path()
                                                                : std::filesystem::path(".");
  // mlx-lm's numbered ones are called 0000100_adapters.safetensors.
  const std::string named = path.filename().string();
  if (named == "adapters.safetensors" || named.ends_with("_adapters.safetensors") ||
      (path_exists(folder / "adapters.safetensors") &&
       !path_exists(folder / "adapter_model.safetensors")))
    fail(ErrorCode::kUnsupported, path.string(),
         ": an adapter in mlx-lm's layout; wick reads PEFT's (adapter_config.json and "
         "adapter_model.safetensors)");
  if (!is_folder_at(folder))
    fail(ErrorCode::kNotFound, folder.string(),
         path_exists(folder) ? ": a file" : ": no such folder",
         "; an adapter is a folder that wick train or PEFT wrote");
  std::filesystem::path config_path = folder / "adapter_config.json";
  std::filesystem::path weights_path = folder / "adapter_model.safetensors";
  if (!path_exists(config_path))
    fail(ErrorCode::kNotFound, folder.string(),
         ": has no adapter_config.json; wanted a folder that wick train or PEFT wrote");
  if (!path_exists(weights_path))
    fail(ErrorCode::kNotFound, folder.string(), ": has no adapter_model.safetensors",
         path_exists(folder / "adapter_model.bin")
             ? "; adapter_model.bin is pickled Python, save it as safetensors with PEFT"
             : "");
  refuse_special_files(folder);
  const std::string where = config_path.string(), file_name = weights_path.string();
  Json config = read_json(config_path, size_t{16} << 20);
  refuse_unsupported(config, where);

  SafetensorsFile file(weights_path);
  const Sorted sorted(file, linears);
  if (sorted.pairs.empty()) fail(ErrorCode::kCorruptFile, file_name, ": holds no LoRA tensors");

  Adapter adapter;
  LoraOptions& o = adapter.options_;
  o.rank = get_int(config, "r", where, 8, {1, kMostRank});
  o.alpha = static_cast<float>(get_float(config, "lora_alpha", where, 8.0));
  o.dropout = static_cast<float>(get_float(config, "lora_dropout", where, 0.0, {0.0, 1.0}));
  o.rslora = get_bool(config, "use_rslora", where, false);
  o.dora = get_bool(config, "use_dora", where, false);
  o.rank_pattern = read_pattern<int64_t>(config, "rank_pattern", where);
  o.alpha_pattern = read_pattern<double>(config, "alpha_pattern", where);
  o.bias = get_string(config, "bias", where, "none");
  if (o.bias != "none" && o.bias != "all" && o.bias != "lora_only")
    fail(ErrorCode::kCorruptFile, where, ": bias is ", o.bias, ", wanted none, all or lora_only");
  o.init = read_init(config, where);
  if (o.dora && o.init == "pissa")
    fail(ErrorCode::kUnsupported, where,
         ": use_dora with init_lora_weights pissa; wick does not run them together: merge the "
         "adapter with PEFT (merge_and_unload) and use the result as the model");
  o.lora_plus_ratio = lora_plus_ratio;
  adapter.base_copies_ = sorted.copies;
  for (const LinearInfo& l : linears) {
    if (auto whole = sorted.wholes.find(l.module); whole != sorted.wholes.end()) {
      if (whole->second->shape != l.weight_shape())
        fail(ErrorCode::kInvalidArgument, file_name, ": ", whole->second->name, " has shape ",
             whole->second->shape.str(), ", this model wants ", l.weight_shape().str(),
             "; is the adapter for another model?");
      // PEFT saves tables that it did not train, too, where the vocabulary grew.
      const bool table = l.kind == ModuleKind::kEmbedding || l.kind == ModuleKind::kHead;
      if (to_train && table && is_float(*whole->second) && !trained_whole(config, l.module))
        adapter.base_copies_.push_back({l.module, weights_path, whole->second->name});
      else
        adapter.wholes_.push_back({l});
    }
    if (auto found = sorted.pairs.find(l.module); found != sorted.pairs.end())
      adapter.modules_.push_back(read_module(l, found->second, o, where, file_name));
  }
  for (const auto& [module, pair] : sorted.pairs)
    if (!adapter.find(module))
      fail(ErrorCode::kInvalidArgument, file_name, ": adapts ", module,
           ", which this model does not have; is the adapter for another model?");
  refuse_tied_adapters(config, adapter, linears, where);
  adapter.absent_ = find_absent(config, adapter, linears);
  o.trainable_token_indices = read_tokens(config, where);
  if ((sorted.tokens != nullptr) != !o.trainable_token_indices.empty())
    fail(ErrorCode::kCorruptFile, file_name, ": ", sorted.tokens ? "has" : "has no",
         " trainable_tokens_delta, unlike what ", where, " says");
  if (const auto sketch = file.metadata().find(kBaseSketchKey); sketch != file.metadata().end())
    adapter.base_sketch_ = sketch->second;
  if (const Json* base = find_member(config, "base_model_name_or_path"); base && base->is_string())
    adapter.base_model_ = base->get<std::string>();
  adapter.count_layers(linears);
  try {
    adapter.declare_tokens(linears);
    adapter.place();
  } catch (const Error& error) {
    fail(error.code(), where, ": ", error.what());
  }
  params.assign(static_cast<size_t>(adapter.param_count()), 0.0f);
  auto read = [&](const TensorInfo& t, int64_t offset) {
    to_floats(t, file.bytes(t), params.data() + offset, file_name);
  };
  // A tensor [rows, cols] as [cols, rows].
  auto read_turned = [&](const TensorInfo& t, int64_t rows, int64_t cols, int64_t offset) {
    std::vector<float> plain(static_cast<size_t>(rows * cols));
    to_floats(t, file.bytes(t), plain.data(), file_name);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        params[static_cast<size_t>(offset + c * rows + r)] =
            plain[static_cast<size_t>(r * cols + c)];
  };
  for (const LoraModule& m : adapter.modules_) {
    const Found& f = sorted.pairs.at(m.module);
    read(*f.b, m.b_offset);
    if (m.m_offset >= 0) read(*f.m, m.m_offset);
    if (m.kind != ModuleKind::kEmbedding) {
      read(*f.a, m.a_offset);
      continue;
    }
    read_turned(*f.a, m.rank, m.in, m.a_offset);
  }
  if (adapter.tokens_) {
    const TokenRows& t = *adapter.tokens_;
    if (sorted.tokens->shape != Shape{t.count(), t.hidden})
      fail(ErrorCode::kInvalidArgument, file_name, ": trainable_tokens_delta has shape ",
           sorted.tokens->shape.str(), ", wanted [", t.count(), ", ", t.hidden,
           "]; is the adapter for another model?");
    read_turned(*sorted.tokens, t.count(), t.hidden, t.offset);
  }
  for (const WholeModule& m : adapter.wholes_) read(*sorted.wholes.at(m.module), m.offset);
  return adapter;
}

}  // namespace wick
