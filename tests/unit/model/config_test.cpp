// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "unit/io/temporary_folder.h"

namespace wick {
namespace {

// A small qwen3 with `changes` written over it.
Json with(const char* changes) {
  Json config = parse_json(R"({"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 32,
      "num_attention_heads": 4, "head_dim": 8, "intermediate_size": 48, "vocab_size": 99})",
                           "test");
  config.update(parse_json(changes, "test"));
  return config;
}

std::string refusal(const char* changes, const char* generation = "{}") {
  return message_of(
      [&] { read_config(with(changes), parse_json(generation, "test"), "m/config.json"); });
}

TEST(ModelConfig, RopeScalingBesideRopeParameters) {
  auto rope = [](const char* changes) {
    return read_config(with(changes), {}, "config.json").rope;
  };
  // As transformers: rope_scaling counts, with the rope_theta beside it.
  RopeConfig both = rope(R"({"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 4},
      "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})");
  EXPECT_EQ(both.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(both.theta, 5000.0);
  RopeConfig empty = rope(R"({"rope_scaling": {}, "rope_parameters": {"rope_theta": 1e6}})");
  EXPECT_EQ(empty.theta, 1e6);
  EXPECT_PRED2(contains, refusal(R"({"rope_scaling": {"type": "yarn", "factor": 4},
                           "rope_parameters": {"rope_theta": 1e6}})"),
               "hides the rope_theta of rope_parameters");
}

TEST(ModelConfig, ARopeThatIsNotComputedIsNamed) {
  EXPECT_PRED2(contains, refusal(R"({"rope_scaling": {"rope_type": "longrope",
                           "short_factor": [1], "long_factor": [2]}})"),
               "rope_type \"longrope\" is not computed; wick knows default, linear");
  EXPECT_PRED2(contains, refusal(R"({"rope_scaling": {"type": "dynamic", "factor": 2},
                           "max_position_embeddings": 77})"),
               "the same as default for rows of up to 77 tokens");
  EXPECT_PRED2(contains, refusal(R"({"rope_parameters": {
                           "full_attention": {"rope_type": "default", "rope_theta": 1e6}}})"),
               "a rope of its own for \"full_attention\"");
  EXPECT_PRED2(contains, refusal(R"({"rope_scaling": "linear"})"),
               "rope_scaling is a string, expected an object");
  EXPECT_PRED2(contains, refusal(R"({"partial_rotary_factor": 0.5,
                           "rope_scaling": {"type": "linear", "factor": 2}})"),
               "partial_rotary_factor is not computed with rope_type \"linear\"");
}

// As transformers: the length of pretraining outside counts before the one inside, and without
// either it is the model's own.
TEST(ModelConfig, PositionsOfPretraining) {
  auto original = [](const char* inside, const char* outside) {
    Json config = with(outside), rope = parse_json(inside, "test");
    config["max_position_embeddings"] = 64;
    rope.update(Json{
        {"rope_type", "llama3"}, {"factor", 4}, {"low_freq_factor", 1}, {"high_freq_factor", 4}});
    config["rope_parameters"] = rope;
    return read_config(config, {}, "config.json").rope.original_positions;
  };
  EXPECT_EQ(original(R"({"original_max_position_embeddings": 16})", "{}"), 16);
  EXPECT_EQ(original("{}", R"({"original_max_position_embeddings": 8})"), 8);
  EXPECT_EQ(original(R"({"original_max_position_embeddings": 16})",
                     R"({"original_max_position_embeddings": 8})"),
            8);
  EXPECT_EQ(original("{}", "{}"), 64);
}

// Qwen's cards and Vicuna's files stretch the rope and leave max_position_embeddings as it was.
TEST(ModelConfig, AStretchedRopeReachesFurther) {
  auto reach = [](const char* scaling, int64_t positions = 64) {
    Json config = with("{}");
    config["max_position_embeddings"] = positions;
    config["rope_scaling"] = parse_json(scaling, "test");
    return read_config(config, {}, "config.json").max_positions;
  };
  const char* yarn = R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})";
  EXPECT_EQ(reach(yarn), 256);
  EXPECT_EQ(reach(yarn, 80), 256);
  EXPECT_EQ(reach(yarn, 256), 256);
  EXPECT_EQ(reach(yarn, 300), 300);
  EXPECT_EQ(reach(R"({"type": "linear", "factor": 2.5})"), 160);
  EXPECT_EQ(reach(R"({"rope_type": "llama3", "factor": 32, "low_freq_factor": 1,
                      "high_freq_factor": 4, "original_max_position_embeddings": 16})"),
            64);
}

