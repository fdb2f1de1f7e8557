// SPDX-License-Identifier: Apache-2.0
#include "data/packing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace wick {
namespace {

constexpr int64_t kTokenStep = 16;
// Products of at most 16 rows sum in an order of their own (docs/numerics.md). A row's bits must
// not depend on which of a run's programs it lies in, since rows that are kept come from one alone.
constexpr int64_t kFewestSlots = 32;
// Starting a pack reads all weights once and gives every thread a share of each product, which
// costs about as much as this many tokens. It must not depend on the number of threads: the pack
// size decides the order in which gradients are summed.
constexpr int64_t kPackCost = 512;
// A longer epoch is judged by its first updates.
constexpr int64_t kSimulatedUpdates = 1024;
// Streams of the seed; the numbers are arbitrary and must stay as they are.
constexpr uint64_t kShuffleStream = 0x6f72646572;
constexpr uint64_t kShareStream = 0x7368617265;
constexpr uint64_t kTokenStream = 0x746f6b656e;

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// For each size its bin, bins counted from 0 in the order of their first row.
std::vector<size_t> best_fit_decreasing(const std::vector<PackLimits>& sizes,
                                        const PackLimits& limits) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a].tokens > sizes[b].tokens; });

  std::vector<size_t> bin_of(sizes.size());
  std::vector<int64_t> targets_left;
  std::set<std::pair<int64_t, size_t>> by_tokens_left;
  for (size_t row : order) {
    const PackLimits& size = sizes[row];
    auto it = by_tokens_left.lower_bound({size.tokens, 0});
    while (it != by_tokens_left.end() && targets_left[it->second] < size.targets) ++it;
    int64_t tokens_left = limits.tokens;
    size_t bin = targets_left.size();
    if (it != by_tokens_left.end()) {
      tokens_left = it->first;
      bin = it->second;
      by_tokens_left.erase(it);
    } else {
      targets_left.push_back(limits.targets);
    }
    targets_left[bin] -= size.targets;
    by_tokens_left.insert({tokens_left - size.tokens, bin});
    bin_of[row] = bin;
  }
  return bin_of;
}

// f(first, length) for each sequence of a row: where it begins, and how many of its tokens are
// read, which are those before its last trained one.
template <typename F>
void for_sequences(const Example& example, const F& f) {
  const auto second = static_cast<size_t>(example.second);
  auto one = [&](size_t first, size_t end) {
    size_t length = 0;
    for (size_t i = first + 1; i < end; ++i)
      if (example.trained[i] != 0) length = i - first;
    f(first, length);
  };
  one(0, second > 0 ? second : example.ids.size());
  if (second > 0) one(second, example.ids.size());
}

class PackWriter {
 public:
  PackWriter(const ExampleSet& dataset, const PackLimits& limits, uint64_t key)
      : dataset_(dataset), limits_(limits), key_(key) {}

  Pack empty() const {
    auto tokens = static_cast<size_t>(limits_.tokens);
    auto targets = static_cast<size_t>(limits_.targets);
    Pack pack;
    pack.ids.assign(tokens, 0);
    pack.positions.assign(tokens, 0);
    pack.begin.resize(tokens);
    pack.end.resize(tokens);
    for (size_t t = 0; t < tokens; ++t) {
      pack.begin[t] = static_cast<int32_t>(t);
      pack.end[t] = static_cast<int32_t>(t + 1);
    }
    pack.keys.assign(2 * tokens, 0);
    pack.rows.assign(targets, -1);
    pack.targets.assign(targets, -1);
    pack.segment.assign(targets, -1);
    pack.marks.assign(targets, 0);
    return pack;
  }

  void append(Pack& pack, int64_t row, int64_t copy) const {
    const Example& example = dataset_[row];
    uint64_t key = mix_key(key_, static_cast<uint64_t>(row));
    if (copy > 0) key = mix_key(key, static_cast<uint64_t>(copy));
    const int64_t start = pack.used_tokens;
    for_sequences(example,
                  [&](size_t first, size_t length) { append(pack, example, first, length, key); });
    pack.examples.push_back(row);
    pack.slots.push_back(
        {static_cast<int32_t>(start), static_cast<int32_t>(pack.used_tokens - start)});
  }

