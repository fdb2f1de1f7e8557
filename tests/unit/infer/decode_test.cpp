// SPDX-License-Identifier: Apache-2.0
// Decoding a few rows at a time in bf16, where back ends join steps, against the reference in f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "infer/decoder_engine.h"
#include "infer/generator.h"
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

// Of sizes that kernels take in whole vectors and tiles; one layer with a window.
ModelConfig even_config() {
  ModelConfig c = small_config();
  c.hidden = 192;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 64;
  c.ffn = 320;
  c.windows = {0, 3};
  return c;
}

constexpr int32_t kTokens = 6;

// Logits [kTokens][slots][vocab] of `slots` sequences, one token of each at a time.
std::vector<float> decode(const ModelConfig& config, const std::string& device, DType compute,
                          std::optional<DType> codes, int32_t slots, bool shorter = false) {
  const auto backend = open_backend({.device = device, .threads = 2});
  ModelWeights weights = ModelWeights::random(config, 5, DType::kBF16);
  weights.compute_in(compute);
  if (codes) weights.quantize_to(*codes);
  weights.shorten(shorter);
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

double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got.at(i)) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(difference / norm);
}

void agrees_with_the_reference(const ModelConfig& config, std::initializer_list<int32_t> rows) {
  const std::optional<DType> kinds[] = {std::nullopt, DType::kQ8G32, DType::kQ8G64, DType::kQ4G32,
                                        DType::kQ4G128};
  for (const std::optional<DType>& codes : kinds) {
    for (int32_t slots : rows) {
      const std::vector<float> want = decode(config, "ref", DType::kF32, codes, slots);
      for (const std::string& device : backend_names()) {
        if (device == "ref") continue;
        const std::vector<float> got = decode(config, device, DType::kBF16, codes, slots);
        ASSERT_EQ(got.size(), want.size());
        EXPECT_LE(distance(got, want), 0.03)
            << device << ", " << slots << " rows, " << (codes ? dtype_name(*codes) : "bf16");
      }
    }
  }
}

TEST(Decode, FewRowsInBf16AgreeWithTheReference) {
  agrees_with_the_reference(small_config(), {1, 3, 8, 16});
}
TEST(Decode, EvenSizesAgreeWithTheReference) { agrees_with_the_reference(even_config(), {1, 5}); }
// Weights that rest in fewer bytes are the same weights.
TEST(Decode, ShorterWeightsGiveTheSameBits) {
  for (const ModelConfig& config : {small_config(), even_config()})
    for (const std::string& device : backend_names())
      for (int32_t slots : {1, 2, 8, 11}) {
        const DType bf16 = DType::kBF16;
        EXPECT_EQ(decode(config, device, bf16, std::nullopt, slots, true),
                  decode(config, device, bf16, std::nullopt, slots))
            << device << ", " << slots << " rows";
      }
}
TEST(Decode, LongHeadsAgreeWithTheReference) {
  ModelConfig config = even_config();
  config.head_dim = 128;
  config.heads = 2;
  config.kv_heads = 1;
  agrees_with_the_reference(config, {1});
}

// Rows of one sequence see what the rows before them put into the cache in the same run, and a long
// range is looked at in parts.
TEST(Decode, RowsOfOneSequenceBehindALongPrompt) {
  ModelConfig config = even_config();
  config.hidden = config.ffn = 64;
  config.heads = 2;
  config.kv_heads = 1;
  config.windows = {0, 0};
  config.max_positions = 700;
  constexpr int32_t kPrompt = 640;
  auto logits_of = [&](const std::string& device, DType compute, std::optional<DType> codes) {
    const auto backend = open_backend({.device = device, .threads = 2});
    ModelWeights weights = ModelWeights::random(config, 5, DType::kBF16);
    weights.compute_in(compute);
    if (codes) weights.quantize_to(*codes);
    DecoderEngine engine(*backend, config, weights, {}, nullptr, 1, 700);
    std::vector<SlotToken> run;
    std::vector<float> all, logits;
    auto add = [&](int32_t first, int32_t count) {
      run.clear();
      for (int32_t i = first; i < first + count; ++i)
        run.push_back({i * 37 % 300, 0, i, i + 1 == first + count});
      engine.run(run, logits);
      all.insert(all.end(), logits.begin(), logits.end());
    };
    add(0, kPrompt);
    add(kPrompt, 4);
    add(kPrompt + 4, 1);
    add(kPrompt + 5, 1);
    return all;
  };
  for (const std::optional<DType>& codes :
       {std::optional<DType>(), std::optional<DType>(DType::kQ8G32)}) {
    const std::vector<float> want = logits_of("ref", DType::kF32, codes);
    for (const std::string& device : backend_names()) {
      if (device == "ref") continue;
      EXPECT_LE(distance(logits_of(device, DType::kBF16, codes), want), 0.03) << device;
    }
  }
}

