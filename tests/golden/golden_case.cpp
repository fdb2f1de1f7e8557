// SPDX-License-Identifier: Apache-2.0
#include "golden/golden_case.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "infer/decoder_engine.h"
#include "io/model_files.h"
#include "model/adapter_start.h"

namespace wick::golden {

namespace {

std::string golden_folder() { return std::string(WICK_SOURCE_DIR) + "/tests/golden"; }

template <typename T>
std::vector<T> read_tensor(const SafetensorsFile& file, const std::string& name, DType dtype) {
  const TensorInfo* info = file.find(name);
  WICK_CHECK(info && info->dtype == dtype, name, " of ", file.path().string());
  std::vector<T> out(file.bytes(*info).size() / sizeof(T));
  std::memcpy(out.data(), file.bytes(*info).data(), out.size() * sizeof(T));
  return out;
}

// `meta`: expected.json, which may give the model a padding token.
ModelConfig load_config(const std::string& folder, const Json& meta) {
  ModelFolder files = open_model_folder(folder);
  if (meta.contains("pad_token_id")) files.config["pad_token_id"] = meta["pad_token_id"];
  return read_config(files.config, files.generation_config, folder);
}

}  // namespace

namespace {

std::vector<std::string> cases_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (std::filesystem::exists(entry.path() / "expected.json"))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string model_of(const std::string& folder) {
  return golden_folder() + "/" + read_json(folder + "/expected.json")["model"].get<std::string>();
}

}  // namespace

std::vector<std::string> case_names() { return cases_in(golden_folder()); }
std::vector<std::string> kind_names() { return cases_in(golden_folder() + "/kinds"); }

Case::Case(const std::string& name)
    : Case(golden_folder() + "/" + name, golden_folder() + "/" + name) {}

Case Case::kind(const std::string& name) {
  const std::string folder = golden_folder() + "/kinds/" + name;
  return Case(folder, model_of(folder));
}

Case::Case(const std::string& folder, const std::string& model)
    : folder(folder),
      meta(read_json(folder + "/expected.json")),
      expected(folder + "/expected.safetensors"),
      config(load_config(model, meta)),
      weights(ModelWeights::open(SafetensorsSet::open(model), model, config)),
      adapter(Adapter::load(folder + "/adapter", adaptable_linears(config), adapter_params,
                            meta.value("lora_plus", 1.0f))) {
  start_adapter(adapter, config, weights, false, adapter_params);
}

std::vector<float> Case::floats(const std::string& tensor) const {
  return read_tensor<float>(expected, tensor, DType::kF32);
}

std::vector<int32_t> Case::ints(const std::string& tensor) const {
  return read_tensor<int32_t>(expected, tensor, DType::kI32);
}

PackLimits roomy_limits(const Case& c) {
  return {static_cast<int64_t>(c.ints("input_ids").size()) + 4,
          c.meta["trained_tokens"].get<int64_t>() + 3};
}

Pack make_pack(const Case& c, const std::vector<size_t>& rows, const PackLimits& limits) {
  const std::vector<int32_t> ids = c.ints("input_ids"), targets = c.ints("targets"),
                             starts = c.ints("row_starts");
  Pack pack;
  for (size_t row : rows) {
    const auto first = static_cast<int32_t>(pack.ids.size());
    for (auto t = static_cast<size_t>(starts[row]); t < static_cast<size_t>(starts[row + 1]); ++t) {
      const auto slot = static_cast<int32_t>(pack.ids.size());
      pack.ids.push_back(ids[t]);
      pack.positions.push_back(slot - first);
      pack.begin.push_back(first);
      pack.end.push_back(slot + 1);
      if (targets[t] < 0) continue;
      pack.rows.push_back(slot);
      pack.targets.push_back(targets[t]);
      pack.segment.push_back(static_cast<int32_t>(row));
    }
  }
  pack.used_tokens = static_cast<int64_t>(pack.ids.size());
  pack.used_targets = static_cast<int64_t>(pack.targets.size());
  for (int64_t t = pack.used_tokens; t < limits.tokens; ++t) {
    pack.ids.push_back(0);
    pack.positions.push_back(0);
    pack.begin.push_back(static_cast<int32_t>(t));
    pack.end.push_back(static_cast<int32_t>(t) + 1);
  }
  pack.keys.resize(pack.ids.size() * 2);
  for (std::vector<int32_t>* list : {&pack.rows, &pack.targets, &pack.segment})
    list->resize(static_cast<size_t>(limits.targets), -1);
  return pack;
}

AdamwSettings adamw_settings(const Case& c, int64_t step) {
  const Json& o = c.meta["optimizer"];
  AdamwSettings s;
  s.learning_rate = o["lr"].get<float>();
  s.beta1 = o["betas"][0].get<float>();
  s.beta2 = o["betas"][1].get<float>();
  s.eps = o["eps"].get<float>();
  s.weight_decay = o["weight_decay"].get<float>();
  s.clip = o["clip"].get<float>();
  s.step = step;
  return s;
}

BufferPtr upload(Backend& backend, const std::vector<float>& data) {
  const auto count = static_cast<int64_t>(data.size());
  BufferPtr buffer = backend.allocate(DType::kF32, count);
  backend.upload(*buffer, DType::kF32, 0, count, data.data());
  return buffer;
}

std::vector<float> logits(Case& c, Backend& backend, const std::vector<int32_t>& ids,
                          bool with_adapter) {
  // As many slots as tokens, since that bounds the rows of logits; all tokens are of slot 0.
  const auto tokens = static_cast<int64_t>(ids.size());
  DecoderEngine engine(backend, c.config, c.weights,
                       {.adapter = with_adapter ? &c.adapter : nullptr},
                       with_adapter ? upload(backend, c.adapter_params) : nullptr, tokens, tokens);
  std::vector<SlotToken> run;
  for (size_t t = 0; t < ids.size(); ++t) run.push_back({ids[t], 0, static_cast<int32_t>(t), true});
  std::vector<float> out;
  engine.run(run, out);
  return out;
}

}  // namespace wick::golden
