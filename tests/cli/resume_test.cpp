// SPDX-License-Identifier: Apache-2.0
// Resuming a run with changes: what is another is named, and what is the same is taken as that.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/file.h"
#include "cli/cli.h"

namespace wick::test {
namespace {

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(folder_.path("model"));
    write_tiny_data(folder_.path("data"));
  }
  CliResult train(std::vector<std::string> more) const {
    if (std::find(more.begin(), more.end(), "--data") == more.end())
      more.insert(more.begin(), {"--data", folder_.path("data")});
    more.insert(more.begin(), {"train", "--model", folder_.path("model"), "--adapter-path",
                               folder_.path("out"), "--json", "--date", "2026-01-02"});
    return wick(more);
  }
  TempFolder folder_;
};

TEST_F(Resume, WithChangesSaysThemAll) {
  ASSERT_EQ(train({"--epochs", "2"}).code, 0);
  const CliResult r =
      train({"--epochs", "4", "--learning-rate", "3e-4", "--optimizer", "lion", "--resume"});
  EXPECT_EQ(r.code, 1);
  for (const char* word : {"updates: was", "learning_rate: was 0.0001, is now 0.0003",
                           "optimizer: was \"adamw\", is now \"lion\"", "--force"})
    EXPECT_NE(r.err.find(word), std::string::npos) << word << "\n" << r.err;
  const CliResult forced = train(
      {"--epochs", "4", "--learning-rate", "3e-4", "--optimizer", "lion", "--resume", "--force"});
  ASSERT_EQ(forced.code, 0) << forced.err;
  EXPECT_NE(forced.err.find("learning_rate: was 0.0001"), std::string::npos) << forced.err;
  // Both call a state m, which is not the same.
  EXPECT_NE(forced.err.find("the checkpoint has no m of lion; it starts from zero"),
            std::string::npos)
      << forced.err;
  EXPECT_EQ(forced.event("done")["steps"], 12);
}

// The flat parameters of a checkpoint fit whatever has as many: one module's would be another's.
TEST_F(Resume, ForceGivesNoNumbersToOthersOfTheSameSize) {
  using Words = std::vector<std::string>;
  const std::pair<Words, Words> cases[] = {
      {{"--targets", "k_proj"}, {"--targets", "v_proj"}},
      {{"--targets", "q_proj", "--layers-to-transform", "0"},
       {"--targets", "q_proj", "--layers-to-transform", "1"}},
      {{"--dtype", "f32", "--trainable-token-indices", "70,71"},
       {"--dtype", "f32", "--trainable-token-indices", "70,72"}},
      {{"--init", "pissa"}, {"--init", "default"}}};
  for (const auto& [before, after] : cases) {
    const CliResult first = train(before);
    ASSERT_EQ(first.code, 0) << first.err;
    Words all = {"--resume", "--force"};
    all.insert(all.end(), after.begin(), after.end());
    const CliResult r = train(all);
    EXPECT_EQ(r.code, 1) << after.back();
    EXPECT_NE(r.err.find("--force cannot change that"), std::string::npos) << r.err;
  }
  // The same modules by another name are the same.
  ASSERT_EQ(train({"--targets", "k_proj"}).code, 0);
  const CliResult r =
      train({"--targets", "self_attn.k_proj", "--epochs", "2", "--resume", "--force"});
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST_F(Resume, WithOtherRecomputeNamesTheFlag) {
  ASSERT_EQ(train({"--epochs", "2"}).code, 0);
  const CliResult r = train({"--epochs", "2", "--resume", "--grad-checkpoint"});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("or with another --memory or --grad-checkpoint"), std::string::npos)
      << r.err;
}

