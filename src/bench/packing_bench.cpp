// SPDX-License-Identifier: Apache-2.0
// Rows of mixed length trained in packs, padded to the longest row of their batch, and padded with
// the rows sorted by length: the same rows, the same step, the same arithmetic per token slot.
// Where a padded batch is run as others run it, its padding goes through the head as well; wick's
// own step would leave that out, which is a row of its own.
//
// Where a step is slow only some of the updates are timed, taken evenly by size, and stand for the
// others: the time of a first one says how many.
//
// An update is timed as in a run: from the end of the one before to its own, with the next one
// already started where the device runs ahead of the host. Those around it are the same update.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/rng.h"
#include "bench/context.h"
#include "train/step.h"

namespace wick {

namespace {

constexpr int64_t kRows = 128, kBatch = 8, kLongest = 2048, kMedian = 120, kWidth = 16;
constexpr int64_t kUpdates = kRows / kBatch, kLeastUpdates = 2;
constexpr int64_t kDraws = 16;
constexpr double kPatience = 20;  // times the seconds of a case, for the whole table
constexpr uint64_t kLengthStream = 0x6c656e67;

// Log-normal lengths with σ = 1, cut at the limit; every token but the first is trained. A row
// stands for kDraws draws of about its length: so few rows drawn one by one would be now many long
// ones, now none, and padding costs accordingly.
ExampleSet mixed_rows(const BenchContext& c) {
  Rng rng(mix_key(c.options.seed, kLengthStream));
  std::vector<double> draws(static_cast<size_t>(kRows * kDraws));
  for (double& x : draws) x = std::exp(static_cast<double>(rng.normal()));
  std::sort(draws.begin(), draws.end());
  std::vector<Example> rows;
  for (int64_t r = 0; r < kRows; ++r) {
    const double drawn =
        static_cast<double>(kMedian) * draws[static_cast<size_t>(r * kDraws + kDraws / 2)];
    const int64_t length =
        std::clamp(static_cast<int64_t>(std::lround(drawn)), int64_t{2}, kLongest);
    Example e;
    for (int64_t p = 0; p < length; ++p)
      e.ids.push_back(bench_id(c.options.seed, r, p, c.config().vocab));
    e.trained.assign(e.ids.size(), 1);
    e.trained[0] = 0;
    e.full_length = length;
    rows.push_back(std::move(e));
  }
  return ExampleSet::from_examples(std::move(rows), "rows of mixed length");
}

// Slots of each row where all are as long as the longest.
int64_t padded_width(const ExampleSet& set, std::span<const int64_t> rows) {
  int64_t width = 0;
  for (int64_t row : rows) width = std::max(width, row_size(set[row]).tokens);
  return (width + kWidth - 1) / kWidth * kWidth;
}

// The rows side by side: the padding attends like the rest of its row. With `whole_head` it also
// predicts something, for the time that takes.
Pack padded_pack(const ExampleSet& set, std::span<const int64_t> rows, bool whole_head) {
  const int64_t width = padded_width(set, rows);
  Pack pack;
  for (int64_t row : rows) {
    const Example& e = set[row];
    const int64_t used = row_size(e).tokens;
    const auto start = static_cast<int32_t>(pack.ids.size());
    for (int64_t i = 0; i < width; ++i) {
      const auto slot = static_cast<int32_t>(pack.ids.size());
      pack.ids.push_back(i < used ? e.ids[static_cast<size_t>(i)] : 0);
      pack.positions.push_back(static_cast<int32_t>(i));
      pack.begin.push_back(start);
      pack.end.push_back(slot + 1);
      if (i >= used && !whole_head) continue;
      pack.rows.push_back(slot);
      pack.targets.push_back(i < used ? e.ids[static_cast<size_t>(i + 1)] : 0);
      pack.segment.push_back(static_cast<int32_t>(pack.examples.size()));
    }
    pack.examples.push_back(row);
  }
  pack.used_tokens = static_cast<int64_t>(pack.ids.size());
  pack.used_targets = static_cast<int64_t>(pack.targets.size());
  pack.keys.assign(2 * pack.ids.size(), 0);
  return pack;
}

class PackingCase {
 public:
  explicit PackingCase(const BenchContext& c)
      : c_(c),
        config_(c.config()),
        set_(mixed_rows(c)),
        order_(set_, kBatch, c.options.seed, true) {
    // Time does not care whether the model has learned positions that far.
    config_.max_positions = std::max(config_.max_positions, kLongest);
    ms_.resize(static_cast<size_t>(c.options.effort.iters > 0 ? c.options.effort.iters : 2));
    LoraOptions lora;
    lora.rank = c.options.rank;
    lora.alpha = 2.0f * static_cast<float>(c.options.rank);
    lora.targets = c.options.targets;
    adapter_.emplace(Adapter::create(lora, adaptable_linears(c.config())));
    for (int64_t i = 0; i < set_.size(); ++i) useful_ += row_size(set_[i]).tokens;
  }