// Of prompts that are read together the last rows alone are asked for, and of some prompts none.
TEST(Decode, AskedRowsOfPromptsAreThoseOfTheirTokens) {
  const ModelConfig config = even_config();
  constexpr int32_t kPrompt = 14, kSlots = 4;
  auto token = [](int32_t slot, int32_t i) { return (37 * i + 11 * slot) % 300; };
  for (const std::string& device : backend_names())
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const auto backend = open_backend({.device = device, .threads = 2});
      ModelWeights weights = ModelWeights::random(config, 5, DType::kBF16);
      weights.compute_in(compute);
      auto engine = [&] {
        return DecoderEngine(*backend, config, weights, {}, nullptr, kSlots, 16);
      };
      DecoderEngine together = engine(), apart = engine();
      std::vector<SlotToken> run;
      std::vector<float> got, logits, want;
      for (int32_t slot = 0; slot < kSlots; ++slot)
        for (int32_t i = 0; i < kPrompt; ++i)
          run.push_back({token(slot, i), slot, i, slot != 1 && i + 1 == kPrompt});
      together.run(run, got);
      for (int32_t slot = 0; slot < kSlots; ++slot)
        for (int32_t i = 0; i < kPrompt; ++i) {
          const SlotToken one = {token(slot, i), slot, i, slot != 1 && i + 1 == kPrompt};
          apart.run({&one, 1}, logits);
          want.insert(want.end(), logits.begin(), logits.end());
        }
      ASSERT_EQ(got.size(), static_cast<size_t>((kSlots - 1) * config.vocab));
      EXPECT_LE(distance(got, want), compute == DType::kF32 ? 1e-5 : 0.02) << device;
    }
}

// On a device whose kernels promise it, a row's bits do not depend on how many are decoded beside
// it, nor on the run.
TEST(Decode, ARowsBitsAreItsOwn) {
  const ModelConfig config = even_config();
  for (const std::string& device : backend_names()) {
    if (device != "cuda") continue;
    for (const std::optional<DType>& codes :
         {std::optional<DType>(), std::optional<DType>(DType::kQ8G64),
          std::optional<DType>(DType::kQ4G32)}) {
      const std::vector<float> alone = decode(config, device, DType::kBF16, codes, 1);
      const auto vocab = static_cast<size_t>(config.vocab);
      for (int32_t slots : {1, 2, 3, 4, 8}) {
        const std::vector<float> all = decode(config, device, DType::kBF16, codes, slots);
        for (size_t t = 0; t < kTokens; ++t)
          for (size_t i = 0; i < vocab; ++i)
            ASSERT_EQ(alone[t * vocab + i], all[static_cast<size_t>(slots) * t * vocab + i])
                << slots << " rows, " << (codes ? dtype_name(*codes) : "bf16");
      }
    }
  }
}

// Likeliest tokens of a walk on the device are those of its logits, each time, however many layers
// hand on numbers to the next.
void follows_its_logits(const std::string& device, int32_t layers, int32_t slots) {
  ModelConfig config = even_config();
  config.layers = layers;
  config.windows.assign(static_cast<size_t>(layers), 0);
  config.windows.back() = 3;
  constexpr int32_t kSteps = 8;
  const auto backend = open_backend({.device = device, .threads = 2});
  ModelWeights weights = ModelWeights::random(config, 5, DType::kBF16);
  weights.compute_in(device == "ref" ? DType::kF32 : DType::kBF16);
  weights.quantize_to(DType::kQ8G32);
  DecoderEngine engine(*backend, config, weights, {}, nullptr, slots, 16);
  std::vector<SlotToken> first, run;
  for (int32_t slot = 0; slot < slots; ++slot) first.push_back({17 * slot + 3, slot, 0, true});
  run = first;
  std::vector<int32_t> wanted, drawn;
  std::vector<float> logits;
  for (int32_t step = 0; step < kSteps; ++step) {
    engine.run(run, logits);
    for (int32_t slot = 0; slot < slots; ++slot) {
      const auto row = logits.begin() + slot * config.vocab;
      const auto id = static_cast<int32_t>(std::max_element(row, row + config.vocab) - row);
      wanted.push_back(id);
      run[static_cast<size_t>(slot)] = {id, slot, step + 1, true};
    }
  }
  for (int again = 0; again < 3; ++again) {
    engine.walk_from(first, {});
    engine.walk(kSteps);
    engine.walked(kSteps, drawn);
    EXPECT_EQ(drawn, wanted) << device << ", " << slots << " rows, " << layers << " layers";
  }
}