// What was left at its default is named when it is no more: not as another build's doing.
TEST_F(Resume, WithAnotherKindSaysSo) {
  ASSERT_EQ(train({"--epochs", "2"}).code, 0);
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--rslora"}, "rslora: was false, is now true"},
      {{"--dora"}, "dora: was false, is now true"},
      {{"--lora-plus-ratio", "4"}, "lora_plus_ratio: was 1.0, is now 4.0"},
      {{"--skip-below", "0.001"}, "skip_below: was 0.0, is now 0.001"},
      {{"--rank-pattern", "q_proj=4"}, "rank_pattern: was {}, is now {\"q_proj\":4}"},
      {{"--quantize", "8"}, "weights_type: was \"f32\""},
      {{"--keep-best"}, "keep_best: was false, is now true"}};
  for (const auto& [words, said] : cases) {
    std::vector<std::string> all = {"--epochs", "2", "--resume"};
    all.insert(all.end(), words.begin(), words.end());
    const CliResult r = train(all);
    EXPECT_EQ(r.code, 1) << said;
    EXPECT_NE(r.err.find(said), std::string::npos) << said << "\n" << r.err;
    EXPECT_EQ(r.err.find("build of wick"), std::string::npos) << r.err;
  }
}

// Weights that were replaced in the same folder would silently end in other bits.
TEST_F(Resume, OnOtherWeightsIsAChange) {
  ASSERT_EQ(train({"--epochs", "2"}).code, 0);
  const std::string file = folder_.path("model/model.safetensors");
  std::string bytes = read_file(file);
  for (size_t at = bytes.size() / 2; at < bytes.size(); at += 4) bytes[at] ^= 1;
  write_file(file, bytes);
  const CliResult r = train({"--epochs", "2", "--resume"});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("weights: was"), std::string::npos) << r.err;
}

// The reference of DPO is the state before the first update, which is computed again.
TEST_F(Resume, KeepsTheStartOfItsReference) {
  const std::string pairs =
      folder_.write("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
  auto run = [&](const std::string& out, std::vector<std::string> more,
                 const OnOutput& on_output = {}) {
    std::vector<std::string> words = {"train",
                                      "--model",
                                      folder_.path("model"),
                                      "--data",
                                      pairs,
                                      "--loss",
                                      "dpo",
                                      "--date",
                                      "2026-01-02",
                                      "--json",
                                      "--adapter-path",
                                      folder_.path(out),
                                      "--steps-per-report",
                                      "1"};
    words.insert(words.end(), more.begin(), more.end());
    return wick(words, {}, on_output);
  };
  for (const char* seed : {"1", "2"})
    ASSERT_EQ(run(cat("start", seed), {"--epochs", "20", "--rank", "4", "--seed", seed}).code, 0);
  const std::vector<std::string> from = {"--epochs", "400", "--init-adapter",
                                         folder_.path("start1")};
  ASSERT_EQ(run("whole", from).code, 0);
  bool sent = false;
  const CliResult cut = run("cut", from, [&](const std::string& out, int pid) {
    if (!sent && out.find("\"step\"") != std::string::npos) sent = kill(pid, SIGINT) == 0;
  });
  ASSERT_EQ(cut.code, 130) << cut.err;
  std::vector<std::string> again = from;
  again.push_back("--resume");
  std::vector<std::string> other = again;
  other[3] = folder_.path("start2");
  const CliResult refused = run("cut", other);
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("init_adapter: was"), std::string::npos) << refused.err;
  const CliResult resumed = run("cut", again);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(contents(folder_.path("cut/adapter_model.safetensors")),
            contents(folder_.path("whole/adapter_model.safetensors")));
}

