// SPDX-License-Identifier: Apache-2.0
// wick bench and --shape, at sizes that take no time.
#include <gtest/gtest.h>

#include <map>

#include "cli/cli.h"

namespace wick::test {
namespace {

class Bench : public testing::Test {
 protected:
  void SetUp() override { write_tiny_model(model_); }
  CliResult bench(std::vector<std::string> words) {
    words.insert(words.begin(), "bench");
    words.insert(words.end(), {"--model", model_, "--batch-size", "2", "--seq", "16", "--rank", "2",
                               "--prompt-tokens", "8", "--max-tokens", "4", "--iters", "3",
                               "--warmup", "1", "--threads", "2"});
    return wick(words);
  }
  TempFolder folder_;
  std::string model_ = folder_.path("model");
};

TEST_F(Bench, RowsHaveTheirFields) {
  CliResult r = bench({"train", "prefill", "decode", "generate", "gradient", "--json", "--losses"});
  ASSERT_EQ(r.code, 0) << r.err;
  std::vector<std::string> rows;
  for (const Json& line : r.lines()) {
    rows.push_back(line["bench"].get<std::string>() + " " + line["what"].get<std::string>());
    for (const char* field : {"shape", "device", "isa", "dtype", "weight_dtype", "targets"})
      EXPECT_TRUE(line[field].is_string()) << field << line;
    for (const char* field :
         {"batch", "seq", "rank", "threads", "ms", "ms_p10", "ms_p90", "runs", "tokens_per_second",
          "peak_bytes", "gflop", "percent_of_peak", "utilisation"})
      EXPECT_TRUE(line[field].is_number()) << field << line;
    EXPECT_GT(line["ms"], 0) << line;
    EXPECT_LE(line["ms_p10"], line["ms"]) << line;
    EXPECT_LE(line["ms"], line["ms_p90"]) << line;
    if (line["what"] != "what streaming adds per token") {
      EXPECT_GT(line["tokens_per_second"], 0) << line;
    }
  }
  EXPECT_EQ(rows, (std::vector<std::string>{"train step", "gradient forward", "gradient backward",
                                            "gradient total", "prefill prompt", "decode token",
                                            "generate first token, greedy", "generate first token",
                                            "generate per token", "generate total",
                                            "generate what streaming adds per token"}));
  Json train = r.lines()[0];
  EXPECT_EQ(train["losses"].size(), 10u);
  EXPECT_EQ(train["targets"], "q_proj,v_proj");
  EXPECT_EQ(train["batch"], 2);
  EXPECT_EQ(train["rank"], 2);
  EXPECT_EQ(train["runs"], 3);
  EXPECT_EQ(train["losses"], bench({"train", "--json", "--losses"}).lines()[0]["losses"]);
}

TEST_F(Bench, ArithmeticGrowsWithTheBatch) {
  // A row attends to itself alone, whatever else is in its pack or in the cache.
  auto gflops = [&](const std::string& batch) {
    const CliResult r = wick({"bench", "train", "gradient", "decode", "--model", model_, "--iters",
                              "1", "--batch-size", batch, "--seq", "64", "--prompt-tokens", "32",
                              "--warmup", "0", "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    std::map<std::string, double> by_row;
    for (const Json& line : r.lines())
      by_row[line["bench"].get<std::string>() + " " + line["what"].get<std::string>()] =
          line["gflop"].get<double>();
    return by_row;
  };
  std::map<std::string, double> one = gflops("1");
  EXPECT_EQ(one.size(), 5u);
  for (const auto& [row, gflop] : gflops("4"))
    EXPECT_NEAR(gflop, 4 * one[row], 1e-9 * one[row]) << row;
}

TEST_F(Bench, TheOtherTables) {
  CliResult r = wick({"bench",    "lora",     "ops",   "components",      "attention", "kv-cache",
                      "sampling", "memory",   "batch", "merge",           "--json",    "--model",
                      model_,     "--seq",    "16",    "--prompt-tokens", "8",         "--iters",
                      "1",        "--warmup", "0",     "--threads",       "2"});
  ASSERT_EQ(r.code, 0) << r.err;
  std::map<std::string, int> rows;
  for (const Json& line : r.lines()) {
    ++rows[line["bench"]];
    EXPECT_GT(line[line["bench"] == "memory" ? "bytes" : "ms"], 0) << line;
  }
  EXPECT_EQ(rows, (std::map<std::string, int>{{"lora", 7},
                                              {"ops", 9},
                                              {"components", 13},
                                              {"attention", 6},
                                              {"kv-cache", 2},
                                              {"sampling", 4},
                                              {"memory", 4},
                                              {"batch", 9},
                                              {"merge", 2}}));
}

TEST_F(Bench, ProfileAndPage) {
  const std::string page = folder_.path("bench.html");
  CliResult r = bench({"train", "decode", "--json", "--profile", "--html", page});
  ASSERT_EQ(r.code, 0) << r.err;
  double share = 0;
  for (const Json& line : r.lines())
    if (line["bench"] == "profile" && line.contains("calls") &&
        line["what"].get<std::string>().starts_with("step: "))
      share += line["share"].get<double>();
  EXPECT_NEAR(share, 1.0, 1e-6);
  const std::string html = contents(page);
  for (const char* part :
       {"<h2>train</h2>", "<h2>decode</h2>", "<h2>profile</h2>", "<svg", "median"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("<script"), std::string::npos);
}

TEST_F(Bench, ForPeople) {
  CliResult r = bench({"train", "decode"});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* part : {"device", "train: ", "step", "decode: ", "tokens/s", "2 × 16 tokens"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
}

TEST_F(Bench, SaysBeforeItMeasuresWhereResultsCannotGo) {
  for (const char* flag : {"--save-baseline", "--html"}) {
    const CliResult r = bench({"decode", flag, folder_.path()});
    EXPECT_EQ(r.code, 1);
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find("a folder, wanted the name of a file"), std::string::npos) << r.err;
  }
}

TEST_F(Bench, BaselineMarksWhatGotSlower) {
  const std::string kept = folder_.path("kept.json");
  CliResult r = bench({"train", "decode", "--json", "--save-baseline", kept});
  ASSERT_EQ(r.code, 0) << r.err;
  // As if it had been a thousand times slower, then faster, than it can be now.
  auto doctored = [&](double factor) {
    Json file = Json::parse(contents(kept));
    for (Json& line : file["results"])
      for (const char* field : {"ms", "ms_p10", "ms_p90"})
        line[field] = line[field].get<double>() * factor;
    return folder_.write("doctored.json", file.dump());
  };
  r = bench({"train", "decode", "--json", "--baseline", doctored(1000)});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.event("comparison")["change"], "faster");
  r = bench({"train", "decode", "--json", "--baseline", doctored(0.001)});
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_EQ(r.event("comparison")["change"], "slower");
  EXPECT_GT(r.event("comparison")["ratio"], 10);
  r = bench({"decode", "--baseline", folder_.path("doctored.json")});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.out.find("1 slower"), std::string::npos) << r.out;
  r = bench({"decode", "--baseline", folder_.path("none.json")});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("--save-baseline"), std::string::npos) << r.err;
  // A script must not take a comparison of nothing for one that found nothing slower.
  r = bench({"prefill", "--json", "--baseline", folder_.path("doctored.json")});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("doctored.json: nothing to compare"), std::string::npos) << r.err;
}

TEST_F(Bench, WrongUse) {
  CliResult r = bench({"tarin"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("did you mean train?"), std::string::npos) << r.err;
  r = wick({"bench", "train", "--model", model_, "--seq", "100000"});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("positions"), std::string::npos) << r.err;
}

TEST_F(Bench, PlanWithoutData) {
  CliResult r = wick({"plan", "--model", model_, "--max-seq-length", "64", "--batch-size", "2",
                      "--json", "--threads", "2"});
  ASSERT_EQ(r.code, 0) << r.err;
  Json forecast = r.event("forecast");
  EXPECT_EQ(forecast["assumed_rows"], true);
  EXPECT_EQ(forecast["tokens_per_step"], 128);
  EXPECT_GT(forecast["step_ms"], 0);
  EXPECT_EQ(forecast["updates"], 1);
  r = wick({"plan", "--model", model_, "--max-seq-length", "64"});
  EXPECT_NE(r.out.find("no --data"), std::string::npos) << r.out;
}

TEST(Shape, NamesAndRefusals) {
  CliResult r = wick({"plan", "--shape", "qwen2.5-0.5", "--max-seq-length", "64"});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("did you mean qwen2.5-0.5b?"), std::string::npos) << r.err;
  r = wick({"generate", "--shape", "qwen2.5-0.5b", "--prompt", "x"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("bench"), std::string::npos) << r.err;
  r = wick({"bench", "--shape", "qwen2.5-0.5b", "--model", "some/model"});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("takes the place of a model"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace wick::test
