// SPDX-License-Identifier: Apache-2.0
// Shapes have the sizes of the published models, and random weights are a function of their place.
#include "model/shapes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/half.h"
#include "base/rng.h"
#include "model/decoder.h"
#include "model/random_weights.h"
#include "wick/error.h"

namespace wick {
namespace {

TEST(Shapes, HaveThePublishedNumberOfWeights) {
  const std::map<std::string, int64_t> counts = {
      {"qwen2.5-0.5b", 494032768},  {"qwen2.5-3b", 3085938688},   {"qwen2.5-7b", 7615616512},
      {"llama-3.2-1b", 1235814400}, {"llama-3.1-8b", 8030261248}, {"qwen3-4b", 4022468096}};
  EXPECT_EQ(shape_names().size(), counts.size());
  for (const std::string& name : shape_names())
    EXPECT_EQ(weight_count(read_config(shape_config(name), Json(), name)), counts.at(name)) << name;
}

TEST(Shapes, UnknownNamesOfferTheNearest) {
  try {
    shape_config("qwen2.5-0.5");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotFound);
    EXPECT_NE(std::string(e.what()).find("did you mean qwen2.5-0.5b?"), std::string::npos);
  }
}

TEST(RandomWeights, FollowTheirFormula) {
  const size_t count = 200'003;  // several chunks and a rest
  std::vector<float> values(count);
  fill_random(7, "a.weight", 0.02, DType::kF32, count, reinterpret_cast<std::byte*>(values.data()));
  const uint64_t key = mix_key(7, name_key("a.weight"));
  double sum = 0, squares = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t u = (mix_key(key, i / 4) >> (16 * (i % 4))) & 0xffff;
    const float factor = static_cast<float>(std::sqrt(3.0) * 0.02 / 32768.0);
    ASSERT_EQ(values[i], (static_cast<float>(u) - 32767.5f) * factor) << i;
    sum += values[i];
    squares += values[i] * values[i];
  }
  EXPECT_NEAR(sum / static_cast<double>(count), 0, 3e-4);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(count)), 0.02, 2e-4);

  std::vector<bf16> rounded(count);
  fill_random(7, "a.weight", 0.02, DType::kBF16, count,
              reinterpret_cast<std::byte*>(rounded.data()));
  for (size_t i = 0; i < count; ++i)
    ASSERT_EQ(to_float(rounded[i]), to_float(from_float<bf16>(values[i]))) << i;
}

}  // namespace
}  // namespace wick
