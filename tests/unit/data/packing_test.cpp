// SPDX-License-Identifier: Apache-2.0
#include "data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "base/rng.h"
#include "wick/error.h"

namespace wick {
namespace {

// A row of `length` tokens of which those in [from, to) are trained; ids tell row and place.
Example row(int64_t index, size_t length, size_t from, size_t to) {
  Example example;
  for (size_t i = 0; i < length; ++i) {
    example.ids.push_back(static_cast<int32_t>(1000 * (index + 1) + static_cast<int64_t>(i)));
    example.trained.push_back(i > 0 && i >= from && i < to);
  }
  example.line = index + 1;
  example.full_length = static_cast<int64_t>(length);
  return example;
}

ExampleSet random_rows(int64_t count, uint64_t seed, size_t longest = 60) {
  Rng rng(seed);
  std::vector<Example> rows;
  for (int64_t i = 0; i < count; ++i) {
    size_t length = 2 + rng.below(longest - 1);
    size_t from = 1 + rng.below(length - 1);
    size_t to = from + 1 + rng.below(length - from);
    rows.push_back(row(i, length, from, to));
  }
  return ExampleSet::from_examples(std::move(rows), "rows");
}

ExampleSet rows_of_sizes(const std::vector<size_t>& slots) {
  std::vector<Example> rows;
  for (size_t i = 0; i < slots.size(); ++i)
    rows.push_back(row(static_cast<int64_t>(i), slots[i] + 1, slots[i], slots[i] + 1));
  return ExampleSet::from_examples(std::move(rows), "rows");
}

std::vector<int64_t> all_of(const ExampleSet& dataset) {
  std::vector<int64_t> indices(static_cast<size_t>(dataset.size()));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return indices;
}

uint64_t key_at(const Pack& pack, size_t t) {
  return static_cast<uint64_t>(static_cast<uint32_t>(pack.keys[2 * t])) |
         static_cast<uint64_t>(static_cast<uint32_t>(pack.keys[2 * t + 1])) << 32;
}

void check_promises(const Pack& pack, const PackLimits& limits, const ExampleSet& dataset) {
  auto tokens = static_cast<size_t>(limits.tokens), targets = static_cast<size_t>(limits.targets);
  ASSERT_EQ(pack.ids.size(), tokens);
  ASSERT_EQ(pack.positions.size(), tokens);
  ASSERT_EQ(pack.begin.size(), tokens);
  ASSERT_EQ(pack.end.size(), tokens);
  ASSERT_EQ(pack.keys.size(), 2 * tokens);
  ASSERT_EQ(pack.rows.size(), targets);
  ASSERT_EQ(pack.targets.size(), targets);
  ASSERT_EQ(pack.segment.size(), targets);
  for (size_t t = 0; t < tokens; ++t) {
    EXPECT_EQ(pack.end[t], static_cast<int32_t>(t + 1));
    EXPECT_LE(pack.begin[t], static_cast<int32_t>(t));
    if (t > 0) {
      EXPECT_GE(pack.begin[t], pack.begin[t - 1]);
    }
  }

  size_t t = 0, m = 0;
  for (size_t s = 0; s < pack.examples.size(); ++s) {
    const Example& example = dataset[pack.examples[s]];
    auto length = static_cast<size_t>(row_size(example).tokens);
    auto start = static_cast<int32_t>(t);
    for (size_t i = 0; i < length; ++i, ++t) {
      EXPECT_EQ(pack.ids[t], example.ids[i]);
      EXPECT_EQ(pack.positions[t], static_cast<int32_t>(i));
      EXPECT_EQ(pack.begin[t], start);
      if (example.trained[i + 1]) {
        EXPECT_EQ(pack.rows[m], static_cast<int32_t>(t));
        EXPECT_EQ(pack.targets[m], example.ids[i + 1]);
        EXPECT_EQ(pack.segment[m], static_cast<int32_t>(s));
        ++m;
      }
    }
    for (size_t i = length + 1; i < example.ids.size(); ++i) EXPECT_FALSE(example.trained[i]);
  }
  EXPECT_EQ(pack.used_tokens, static_cast<int64_t>(t));
  EXPECT_EQ(pack.used_targets, static_cast<int64_t>(m));
  for (; t < tokens; ++t) {
    EXPECT_EQ(pack.ids[t], 0);
    EXPECT_EQ(pack.positions[t], 0);
    EXPECT_EQ(pack.begin[t], static_cast<int32_t>(t));
  }
  for (; m < targets; ++m) {
    EXPECT_EQ(pack.rows[m], -1);
    EXPECT_EQ(pack.targets[m], -1);
    EXPECT_EQ(pack.segment[m], -1);
  }
}

TEST(RowSize, EndsBeforeTheLastTrainedToken) {
  EXPECT_EQ(row_size(row(0, 10, 3, 5)), (PackLimits{4, 2}));
  EXPECT_EQ(row_size(row(0, 10, 0, 10)), (PackLimits{9, 9}));
  EXPECT_EQ(row_size(row(0, 2, 1, 2)), (PackLimits{1, 1}));
}

TEST(PackRows, EveryRowOnceAndPromisesKept) {
  ExampleSet dataset = random_rows(200, 1);
  PackLimits limits{96, 70};
  std::vector<Pack> packs = pack_rows(dataset, all_of(dataset), limits, 0, 0, true);
  std::multiset<int64_t> seen;
  for (const Pack& pack : packs) {
    check_promises(pack, limits, dataset);
    seen.insert(pack.examples.begin(), pack.examples.end());
    EXPECT_TRUE(std::is_sorted(pack.examples.begin(), pack.examples.end()));
  }
  std::vector<int64_t> all = all_of(dataset);
  EXPECT_EQ(seen, std::multiset<int64_t>(all.begin(), all.end()));
}

TEST(PackRows, FillsBestFitDecreasing) {
  // 70 and 30 meet, 60 and 40 meet, although 30 would fit after 60 too.
  ExampleSet dataset = rows_of_sizes({30, 60, 70, 40});
  std::vector<Pack> packs = pack_rows(dataset, all_of(dataset), {100, 10}, 0, 0, true);
  ASSERT_EQ(packs.size(), 2u);
  EXPECT_EQ(packs[0].examples, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(packs[1].examples, (std::vector<int64_t>{1, 3}));
}

TEST(PackRows, TheBoundOnTargetsOpensAPack) {
  std::vector<Example> rows;
  for (int64_t i = 0; i < 3; ++i) rows.push_back(row(i, 5, 1, 5));
  ExampleSet dataset = ExampleSet::from_examples(std::move(rows), "rows");
  EXPECT_EQ(pack_rows(dataset, all_of(dataset), {64, 12}, 0, 0, true).size(), 1u);
  EXPECT_EQ(pack_rows(dataset, all_of(dataset), {64, 8}, 0, 0, true).size(), 2u);
  EXPECT_EQ(pack_rows(dataset, all_of(dataset), {64, 4}, 0, 0, true).size(), 3u);
}

TEST(PackRows, WithoutPackingOneRowEach) {
  ExampleSet dataset = random_rows(7, 2);
  PackLimits limits = smallest_limits(dataset);
  std::vector<int64_t> wanted = {3, 1, 6};
  std::vector<Pack> packs = pack_rows(dataset, wanted, limits, 0, 0, false);
  ASSERT_EQ(packs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(packs[i].examples, std::vector<int64_t>{wanted[i]});
    check_promises(packs[i], limits, dataset);
  }
}

TEST(PackRows, KeysDependOnSeedEpochRowAndPositionAlone) {
  ExampleSet dataset = random_rows(20, 3);
  PackLimits limits{128, 128};
  auto keys_of = [&](uint64_t seed, int64_t epoch, bool packing, std::vector<int64_t> rows) {
    std::map<std::pair<int64_t, int32_t>, uint64_t> keys;
    for (const Pack& pack : pack_rows(dataset, rows, limits, seed, epoch, packing)) {
      size_t t = 0;
      for (int64_t r : pack.examples)
        for (int64_t i = 0; i < row_size(dataset[r]).tokens; ++i, ++t)
          keys[{r, pack.positions[t]}] = key_at(pack, t);
    }
    return keys;
  };
  std::vector<int64_t> rows = all_of(dataset);
  auto keys = keys_of(5, 1, true, rows);
  std::set<uint64_t> distinct;
  for (const auto& [place, key] : keys) distinct.insert(key);
  EXPECT_EQ(distinct.size(), keys.size());
  std::reverse(rows.begin(), rows.end());
  EXPECT_EQ(keys, keys_of(5, 1, true, rows));
  EXPECT_EQ(keys, keys_of(5, 1, false, rows));
  EXPECT_NE(keys, keys_of(5, 2, true, rows));
  EXPECT_NE(keys, keys_of(6, 1, true, rows));
}

TEST(PackRows, NamesARowThatDoesNotFit) {
  ExampleSet dataset = rows_of_sizes({5, 40});
  try {
    pack_rows(dataset, all_of(dataset), {32, 10}, 0, 0, true);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("rows:2: "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("40"), std::string::npos) << e.what();
  }
}

TEST(Order, EveryEpochHasEveryRowOnce) {
  for (int64_t rows : {1, 2, 3, 10, 97}) {
    for (int64_t batch : {1, 4, 10, 200}) {
      Order order(rows, batch, 42, true);
      ASSERT_EQ(order.updates_per_epoch(), (rows + batch - 1) / batch);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::multiset<int64_t> seen;
        for (int64_t i = 0; i < order.updates_per_epoch(); ++i) {
          int64_t update = epoch * order.updates_per_epoch() + i;
          EXPECT_EQ(order.epoch_of(update), epoch);
          std::vector<int64_t> got = order.update(update);
          bool last = i + 1 == order.updates_per_epoch();
          EXPECT_EQ(static_cast<int64_t>(got.size()), last ? rows - i * batch : batch);
          seen.insert(got.begin(), got.end());
        }
        std::multiset<int64_t> wanted;
        for (int64_t r = 0; r < rows; ++r) wanted.insert(r);
        EXPECT_EQ(seen, wanted);
      }
    }
  }
}

TEST(Order, DependsOnSeedAndEpochAlone) {
  Order a(50, 4, 7, true), b(50, 10, 7, true), other(50, 4, 8, true);
  auto epoch = [](const Order& order, int64_t e) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < order.updates_per_epoch(); ++i)
      for (int64_t r : order.update(e * order.updates_per_epoch() + i)) all.push_back(r);
    return all;
  };
  EXPECT_EQ(epoch(a, 0), epoch(b, 0));
  EXPECT_NE(epoch(a, 0), epoch(a, 1));
  EXPECT_NE(epoch(a, 0), epoch(other, 0));
  // Going back, or starting in the middle as a resumed run does, changes nothing.
  std::vector<int64_t> later = a.update(30);
  a.update(0);
  EXPECT_EQ(a.update(30), later);
  EXPECT_EQ(Order(50, 4, 7, true).update(30), later);
}

