// SPDX-License-Identifier: Apache-2.0
// write_adapters OUT: for each golden model an adapter made by wick, trained for three updates, in
// OUT/<case>/ as PEFT lays it out, beside it logits.safetensors (input_ids [T], logits [T, V]) as
// wick computes them with it. tools/peers/check_adapters.sh lets PEFT judge.
#include <cstdio>
#include <filesystem>
#include <span>

#include "golden/golden_case.h"
#include "io/safetensors_writer.h"

namespace {

void write_case(const std::string& name, const std::filesystem::path& out) {
  using namespace wick;
  golden::Case c(name);
  auto backend = open_backend({});
  LoraOptions options;
  options.rank = 6;
  options.alpha = 48.0f;  // so that three updates show in the logits
  c.adapter = Adapter::create(options, adaptable_linears(c.config));
  c.adapter_params = c.adapter.initial_params(7);
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
  c.adapter.save(out, c.adapter_params, name);

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
    for (const std::string& name : wick::golden::case_names()) {
      std::filesystem::path out = std::filesystem::path(argv[1]) / name;
      std::filesystem::create_directories(out);
      write_case(name, out);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "write_adapters: %s\n", e.what());
    return 1;
  }
}
