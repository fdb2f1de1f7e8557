// SPDX-License-Identifier: Apache-2.0
// What the model inside the binary says, on every device and instruction set of this machine.
// Retraining it (tools/demo/build.sh) may change the answers; they must then be looked at.
#include <gtest/gtest.h>

#include "cli/cli.h"

namespace wick::test {
namespace {

const char* const kPrompts =
    "{\"prompt\": \"Hello!\"}\n{\"prompt\": \"Who are you?\"}\n"
    "{\"prompt\": \"What comes after Monday?\"}\n"
    "{\"prompt\": \"Which is smaller, a whale or a mouse?\"}\n";
const char* const kAnswers =
    "Hello! How can I help you?\n\nI am a small language model. I live inside wick.\n\n"
    "After Monday comes Tuesday.\n\nA mouse is smaller.\n";

TEST(Embedded, SaysTheSameEverywhere) {
  TempFolder folder;
  std::string prompts = folder.write("prompts.jsonl", kPrompts);
  auto answers = [&](const std::string& flag, const std::string& value) {
    CliResult r = wick({"generate", "--prompts", prompts, "-q", "-m", "24", flag, value});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.out;
  };
  for (const Json& device : wick({"devices", "--json"}).lines()) {
    if (!device["available"].get<bool>()) continue;
    EXPECT_EQ(answers("--device", device["name"]), kAnswers) << device["name"];
    const char* flag = device["name"] == "cuda" ? "--cuda-arch" : "--cpu-isa";
    for (const Json& isa : device["isas"]) EXPECT_EQ(answers(flag, isa), kAnswers) << isa;
  }
}

TEST(Embedded, HasAName) {
  const CliResult r = wick({"generate", "--model", "wick-embedded", "-q", "--prompt", "Hello!"});
  EXPECT_EQ(r.out, "Hello! How can I help you?\n") << r.err;
  EXPECT_EQ(wick({"tokenize", "--model", "wick-embedded"}, "Hello!").out,
            wick({"tokenize"}, "Hello!").out);
  TempFolder folder;
  write_tiny_data(folder.path("data"));
  // As its own teacher it has nothing to learn.
  const CliResult taught =
      wick({"train", "--model", "wick-embedded", "--data", folder.path("data"), "--loss", "distill",
            "--teacher", "wick-embedded", "--distill-alpha", "1", "--iters", "1", "--json",
            "--dtype", "f32", "--adapter-path", folder.path("out")});
  ASSERT_EQ(taught.code, 0) << taught.err;
  EXPECT_NEAR(taught.event("step")["loss"].get<double>(), 0, 1e-5);
  EXPECT_EQ(parse_json(contents(folder.path("out/adapter_config.json")),
                       "adapter")["base_model_name_or_path"],
            "wick-embedded");
}

TEST(Embedded, ChatRemembersTheConversation) {
  CliResult r = wick({"chat", "-q"}, "Hello!\nWho are you?\n");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out,
            "Hello! How can I help you?\nI am a small language model. I live inside wick.\n");
  CliResult tokens = wick({"tokenize"}, "Who are you?");
  EXPECT_EQ(wick({"tokenize", "--decode"}, tokens.out).out, "Who are you?");
}

}  // namespace
}  // namespace wick::test
