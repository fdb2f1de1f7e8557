// SPDX-License-Identifier: Apache-2.0
// Decoding a few rows at a time in bf16, where back ends join steps, against the reference in f32.
#include <gtest/gtest.h>

#include <cmath>

#include "infer/decoder_engine.h"
#include "infer/sampler.h"

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

// The tokens that a back end draws itself are those that the host draws from its logits.
TEST(Decode, BackEndsDrawWhatTheHostDraws) {
  const ModelConfig config = small_config();
  const SampleOptions kinds[] = {
      {.temperature = 0.8f},
      {.temperature = 0.8f, .top_k = 20},
      {.temperature = 1.2f, .top_p = 0.9f},
      {.temperature = 1.2f, .top_k = 100, .top_p = 0.8f, .min_p = 0.02f}};
  constexpr int32_t kSlots = 3, kSteps = 9;
  for (const std::string& device : backend_names()) {
    const auto backend = open_backend({.device = device, .threads = 2});
    ModelWeights weights = ModelWeights::random(config, 5, DType::kF32);
    weights.compute_in(DType::kF32);
    DecoderEngine engine(*backend, config, weights, {}, nullptr, kSlots, 16);
    for (const SampleOptions& kind : kinds) {
      std::vector<SlotToken> first, run;
      for (int32_t slot = 0; slot < kSlots; ++slot) first.push_back({17 * slot + 3, slot, 0, true});
      std::vector<int32_t> wanted;
      std::vector<float> logits;
      Sampler sampler(kind, config.vocab);
      run = first;
      for (int32_t step = 0; step < kSteps; ++step) {
        engine.run(run, logits);
        for (int32_t slot = 0; slot < kSlots; ++slot) {
          const size_t vocab = static_cast<size_t>(config.vocab), at = static_cast<size_t>(slot);
          const int32_t id =
              sampler.sample(std::span(logits).subspan(at * vocab, vocab), {}, step + 1);
          wanted.push_back(id);
          run[at] = {id, slot, step + 1, true};
        }
      }
      std::vector<DrawHow> how(kSlots, sampler.draws().value());
      for (DrawHow& h : how) h.position = 1;
      std::vector<int32_t> drawn;
      engine.run_drawn(first, drawn, how);
      EXPECT_EQ(drawn, std::vector<int32_t>(wanted.begin(), wanted.begin() + kSlots)) << device;
      engine.walk_from(first, how);
      engine.walk(kSteps);
      engine.walked(kSteps, drawn);
      EXPECT_EQ(drawn, wanted) << device;
    }
  }
}

}  // namespace
}  // namespace wick
