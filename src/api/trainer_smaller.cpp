// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <utility>

#include "api/report_text.h"
#include "api/trainer_impl.h"

namespace wick {

// Another run, by what a person would change for it.
struct Trainer::Impl::Smaller {
  std::string flags;
  int64_t length = 0;  // --max-seq-length; 0: as it is
  int64_t rank = 0;    // 0: as it is
  bool lora = false, pairs = false,
       codes = false;  // in place of all weights; q and v; --quantize 4
  int64_t bytes = 0;

  Smaller with(const Smaller& other) const {
    return {flags + " " + other.flags, std::max(length, other.length), std::max(rank, other.rank),
            lora || other.lora,        pairs || other.pairs,           codes || other.codes};
  }
};

namespace {

constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

// --quantize leaves vectors in the type that they have.
DType widest_vector(const Model::Impl& m) {
  DType widest = DType::kBF16;
  for (const WeightSpec& spec : weight_specs(m.config))
    if (const DType own = m.weights->dtype(spec);
        spec.shape.rank() != 2 && dtype_bytes(own) > dtype_bytes(widest))
      widest = own;
  return widest;
}

}  // namespace

// While one is alive, this run and the others have the rows that --max-seq-length would leave: what
// a plan takes is known from its sizes alone, since one with fewer targets may lie worse.
struct Trainer::Impl::ShorterRows {
  ShorterRows(Impl& lead, int64_t length) {
    for (Impl* run : lead.runs()) {
      ExampleSet train = run->train.shortened(length);
      std::optional<ExampleSet> valid;
      if (run->valid) valid = run->valid->shortened(length);
      leave_rows = leave_rows && train.rows_per_epoch() > 0 && (!valid || valid->size() > 0);
      kept.push_back({run, std::exchange(run->train, std::move(train)),
                      std::exchange(run->valid, std::move(valid)),
                      std::exchange(run->options.dataset.max_seq_length, length)});
    }
  }
  ~ShorterRows() {
    for (Kept& k : kept) {
      k.run->train = std::move(k.train);
      k.run->valid = std::move(k.valid);
      k.run->options.dataset.max_seq_length = k.length;
    }
  }
  ShorterRows(const ShorterRows&) = delete;
  ShorterRows& operator=(const ShorterRows&) = delete;

  struct Kept {
    Impl* run;
    ExampleSet train;
    std::optional<ExampleSet> valid;
    int64_t length;
  };
  std::vector<Kept> kept;
  bool leave_rows = true;
};

// kNowhere for a run that would have no rows.
int64_t Trainer::Impl::smaller_bytes(const Smaller& run, FitCandidate size) {
  const Model::Impl& m = model->impl();
  std::optional<ShorterRows> shorter;
  if (run.length > 0) {
    shorter.emplace(*this, run.length);
    if (!shorter->leave_rows) return kNowhere;
    size = fit_candidates(train, order(), free_limits(), least_limits(), options.packing).back();
  }
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
    codes = ModelWeights::random(m.config, 0, widest_vector(m));
    codes->quantize_to(*quantized_dtype(4, m.options.group_size));
    codes->compute_in(m.weights->compute());
  }
  StepOptions s = step_options(size.limits, -1, codes ? &*codes : nullptr);
  s.largest_pack = size.largest_pack;
  const TrainStep step(m.config, codes ? *codes : *m.weights, trained ? *trained : *trainable, s);
  const int64_t kept = forecast.prefix_on_disk ? 0 : forecast.prefix_bytes;
  return step.forecast(m.backend()).total() + kept;
}

std::string Trainer::Impl::what_would_fit(const Fit& smallest, int64_t memory_bytes) {
  const Model::Impl& m = model->impl();
  const FitCandidate& size = smallest.candidate;
  const bool lone_adapter = adapter && others.empty() && options.init_adapter.empty();
  std::vector<Smaller> ways;
  // Both answers of a pair are in one pack, each as long as a row may be.
  if (const int64_t tokens = size.limits.tokens / 2 / 16 * 16; tokens >= 16) {
    const int64_t length = has_pairs() ? tokens / 2 : tokens;
    ways.push_back({.flags = cat("--max-seq-length ", length), .length = length});
  }
  if (!adapter) ways.push_back({.flags = "--fine-tune-type lora", .lora = true});
  if (lone_adapter && options.rank > 1)
    ways.push_back({.flags = cat("--rank ", options.rank / 2), .rank = options.rank / 2});
  if (lone_adapter && options.targets == std::vector<std::string>{"all-linear"})
    ways.push_back({.flags = "--targets q_proj,v_proj", .pairs = true});
  if (adapter && !dtype_is_quantized(m.weights->dtype(weight_specs(m.config).front())) &&
      !other_codes(m, *quantized_dtype(4, m.options.group_size)))
    ways.push_back({.flags = "--quantize 4", .codes = true});

  const int64_t least = smaller_bytes({}, size);
  for (Smaller& way : ways) way.bytes = smaller_bytes(way, size);
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
    all.bytes = smaller_bytes(all, size);
    if (all.bytes <= memory_bytes || i + 1 == ways.size()) name(all);
  }
  if (all.bytes > memory_bytes) text += "; for less, still shorter rows or a smaller model";
  return text;
}

}  // namespace wick
