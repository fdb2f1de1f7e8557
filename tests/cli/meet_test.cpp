// SPDX-License-Identifier: Apache-2.0
// Settings that meet: sweeps, adapters to start from, held-out rows, files that others wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/file.h"
#include "cli/cli.h"

namespace wick::test {
namespace {

class Meet : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(folder_.path("model"));
    write_tiny_data(folder_.path("data"));
  }
  CliResult train(const std::string& into, std::vector<std::string> more,
                  const std::string& data = "data") const {
    std::vector<std::string> all = {"train",
                                    "--model",
                                    folder_.path("model"),
                                    "--data",
                                    folder_.path(data),
                                    "--adapter-path",
                                    folder_.path(into),
                                    "--json",
                                    "--date",
                                    "2026-01-02",
                                    "--iters",
                                    "2"};
    all.insert(all.end(), more.begin(), more.end());
    return wick(all);
  }
  TempFolder folder_;
};

// Whoever sits in the folder of the data may well write --metrics train.jsonl.
TEST_F(Meet, MetricsReplaceNoFileOfOthers) {
  const std::string rows = folder_.path("data/train.jsonl"), before = contents(rows);
  for (const bool resumed : {false, true}) {
    const CliResult r =
        train("out", resumed ? std::vector<std::string>{"--metrics", rows, "--resume"}
                             : std::vector<std::string>{"--metrics", rows});
    EXPECT_EQ(r.code, 1);
    EXPECT_NE(r.err.find("train.jsonl"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("--metrics"), std::string::npos) << r.err;
    EXPECT_EQ(contents(rows), before);
    if (!resumed) {
      EXPECT_FALSE(std::filesystem::exists(folder_.path("out")));
      ASSERT_EQ(train("out", {}).code, 0);
    }
  }
  const CliResult folder = train("out", {"--metrics", folder_.path("data")});
  EXPECT_EQ(folder.code, 1) << folder.err;
  EXPECT_NE(folder.err.find("is a folder; name a file"), std::string::npos) << folder.err;
  // What a run has written another one replaces, and an empty file is nobody's.
  const std::string metrics = folder_.write("run.jsonl", "");
  auto lines = [&] {
    EXPECT_EQ(train("out", {"--metrics", metrics}).code, 0);
    const std::string text = contents(metrics);
    return std::count(text.begin(), text.end(), '\n');
  };
  const auto first = lines();
  EXPECT_GT(first, 0);
  EXPECT_EQ(lines(), first);
}

// An adapter to start from has its own rank; a folder called rank=8 must not hold another.
TEST_F(Meet, AnAdapterToStartFromIsNotContradictedByDefaults) {
  ASSERT_EQ(train("first", {"--rank", "2", "--alpha", "32", "--lora-dropout", "0.1", "--targets",
                            "q_proj", "--num-layers", "1"})
                .code,
            0);
  const std::pair<std::vector<std::string>, const char*> kWrong[] = {
      {{"--rank", "8"}, "rank 2"},
      {{"--alpha", "16"}, "alpha 32"},
      {{"--scale", "2"}, "alpha 32"},
      {{"--lora-dropout", "0"}, "dropout 0.1"},
      {{"--targets", "all-linear"}, "others"},
      {{"--num-layers", "-1", "--targets", "q_proj"}, "others"},
      {{"--sweep", "rank=2,8"}, "rank 2"},
      {{"--sweep", "alpha=16,32"}, "alpha 32"},
      {{"--sweep", "dropout=0,0.1"}, "dropout 0.1"},
      {{"--sweep", "targets=q_proj,all-linear", "--num-layers", "1"}, "others"}};
  for (auto [words, what] : kWrong) {
    words.insert(words.end(), {"--init-adapter", folder_.path("first")});
    const CliResult r = train("out", words);
    EXPECT_EQ(r.code, 1) << words[0] << " " << words[1];
    EXPECT_NE(r.err.find(what), std::string::npos) << r.err;
    EXPECT_FALSE(std::filesystem::exists(folder_.path("out"))) << words[0] << " " << words[1];
  }
  EXPECT_EQ(train("out", {"--init-adapter", folder_.path("first"), "--rank", "2", "--scale", "16",
                          "--sweep", "lr=1e-4,1e-3"})
                .code,
            0);
}

// Numbers in a settings file stand there as YAML and PEFT write them.
TEST_F(Meet, SettingsOfPeftWithNumbers) {
  auto config = [&](const std::string& settings) {
    const CliResult r =
        train("out", {"--config", folder_.write("c.yaml", settings), "--dtype", "f32"});
    EXPECT_EQ(r.code, 0) << settings << r.err;
    return read_json(folder_.path("out/adapter_config.json"));
  };
  Json c = config("layers_to_transform: [1]\ntrainable_token_indices: [5, 6]\n");
  EXPECT_EQ(c["layers_to_transform"], Json({1}));
  EXPECT_EQ(c["trainable_token_indices"], Json({5, 6}));
  c = config("layers_to_transform: 0\ntrainable_token_indices: {embed_tokens: [7]}\n");
  EXPECT_EQ(c["layers_to_transform"], Json({0}));
  EXPECT_EQ(c["trainable_token_indices"], Json({7}));
  c = config("trainable_token_indices: {model.embed_tokens: [8]}\n");
  EXPECT_EQ(c["trainable_token_indices"], Json({8}));
  c = config("init_lora_weights: true\nlayers_to_transform: \"0,1\"\n");
  EXPECT_EQ(c["init_lora_weights"], true);
  for (const char* wrong : {"layers_to_transform: [0.5]\n", "layers_to_transform: [-1]\n",
                            "trainable_token_indices: {lm_head: [5]}\n"})
    EXPECT_EQ(train("out", {"--config", folder_.write("c.yaml", wrong)}).code, 2) << wrong;
}

// The default of --steps-per-eval is beyond the end of many runs.
TEST_F(Meet, StoppingEarlyThatCannotHappenIsMentioned) {
  auto said = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"--iters", "6", "--early-stop", "2"});
    const CliResult r = train("out", words);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.err.find("--early-stop 2 never stops this run") != std::string::npos;
  };
  EXPECT_TRUE(said({}));
  EXPECT_TRUE(said({"--steps-per-eval", "0"}));
  EXPECT_TRUE(said({"--steps-per-eval", "3"}));
  EXPECT_FALSE(said({"--steps-per-eval", "2"}));
}

