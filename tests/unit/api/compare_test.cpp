// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/rng.h"
#include "wick/error.h"
#include "wick/evaluator.h"

namespace wick {
namespace {

TEST(PairedDifference, IntervalCoversAndSignTestCounts) {
  // 9 of 10 rows fall by about 1: the binomial tail is 2 * (1 + 10) / 1024.
  std::vector<PairedRow> rows;
  for (int i = 0; i < 10; ++i) rows.push_back({2.0 + 0.01 * i, i == 3 ? 2.5 : 1.0, 1});
  const PairedDifference d = paired_difference(rows, 1);
  EXPECT_EQ(d.a_higher, 9);
  EXPECT_EQ(d.b_higher, 1);
  EXPECT_NEAR(d.p, 22.0 / 1024, 1e-12);
  EXPECT_LT(d.low, d.difference);
  EXPECT_GT(d.high, d.difference);
  EXPECT_LT(d.high, 0);
  const PairedDifference again = paired_difference(rows, 1);
  EXPECT_EQ(again.low, d.low);
  EXPECT_NE(paired_difference(rows, 2).low, d.low);
}

TEST(PairedDifference, CoverageOfTheInterval) {
  int covered = 0;
  constexpr int kTrials = 100;
  for (int t = 0; t < kTrials; ++t) {
    Rng rng(mix_key(7, static_cast<uint64_t>(t)));
    std::vector<PairedRow> rows;
    for (int i = 0; i < 60; ++i) rows.push_back({0.0, 0.3 + rng.normal(), 1});
    const PairedDifference d = paired_difference(rows, static_cast<uint64_t>(t));
    covered += d.low <= 0.3 && 0.3 <= d.high;
  }
  EXPECT_GE(covered, 88);
}

TEST(PairedDifference, LossesAreWeightedByTokens) {
  EvalResult a, b;
  a.examples.resize(2);
  b.examples.resize(2);
  a.examples[0].tokens = b.examples[0].tokens = 30;
  a.examples[1].tokens = b.examples[1].tokens = 10;
  a.examples[0].loss = 1;
  b.examples[0].loss = 2;
  EXPECT_NEAR(compare_losses(a, b).difference, 0.75, 1e-12);
  b.examples.pop_back();
  EXPECT_THROW(compare_losses(a, b), Error);
}

}  // namespace
}  // namespace wick
