// SPDX-License-Identifier: Apache-2.0
#include "bench/bench.h"

#include <algorithm>

#include "base/file.h"
#include "base/process.h"
#include "bench/context.h"
#include "model/save.h"

namespace wick {

namespace {

struct Table {
  BenchTable shown;
  void (*run)(const BenchContext&);
};

constexpr Table kTables[] = {
    {{"train", "a training step: forward, backward, optimizer"}, bench_train},
    {{"gradient", "forward, backward and total of a training step"}, bench_gradient},
    {{"prefix", "a training step of the top third, frozen blocks computed or kept"}, bench_prefix},
    {{"prefill", "a prompt of --seq tokens into the KV cache"}, bench_prefill},
    {{"decode", "one token after another behind a prompt"}, bench_decode},
    {{"generate", "a sampled answer: first token, per token, total"}, bench_generate},
    {{"lora", "y = x Wᵀ + scale (x Aᵀ) Bᵀ by size and rank"}, bench_lora},
    {{"ops", "single ops of a layer"}, bench_ops},
    {{"components", "the parts of one layer, forward and backward"}, bench_components},
    {{"attention", "flash attention against plain"}, bench_attention},
    {{"kv-cache", "decoding with the KV cache and without"}, bench_kv_cache},
    {{"sampling", "choosing a token, beside a forward pass"}, bench_sampling},
    {{"memory", "weights, a forward pass, a training step, the KV cache"}, bench_memory},
    {{"batch", "training at batches of 1 to 16, decoding of 1 to 64"}, bench_batch},
    {{"packing", "rows of mixed length, packed and padded"}, bench_packing},
    {{"merge", "an adapter into the weights and out again"}, bench_merge},
    {{"profile", "where the time of a step goes, with --profile"}, nullptr},
};

}  // namespace

const std::vector<BenchTable>& bench_tables() {
  static const std::vector<BenchTable> kShown = [] {
    std::vector<BenchTable> shown;
    for (const Table& table : kTables) shown.push_back(table.shown);
    return shown;
  }();
  return kShown;
}

BenchMachine bench_machine(const Model& model) {
  const Model::Impl& m = model.impl();
  const DeviceInfo info = m.backend().info();
  const ModelInfo about = model.info();
  BenchMachine machine;
  machine.shape = m.name();
  machine.device = info.name;
  machine.isa = info.isa;
  machine.description = info.description;
  machine.threads = info.threads;
  machine.dtype = about.compute_dtype;
  machine.weight_dtype = about.weight_dtype;
  const DeviceSpeed speed = m.backend().speed();
  const bool bf16 = m.weights->compute() == DType::kBF16 && speed.bf16_gflops > 0;
  machine.peak_gflops = bf16 ? speed.bf16_gflops : speed.f32_gflops;
  machine.read_gbps = speed.read_gbps;
  return machine;
}

void run_bench(Model& model, const BenchMachine& machine, const BenchOptions& options,
               const OnResult& on_result) {
  const BenchContext context{model.impl(), machine, options, on_result};
  if (!options.save_model.empty()) {
    save_weights(options.save_model, context.config(), context.weights(), std::nullopt, {});
    write_file(std::filesystem::path(options.save_model) / "config.json",
               context.model.folder.config.dump(2) + "\n");
  }
  for (const Table& table : kTables) {
    const bool asked = std::any_of(
        options.tables.begin(), options.tables.end(),
        [&](const std::string& name) { return name == table.shown.name || name == "all"; });
    if (!asked || !table.run) continue;
    reset_peak_memory();
    table.run(context);
  }
}

}  // namespace wick