 private:
  // The sequence that begins at `first`, as far as it is read.
  static void append(Pack& pack, const Example& example, size_t first, size_t length,
                     uint64_t row_key) {
    const int64_t start = pack.used_tokens;
    const bool rejected = first > 0 || example.undesirable;
    for (size_t i = 0; i < length; ++i) {
      const size_t t = static_cast<size_t>(start) + i, from = first + i;
      pack.ids[t] = example.ids[from];
      pack.positions[t] = static_cast<int32_t>(i);
      pack.begin[t] = static_cast<int32_t>(start);
      uint64_t key = mix_key(row_key, static_cast<uint64_t>(from));
      pack.keys[2 * t] = static_cast<int32_t>(static_cast<uint32_t>(key));
      pack.keys[2 * t + 1] = static_cast<int32_t>(static_cast<uint32_t>(key >> 32));
      if (example.trained[from + 1] != 0) {
        auto m = static_cast<size_t>(pack.used_targets++);
        pack.rows[m] = static_cast<int32_t>(t);
        pack.targets[m] = example.ids[from + 1];
        pack.segment[m] = static_cast<int32_t>(pack.examples.size());
        pack.marks[m] =
            static_cast<uint8_t>(example.trained[from + 1] | (rejected ? Pack::kRejected : 0));
      }
    }
    pack.used_tokens += static_cast<int64_t>(length);
  }

  const ExampleSet& dataset_;
  PackLimits limits_;
  uint64_t key_;
};

}  // namespace

PackLimits row_size(const Example& example) {
  PackLimits size;
  for (size_t i = 1; i < example.trained.size(); ++i) size.targets += example.trained[i] != 0;
  for_sequences(example,
                [&](size_t, size_t length) { size.tokens += static_cast<int64_t>(length); });
  return size;
}

std::vector<Pack> pack_rows(const ExampleSet& dataset, std::span<const int64_t> row_indices,
                            const PackLimits& limits, uint64_t seed, int64_t epoch, bool packing,
                            std::span<const int64_t> copies) {
  WICK_CHECK(copies.empty() || copies.size() == row_indices.size());
  WICK_CHECK(limits.tokens <= std::numeric_limits<int32_t>::max(), limits.tokens, " slots");
  std::vector<PackLimits> sizes;
  sizes.reserve(row_indices.size());
  for (int64_t row : row_indices) {
    WICK_CHECK(row >= 0 && row < dataset.size(), "row ", row, " of ", dataset.size());
    PackLimits size = row_size(dataset[row]);
    if (size.tokens > limits.tokens || size.targets > limits.targets)
      fail(ErrorCode::kInvalidArgument, dataset.file_of(row), ":", dataset[row].line,
           ": the row needs ", size.tokens, " token slots and ", size.targets,
           " targets, and the plan has ", limits.tokens, " and ", limits.targets);
    sizes.push_back(size);
  }

  std::vector<size_t> bin_of(sizes.size());
  if (packing) {
    bin_of = best_fit_decreasing(sizes, limits);
  } else {
    std::iota(bin_of.begin(), bin_of.end(), size_t{0});
  }
  PackWriter writer(dataset, limits,
                    mix_key(mix_key(seed, kTokenStream), static_cast<uint64_t>(epoch)));
  std::vector<Pack> packs;
  for (size_t i = 0; i < bin_of.size(); ++i) {
    while (packs.size() <= bin_of[i]) packs.push_back(writer.empty());
    writer.append(packs[bin_of[i]], row_indices[i], copies.empty() ? 0 : copies[i]);
  }
  return packs;
}

Order::Order(std::vector<DataPart> parts, int64_t batch_rows, uint64_t seed, bool shuffle)
    : parts_(std::move(parts)), batch_rows_(batch_rows), seed_(seed), shuffle_(shuffle) {
  for (const DataPart& part : parts_) {
    rows_ += part.rows_per_epoch();
    distinct_ = std::max(distinct_, part.end);
  }
  if (rows_ <= 0) fail(ErrorCode::kInvalidArgument, "the data set has no rows");
  if (batch_rows <= 0)
    fail(ErrorCode::kInvalidArgument, "an update of ", batch_rows, " rows; wanted is at least 1");
}

