// SPDX-License-Identifier: Apache-2.0
// Files of data sets: which are read, in which encodings, how often, and what is written.
#include <gtest/gtest.h>

#include "cli/data_rows.h"

namespace wick::test {
namespace {

class DataFiles : public testing::Test {
 protected:
  void SetUp() override { write_tiny_model(model_); }
  TempFolder folder_;
  std::string model_ = folder_.path("model");
};

// Other programs have other names for their splits; rows that nobody looks at are missed later.
TEST_F(DataFiles, FilesOfNoSplitAreNamed) {
  const std::string rows = chat("a", "b") + "\n";
  for (const char* name : {"train.jsonl", "dev.jsonl", "test.csv", "eval.jsonl", "notes.jsonl",
                           "train-00001-of-00002.jsonl", "Valid.jsonl", "test_readme.md"})
    folder_.write(std::string("data/") + name,
                  std::string(name).ends_with(".csv") ? "text\nx\n" : rows);
  const std::string data = folder_.path("data");
  const std::vector<std::string> unread = {"Valid.jsonl", "eval.jsonl",
                                           "train-00001-of-00002.jsonl"};
  auto times = [](const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
      ++count;
    return count;
  };
  auto expect_named = [&](const CliResult& r) {
    ASSERT_EQ(r.code, 0) << r.err;
    for (const std::string& name : unread)
      EXPECT_EQ(times(r.out + r.err, name + " is not read"), 1) << name << r.out << r.err;
    EXPECT_EQ(times(r.out + r.err, " is not read"), 3) << r.out << r.err;
  };
  expect_named(wick({"train", "--model", model_, "--data", data, "--iters", "1", "--adapter-path",
                     folder_.path("out")}));
  expect_named(wick({"eval", "--model", model_, "--data", data, "--split", "valid"}));
  expect_named(wick({"data", "--model", model_, "--data", data, "--json"}));
  // A file is itself, whatever lies beside it.
  const CliResult file = wick({"eval", "--model", model_, "--data", data + "/eval.jsonl"});
  EXPECT_EQ(file.code, 0) << file.err;
  EXPECT_EQ(times(file.out + file.err, "is not read"), 0) << file.out;
}

// As Windows' editors and PowerShell save text. Training names the encoding, --fix converts it.
TEST_F(DataFiles, WideCharactersAreConverted) {
  const std::string rows =
      chat("caf\xC3\xA9", "\xF0\x9F\x98\x80 yes") + "\r\n" + chat("b", "c") + "\n";
  auto wide = [&](bool big, bool mark) {
    std::u16string units = mark ? u"\uFEFF" : u"";
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows.compare(i, 2, "\xC3\xA9") == 0)
        units += u'\u00E9', i += 1;
      else if (rows.compare(i, 4, "\xF0\x9F\x98\x80") == 0)
        units += u"\U0001F600", i += 3;
      else
        units += static_cast<char16_t>(rows[i]);
    }
    std::string bytes;
    for (const char16_t unit : units) {
      const char high = static_cast<char>(unit >> 8), low = static_cast<char>(unit & 0xFF);
      bytes += big ? high : low;
      bytes += big ? low : high;
    }
    return bytes;
  };
  for (const bool big : {false, true})
    for (const bool mark : {false, true}) {
      const std::string name = big ? "UTF-16BE" : "UTF-16LE";
      const std::string file = folder_.write("wide/train.jsonl", wide(big, mark));
      const CliResult refused = wick(
          {"train", "--model", model_, "--data", file, "--adapter-path", folder_.path("never")});
      EXPECT_EQ(refused.code, 1);
      EXPECT_NE(refused.err.find("this is " + name), std::string::npos) << refused.err;
      EXPECT_NE(refused.err.find("iconv -f " + name), std::string::npos) << refused.err;
      const CliResult fixed = wick({"data", "--model", model_, "--data", file, "--fix",
                                    folder_.path("narrow"), "--json", "--overwrite"});
      ASSERT_EQ(fixed.code, 0) << fixed.err;
      EXPECT_EQ(findings_of(fixed), (std::set<Finding>{{"not_utf8", "train.jsonl", 0}}));
      EXPECT_EQ(fixed.event("summary")["fixes"][0], "2 rows: written as UTF-8");
      const std::string text = contents(folder_.path("narrow/train.jsonl"));
      EXPECT_NE(text.find("caf\xC3\xA9"), std::string::npos) << text;
      EXPECT_NE(text.find("\xF0\x9F\x98\x80 yes"), std::string::npos) << text;
    }
  folder_.write("wide/train.jsonl", std::string("\xFF\xFE\0\0{\0\0\0", 8));
  const CliResult wider =
      wick({"data", "--model", model_, "--data", folder_.path("wide"), "--color", "never"});
  EXPECT_NE(wider.out.find("iconv -f UTF-32LE"), std::string::npos) << wider.out;
}

