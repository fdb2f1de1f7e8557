// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "api/report_text.h"
#include "api/trainer_impl.h"

namespace wick {

// Another run, by what a person would change for it.
struct Trainer::Impl::Smaller {
  std::string flags;
  int64_t tokens = 0;  // of a pack of the longest row; 0: as it is
  int64_t rank = 0;    // 0: as it is
  bool lora = false, pairs = false,
       codes = false;  // in place of all weights; q and v; --quantize 4
  int64_t bytes = 0;

  Smaller with(const Smaller& other) const {
    return {flags + " " + other.flags, std::max(tokens, other.tokens), std::max(rank, other.rank),
            lora || other.lora,        pairs || other.pairs,           codes || other.codes};
  }
};

int64_t Trainer::Impl::smaller_bytes(const Smaller& run, const PackLimits& limits) const {
  const Model::Impl& m = model->impl();
  PackLimits packs = limits;
  if (run.tokens > 0) packs = {run.tokens, std::clamp<int64_t>(limits.targets, 1, run.tokens)};
  std::optional<Adapter> made;  // outlives what refers to it
  std::optional<Trainable> trained;
  if (run.lora || run.rank > 0 || run.pairs) {
    LoraOptions lora = lora_options(options);
    if (run.rank > 0) lora.rank = run.rank;
    if (run.pairs) lora.targets = {"q_proj", "v_proj"};
    made = Adapter::create(lora, adaptable_linears(m.config));
    trained = train_adapter(*made);
  }
  std::optional<ModelWeights> codes;
  if (run.codes) {
    codes = ModelWeights::random(m.config, 0, DType::kBF16);
    codes->quantize_to(*quantized_dtype(4, m.options.group_size));
    codes->compute_in(m.weights->compute());
  }
  const TrainStep step(m.config, codes ? *codes : *m.weights, trained ? *trained : *trainable,
                       step_options(packs, -1, codes ? &*codes : nullptr));
  const int64_t kept = forecast.prefix_on_disk ? 0 : forecast.prefix_bytes;
  return step.forecast(m.backend()).total() + kept;
}

std::string Trainer::Impl::what_would_fit(const Fit& smallest, int64_t memory_bytes) const {
  const Model::Impl& m = model->impl();
  const PackLimits& limits = smallest.candidate.limits;
  const bool lone_adapter = adapter && others.empty() && options.init_adapter.empty();
  std::vector<Smaller> ways;
  // Both answers of a pair are in one pack, each as long as a row may be.
  if (const int64_t tokens = limits.tokens / 2 / 16 * 16; tokens >= 16)
    ways.push_back(
        {.flags = cat("--max-seq-length ", has_pairs() ? tokens / 2 : tokens), .tokens = tokens});
  if (!adapter) ways.push_back({.flags = "--fine-tune-type lora", .lora = true});
  if (lone_adapter && options.rank > 1)
    ways.push_back({.flags = cat("--rank ", options.rank / 2), .rank = options.rank / 2});
  if (lone_adapter && options.targets == std::vector<std::string>{"all-linear"})
    ways.push_back({.flags = "--targets q_proj,v_proj", .pairs = true});
  if (adapter && !dtype_is_quantized(m.weights->dtype(weight_specs(m.config).front())) &&
      !other_codes(m, *quantized_dtype(4, m.options.group_size)))
    ways.push_back({.flags = "--quantize 4", .codes = true});

  const int64_t least = smaller_bytes({}, limits);
  for (Smaller& way : ways) way.bytes = smaller_bytes(way, limits);
  std::erase_if(ways, [&](const Smaller& way) { return way.bytes > least - least / 100; });
  if (ways.empty()) return "; a smaller model is needed";
  std::string text = ";";
  auto name = [&](const Smaller& way) {
    text += cat(text == ";" ? " with " : ", with ", way.flags, " ", report::bytes_up(way.bytes),
                way.bytes <= memory_bytes ? " (fits)" : "");
  };
  for (const Smaller& way : ways) name(way);

  // What saves most comes first, so that the rest is asked for only where it is needed.
  std::stable_sort(ways.begin(), ways.end(),
                   [](const Smaller& a, const Smaller& b) { return a.bytes < b.bytes; });
  Smaller all = ways.front();
  for (size_t i = 1; i < ways.size() && all.bytes > memory_bytes; ++i) {
    all = all.with(ways[i]);
    all.bytes = smaller_bytes(all, limits);
    if (all.bytes <= memory_bytes || i + 1 == ways.size()) name(all);
  }
  if (all.bytes > memory_bytes) text += "; for less, still shorter rows or a smaller model";
  return text;
}

}  // namespace wick