  void packed() {
    const PackLimits limits = choose_limits(set_, order_, c_.backend().tokens_at_once(), true);
    const std::vector<int64_t> sizes = smaller_sizes(set_, order_, limits, limits.tokens, true);
    slots_ = count_slots(set_, order_, limits, sizes, true).packed;
    TrainStep step = make_step(limits, sizes);
    auto packs_of = [&](int64_t u) {
      return pack_rows(set_, order_.update(u), limits, c_.options.seed, 0, true);
    };
    std::vector<int64_t> tokens;
    for (int64_t u = 0; u < kUpdates; ++u) {
      int64_t sum = 0;
      for (int64_t row : order_.update(u)) sum += row_size(set_[row]).tokens;
      tokens.push_back(sum);
    }
    const int64_t middle = even_sample(tokens, 1)[0];
    choose_count(update_ms(step, packs_of(middle)) /
                 static_cast<double>(tokens[static_cast<size_t>(middle)]));
    time_updates(tokens, [&](int64_t u) { time_update(step, packs_of(u)); });
    emit("packed");
  }

  void padded(const char* what, bool sorted, bool whole_head) {
    const std::vector<int64_t> slots = padded_slots(sorted);
    slots_ = std::accumulate(slots.begin(), slots.end(), int64_t{0});
    time_updates(slots, [&](int64_t u) {
      const std::vector<Pack> packs = {padded_pack(set_, batch(u, sorted), whole_head)};
      TrainStep step = make_step({static_cast<int64_t>(packs[0].ids.size()),
                                  static_cast<int64_t>(packs[0].targets.size())},
                                 {});
      time_update(step, packs);
    });
    emit(what);
  }

 private:
  // The rows of a padded update, in the order of training or by length.
  std::vector<int64_t> batch(int64_t update, bool sorted) const {
    if (!sorted) return order_.update(update);
    std::vector<int64_t> rows(static_cast<size_t>(set_.size()));
    std::iota(rows.begin(), rows.end(), int64_t{0});
    std::stable_sort(rows.begin(), rows.end(),
                     [&](int64_t a, int64_t b) { return set_[a].ids.size() < set_[b].ids.size(); });
    return {rows.begin() + update * kBatch, rows.begin() + (update + 1) * kBatch};
  }
  std::vector<int64_t> padded_slots(bool sorted) const {
    std::vector<int64_t> slots;
    for (int64_t u = 0; u < kUpdates; ++u)
      slots.push_back(kBatch * padded_width(set_, batch(u, sorted)));
    return slots;
  }

