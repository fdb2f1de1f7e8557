// SPDX-License-Identifier: Apache-2.0
// What dropout promises beyond ref = cpu: the share it drops, the scale of the rest, and that a
// token's mask depends on its key and the site alone.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend.h"
#include "plan/recorder.h"

namespace wick {
namespace {

constexpr int64_t kWidth = 301;

// dropout of ones, a row for each key.
std::vector<std::vector<float>> masks(Backend& backend, const std::vector<int32_t>& keys, float p,
                                      uint64_t site) {
  const auto rows = static_cast<int64_t>(keys.size());
  Plan plan;
  Recorder r(plan, false);
  ValueId x = r.feed("x", {rows, kWidth}, DType::kF32);
  ValueId k = r.feed("keys", {rows, 2}, DType::kI32);
  ValueId y = r.dropout(x, k, p, site);
  plan.results.push_back(y);
  std::vector<float> ones(static_cast<size_t>(rows * kWidth), 1.0f), made(ones.size());
  std::vector<int32_t> words;
  for (int32_t key : keys) words.insert(words.end(), {key, ~key});
  auto program = backend.compile(plan, Bindings(plan.values.size()));
  program->feed(x, ones.data(), ones.size() * sizeof(float));
  program->feed(k, words.data(), words.size() * sizeof(int32_t));
  program->run();
  program->wait();
  program->read(y, made.data(), made.size() * sizeof(float));
  std::vector<std::vector<float>> out;
  for (auto at = made.begin(); at != made.end(); at += kWidth) out.emplace_back(at, at + kWidth);
  return out;
}

class Dropout : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Backend> backend_ =
      open_backend({.device = GetParam(), .threads = 2, .cpu_isa = {}});
};

TEST_P(Dropout, DropsItsShareAndScalesTheRest) {
  std::vector<int32_t> keys(64);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int32_t>(i * 7919);
  for (float p : {0.1f, 0.5f, 0.9f}) {
    int64_t dropped = 0;
    for (const auto& row : masks(*backend_, keys, p, 3))
      for (float value : row) {
        dropped += value == 0.0f;
        if (value != 0.0f) {
          EXPECT_FLOAT_EQ(value, 1.0f / (1.0f - p));
        }
      }
    const double n = static_cast<double>(keys.size()) * kWidth;
    // Five standard deviations of a fair draw.
    EXPECT_NEAR(static_cast<double>(dropped) / n, p, 5 * std::sqrt(p * (1 - p) / n)) << p;
  }
}

TEST_P(Dropout, AMaskDependsOnKeyAndSiteAlone) {
  const auto two = masks(*backend_, {11, 12}, 0.5f, 3);
  const auto three = masks(*backend_, {12, 13, 11}, 0.5f, 3);
  EXPECT_EQ(two[0], three[2]);
  EXPECT_EQ(two[1], three[0]);
  EXPECT_NE(two[0], two[1]);
  EXPECT_NE(two[0], masks(*backend_, {11}, 0.5f, 4)[0]);
}

INSTANTIATE_TEST_SUITE_P(Devices, Dropout, testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace wick