TEST_F(DataFiles, AHeaderThatIsNoneHasItsLine) {
  const std::string file = folder_.write("twice.csv", "prompt,prompt,completion\na,b,c\n");
  CliResult r = wick({"data", "--model", model_, "--data", file, "--json"});
  EXPECT_EQ(findings_of(r), (std::set<Finding>{{"unreadable", "twice.csv", 1}})) << r.out;
  EXPECT_EQ(r.event("finding")["what"], "the header names \"prompt\" twice");
}

// Neither is a data set lost without a word, nor are two of them mixed.
TEST_F(DataFiles, AnotherDataSetIsReplacedOnlyWhenAsked) {
  const std::string data = folder_.write("p/train.jsonl", chat("q", "a") + "\n");
  const std::string other = folder_.write("p_clean/val.json", "[" + chat("other", "set") + "]");
  const std::string clean = folder_.path("p_clean");
  auto fix = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"data", "--model", model_, "--data", data, "--fix", clean});
    return wick(more);
  };
  const CliResult refused = fix({});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("has a data set (val.json) already"), std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find("--overwrite"), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(clean + "/train.jsonl"));
  // Another split is not in the way of one that is asked for.
  EXPECT_EQ(fix({"--split", "train"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_EQ(fix({"--split", "train"}).code, 1);
  EXPECT_EQ(fix({"--overwrite"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(clean + "/train.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(other));
  EXPECT_EQ(wick({"data", "--data", data, "--overwrite"}).code, 2);
}

// A copy that training would refuse is none.
TEST_F(DataFiles, ACleanedCopyHasNoEmptySplit) {
  folder_.write("o/train.jsonl", chat("q", "a") + "\n" + chat("r", "b") + "\n");
  folder_.write("o/valid.jsonl", chat("q", "a") + "\n");
  const std::string clean = folder_.path("o_clean");
  folder_.write("o_clean/valid.jsonl", "of an earlier copy");
  ASSERT_EQ(
      wick({"data", "--model", model_, "--data", folder_.path("o"), "--fix", clean, "--overwrite"})
          .code,
      0);
  EXPECT_FALSE(std::filesystem::exists(clean + "/valid.jsonl"));
  EXPECT_EQ(wick({"train", "--model", model_, "--data", clean, "--iters", "1", "--adapter-path",
                  folder_.path("o_out")})
                .code,
            0);
}

// A script that trains on the copy next learns that there is none.
TEST_F(DataFiles, ACopyWithoutRowsFails) {
  const std::string data = folder_.write("n/train.jsonl", "{\n");
  const std::string clean = folder_.path("n_clean");
  auto fix = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"data", "--model", model_, "--data", data, "--fix", clean});
    const CliResult r = wick(more);
    EXPECT_EQ(r.code, 1) << r.out;
    EXPECT_NE(r.err.find("no row is left"), std::string::npos) << r.err;
    return r;
  };
  EXPECT_TRUE(fix({"--json"}).event("data")["written"].is_null());
  EXPECT_FALSE(std::filesystem::exists(clean));
  // And what was there stays.
  const std::string other = folder_.write("n_clean/train.jsonl", chat("q", "a") + "\n");
  fix({"--overwrite", "--quiet"});
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST_F(DataFiles, WeightsAndValSplitInTraining) {
  std::string a, b;
  for (int i = 0; i < 8; ++i) {
    a += chat("a" + std::to_string(i), "x") + "\n";
    b += chat("b" + std::to_string(i), "y") + "\n";
  }
  folder_.write("a.jsonl", a);
  folder_.write("b:2.jsonl", b);
  CliResult r = wick({"train",
                      "--model",
                      model_,
                      "--data",
                      folder_.path("a.jsonl:2"),
                      "--data",
                      folder_.path("b:2.jsonl"),
                      "--val-split",
                      "4",
                      "--epochs",
                      "1",
                      "--batch-size",
                      "1",
                      "--rank",
                      "2",
                      "--adapter-path",
                      folder_.path("out"),
                      "--json",
                      "--seed",
                      "3"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.event("eval")["rows"], 4);
  // The samples are held-out rows, in their own words.
  EXPECT_TRUE(r.err.find("prompt  a") != std::string::npos ||
              r.err.find("prompt  b") != std::string::npos)
      << r.err;
  const int64_t steps = r.event("done")["steps"];
  EXPECT_GE(steps, 2 * 4 + 8);
  EXPECT_LE(steps, 2 * 8 + 4);
  EXPECT_EQ(wick({"train", "--model", model_, "--data", folder_.path("a.jsonl:0")}).code, 1);
  r = wick({"train", "--model", model_, "--data", folder_.path("b:2.jsonl"), "--data",
            folder_.path("a.jsonl:0.05")});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("a.jsonl: a weight of 0.05 takes none of its 8 rows"), std::string::npos)
      << r.err;
  EXPECT_EQ(wick({"train", "--model", model_, "--data", folder_.path("none.jsonl:2")}).code, 1);
}

}  // namespace
}  // namespace wick::test