  // As many updates of each way as the whole table has time for.
  void choose_count(double slot_ms) {
    int64_t slots = useful_;
    for (const bool sorted : {false, false, true})
      for (int64_t more : padded_slots(sorted)) slots += more;
    const double update = slot_ms * static_cast<double>(slots) / kUpdates;
    const double runs = is_long(update / 4) ? 1 : static_cast<double>(ms_.size() + 1);
    const double most = 1e3 * kPatience * c_.options.effort.seconds / (update * runs);
    count_ = static_cast<int64_t>(std::clamp(most, double{kLeastUpdates}, double{kUpdates}));
  }
  // `count` updates at even steps through all of them by size.
  static std::vector<int64_t> even_sample(const std::vector<int64_t>& sizes, int64_t count) {
    std::vector<int64_t> order(sizes.size()), taken;
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return sizes[static_cast<size_t>(a)] < sizes[static_cast<size_t>(b)];
    });
    for (int64_t i = 0; i < count; ++i)
      taken.push_back(order[static_cast<size_t>((2 * i + 1) * kUpdates / (2 * count))]);
    return taken;
  }
  // Times a sample; a pass takes as much longer as all updates are larger than those.
  template <typename F>
  void time_updates(const std::vector<int64_t>& sizes, F&& time) {
    int64_t timed = 0;
    for (int64_t u : even_sample(sizes, count_)) {
      time(u);
      timed += sizes[static_cast<size_t>(u)];
    }
    const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    for (double& pass : ms_) pass *= static_cast<double>(all) / static_cast<double>(timed);
  }

  TrainStep make_step(const PackLimits& limits, const std::vector<int64_t>& sizes) {
    StepOptions s;
    s.limits = limits;
    s.positions = kLongest;
    s.skips_rows = c_.backend().skips_rows();
    TrainStep step(config_, c_.weights(), train_adapter(*adapter_), s);
    step.add_sizes(c_.weights(), sizes);
    step.compile(c_.backend(), c_.weights());
    step.set_params(adapter_->initial_params(c_.options.seed));
    return step;
  }

  static void start(TrainStep& step, const std::vector<Pack>& packs) {
    int64_t targets = 0;
    for (const Pack& pack : packs) targets += pack.used_targets;
    const Hyper hyper = AdamwSettings{}.hyper();
    step.start(packs, 1.0f / static_cast<float>(targets), {&hyper, 1});
  }
  // Of the one that it starts, or where others are under way of the oldest of them.
  static double update_ms(TrainStep& step, const std::vector<Pack>& packs) {
    const auto before = std::chrono::steady_clock::now();
    start(step, packs);
    step.finish();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before)
        .count();
  }
  bool is_long(double ms) const { return ms >= 1e3 * c_.options.effort.seconds; }

  void time_update(TrainStep& step, const std::vector<Pack>& packs) {
    const double first = update_ms(step, packs);
    // Where one update takes that long, its first time is as good as a later one.
    if (is_long(first)) {
      for (double& pass : ms_) pass += first;
      return;
    }
    const bool ahead = step.runs_ahead();
    if (ahead) {
      start(step, packs);
      update_ms(step, packs);
    }
    for (double& pass : ms_) pass += update_ms(step, packs);
    if (ahead) step.finish();
  }

  void emit(const char* what) {
    BenchResult r;
    r.bench = "packing";
    r.what = what;
    r.batch = kBatch;
    r.seq = kLongest;
    r.rank = c_.options.rank;
    r.targets = joined(c_.options.targets);
    r.ms = summarize(ms_);
    if (packed_ms_ == 0) packed_ms_ = r.ms.median;
    r.more["slots"] = slots_;
    r.more["fill"] = static_cast<double>(useful_) / static_cast<double>(slots_);
    r.more["packed_is_faster"] = r.ms.median / packed_ms_;
    if (count_ < kUpdates) r.more["note"] = cat("from ", count_, " of ", kUpdates, " updates");
    c_.emit(std::move(r), static_cast<double>(useful_));
    std::fill(ms_.begin(), ms_.end(), 0.0);
  }

  const BenchContext& c_;
  ModelConfig config_;
  ExampleSet set_;
  Order order_;
  std::optional<Adapter> adapter_;
  int64_t useful_ = 0, slots_ = 0, count_ = kUpdates;
  double packed_ms_ = 0;
  std::vector<double> ms_;  // of a pass over all rows
};

}  // namespace

void bench_packing(const BenchContext& c) {
  PackingCase packing(c);
  packing.packed();
  packing.padded("padded to the longest row", false, true);
  packing.padded("the same, no padding in the head", false, false);
  packing.padded("padded, sorted by length", true, true);
}

}  // namespace wick
