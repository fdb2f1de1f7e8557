// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

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

}  // namespace
}  // namespace wick
