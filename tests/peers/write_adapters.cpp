// SPDX-License-Identifier: Apache-2.0
// write_adapters OUT: for each golden model an adapter made by wick, and one of each kind, trained
// for three updates, in OUT/<name>/ as PEFT lays it out, beside it the model's name in model.txt
// and logits.safetensors (input_ids [T], logits [T, V]) as wick computes them with it.
// tools/peers/check_adapters.sh lets PEFT judge.
#include <cstdio>
#include <filesystem>
#include <span>

#include "base/file.h"
#include "golden/golden_case.h"
#include "io/safetensors_writer.h"
#include "model/adapter_start.h"

namespace {

struct Kind {
  std::string name, model;
  wick::LoraOptions options;
};

wick::LoraOptions plain() {
  wick::LoraOptions options;
  options.rank = 6;
  options.alpha = 48.0f;  // so that three updates show in the logits
  return options;
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const std::string& name : wick::golden::case_names()) all.push_back({name, name, plain()});
  auto add = [&](const char* name, const char* model) -> wick::LoraOptions& {
    all.push_back({name, model, plain()});
    return all.back().options;
  };
  wick::LoraOptions& patterns = add("kind_patterns", "qwen2_window");
  patterns.rslora = true;
  patterns.targets = {R"(.*\.(q|v|up)_proj)", "down_proj"};
  patterns.exclude_modules = {"model.layers.1.mlp.up_proj"};
  patterns.rank_pattern = {{"q_proj", 3}, {R"(layers\.0\..*)", 2}};
  patterns.alpha_pattern = {{"down_proj", 20.0}};
  add("kind_dora", "llama_mlp_bias_linear_rope").dora = true;
  wick::LoraOptions& pissa = add("kind_pissa", "qwen2_window");
  pissa.init = "pissa";
  pissa.rslora = true;
  add("kind_gaussian", "qwen2_window").init = "gaussian";
  add("kind_embedding", "qwen2_tied").targets = {"embed_tokens", "q_proj"};
  add("kind_head", "llama_mlp_bias_linear_rope").targets = {"lm_head", "o_proj"};
  add("kind_whole", "qwen3_untied").modules_to_save = {"lm_head", "embed_tokens", "model.norm",
                                                       "q_norm"};
  return all;
}

void write_case(const Kind& kind, const std::filesystem::path& out) {
  using namespace wick;
  golden::Case c(kind.model);
  auto backend = open_backend({});
  c.adapter = Adapter::create(kind.options, adaptable_linears(c.config));
  c.adapter_params = c.adapter.initial_params(7);
  start_adapter(c.adapter, c.config, c.weights, true, c.adapter_params);
  const PackLimits limits = golden::roomy_limits(c);
  TrainStep step(c.config, c.weights, train_adapter(c.adapter),
                 {.limits = limits, .positions = 32});
  step.compile(*backend, c.weights);
  step.set_params(c.adapter_params);
  const Pack pack = golden::make_pack(c, {0, 1, 2, 3}, limits);
  for (int64_t i = 1; i <= 3; ++i) {
    step.accumulate(pack, 1.0f / static_cast<float>(pack.used_targets));
    step.update(golden::adamw_settings(c, i));
  }
  c.adapter_params = step.params();
  c.adapter.save(out, c.adapter_params, kind.model);
  write_file(out / "model.txt", kind.model + "\n");

  std::vector<int32_t> ids = c.ints("input_ids");
  ids.resize(40);
  std::vector<float> logits = golden::logits(c, *backend, ids, true);
  SafetensorsWriter file(out / "logits.safetensors");
  auto tokens = static_cast<int64_t>(ids.size());
  file.declare("input_ids", DType::kI32, {tokens});
  file.declare("logits", DType::kF32, {tokens, c.config.vocab});
  file.write("input_ids", std::as_bytes(std::span(ids)));
  file.write("logits", std::as_bytes(std::span(logits)));
  file.commit();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_adapters OUT\n");
    return 2;
  }
  try {
    for (const Kind& kind : kinds()) {
      std::filesystem::path out = std::filesystem::path(argv[1]) / kind.name;
      std::filesystem::create_directories(out);
      write_case(kind, out);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "write_adapters: %s\n", e.what());
    return 1;
  }
}