TEST(Order, WithoutShufflingIsTheOrderOfTheFile) {
  Order order(5, 2, 9, false);
  EXPECT_EQ(order.update(0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(order.update(2), (std::vector<int64_t>{4}));
  EXPECT_EQ(order.update(3), (std::vector<int64_t>{0, 1}));
}

TEST(Order, EveryPermutationIsAboutAsLikely) {
  std::map<std::vector<int64_t>, int> counts;
  Order order(3, 3, 1, true);
  for (int64_t epoch = 0; epoch < 6000; ++epoch) ++counts[order.update(epoch)];
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [permutation, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Order, RefusesNothing) {
  EXPECT_THROW(Order(0, 4, 0, true), Error);
  EXPECT_THROW(Order(4, 0, 0, true), Error);
}

TEST(OrderTest, RepetitionsOfARowHaveKeysOfTheirOwn) {
  const ExampleSet dataset = rows_of_sizes({5, 7, 3});
  const std::vector<int64_t> rows = {1, 1, 2}, copies = {0, 1, 0};
  const auto keys = [&](std::span<const int64_t> given) {
    return pack_rows(dataset, rows, {32, 32}, 7, 0, false, given);
  };
  const std::vector<Pack> told = keys(copies), alike = keys({});
  EXPECT_EQ(alike[0].keys, alike[1].keys);
  EXPECT_EQ(told[0].keys, alike[0].keys);
  EXPECT_NE(told[1].keys, told[0].keys);
  EXPECT_EQ(told[2].keys, alike[2].keys);
}

TEST(Limits, HoldEveryRow) {
  for (uint64_t seed : {1, 2, 3}) {
    ExampleSet dataset = random_rows(100, seed);
    PackLimits least = smallest_limits(dataset);
    EXPECT_EQ(least.tokens % 16, 0);
    for (int64_t batch : {1, 4, 32}) {
      Order order(dataset.size(), batch, seed, true);
      for (int64_t most : {1, 64, 100, 256, 100000}) {
        PackLimits limits = choose_limits(dataset, order, most);
        EXPECT_EQ(limits.tokens % 16, 0);
        EXPECT_GE(limits.tokens, least.tokens);
        EXPECT_GE(limits.targets, least.targets);
        EXPECT_LE(limits.tokens, std::max(most, least.tokens));
        for (int64_t u = 0; u < 2 * order.updates_per_epoch(); ++u)
          for (const Pack& pack : pack_rows(dataset, order.update(u), limits, 0, 0, true))
            EXPECT_LE(pack.used_tokens, limits.tokens);
      }
    }
  }
}

TEST(Limits, ARunThatEndsBeforeTheLongestRowNeedsNoRoomForIt) {
  const ExampleSet rows = rows_of_sizes({16, 32, 48, 16, 32, 480});
  const Order whole(rows, 1, 0, false), two(rows, 1, 0, false, 2), long_run(rows, 1, 0, false, 20);
  EXPECT_EQ(whole.first_updates(), 6);
  EXPECT_EQ(two.first_updates(), 2);
  EXPECT_EQ(long_run.first_updates(), 6);
  EXPECT_EQ(smallest_limits(rows, two).tokens, 32);
  EXPECT_EQ(choose_limits(rows, two, 2048).tokens, 32);
  EXPECT_EQ(smallest_limits(rows, long_run), smallest_limits(rows));
  EXPECT_EQ(choose_limits(rows, long_run, 2048), choose_limits(rows, whole, 2048));
  EXPECT_EQ(count_slots(rows, two, {32, 32}, {}, true).useful, 48);
}

TEST(Limits, WholeUpdatesGoInOnePackWhereTheyMay) {
  // Four rows of 32 make one pack of 128 rather than four of 32, unless that is too many.
  ExampleSet dataset = rows_of_sizes(std::vector<size_t>(16, 32));
  Order order(16, 4, 0, true);
  EXPECT_EQ(choose_limits(dataset, order, 4096), (PackLimits{128, 4}));
  EXPECT_EQ(choose_limits(dataset, order, 64).tokens, 64);
  EXPECT_EQ(choose_limits(dataset, order, 20).tokens, 32);
}

TEST(Limits, OneLongRowDoesNotMakeEveryPackLong) {
  // A pack for the long row alone, the others together in as many slots.
  std::vector<size_t> sizes(64, 10);
  sizes[0] = 200;
  ExampleSet dataset = rows_of_sizes(sizes);
  Order order(64, 4, 0, true);
  EXPECT_LE(choose_limits(dataset, order, 4096).tokens, 256);
}

// Rows whose lengths are log-normal, median 120 and sigma 1, at most 2,048.
ExampleSet mixed_rows(int64_t count) {
  Rng rng(7);
  std::vector<size_t> sizes;
  for (int64_t i = 0; i < count; ++i)
    sizes.push_back(static_cast<size_t>(
        std::clamp(120 * std::exp(static_cast<double>(rng.normal())), 2.0, 2048.0)));
  return rows_of_sizes(sizes);
}

// Held-out rows may want more room than any that the run trains on before it ends.
TEST(LargestPack, IsOfTheRowsThatTheRunHas) {
  const ExampleSet dataset = rows_of_sizes({20, 30, 40, 500});
  const PackLimits limits{1024, 1024};
  const Order two(dataset, 1, 0, false, 2), all(dataset, 1, 0, false, 4);
  for (bool packing : {false, true}) {
    EXPECT_EQ(largest_pack(dataset, two, limits, packing), 32);
    EXPECT_EQ(largest_pack(dataset, all, limits, packing), 512);
    EXPECT_EQ(largest_pack(dataset, all, {496, 496}, packing), 496);
  }
  const Order pairs(dataset, 2, 0, false, 1);
  EXPECT_EQ(largest_pack(dataset, pairs, limits, false), 32);
  EXPECT_EQ(largest_pack(dataset, pairs, limits, true), 64);
  // Too many updates to look at each of them.
  const Order many(dataset, 1, 0, false, 5000);
  EXPECT_EQ(largest_pack(dataset, many, limits, false), 512);
  EXPECT_EQ(largest_pack(dataset, many, limits, true), 1024);
}

TEST(SmallerSizes, LeaveLittleEmptyWithFewPrograms) {
  for (int64_t rows : {128, 8192}) {
    const ExampleSet dataset = mixed_rows(rows);
    const Order order(dataset.size(), 8, 1, true);
    const PackLimits limits = choose_limits(dataset, order, 16384, true);
    const std::vector<int64_t> sizes = smaller_sizes(dataset, order, limits, limits.tokens, true);
    EXPECT_LE(sizes.size(), 32u);
    EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end()));
    for (int64_t size : sizes) {
      EXPECT_EQ(size % 16, 0);
      EXPECT_LT(size, limits.tokens);
    }
    const SlotCount slots = count_slots(dataset, order, limits, sizes, true);
    EXPECT_GT(static_cast<double>(slots.useful), 0.97 * static_cast<double>(slots.packed));
    // No other program of the same kind would pay, nor would one fewer.
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::vector<int64_t> fewer = sizes;
      fewer.erase(fewer.begin() + static_cast<int64_t>(i));
      EXPECT_GT(count_slots(dataset, order, limits, fewer, true).packed,
                slots.packed + slots.useful / 1024);
    }
  }
}