// Tokens were added to the tokenizer, and the model's embedding was left as it is.
TEST_F(Meet, TokensThatTheModelHasNoRowForAreNamed) {
  const std::string file = folder_.path("model/tokenizer.json"),
                    settings = folder_.path("model/tokenizer_config.json");
  Json tokenizer = read_json(file), config = read_json(settings);
  for (const char* content : {"<|stop|>", "<|pad|>"}) {
    Json token = tokenizer["added_tokens"].back();
    token["content"] = content;
    token["id"] = 4000 + tokenizer["added_tokens"].size();
    tokenizer["added_tokens"].push_back(token);
  }
  folder_.write("model/tokenizer.json", dump_json(tokenizer));
  EXPECT_EQ(train("out", {}).err.find("no row for"), std::string::npos);
  config["chat_template"] =
      "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|stop|>{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}";
  folder_.write("model/tokenizer_config.json", dump_json(config));
  const CliResult r = train("out", {});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("<|stop|>, a token of the tokenizer that the model has no row for"),
            std::string::npos)
      << r.err;
  EXPECT_EQ(r.err.find("<|pad|>"), std::string::npos) << r.err;
}

// Advice that would train the model on the numbers of the right answers.
TEST_F(Meet, QuestionsWithChoicesAreForEval) {
  folder_.write("questions/train.jsonl",
                "{\"question\": \"2 + 2?\", \"choices\": [\"3\", \"4\"], \"answer\": 1}\n");
  const CliResult r = train("out", {}, "questions");
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("wick eval"), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find("--completion-feature"), std::string::npos) << r.err;
}

