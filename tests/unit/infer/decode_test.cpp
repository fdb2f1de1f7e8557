// SPDX-License-Identifier: Apache-2.0
// Decoding a few rows at a time in bf16, where back ends join steps, against the reference in f32.
#include <gtest/gtest.h>

#include <cmath>

#include "infer/decoder_engine.h"

namespace wick {
namespace {

ModelConfig small_config() {
  ModelConfig c;
  c.model_type = "qwen2";
  c.layers = 2;
  c.hidden = 136;  // no whole number of chunks of any kernel
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 32;
  c.ffn = 208;
  c.vocab = 300;
  c.max_positions = 64;
  c.tied = c.qkv_bias = true;
  c.windows = {0, 0};
  c.initializer_range = 0.1;
  return c;
}

constexpr int32_t kTokens = 6;

// Logits [kTokens][slots][vocab] of `slots` sequences, one token of each at a time.
std::vector<float> decode(const std::string& device, DType compute, std::optional<DType> codes,
                          int32_t slots) {
  const ModelConfig config = small_config();
  const auto backend = open_backend({.device = device, .threads = 2});
  ModelWeights weights = ModelWeights::random(config, 5, DType::kBF16);
  weights.compute_in(compute);
  if (codes) weights.quantize_to(*codes);
  DecoderEngine engine(*backend, config, weights, {}, nullptr, slots, 16);
  std::vector<float> all, logits;
  for (int32_t position = 0; position < kTokens; ++position) {
    std::vector<SlotToken> run;
    for (int32_t slot = 0; slot < slots; ++slot)
      run.push_back({(7 * slot + 31 * position) % 300, slot, position, true});
    engine.run(run, logits);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST(Decode, FewRowsInBf16AgreeWithTheReference) {
  const std::optional<DType> kinds[] = {std::nullopt, DType::kQ8G32, DType::kQ8G64, DType::kQ4G32,
                                        DType::kQ4G128};
  for (const std::optional<DType>& codes : kinds) {
    for (int32_t slots : {1, 3, 8, 16}) {
      const std::vector<float> want = decode("ref", DType::kF32, codes, slots);
      for (const std::string& device : backend_names()) {
        if (device == "ref") continue;
        const std::vector<float> got = decode(device, DType::kBF16, codes, slots);
        ASSERT_EQ(got.size(), want.size());
        double difference = 0, norm = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
          norm += std::pow(static_cast<double>(want[i]), 2);
        }
        EXPECT_LE(std::sqrt(difference / norm), 0.03)
            << device << ", " << slots << " rows, " << (codes ? dtype_name(*codes) : "bf16");
      }
    }
  }
}

}  // namespace
}  // namespace wick