TEST(Decode, AWalkInBf16FollowsItsLogits) {
  for (const std::string& device : backend_names())
    for (int32_t layers : {1, 2, 5})
      for (int32_t slots : {1, 3}) follows_its_logits(device, layers, slots);
}

// A vocabulary so long that the head's ring of tiles is filled again and again while copies end out
// of turn: many rows of codes are drawn, the same each time.
TEST(Decode, ALongHeadInCodesDrawsTheSameEachTime) {
  ModelConfig config = even_config();
  config.hidden = 896;
  config.heads = 14;
  config.windows = {0, 0};
  config.vocab = 151936;
  constexpr int32_t kSteps = 2000, kSlots = 8;
  config.max_positions = kSteps + 1;
  for (const std::string& device : backend_names()) {
    if (device != "cuda") continue;
    const auto backend = open_backend({.device = device});
    ModelWeights weights = ModelWeights::random(config, 5, DType::kBF16);
    weights.compute_in(DType::kBF16);
    weights.quantize_to(DType::kQ4G32);
    DecoderEngine engine(*backend, config, weights, {}, nullptr, kSlots, kSteps + 1);
    std::vector<SlotToken> first;
    for (int32_t slot = 0; slot < kSlots; ++slot) first.push_back({17 * slot + 3, slot, 0, true});
    std::vector<int32_t> wanted, drawn;
    for (int again = 0; again < 5; ++again) {
      engine.walk_from(first, {});
      engine.walk(kSteps);
      engine.walked(kSteps, drawn);
      if (again == 0) wanted = drawn;
      EXPECT_EQ(drawn, wanted);
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

// A cache that grows keeps what it has, to the bit.
TEST(Decode, ACacheThatGrows) {
  const ModelConfig config = even_config();
  for (const std::string& device : backend_names())
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      // The reference computes in f32 whatever the type, and a copy on the host has the type.
      if (device == "ref" && compute == DType::kBF16) continue;
      const auto backend = open_backend({.device = device, .threads = 2});
      ModelWeights weights = ModelWeights::random(config, 5, DType::kBF16);
      weights.compute_in(compute);
      std::vector<float> logits[2];
      for (const bool grows : {false, true}) {
        DecoderEngine engine(*backend, config, weights, {}, nullptr, 1, grows ? 8 : 40);
        std::vector<SlotToken> run;
        for (int32_t i = 0; i < 7; ++i) run.push_back({31 * i, 0, i, i == 6});
        engine.run(run, logits[grows]);
        if (grows) engine.grow(40, 7);
        for (int32_t i = 7; i < 30; ++i) {
          const SlotToken next{9 * i, 0, i, true};
          engine.run({&next, 1}, logits[grows]);
        }
      }
      EXPECT_EQ(logits[0], logits[1]) << device << ", " << dtype_name(compute);
    }
}

// A conversation's next turn costs its own tokens, also where the cache has become too small.
TEST(Decode, ALongerConversationIsNotReadAnew) {
  ModelConfig config = small_config();
  config.max_positions = 1024;
  std::string vocab;
  for (int32_t i = 0; i < config.vocab; ++i) vocab += cat(i ? "," : "", "\"t", i, "\":", i);
  const Tokenizer tokenizer = Tokenizer::from_json(
      cat(R"({"model": {"type": "BPE", "merges": [], "vocab": {)", vocab, "}}}"), "", "tokenizer");
  const auto backend = open_backend({.device = "cpu", .threads = 2});
  ModelWeights weights = ModelWeights::random(config, 5, DType::kBF16);
  TextGenerator generator(*backend, config, weights, tokenizer, {}, nullptr);
  DecodeOptions options;
  options.max_tokens = 20;
  std::vector<int32_t> prompt;
  for (int32_t turn = 0; turn < 3; ++turn) {
    const auto before = static_cast<int64_t>(prompt.size());
    for (int32_t i = 0; i < 230; ++i) prompt.push_back((37 * i + turn) % 300);
    const Decoded got = generator.generate(prompt, options);
    // The last token of an answer was never run.
    EXPECT_EQ(got.reused_tokens, std::max<int64_t>(0, before - 1)) << turn;
    TextGenerator fresh(*backend, config, weights, tokenizer, {}, nullptr);
    EXPECT_EQ(got.tokens, fresh.generate(prompt, options).tokens) << turn;
    prompt.insert(prompt.end(), got.tokens.begin(), got.tokens.end());
  }
}

}  // namespace
}  // namespace wick
