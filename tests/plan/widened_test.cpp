// SPDX-License-Identifier: Apache-2.0
// The scratch of a product with a quantised matrix is its own from the product before on, and until
// the steps behind it that may be made with it are done.
#include "plan/widened.h"

#include <gtest/gtest.h>

#include "plan/recorder.h"

namespace wick {
namespace {

constexpr int64_t kRows = 3, kWidth = 64;

TEST(Widened, ScratchIsThereFromTheProductBeforeOn) {
  Plan plan;
  Recorder r(plan, false);
  const ValueId x = r.feed("x", {kRows, kWidth}, DType::kF32);
  auto matrix = [&](const char* name, int64_t rows, DType dtype) {
    return r.weight(name, {rows, kWidth}, dtype);
  };
  const ValueId first = r.linear(x, matrix("first", 2 * kWidth, DType::kQ8G32));
  const ValueId gated = r.gated_act(first, Act::kSilu);
  const ValueId scaled = r.scale(gated, 2.0f);
  const ValueId plain = r.linear(scaled, matrix("plain", kWidth, DType::kF32));
  const ValueId last = r.linear(plain, matrix("last", kWidth, DType::kQ4G64));
  plan.results = {last};
  ASSERT_EQ(plan.steps.size(), 5u);
  EXPECT_EQ(widened_from(plan, 0), -1);
  EXPECT_EQ(widened_from(plan, 3), -1);
  EXPECT_EQ(widened_from(plan, 4), 0);

  auto bytes = [](DType dtype) { return dtype_bytes(dtype); };
  const std::vector<size_t> scratch{4 * kWidth * kWidth, 0, 0, 0, 2 * kWidth * kWidth};
  const Placement placement = place(plan, bytes, scratch);
  EXPECT_NO_THROW(check_placement(plan, bytes, scratch, placement));
  auto apart = [](int64_t a, int64_t a_bytes, int64_t b, int64_t b_bytes) {
    return a + a_bytes <= b || b + b_bytes <= a;
  };
  const int64_t before = placement.scratch_offset[0], own = placement.scratch_offset[4];
  auto at = [&](ValueId id) { return placement.offset[static_cast<size_t>(id)]; };
  EXPECT_TRUE(apart(before, 4 * kWidth * kWidth, own, 2 * kWidth * kWidth));
  EXPECT_TRUE(apart(before, 4 * kWidth * kWidth, at(gated), 4 * kRows * kWidth));
  for (ValueId id : {gated, scaled, plain})
    EXPECT_TRUE(apart(own, 2 * kWidth * kWidth, at(id), 4 * kRows * kWidth)) << id;
  EXPECT_TRUE(apart(own, 2 * kWidth * kWidth, at(first), 8 * kRows * kWidth));
}

}  // namespace
}  // namespace wick