Order::Order(int64_t rows, int64_t batch_rows, uint64_t seed, bool shuffle)
    : Order(std::vector<DataPart>{{"", 0, rows, 1}}, batch_rows, seed, shuffle) {}

Order::Order(const ExampleSet& dataset, int64_t batch_rows, uint64_t seed, bool shuffle,
             int64_t run_updates)
    : Order(dataset.parts(), batch_rows, seed, shuffle) {
  run_updates_ = run_updates;
}

int64_t Order::run_updates() const { return run_updates_ > 0 ? run_updates_ : updates_per_epoch(); }

int64_t Order::first_updates() const {
  return run_updates_ > 0 ? std::min(run_updates_, updates_per_epoch()) : updates_per_epoch();
}

std::vector<int64_t> Order::rows_of_epoch(int64_t epoch) const {
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(rows_));
  for (const DataPart& part : parts_) {
    const int64_t count = part.end - part.begin;
    int64_t left = part.rows_per_epoch(), copy = 0;
    for (; left >= count && left > 0; left -= count, ++copy)
      for (int64_t row = part.begin; row < part.end; ++row) rows.push_back(row + distinct_ * copy);
    if (left == 0) continue;
    // The rows with the least keys of this epoch, in the order of the file.
    std::vector<std::pair<uint64_t, int64_t>> drawn;
    const uint64_t key = mix_key(mix_key(seed_, kShareStream), static_cast<uint64_t>(epoch));
    for (int64_t row = part.begin; row < part.end; ++row)
      drawn.emplace_back(mix_key(key, static_cast<uint64_t>(row)), row);
    std::nth_element(drawn.begin(), drawn.begin() + left - 1, drawn.end());
    const size_t first = rows.size();
    for (int64_t i = 0; i < left; ++i)
      rows.push_back(drawn[static_cast<size_t>(i)].second + distinct_ * copy);
    std::sort(rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end());
  }
  return rows;
}

int64_t Order::updates_per_epoch() const {
  return rows_ / batch_rows_ + (rows_ % batch_rows_ != 0 ? 1 : 0);
}

std::vector<int64_t> Order::update(int64_t index) const {
  std::vector<int64_t> rows = slice(index);
  for (int64_t& row : rows) row %= distinct_;
  return rows;
}

std::vector<int64_t> Order::copies(int64_t index) const {
  std::vector<int64_t> rows = slice(index);
  for (int64_t& row : rows) row /= distinct_;
  return rows;
}

std::vector<int64_t> Order::slice(int64_t index) const {
  WICK_CHECK(index >= 0, "update ", index);
  int64_t epoch = epoch_of(index);
  if (permutation_epoch_ != epoch) {
    permutation_ = rows_of_epoch(epoch);
    if (shuffle_) {
      Rng rng(mix_key(mix_key(seed_, kShuffleStream), static_cast<uint64_t>(epoch)));
      for (size_t i = permutation_.size(); i > 1; --i)
        std::swap(permutation_[i - 1], permutation_[rng.below(i)]);
    }
    permutation_epoch_ = epoch;
  }
  int64_t first = (index % updates_per_epoch()) * batch_rows_;
  int64_t last = first + std::min(batch_rows_, rows_ - first);
  return {permutation_.begin() + first, permutation_.begin() + last};
}

namespace {

// The tokens used of each pack of an update.
std::vector<int64_t> used_of_packs(const std::vector<PackLimits>& rows, const PackLimits& limits,
                                   bool packing) {
  std::vector<int64_t> used;
  const std::vector<size_t> bin_of =
      packing ? best_fit_decreasing(rows, limits) : std::vector<size_t>();
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t bin = packing ? bin_of[i] : i;
    if (bin >= used.size()) used.resize(bin + 1, 0);
    used[bin] += rows[i].tokens;
  }
  return used;
}

