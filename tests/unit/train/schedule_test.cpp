// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/run.h"

namespace wick {
namespace {

TEST(Schedule, WarmsUpThenDecaysToItsOwnEnd) {
  Schedule cosine{.name = "cosine", .peak = 1.0, .warmup = 4, .updates = 14};
  EXPECT_DOUBLE_EQ(cosine.rate(0), 0.25);
  EXPECT_DOUBLE_EQ(cosine.rate(3), 1.0);
  EXPECT_DOUBLE_EQ(cosine.rate(4), 1.0);
  EXPECT_NEAR(cosine.rate(14), 0.1, 1e-15);
  Schedule linear{.name = "linear", .peak = 1.0, .warmup = 0, .updates = 10};
  EXPECT_DOUBLE_EQ(linear.rate(5), 0.5);
  Schedule constant{.name = "constant", .peak = 0.3, .updates = 10};
  EXPECT_DOUBLE_EQ(constant.rate(9), 0.3);
}

// What mlx's cosine_decay(0.1, 10) gives at 4.
TEST(Schedule, CosineToZeroOverGivenUpdates) {
  Schedule s{.name = "cosine", .peak = 0.1, .updates = 1000, .end = 0, .decay = 10};
  EXPECT_NEAR(s.rate(4), 0.1 * 0.5 * (1 + std::cos(0.4 * M_PI)), 1e-15);
  EXPECT_NEAR(s.rate(10), 0, 1e-17);
  EXPECT_NEAR(s.rate(500), 0, 1e-17);
}

TEST(Schedule, WarmupStartsWhereItIsTold) {
  Schedule s{.name = "linear",
             .peak = 1.0,
             .warmup = 5,
             .updates = 10,
             .warmup_init = 0.5,
             .end = 0.2,
             .decay = 4};
  EXPECT_DOUBLE_EQ(s.rate(0), 0.6);
  EXPECT_DOUBLE_EQ(s.rate(4), 1.0);
  EXPECT_DOUBLE_EQ(s.rate(5), 1.0);
  EXPECT_DOUBLE_EQ(s.rate(7), 0.6);
  EXPECT_DOUBLE_EQ(s.rate(9), 0.2);
}

// mlx-lm joins a warm-up of 4 and cosine_decay(0.1, 10) at 5: the rate of each of its updates.
TEST(Schedule, WarmupJoinedAsMlxLmDoes) {
  Schedule s{.name = "cosine",
             .peak = 0.1,
             .warmup = 4,
             .updates = 1000,
             .warmup_from_init = true,
             .end = 0,
             .decay = 10};
  for (int i = 0; i <= 4; ++i) EXPECT_DOUBLE_EQ(s.rate(i), 0.1 * i / 4);
  EXPECT_DOUBLE_EQ(s.rate(5), 0.1);
  EXPECT_NEAR(s.rate(5 + 4), 0.0654508497, 1e-10);
  EXPECT_NEAR(s.rate(5 + 10), 0, 1e-17);
  s.warmup_init = 0.02;
  EXPECT_DOUBLE_EQ(s.rate(0), 0.02);
  EXPECT_DOUBLE_EQ(s.rate(2), 0.06);
  EXPECT_DOUBLE_EQ(s.rate(4), 0.1);
  s.warmup = 0;
  EXPECT_DOUBLE_EQ(s.rate(0), 0.1);
}

TEST(Schedule, MlxDecays) {
  Schedule exponential{.name = "exponential_decay", .peak = 0.1, .decay_rate = 0.9};
  EXPECT_DOUBLE_EQ(exponential.rate(0), 0.1);
  EXPECT_NEAR(exponential.rate(5), 0.1 * std::pow(0.9, 5), 1e-15);
  Schedule steps{.name = "step_decay", .peak = 0.1, .decay_rate = 0.9, .step_size = 10};
  EXPECT_DOUBLE_EQ(steps.rate(9), 0.1);
  EXPECT_NEAR(steps.rate(10), 0.09, 1e-15);
  EXPECT_NEAR(steps.rate(39), 0.1 * std::pow(0.9, 3), 1e-15);
  Schedule linear{.name = "linear", .peak = 0.1, .updates = 1000, .end = 0.02, .decay = 4};
  EXPECT_NEAR(linear.rate(1), 0.08, 1e-15);
  EXPECT_NEAR(linear.rate(100), 0.02, 1e-15);
}

TEST(Schedule, RestartsAndStableStretches) {
  Schedule restarts{
      .name = "cosine_with_restarts", .peak = 1.0, .updates = 20, .end = 0, .cycles = 2};
  EXPECT_DOUBLE_EQ(restarts.rate(0), 1.0);
  EXPECT_NEAR(restarts.rate(5), 0.5, 1e-15);
  EXPECT_DOUBLE_EQ(restarts.rate(10), 1.0);
  EXPECT_NEAR(restarts.rate(15), 0.5, 1e-15);
  EXPECT_NEAR(restarts.rate(20), 0.0, 1e-15);
  Schedule wsd{.name = "wsd", .peak = 1.0, .warmup = 10, .updates = 110, .decay_share = 0.2};
  EXPECT_DOUBLE_EQ(wsd.rate(4), 0.5);
  EXPECT_DOUBLE_EQ(wsd.rate(60), 1.0);
  EXPECT_DOUBLE_EQ(wsd.rate(89), 1.0);
  EXPECT_NEAR(wsd.rate(100), 0.5, 1e-12);
  EXPECT_NEAR(wsd.rate(110), 0.0, 1e-12);
}

// 1.1 times 10 is a little above 11 in doubles.
TEST(Schedule, PartsOfAnEpochBeginNoUpdateByRounding) {
  TrainOptions o;
  o.batch_size = 1;
  for (const auto& [epochs, updates] :
       {std::pair{1.1, 11}, {1.5, 15}, {1.51, 16}, {0.001, 1}, {3.0, 30}}) {
    o.epochs = epochs;
    EXPECT_EQ(count_updates(o, 10), updates) << epochs;
  }
}

}  // namespace
}  // namespace wick