// Products of up to 16 rows sum in an order of their own.
TEST(SmallerSizes, AreAbove16SlotsUnlessAllPacksAreSmaller) {
  const ExampleSet dataset = rows_of_sizes({5, 12, 16, 40, 70});
  const Order all(dataset, 1, 0, false, 5), few(dataset, 1, 0, false, 3);
  for (bool packing : {false, true}) {
    EXPECT_EQ(smaller_sizes(dataset, all, {80, 80}, 80, packing), (std::vector<int64_t>{32, 48}));
    EXPECT_EQ(largest_pack(dataset, few, {80, 80}, packing), 32);
    EXPECT_EQ(largest_pack(dataset, few, {16, 16}, packing), 16);
  }
}

TEST(SmallerSizes, LookAtAllEpochsOfTheRun) {
  const ExampleSet dataset = mixed_rows(32);
  const Order one(dataset, 8, 1, true), run(dataset, 8, 1, true, 400);
  const PackLimits limits = choose_limits(dataset, run, 16384, true);
  EXPECT_LE(smaller_sizes(dataset, one, limits, limits.tokens, true).size(), 4u);
  EXPECT_GT(smaller_sizes(dataset, run, limits, limits.tokens, true).size(), 8u);
}

TEST(SmallerSizes, AreNoneWhereAllPacksAreAlike) {
  const ExampleSet dataset = rows_of_sizes(std::vector<size_t>(16, 32));
  const Order order(16, 4, 0, true);
  const PackLimits limits = choose_limits(dataset, order, 4096, true);
  EXPECT_TRUE(smaller_sizes(dataset, order, limits, limits.tokens, true).empty());
}

}  // namespace
}  // namespace wick