// Slots, up to the limits', for a pack of that many tokens in a program of its own.
int64_t own_slots(int64_t tokens, int64_t step, int64_t most) {
  return std::min(std::max(round_up(tokens, step), kFewestSlots), most);
}

// How much of a pack's size is left empty on average, twice.
int64_t size_step(int64_t tokens) { return round_up(std::max<int64_t>(64, tokens / 32), 64); }

// Of ascending sizes with their numbers of packs those in which all packs take the fewest slots,
// where each size but the last costs `price` slots. The last one stays.
std::vector<int64_t> cheapest_sizes(const std::vector<std::pair<int64_t, int64_t>>& sizes,
                                    double price) {
  const size_t n = sizes.size();
  std::vector<double> cost(n);       // of the packs up to this size, which is kept
  std::vector<size_t> before(n, n);  // the next smaller one that is kept then
  for (size_t j = 0; j < n; ++j) {
    cost[j] = std::numeric_limits<double>::max();
    double packs = 0;  // that lie in size j
    for (size_t i = j + 1; i-- > 0;) {
      packs += static_cast<double>(sizes[i].second);
      const double total =
          (i > 0 ? cost[i - 1] : 0.0) + price + packs * static_cast<double>(sizes[j].first);
      if (total < cost[j]) {
        cost[j] = total;
        before[j] = i > 0 ? i - 1 : n;
      }
    }
  }
  std::vector<int64_t> kept;
  for (size_t j = before[n - 1]; j < n; j = before[j]) kept.push_back(sizes[j].first);
  std::reverse(kept.begin(), kept.end());
  return kept;
}

}  // namespace

int64_t largest_pack(const ExampleSet& dataset, const Order& order, const PackLimits& limits,
                     bool packing) {
  if (!packing) return own_slots(smallest_limits(dataset, order).tokens, kTokenStep, limits.tokens);
  if (order.run_updates() > kSimulatedUpdates) return limits.tokens;
  int64_t most = 0;
  for (int64_t u = 0; u < order.run_updates(); ++u) {
    std::vector<PackLimits> rows;
    for (int64_t row : order.update(u)) rows.push_back(row_size(dataset[row]));
    for (int64_t used : used_of_packs(rows, limits, true)) most = std::max(most, used);
  }
  return own_slots(most, kTokenStep, limits.tokens);
}

std::vector<int64_t> smaller_sizes(const ExampleSet& dataset, const Order& order,
                                   const PackLimits& limits, int64_t largest, bool packing) {
  // A slot that is left empty costs as much as one that is used; a device that multiplies 128 rows
  // at a time still does less for 16 of them. A program costs time to make and some memory: one
  // that saves less than a thousandth does not pay.
  constexpr int64_t kSteps = 256;
  constexpr double kWorthIt = 1.0 / 1024;
  constexpr size_t kMost = 32;
  const int64_t step = round_up(std::max<int64_t>(1, limits.tokens / kSteps), kTokenStep);
  std::map<int64_t, int64_t> uses;
  int64_t slots = 0;
  for (int64_t u = 0; u < std::min(order.run_updates(), kSimulatedUpdates); ++u) {
    std::vector<PackLimits> rows;
    for (int64_t row : order.update(u)) rows.push_back(row_size(dataset[row]));
    for (int64_t used : used_of_packs(rows, limits, packing)) {
      slots += used;
      ++uses[own_slots(used, step, largest)];
    }
  }
  uses[largest];
  const std::vector<std::pair<int64_t, int64_t>> all(uses.begin(), uses.end());
  double price = kWorthIt * static_cast<double>(slots);
  std::vector<int64_t> sizes = cheapest_sizes(all, price);
  while (sizes.size() > kMost) sizes = cheapest_sizes(all, price *= 1.25);
  return sizes;
}