// As transformers: a Mistral with layer_types is a Ministral.
TEST(ModelConfig, LayersOfMistral) {
  const char* kTypes =
      R"({"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 5,
          "layer_types": ["sliding_attention", "full_attention"]})";
  EXPECT_EQ(read_config(with(kTypes), {}, "config.json").windows, (std::vector<int64_t>{5, 0}));
  Json plain = with(kTypes);
  plain.erase("layer_types");
  EXPECT_EQ(read_config(plain, {}, "config.json").windows, (std::vector<int64_t>{5, 5}));
}

TEST(ModelConfig, LayerTypesAreOnePerLayerAndKnown) {
  EXPECT_EQ(refusal(R"({"layer_types": ["full_attention", "sliding_attention"]})"), "");
  EXPECT_PRED2(contains, refusal(R"({"layer_types": ["full_attention"]})"),
               "an array of 1, expected an array of 2");
  EXPECT_PRED2(contains, refusal(R"({"layer_types": "full_attention"})"), "is a string");
  EXPECT_PRED2(contains, refusal(R"({"layer_types": ["full_attention", "linear_attention"]})"),
               "\"linear_attention\", which is not computed");
}

TEST(ModelConfig, StopTokensAreIds) {
  ModelConfig c = read_config(with(R"({"eos_token_id": [7, 3]})"),
                              parse_json(R"({"eos_token_id": 3})", "g"), "config.json");
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{3, 7}));
  EXPECT_TRUE(read_config(with(R"({"eos_token_id": -1})"), {}, "config.json").eos_ids.empty());
  EXPECT_PRED2(contains, refusal(R"({"eos_token_id": "<|end|>"})"),
               "m/config.json: \"eos_token_id\" has \"<|end|>\", expected a token id");
  EXPECT_PRED2(contains, refusal("{}", R"({"eos_token_id": [1, 2.5]})"),
               "m/generation_config.json: \"eos_token_id\" has 2.5");
}

// torch counts a negative one from the end.
TEST(ModelConfig, ThePaddingTokenIsARowOrNone) {
  auto row = [](const char* changes) {
    return read_config(with(changes), {}, "config.json").pad_row;
  };
  EXPECT_EQ(row("{}"), -1);
  EXPECT_EQ(row(R"({"pad_token_id": null})"), -1);
  EXPECT_EQ(row(R"({"pad_token_id": 0})"), 0);
  EXPECT_EQ(row(R"({"pad_token_id": -1})"), 98);
  EXPECT_EQ(row(R"({"pad_token_id": 99})"), -1);
  EXPECT_EQ(row(R"({"pad_token_id": -100})"), -1);
}

TEST(ModelConfig, ARelativeIsNotATypingMistake) {
  for (const char* typed : {"qwn3", "qwen33"})
    EXPECT_PRED2(contains, refusal(cat(R"({"model_type": ")", typed, R"("})").c_str()),
                 "did you mean qwen3?");
  EXPECT_PRED2(contains, refusal(R"({"model_type": "llam"})"), "did you mean llama?");
  for (const char* relative : {"qwen3_moe", "qwen", "llama4", "mistral3", "mixtral", "ministral"})
    EXPECT_FALSE(
        contains(refusal(cat(R"({"model_type": ")", relative, R"("})").c_str()), "did you mean"))
        << relative;
  for (const char* other : {"llava", "mllama", "voxtral"}) {
    const std::string changes =
        cat(R"({"model_type": ")", other, R"(", "architectures": ["OtherForCausalLM"]})");
    EXPECT_FALSE(contains(refusal(changes.c_str()), "did you mean")) << other;
  }
  EXPECT_PRED2(contains,
               refusal(R"({"model_type": "llam", "architectures": ["LlamaForCausalLM"]})"),
               "did you mean llama?");
}

TEST(ModelConfig, ALongQuantizationIsNamedShortly) {
  EXPECT_PRED2(contains, refusal(R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})"),
               R"(is {"quant_method":"gptq","bits":4}; of quantised)");
  Json config = with(R"({"quantization_config": {"quant_method": "fp8"}})");
  for (int i = 0; i < 100; ++i)
    config["quantization_config"]["ignore"].push_back(cat("layers.", i));
  EXPECT_PRED2(contains, message_of([&] { read_config(config, {}, "c"); }),
               "quantization_config is that of \"fp8\"; of quantised");
}

}  // namespace
}  // namespace wick
