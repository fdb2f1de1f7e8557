// SPDX-License-Identifier: Apache-2.0
// Order statistics, the noise rule, and comparing with kept results.
#include "bench/stats.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "bench/baseline.h"
#include "bench/result.h"
#include "wick/error.h"

namespace wick {
namespace {

TEST(Stats, QuantilesAreLinearBetweenSamples) {
  EXPECT_EQ(quantile({5}, 0.9), 5);
  EXPECT_EQ(quantile({1, 2, 3}, 0.5), 2);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.1), 1);
  EXPECT_EQ(quantile({1, 2, 3}, 0), 1);
  EXPECT_EQ(quantile({1, 2, 3}, 1), 3);
  Timing t = summarize({30, 10, 20, 50, 40});
  EXPECT_EQ(t.median, 30);
  EXPECT_DOUBLE_EQ(t.p10, 14);
  EXPECT_DOUBLE_EQ(t.p90, 46);
  EXPECT_EQ(t.runs, 5);
  EXPECT_EQ(summarize({}).runs, 0);
  EXPECT_EQ(scaled(t, 0.5).p90, 23);
}

TEST(Stats, MeasureWarmsUpAndStops) {
  int runs = 0, between = 0;
  auto count = [&] { ++runs; };
  EXPECT_EQ(measure({.warmup = 2, .iters = 3}, count, [&] { ++between; }).size(), 3u);
  EXPECT_EQ(runs, 5);
  EXPECT_EQ(between, 5);
  runs = 0;
  EXPECT_EQ(measure({.warmup = 0, .seconds = 0, .least = 4}, count).size(), 4u);
  EXPECT_EQ(measure({.warmup = 0, .seconds = 1e9, .most = 7}, count).size(), 7u);
  // Runs of half a minute: two, and the first counts; of 0.1 s: as many as asked for, warmed up.
  const Effort effort{.warmup = 2, .seconds = 2, .least = 5};
  EXPECT_FALSE(effort.enough_warmup(0, 30));
  EXPECT_TRUE(effort.enough_warmup(1, 30));
  EXPECT_FALSE(effort.enough_warmup(1, 0.1));
  EXPECT_FALSE(effort.enough(1, 30));
  EXPECT_TRUE(effort.enough(2, 60));
  EXPECT_FALSE(effort.enough(4, 0.4));
  EXPECT_TRUE(effort.enough(20, 2));
  EXPECT_TRUE(effort.counts(30));
  EXPECT_FALSE(effort.counts(0.1));
  EXPECT_FALSE((Effort{.iters = 3}.counts(30)));
  EXPECT_TRUE(Effort::had_own_costs(6.0, 1.5));
  EXPECT_FALSE(Effort::had_own_costs(6.0, 5.6));
}

TEST(Stats, OnlyRangesThatDoNotMeetAreAChange) {
  const Timing before{100, 95, 105, 9};
  EXPECT_EQ(compare({110, 106, 115, 9}, before), Change::kSlower);
  EXPECT_EQ(compare({110, 104, 115, 9}, before), Change::kNoise);
  EXPECT_EQ(compare({90, 85, 94, 9}, before), Change::kFaster);
  EXPECT_EQ(compare({90, 85, 96, 9}, before), Change::kNoise);
  EXPECT_EQ(compare(before, before), Change::kNoise);
  // Ranges that hardly scatter: less than two percent is no change all the same.
  EXPECT_EQ(compare({101, 101, 101, 9}, {100, 100, 100, 9}), Change::kNoise);
  EXPECT_EQ(compare({103, 103, 103, 9}, {100, 100, 100, 9}), Change::kSlower);
}

Json line(const char* what, double ms, int threads = 2) {
  BenchResult r;
  r.bench = "ops";
  r.what = what;
  r.ms = {ms, 0.9 * ms, 1.1 * ms, 5};
  BenchMachine m;
  m.shape = "s";
  m.threads = threads;
  return to_json(r, m);
}

TEST(Baseline, ComparesRowsOfTheSameSettings) {
  std::vector<Json> before = {line("a", 10), line("b", 10), line("c", 10, 4), line("zero", 0)};
  std::vector<Json> now = {line("b", 20), line("a", 10.1), line("c", 10), line("d", 1),
                           line("zero", 0)};
  std::vector<Comparison> all = compare_lines(now, before);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].what, "b");
  EXPECT_EQ(all[0].change, Change::kSlower);
  EXPECT_EQ(all[1].change, Change::kNoise);
  EXPECT_EQ(compare_lines(before, now)[1].change, Change::kFaster);
}

TEST(Baseline, TellsRowsApartByWhatTheyHaveOfTheirOwn) {
  for (const char* field : {"adapters", "new_tokens", "trained_share", "trained_blocks"}) {
    std::vector<Json> lines = {line("a", 10), line("a", 20)};
    lines[0][field] = 1;
    lines[1][field] = 2;
    const std::vector<Comparison> all = compare_lines(lines, lines);
    ASSERT_EQ(all.size(), 2u);
    for (const Comparison& c : all) EXPECT_EQ(c.change, Change::kNoise) << field;
  }
}

TEST(Baseline, FilesAreReadBackAndDoubted) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "wick_baseline_test";
  const std::filesystem::path path = folder / "kept.json";
  save_baseline(path, {line("a", 10)});
  EXPECT_EQ(load_baseline(path), std::vector<Json>{line("a", 10)});
  for (const char* text : {"[]", "{}", "{\"results\": [{}]}", "{\"results\": [{\"bench\": 3}]}",
                           "{\"results\": [{\"bench\": \"a\", \"what\": \"b\", \"ms\": -1}]}"}) {
    write_file(path, text);
    EXPECT_THROW(load_baseline(path), Error) << text;
  }
  std::filesystem::remove_all(folder);
  EXPECT_THROW(load_baseline(path), Error);
  EXPECT_EQ(baseline_path("./x"), "./x");
  EXPECT_EQ(baseline_path("x.json"), "x.json");
}

}  // namespace
}  // namespace wick