// A loss of other held-out rows is no measure: what a forced run keeps is the best of its own rows.
TEST(Kept, AForcedRunLooksForTheBestAnew) {
  const TempFolder folder;
  const std::string model = folder.path("model"), data = folder.path("data"),
                    out = folder.path("out"), other = folder.path("other");
  write_tiny_model(model);
  write_tiny_data(data);
  auto train = [&](const std::string& from, std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--model", model, "--data", from, "--adapter-path", out,
                               "--json", "--date", "2026-01-02", "--learning-rate", "0.02"});
    const CliResult r = wick(more);
    EXPECT_EQ(r.code, 0) << r.err;
    return r;
  };
  // Held out: what is trained on at first, and then what nothing has prepared for.
  std::filesystem::copy_file(data + "/train.jsonl", data + "/valid.jsonl",
                             std::filesystem::copy_options::overwrite_existing);
  folder.write("other/train.jsonl", contents(data + "/train.jsonl"));
  folder.write("other/valid.jsonl",
               "{\"prompt\": \"zzz?\", \"completion\": \"0123456789 QQQQ\"}\n");
  const Json first = train(data, {"--epochs", "8", "--keep-best"}).event("done");
  const CliResult r = train(other, {"--epochs", "9", "--keep-best", "--resume", "--force"});
  const Json done = r.event("done");
  EXPECT_NE(r.err.find("is looked for anew"), std::string::npos) << r.err;
  EXPECT_GT(done["best_valid_loss"], first["best_valid_loss"]);
  EXPECT_GE(done["best_step"], first["steps"]);
  EXPECT_EQ(done["kept_step"], done["best_step"]);
  // One that kept none before: the best since then.
  std::filesystem::remove_all(out);
  train(data, {"--epochs", "8"});
  const CliResult since = train(data, {"--epochs", "9", "--keep-best", "--resume", "--force"});
  EXPECT_NE(since.err.find("is looked for anew"), std::string::npos) << since.err;
  EXPECT_TRUE(std::filesystem::exists(out + "/best/adapter_model.safetensors"));
}

// Rows that are kept on disk are of the numbers that the model has, whatever its file's age.
TEST(Kept, RowsAreNotThoseOfAnotherModelInTheSamePlace) {
  namespace fs = std::filesystem;
  const TempFolder folder;
  const std::string model = folder.path("model"), data = folder.path("data");
  write_tiny_model(model);
  write_tiny_data(data);
  auto train = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--data", data, "--quiet", "--date", "2026-01-02"});
    const CliResult r = wick(more);
    ASSERT_EQ(r.code, 0) << r.err;
  };
  for (const char* seed : {"1", "2"})
    train({"--model", model, "--adapter-path", folder.path(seed), "--fine-tune-type", "full",
           "--random-weights", "--seed", seed, "--iters", "1"});
  const fs::path weights = folder.path("1") + "/model.safetensors",
                 others = folder.path("2") + "/model.safetensors";
  auto tuned = [&](const std::string& cache) {
    const std::string out = folder.path("out");
    fs::remove_all(out);
    train({"--model", folder.path("1"), "--adapter-path", out, "--num-layers", "1", "--epochs", "2",
           "--learning-rate", "0.02", "--prefix-cache", cache});
    // Without what the file says of its base.
    return contents(out + "/adapter_model.safetensors").substr(4096);
  };
  const std::string first = tuned(folder.path("kept"));
  const auto time = fs::last_write_time(weights);
  ASSERT_EQ(fs::file_size(weights), fs::file_size(others));
  fs::copy_file(others, weights, fs::copy_options::overwrite_existing);
  fs::last_write_time(weights, time);
  const std::string fresh = tuned("off");
  EXPECT_FALSE(fresh == first);
  EXPECT_TRUE(tuned(folder.path("kept")) == fresh);
}

}  // namespace
}  // namespace wick::test
