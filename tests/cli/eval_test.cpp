// SPDX-License-Identifier: Apache-2.0
// wick eval: multiple choice and comparisons.
#include <gtest/gtest.h>

#include <map>

#include "cli/cli.h"

namespace wick::test {
namespace {

class Eval : public testing::Test {
 protected:
  void SetUp() override { write_tiny_model(model_); }
  TempFolder folder_;
  std::string model_ = folder_.path("model");
};

TEST_F(Eval, MultipleChoiceAndCompare) {
  const std::string file = folder_.write(
      "c.jsonl",
      "{\"question\": \"q\", \"choices\": [\"aa\", \"b\"], \"answer\": 1}\n"
      "{\"prompt\": \"q\", \"choices\": [\"aa\", \"b\"], \"answer\": \"A\"}\n"
      "{\"prompt\": \"q\", \"choices\": [\"aa\", \"b\", \"cc\", \"dd\"], \"answer\": \"dd\"}\n");
  CliResult r = wick(
      {"eval", "--model", model_, "--data", file, "--json", "--per-example", "--batch-size", "2"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json e = r.event("eval");
  EXPECT_EQ(e["rows"], 3);
  EXPECT_NEAR(e["chance"].get<double>(), (0.5 + 0.5 + 0.25) / 3, 1e-12);
  EXPECT_EQ(r.lines()[0]["answer"], 1);
  EXPECT_EQ(r.lines()[1]["answer"], 0);
  EXPECT_EQ(r.lines()[2]["answer"], 3);
  // The first two questions have the same words: the same choice, of which one is right.
  EXPECT_EQ(r.lines()[0]["logp"], r.lines()[1]["logp"]);
  EXPECT_EQ(wick({"eval", "--model", model_, "--data", file, "--json", "--limit", "2"})
                .event("eval")["accuracy"],
            0.5);
  const CliResult one = wick({"eval", "--model", model_, "--data", file, "--json", "--limit", "1"});
  EXPECT_TRUE(one.event("eval")["accuracy_stderr"].is_null()) << one.out;
  folder_.write("bad.jsonl", "{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 2}\n");
  CliResult bad = wick({"eval", "--model", model_, "--data", folder_.path("bad.jsonl")});
  EXPECT_EQ(bad.code, 1);
  EXPECT_NE(bad.err.find("bad.jsonl:1: "), std::string::npos) << bad.err;

  folder_.write("broken.jsonl",
                "{\n{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n");
  const CliResult broken =
      wick({"eval", "--model", model_, "--data", folder_.path("broken.jsonl")});
  EXPECT_EQ(broken.code, 1);
  EXPECT_NE(broken.err.find("broken.jsonl:1:"), std::string::npos) << broken.err;
  EXPECT_EQ(broken.err.find("wick data"), std::string::npos) << broken.err;

  write_tiny_data(folder_.path("data"));
  CliResult c = wick({"eval", "--model", model_, "--data", folder_.path("data"), "--compare",
                      "base", "base", "--json", "--max-tokens", "4"});
  ASSERT_EQ(c.code, 0) << c.err;
  const Json d = c.event("compare");
  EXPECT_EQ(d["loss"]["difference"], 0.0);
  EXPECT_EQ(d["loss"]["p"], 1.0);
  EXPECT_GT(d["a"]["loss_stderr"].get<double>(), 0);
  const CliResult lone = wick({"eval", "--model", model_, "--data", folder_.path("data"), "--limit",
                               "1", "--max-tokens", "4"});
  EXPECT_EQ(lone.err.find("±"), std::string::npos) << lone.err;
  EXPECT_EQ(lone.out.find("±"), std::string::npos) << lone.out;
  EXPECT_EQ(wick({"eval", "--model", model_, "--data", file, "--compare", "base"}).code, 2);
}

// Both sides have a row of each number.
// Each row counts once, so that a weight would be one that nobody reads.
TEST_F(Eval, AWeightIsRefused) {
  const std::string row = "{\"text\": \"abc\"}\n";
  const std::string file = folder_.write("rows.jsonl", row);
  folder_.write("rows.jsonl:3", row);
  auto eval = [&](const std::string& data) {
    return wick({"eval", "--model", model_, "--data", data, "--json"});
  };
  const CliResult weighted = eval(file + ":2");
  EXPECT_EQ(weighted.code, 2) << weighted.out;
  EXPECT_NE(weighted.err.find("leave :2 out"), std::string::npos) << weighted.err;
  EXPECT_EQ(eval(file).code, 0);
  EXPECT_EQ(eval(file + ":3").code, 0);
}

// What was named is read, or a line says why not.
TEST_F(Eval, SeveralDataSets) {
  const std::string row = "{\"text\": \"abc\"}\n";
  const std::string a = folder_.write("a.jsonl", row), b = folder_.write("b.jsonl", row + row);
  folder_.write("folder/test.jsonl", row);
  folder_.write("other/valid.jsonl", row);
  auto rows = [&](const std::vector<std::string>& data, const std::string& said = {}) {
    std::vector<std::string> words = {"eval", "--model", model_, "--json"};
    for (const std::string& d : data) words.insert(words.end(), {"--data", d});
    const CliResult r = wick(words);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.err.find(said), std::string::npos) << r.err;
    return r.event("eval")["rows"];
  };
  EXPECT_EQ(rows({a, b}), 3);
  EXPECT_EQ(rows({folder_.path("folder"), b}), 3);
  EXPECT_EQ(rows({b, folder_.path("folder"), folder_.path("other")},
                 "other: has no test file and is left out"),
            3);
  const std::string question = folder_.write(
      "q.jsonl", "{\"question\": \"x\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n");
  EXPECT_EQ(rows({question, question}), 2);
}

// The first words of an answer are not the answer, also where --max-tokens ends with them.
TEST_F(Eval, AnAnswerThatIsLongerIsDifferent) {
  auto answer = [](const std::string& tokens) {
    const CliResult r = wick(
        {"generate", "--prompt", "Who lives in the forest?", "--max-tokens", tokens, "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.lines().back();
  };
  auto matches = [&](const Json& completion, int64_t tokens) {
    const std::string file = folder_.write(
        "row.jsonl",
        "{\"prompt\": \"Who lives in the forest?\", \"completion\": " + completion.dump() + "}\n");
    const CliResult r = wick({"eval", "--data", file, "--max-tokens", std::to_string(tokens),
                              "--per-example", "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.lines()[0];
  };
  const Json part = answer("3"), whole = answer("60");
  ASSERT_EQ(part["finish_reason"], "length");
  ASSERT_EQ(whole["finish_reason"], "stop");
  const Json cut = matches(part["text"], 3);
  EXPECT_EQ(cut["answer"], part["text"]);
  EXPECT_EQ(cut["exact_match"], false);
  // The stop token is not one of the answer's.
  const auto tokens = whole["generated_tokens"].get<int64_t>();
  EXPECT_EQ(matches(whole["text"], tokens)["exact_match"], true);
  EXPECT_EQ(matches(whole["text"], tokens - 1)["exact_match"], false);
}

TEST_F(Eval, RowsOfAComparisonSayWhose) {
  write_tiny_data(folder_.path("data"));
  const std::vector<std::string> words = {
      "eval", "--model",       model_,         "--data", folder_.path("data"), "--compare", "base",
      "base", "--per-example", "--max-tokens", "2"};
  std::vector<std::string> json = words;
  json.push_back("--json");
  const CliResult r = wick(json);
  ASSERT_EQ(r.code, 0) << r.err;
  std::map<std::string, int> rows;
  for (const Json& line : r.lines())
    if (line.contains("index")) ++rows[line.value("side", "none")];
  EXPECT_EQ(rows.size(), 2u);
  EXPECT_GT(rows["a"], 0);
  EXPECT_EQ(rows["a"], rows["b"]);
  EXPECT_NE(wick(words).out.find("B row 0"), std::string::npos);
}

}  // namespace
}  // namespace wick::test