// Numbers behind a path, and not the path, are what a resumed run needs.
TEST_F(Resume, KnowsTeachersAndReferencesByTheirNumbers) {
  folder_.write("pairs/train.jsonl",
                "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
  for (const char* seed : {"1", "2"}) {
    ASSERT_EQ(train({"--epochs", "1", "--learning-rate", "1e-2", "--seed", seed}).code, 0);
    std::filesystem::rename(folder_.path("out"), folder_.path(cat("adapter", seed)));
  }
  const std::string model = folder_.path("model"), asked = folder_.path("asked"),
                    moved = folder_.path("moved");
  auto put = [&](const std::string& from, const std::string& to) {
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to);
  };
  using Words = std::vector<std::string>;
  struct Case {
    Words words;
    std::string changed;
  };
  for (const Case& c :
       {Case{{"--loss", "dpo", "--reference", asked, "--data", folder_.path("pairs")},
             "reference_weights: was"},
        Case{{"--loss", "distill", "--teacher", model, "--teacher-adapter", asked},
             "teacher_adapter_weights: was"},
        Case{{"--loss", "distill", "--teacher", asked}, "teacher_weights: was"}}) {
    const bool whole = c.changed == "teacher_weights: was";
    put(whole ? model : folder_.path("adapter1"), asked);
    const CliResult first = train(c.words);
    ASSERT_EQ(first.code, 0) << first.err;
    put(asked, moved);
    Words again = c.words;
    std::replace(again.begin(), again.end(), asked, moved);
    again.push_back("--resume");
    const CliResult same = train(again);
    EXPECT_EQ(same.code, 0) << same.err;

    if (whole) {
      const std::string file = asked + "/model.safetensors";
      std::string bytes = contents(file);
      for (size_t at = bytes.size() / 2; at < bytes.size(); at += 4) bytes[at] ^= 1;
      folder_.write("asked/model.safetensors", bytes);
    } else {
      put(folder_.path("adapter2"), asked);
    }
    again = c.words;
    again.push_back("--resume");
    const CliResult other = train(again);
    EXPECT_EQ(other.code, 1) << c.changed;
    EXPECT_NE(other.err.find(c.changed), std::string::npos) << other.err;
    std::filesystem::remove_all(folder_.path("out"));
  }
}

// What it brings is a part of the run: without it the same numbers would get another factor.
TEST_F(Resume, WithoutTheAdapterToStartFromSaysWhatItBrought) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--alpha", "64"}, "alpha: was 64.0, is now 16.0"},
      {{"--rslora"}, "rslora: was true, is now false"},
      {{"--lora-dropout", "0.5"}, "dropout: was 0.5, is now 0.0"},
      {{"--alpha-pattern", "q_proj=64"}, "alpha_pattern: was {\"q_proj\":64.0}, is now {}"}};
  for (const auto& [words, said] : cases) {
    std::filesystem::remove_all(folder_.path("first"));
    ASSERT_EQ(train(words).code, 0) << said;
    std::filesystem::rename(folder_.path("out"), folder_.path("first"));
    const std::vector<std::string> from = {"--init-adapter", folder_.path("first")};
    ASSERT_EQ(train(from).code, 0) << said;
    const CliResult without = train({"--resume"});
    EXPECT_EQ(without.code, 1) << said;
    EXPECT_NE(without.err.find(said), std::string::npos) << said << "\n" << without.err;
    const CliResult with = train({"--resume", from[0], from[1]});
    EXPECT_EQ(with.code, 0) << with.err;
    std::filesystem::remove_all(folder_.path("out"));
  }
}

// At the first update they all make the same constants.
TEST_F(Resume, WithOtherSettingsOfAdafactorSaysSo) {
  const std::string file = folder_.path("settings.yaml");
  auto run = [&](const std::string& settings, std::vector<std::string> more) {
    write_file(file,
               "optimizer: adafactor\nepochs: 2\noptimizer_config:\n  adafactor:\n" + settings);
    more.insert(more.end(), {"--config", file});
    return train(more);
  };
  ASSERT_EQ(run("    decay_rate: -0.8\n", {}).code, 0);
  const std::pair<std::string, const char*> cases[] = {
      {"    decay_rate: -0.5\n", "decay_rate: was -0.8, is now -0.5"},
      {"    relative_step: true\n", "relative_step: was false, is now true"},
      {"    relative_step: true\n    warmup_init: true\n",
       "adafactor_warmup_init: was false, is now true"}};
  for (const auto& [settings, said] : cases) {
    const CliResult r = run(settings, {"--resume"});
    EXPECT_EQ(r.code, 1) << said;
    EXPECT_NE(r.err.find(said), std::string::npos) << said << "\n" << r.err;
  }
}

}  // namespace
}  // namespace wick::test