SlotCount count_slots(const ExampleSet& dataset, const Order& order, const PackLimits& limits,
                      std::span<const int64_t> sizes, bool packing) {
  SlotCount count;
  std::vector<int64_t> lengths;
  std::vector<size_t> batches;
  for (int64_t u = 0; u < std::min(order.first_updates(), kSimulatedUpdates); ++u) {
    std::vector<PackLimits> rows;
    int64_t longest = 0;
    for (int64_t row : order.update(u)) {
      rows.push_back(row_size(dataset[row]));
      lengths.push_back(rows.back().tokens);
      longest = std::max(longest, lengths.back());
      count.useful += lengths.back();
    }
    batches.push_back(rows.size());
    count.padded += std::ssize(rows) * round_up(longest, kTokenStep);
    for (int64_t used : used_of_packs(rows, limits, packing)) {
      const auto size = std::lower_bound(sizes.begin(), sizes.end(), used);
      count.packed += size == sizes.end() ? limits.tokens : *size;
    }
  }
  std::sort(lengths.begin(), lengths.end());
  size_t end = 0;
  for (size_t rows : batches) {
    end += rows;
    count.sorted += static_cast<int64_t>(rows) * round_up(lengths[end - 1], kTokenStep);
  }
  return count;
}

PackLimits smallest_limits(const ExampleSet& dataset) {
  PackLimits least;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    PackLimits size = row_size(dataset[i]);
    least.tokens = std::max(least.tokens, size.tokens);
    least.targets = std::max(least.targets, size.targets);
  }
  least.tokens = round_up(least.tokens, kTokenStep);
  return least;
}

PackLimits smallest_limits(const ExampleSet& dataset, const Order& order) {
  if (order.first_updates() == order.updates_per_epoch()) return smallest_limits(dataset);
  PackLimits least;
  for (int64_t u = 0; u < order.first_updates(); ++u)
    for (int64_t row : order.update(u)) {
      const PackLimits size = row_size(dataset[row]);
      least.tokens = std::max(least.tokens, size.tokens);
      least.targets = std::max(least.targets, size.targets);
    }
  least.tokens = round_up(least.tokens, kTokenStep);
  return least;
}

PackLimits choose_limits(const ExampleSet& dataset, const Order& order, int64_t max_tokens,
                         bool sized) {
  PackLimits least = smallest_limits(dataset, order);
  std::vector<std::vector<PackLimits>> updates;
  int64_t largest_update = 0;
  for (int64_t u = 0; u < std::min(order.first_updates(), kSimulatedUpdates); ++u) {
    int64_t total = 0;
    auto& sizes = updates.emplace_back();
    for (int64_t row : order.update(u)) {
      sizes.push_back(row_size(dataset[row]));
      total += sizes.back().tokens;
    }
    largest_update = std::max(largest_update, total);
  }

  int64_t most =
      std::min(round_up(largest_update, kTokenStep), max_tokens / kTokenStep * kTokenStep);
  std::vector<int64_t> candidates = {least.tokens};
  for (int64_t quarters = 5; quarters * least.tokens / 4 < most; quarters += (quarters + 3) / 4)
    candidates.push_back(round_up(quarters * least.tokens / 4, kTokenStep));
  if (most > least.tokens) candidates.push_back(most);

  PackLimits best;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int64_t tokens : candidates) {
    int64_t targets = least.targets;
    std::vector<int64_t> slots;  // of each pack
    for (const auto& sizes : updates) {
      std::vector<size_t> bin_of =
          best_fit_decreasing(sizes, {tokens, std::numeric_limits<int64_t>::max()});
      std::vector<PackLimits> used(sizes.size());
      for (size_t i = 0; i < sizes.size(); ++i) {
        used[bin_of[i]].tokens += sizes[i].tokens;
        used[bin_of[i]].targets += sizes[i].targets;
      }
      for (const PackLimits& pack : used) {
        targets = std::max(targets, pack.targets);
        if (pack.tokens > 0)
          slots.push_back(sized ? std::min(tokens, round_up(pack.tokens, size_step(tokens)))
                                : tokens);
      }
    }
    int64_t cost = 0;
    for (int64_t size : slots) cost += size + std::min(size, targets) + kPackCost;
    // More memory for next to nothing is not worth it.
    if (cost < best_cost - (sized ? best_cost / 100 : 0)) {
      best_cost = cost;
      best = {tokens, targets};
    }
  }
  return best;
}

}  // namespace wick
