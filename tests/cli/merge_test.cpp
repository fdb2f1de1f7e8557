// SPDX-License-Identifier: Apache-2.0
// Where merge, unmerge and convert write: what is there is replaced only where that was asked for.
#include <gtest/gtest.h>

#include "base/file.h"
#include "cli/cli.h"

namespace wick::test {
namespace {

namespace fs = std::filesystem;

class Merge : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(model_);
    write_tiny_data(data_);
    ASSERT_EQ(wick({"train", "--model", model_, "--data", data_, "--adapter-path", adapter_,
                    "--epochs", "1"})
                  .code,
              0);
  }
  CliResult merge(const std::string& base, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"merge",  "--model",     base, "--adapter-path",
                                      adapter_, "--save-path", to_};
    words.insert(words.end(), more.begin(), more.end());
    return wick(words);
  }
  static void expect_refused(const CliResult& r, const std::vector<std::string>& parts) {
    EXPECT_EQ(r.code, 1) << r.out;
    for (const std::string& part : parts) EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }
  TempFolder folder_;
  std::string model_ = folder_.path("model"), data_ = folder_.path("data"),
              adapter_ = folder_.path("adapter"), to_ = folder_.path("to");
};

// The same shapes run without an error; the same numbers, wherever they lie and in whichever type,
// without a word.
TEST_F(Merge, AnAdapterKnowsItsBase) {
  auto generate = [&](const std::string& base, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {
        "generate", "--model", base, "--adapter-path", adapter_, "--prompt", "a", "-m", "1"};
    words.insert(words.end(), more.begin(), more.end());
    const CliResult r = wick(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.err.find("was trained on other weights") != std::string::npos;
  };
  const std::string moved = folder_.path("moved"), other = folder_.path("other");
  fs::copy(model_, moved);
  EXPECT_FALSE(generate(moved));
  EXPECT_FALSE(generate(model_, {"--quantize", "4", "--group-size", "64"}));
  for (const auto& [name, how] :
       {std::pair{"bf16", std::vector<std::string>{"--save-dtype", "bf16"}},
        {"q8", {"--quantize", "8"}},
        {"q4", {"--quantize", "4"}}}) {
    std::vector<std::string> words = {"convert", "--model", model_, "--save-path",
                                      folder_.path(name)};
    words.insert(words.end(), how.begin(), how.end());
    ASSERT_EQ(wick(words).code, 0);
    EXPECT_FALSE(generate(folder_.path(name))) << name;
  }
  ASSERT_EQ(wick({"train", "--model", model_, "--data", data_, "--adapter-path", other, "--iters",
                  "1", "--fine-tune-type", "full", "--random-weights", "--seed", "9"})
                .code,
            0);
  EXPECT_TRUE(generate(other));
  EXPECT_FALSE(generate(other, {"--quiet"}));
  EXPECT_NE(merge(other).err.find(adapter_ + " was trained on other weights (" + model_ + ")"),
            std::string::npos);
  const std::vector<std::string> more = {"train",
                                         "--model",
                                         other,
                                         "--data",
                                         data_,
                                         "--iters",
                                         "1",
                                         "--adapter-path",
                                         folder_.path("more"),
                                         "--init-adapter"};
  auto began = [&](const std::string& adapter) {
    std::vector<std::string> words = more;
    words.push_back(adapter);
    const CliResult r = wick(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return (r.out + r.err).find("was trained on other weights") != std::string::npos;
  };
  EXPECT_TRUE(began(adapter_));
  // What was trained on goes with the result.
  fs::rename(folder_.path("more"), folder_.path("first"));
  EXPECT_FALSE(began(folder_.path("first")));
  // The base's name is a file's word, which drives no terminal.
  Json config = parse_json(contents(adapter_ + "/adapter_config.json"), "config");
  config["base_model_name_or_path"] = "\x1b[31mred";
  folder_.write("adapter/adapter_config.json", config.dump());
  std::vector<std::string> words = more;
  words.push_back(adapter_);
  const CliResult r = wick(words);
  EXPECT_NE((r.out + r.err).find("[31mred"), std::string::npos) << r.err;
  EXPECT_EQ((r.out + r.err).find('\x1b'), std::string::npos) << r.err;
}

TEST_F(Merge, AnotherModelIsNotReplacedUnasked) {
  fs::create_directories(to_);
  fs::copy(model_, to_);
  write_file(to_ + "/model.safetensors", "another's weights");
  write_file(to_ + "/chat_template.jinja", "another's template");
  write_file(to_ + "/model-00001-of-00002.safetensors", "a part of another's weights");
  write_file(to_ + "/notes.txt", "mine");
  const std::vector<std::string> unmerge = {"merge",  "--unmerge",   "--model",
                                            "merged", "--save-path", to_};
  const std::vector<std::string> convert = {"convert", "--model",      model_, "--save-path",
                                            to_,       "--save-dtype", "f32"};
  for (const CliResult& r : {merge(model_), wick(unmerge), wick(convert)})
    expect_refused(r, {"--save-path " + to_, "a model (config.json)", "--overwrite"});
  EXPECT_TRUE(contents(to_ + "/model.safetensors") == "another's weights");

  const CliResult r = merge(model_, {"--overwrite"});
  ASSERT_EQ(r.code, 0) << r.err;
  // What the tiny model has not would be taken for the merged one's.
  EXPECT_FALSE(fs::exists(to_ + "/chat_template.jinja"));
  EXPECT_FALSE(fs::exists(to_ + "/model-00001-of-00002.safetensors"));
  EXPECT_EQ(contents(to_ + "/notes.txt"), "mine");
  EXPECT_EQ(wick({"generate", "--model", to_, "--prompt", "a", "-m", "1"}).code, 0);
}

TEST_F(Merge, AnAdapterOrAFileIsNotReplacedUnasked) {
  fs::create_directories(to_);
  write_file(to_ + "/adapter_config.json", "{}");
  expect_refused(merge(model_), {"an adapter (adapter_config.json)", "--overwrite"});
  fs::remove(to_ + "/adapter_config.json");
  write_file(to_ + "/LICENSE", "mine");
  expect_refused(merge(model_), {"LICENSE already", "--overwrite"});
  ASSERT_EQ(merge(model_, {"--overwrite"}).code, 0);
  EXPECT_EQ(contents(to_ + "/LICENSE"), "mine");
}

// As a run takes the place of the one before it.
TEST_F(Merge, AMergeIntoTheSameBaseIsReplaced) {
  ASSERT_EQ(merge(model_, {"--reversible"}).code, 0);
  const CliResult again = merge(model_);
  ASSERT_EQ(again.code, 0) << again.err;
  // The differences to the base were those of the merge before.
  EXPECT_FALSE(fs::exists(to_ + "/wick_unmerge.safetensors"));
  const std::string back = folder_.path("back");
  EXPECT_EQ(wick({"merge", "--unmerge", "--model", to_, "--save-path", back}).code, 0);
  const std::string other = folder_.path("other");
  fs::copy(model_, other);
  expect_refused(merge(other), {"a model (config.json)", "--overwrite"});
}

TEST_F(Merge, OneTableForTwoSaysWhatToDo) {
  ASSERT_EQ(wick({"train", "--model", model_, "--data", data_, "--adapter-path", adapter_,
                  "--epochs", "1", "--targets", "q_proj,lm_head"})
                .code,
            0);
  expect_refused(merge(model_), {adapter_ + ": changes lm_head alone", "tie_word_embeddings",
                                 "--adapter-path", "--modules-to-save"});
  EXPECT_FALSE(fs::exists(to_));
}

TEST_F(Merge, UnmergeTakesNoType) {
  const CliResult r = wick({"merge", "--unmerge", "--model", to_, "--save-path",
                            folder_.path("back"), "--save-dtype", "f32"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--unmerge takes"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace wick::test
