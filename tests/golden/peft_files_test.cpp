// SPDX-License-Identifier: Apache-2.0
// What PEFT's files and options name: modules, patterns, blocks, kinds that are refused.
#include <gtest/gtest.h>

#include <filesystem>

#include "adapter/select.h"
#include "golden/golden_case.h"
#include "unit/io/temporary_folder.h"

namespace wick::golden {
namespace {

TEST(Patterns, AreReadAsPeftReadsThem) {
  const std::string module = "model.layers.11.mlp.up_proj";
  EXPECT_TRUE(target_matches("up_proj", module, ""));
  EXPECT_TRUE(target_matches("mlp.up_proj", module, ""));
  EXPECT_FALSE(target_matches("p_proj", module, ""));
  EXPECT_TRUE(target_matches(R"(.*\.(up|down)_proj)", module, ""));
  EXPECT_FALSE(target_matches(R"((up|down)_proj)", module, ""));
  const std::vector<std::pair<std::string, int64_t>> ranks = {
      {R"(layers\.1\..*)", 1}, {R"(layers\.\d+\.mlp\..*)", 2}, {"up_proj", 3}};
  EXPECT_EQ(by_pattern<int64_t>(ranks, module, 8, ""), 2);
  EXPECT_EQ(by_pattern<int64_t>(ranks, "model.layers.1.mlp.up_proj", 8, ""), 1);
  EXPECT_EQ(by_pattern<int64_t>(ranks, "model.layers.1x.up_proj", 8, ""), 3);
  EXPECT_EQ(by_pattern<int64_t>(ranks, "q_proj", 8, ""), 8);
}

// The file names the blocks that are adapted, the first of the model too: PEFT would adapt them
// all, and look for the others' biases where it keeps those of adapted linears.
TEST(Saved, NamesTheAdaptedBlocks) {
  const Case c("qwen2_window");
  auto layers = [&](std::vector<int64_t> blocks) {
    LoraOptions options;
    options.layers_to_transform = std::move(blocks);
    return Adapter::create(options, adaptable_linears(c.config)).peft_config("base");
  };
  ASSERT_EQ(c.config.layers, 3);
  EXPECT_EQ(layers({0})["layers_to_transform"], Json::array({0}));
  EXPECT_EQ(layers({0, 1})["layers_to_transform"], Json::array({0, 1}));
  EXPECT_EQ(layers({1, 2})["layers_to_transform"], Json::array({1, 2}));
  EXPECT_TRUE(layers({0, 1, 2})["layers_to_transform"].is_null());
}

// PEFT takes every module whose name ends so, within a word too.
TEST(Selected, WholeModulesByTheEndsOfNames) {
  const Case c("qwen3_tied");
  auto wholes = [&](const std::string& name) {
    LoraOptions options;
    options.modules_to_save = {name};
    return Adapter::create(options, adaptable_linears(c.config)).wholes().size();
  };
  ASSERT_EQ(c.config.layers, 2);
  EXPECT_EQ(wholes("norm"), 9u);  // two of a block, those of q and k, and the last
  EXPECT_EQ(wholes("layernorm"), 4u);
  EXPECT_EQ(wholes("model.norm"), 1u);
  EXPECT_EQ(wholes("head"), 1u);
}

// What is named in full is adapted beside the blocks, as in PEFT; an end of its name may mean it
// or not.
TEST(Selected, ModulesBesideTheBlocks) {
  const Case c("qwen2_window");
  auto create = [&](std::vector<std::string> targets) {
    LoraOptions options;
    options.targets = std::move(targets);
    options.layers_to_transform = {1};
    return Adapter::create(options, adaptable_linears(c.config));
  };
  const Adapter some =
      create({"v_proj", "lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj"});
  ASSERT_EQ(some.modules().size(), 4u);
  for (const char* module : {"lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj",
                             "model.layers.1.self_attn.v_proj"})
    EXPECT_TRUE(some.find(module)) << module;
  EXPECT_EQ(create({"all-linear"}).modules().size(), 7u);
  try {
    create({"q_proj", "embed_tokens"});
    ADD_FAILURE() << "was taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("name model.embed_tokens in full"), std::string::npos)
        << e.what();
  }
}

// PEFT has adapters that wick does not run; it says so, and which file it is.
TEST(Refused, KindsThatDoNotGoTogether) {
  const Case c = Case::kind("dora");
  TemporaryFolder folder("refused");
  std::filesystem::copy(c.folder + "/adapter", folder.path());
  Json config = read_json(folder.path() / "adapter_config.json");
  config["init_lora_weights"] = "pissa";
  write_file(folder.path() / "adapter_config.json", dump_json(config));
  std::vector<float> params;
  try {
    Adapter::load(folder.path(), adaptable_linears(c.config), params);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind((folder.path() / "adapter_config.json").string(), 0), 0u) << message;
    EXPECT_NE(message.find("use_dora with init_lora_weights pissa"), std::string::npos) << message;
  }
}

// A kind that this version of wick has never heard of is not taken for plain LoRA.
TEST(Refused, KindsOfALaterPeft) {
  const Case c = Case::kind("patterns");
  TemporaryFolder folder("refused_later");
  std::filesystem::copy(c.folder + "/adapter", folder.path());
  const Json config = read_json(folder.path() / "adapter_config.json");
  auto refusal = [&](const char* changes) -> std::string {
    Json changed = config;
    changed.update(parse_json(changes, "changes"));
    write_file(folder.path() / "adapter_config.json", dump_json(changed));
    std::vector<float> params;
    try {
      Adapter::load(folder.path(), adaptable_linears(c.config), params);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(R"({"use_later": false, "later_config": null, "eva_config": {"rho": 2.0},
                        "loftq_config": {"loftq_bits": 4}, "a_note": true})"),
            "");
  for (const char* changes :
       {R"({"use_later": true})", R"({"later_config": {"x": 1}})", R"({"lora_bias": true})",
        R"({"layer_replication": [[0, 2]]})", R"({"target_parameters": ["q_proj.weight"]})"}) {
    const std::string message = refusal(changes);
    EXPECT_NE(message.find("wick does not run such adapters"), std::string::npos)
        << changes << message;
  }
}

// What the config targets and the file lacks stays the base's own, as in PEFT; it is told apart
// from what the config leaves out.
TEST(Loaded, WhatTheFileLacksIsKnown) {
  for (const std::string& name : kind_names())
    EXPECT_TRUE(Case::kind(name).adapter.absent().empty()) << name;
  const Case c = Case::kind("lora_plus");  // o, q and gate of blocks 0 and 2
  TemporaryFolder folder("absent");
  std::filesystem::copy(c.folder + "/adapter", folder.path());
  const Json config = read_json(folder.path() / "adapter_config.json");
  auto absent = [&](const char* changes) {
    Json changed = config;
    changed.update(parse_json(changes, "changes"));
    write_file(folder.path() / "adapter_config.json", dump_json(changed));
    std::vector<float> params;
    return Adapter::load(folder.path(), adaptable_linears(c.config), params).absent();
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(absent("{}"), Names());
  EXPECT_EQ(absent(R"({"layers_to_transform": null, "target_modules": ["q_proj"]})"),
            Names{"model.layers.1.self_attn.q_proj"});
  EXPECT_EQ(absent(R"({"layers_to_transform": 1, "target_modules": ["mlp.gate_proj"]})"),
            Names{"model.layers.1.mlp.gate_proj"});
  EXPECT_EQ(absent(R"({"target_modules": "all-linear"})").size(), 8u);
  EXPECT_EQ(absent(R"({"target_modules": "all-linear",
                       "exclude_modules": ["k_proj", "v_proj", "up_proj"]})"),
            (Names{"model.layers.0.mlp.down_proj", "model.layers.2.mlp.down_proj"}));
  EXPECT_EQ(absent(R"({"layers_to_transform": null, "target_modules": ".*proj"})"), Names());
}

}  // namespace
}  // namespace wick::golden
