// SPDX-License-Identifier: Apache-2.0
// Frequencies of the rotation to the last place. The numbers are `inv_freq` of transformers 5.22's
// LlamaRotaryEmbedding for the same settings.
#include <gtest/gtest.h>

#include <cmath>

#include "model/decoder.h"

namespace wick::test {
namespace {

struct Case {
  const char* name;
  int64_t head_dim;
  RopeConfig rope;
  float frequencies[6];
};

TEST(Rope, FrequenciesAreThoseThatModelsAreTrainedWith) {
  using Scaling = RopeConfig::Scaling;
  constexpr int64_t kPairs[] = {1, 5, 9, 13, 20, 31}, kFar = 1000;
  const Case kCases[] = {
      {"plain",
       64,
       {},
       {0x1.7ff222p-1f, 0x1.e5a846p-3f, 0x1.33281ap-4f, 0x1.84869ep-6f, 0x1.9e7c70p-9f,
        0x1.17a8e4p-13f}},
      {"plain, theta of a million",
       80,
       {.theta = 1e6},
       {0x1.6a77dep-1f, 0x1.6c310ep-3f, 0x1.6dec5ap-5f, 0x1.6fa9c0p-7f, 0x1.0624dep-10f,
        0x1.779860p-16f}},
      {"linear",
       80,
       {.scaling = Scaling::kLinear, .factor = 3},
       {0x1.0f2176p-2f, 0x1.afc19ep-4f, 0x1.57c546p-5f, 0x1.11b70ep-6f, 0x1.b4e81ap-9f,
        0x1.15a34ep-12f}},
      {"llama3",
       64,
       {.theta = 5e5, .scaling = Scaling::kLlama3, .factor = 8, .original_positions = 128},
       {0x1.53c38cp-1f, 0x1.3b30a4p-4f, 0x1.98de92p-9f, 0x1.3d2804p-11f, 0x1.1f91f0p-15f,
        0x1.948360p-22f}},
      {"yarn",
       80,
       {.scaling = Scaling::kYarn, .factor = 4, .original_positions = 256},
       {0x1.96b230p-1f, 0x1.0719fcp-2f, 0x1.4248f0p-4f, 0x1.674044p-6f, 0x1.47ae14p-9f,
        0x1.a074f4p-13f}},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    ModelConfig config;
    config.head_dim = c.head_dim;
    config.rope = c.rope;
    const std::vector<float> table = rope_table(config, kFar + 1);
    const float* row = table.data() + kFar * c.head_dim;
    for (size_t i = 0; i < std::size(kPairs); ++i) {
      const float angle = static_cast<float>(kFar) * c.frequencies[i];
      EXPECT_EQ(row[kPairs[i]], static_cast<float>(std::cos(static_cast<double>(angle)))) << i;
      EXPECT_EQ(row[c.head_dim / 2 + kPairs[i]],
                static_cast<float>(std::sin(static_cast<double>(angle))))
          << i;
    }
  }
}

}  // namespace
}  // namespace wick::test
