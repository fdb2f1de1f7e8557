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

// A large matrix is not made as far ahead, but before the steps of a reverse pass that may be made
// with its product.
TEST(Widened, ScratchOfALargeMatrixIsThereBeforeTheStepsMadeWithItsProduct) {
  constexpr int64_t kWide = 4096, kLong = 8192;
  Plan plan;
  Recorder r(plan, false);
  const ValueId w = r.weight("w", {kLong, kWide}, DType::kQ4G32);
  const ValueId a = r.weight("a", {kRows, kWide}, DType::kF32);
  const ValueId dy = r.feed("dy", {kRows, kLong}, DType::kF32);
  const ValueId dead = r.scale(dy, 2.0f), dh = r.gated_act(dead, Act::kSilu);
  const ValueId small = r.scale(dh, 0.5f);
  const ValueId dx = r.temp("dx", {kRows, kWide}, DType::kF32);
  auto reverse = [&](ValueId from, ValueId matrix, OutMode mode) {
    r.append(
        {Op::kLinear, Dir::kBackward, {from, kNone, matrix}, {{dx, mode}, {}, {}}, LinearAttr{}});
  };
  const ValueId few = r.cols(r.cols(small, 0, kRows), 0, kRows);
  reverse(few, a, OutMode::kWrite);
  reverse(dy, w, OutMode::kAccumulate);
  plan.results = {dx};
  EXPECT_EQ(widened_from(plan, 4), -1);

  auto bytes = [](DType dtype) { return dtype_bytes(dtype); };
  const int64_t matrix = 2 * kLong * kWide;
  const std::vector<size_t> scratch{0, 0, 0, 0, static_cast<size_t>(matrix)};
  const Placement placement = place(plan, bytes, scratch);
  // Read by the step before the last but one, the first that may come after the matrix.
  const int64_t own = placement.scratch_offset[4], at = placement.offset[static_cast<size_t>(dh)];
  EXPECT_TRUE(at + 4 * kRows * kLong / 2 <= own || own + matrix <= at);
}

}  // namespace
}  // namespace wick
