// SPDX-License-Identifier: Apache-2.0
// What is forecast before the first step against what the process really took.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace wick::test {
namespace {

// Of the embedded model's own words.
std::string row_of(int words, int first) {
  std::string text = "Row";
  for (int k = 0; k < words; ++k) text += " " + std::to_string((first + k) % 90);
  return "{\"text\": \"" + text + "\"}\n";
}

// Some short, some that fill most of a pack.
std::string long_rows(int count) {
  std::string rows;
  for (int i = 0; i < count; ++i) rows += row_of(20 + 60 * (i % 4), i * 37);
  return rows;
}

// Questions that the model is asked before and after.
std::string chats(int count) {
  std::string rows;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (int k = 0; k < 10 + 30 * (i % 4); ++k) text += " " + std::to_string((i * 37 + k) % 90);
    rows += R"({"messages": [{"role": "user", "content": "Count)" + text +
            R"("}, {"role": "assistant", "content": "Done)" + text + "\"}]}\n";
  }
  return rows;
}

std::vector<std::string> train_words(const TempFolder& folder) {
  return {"train",
          "--json",
          "--data",
          folder.path("data"),
          "--adapter-path",
          folder.path("out"),
          "--device",
          "cpu",
          "--threads",
          "2",
          "--max-seq-length",
          "512"};
}

struct MemoryCase {
  const char* name;
  int rows;
  std::vector<std::string> words;
  bool chats = false;
  int held_out = 0;  // words of a held-out row
};

void write_data(const TempFolder& folder, const MemoryCase& c) {
  folder.write("data/train.jsonl", c.chats ? chats(c.rows) : long_rows(c.rows));
  if (c.held_out > 0) folder.write("data/valid.jsonl", row_of(c.held_out, 0));
}

class ForecastMemory : public testing::TestWithParam<MemoryCase> {};

TEST_P(ForecastMemory, IsWithinFivePercentOfTheProcess) {
  TempFolder folder;
  write_data(folder, GetParam());
  std::vector<std::string> words = train_words(folder);
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  const CliResult r = wick(words);
  ASSERT_EQ(r.code, 0) << r.err;
  const Json f = r.event("forecast");
  const double forecast = f["peak_bytes"].get<double>() + f["process_bytes"].get<double>();
  const double took = r.event("done")["peak_bytes"].get<double>();
  ASSERT_GT(took, 0);
  EXPECT_NEAR(forecast / took, 1.0, 0.05) << forecast << " forecast, " << took << " taken";
}

// What wick plan says without a run: by trying the step, and by its shape alone.
class PlannedMemory : public testing::TestWithParam<MemoryCase> {};

TEST_P(PlannedMemory, IsWithinFivePercentOfTheProcess) {
  TempFolder folder;
  write_data(folder, GetParam());
  std::vector<std::string> words = train_words(folder);
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  const CliResult run = wick(words);
  ASSERT_EQ(run.code, 0) << run.err;
  const double took = run.event("done")["peak_bytes"].get<double>();
  words[0] = "plan";
  for (const char* how : {"--try", "--no-try"}) {
    std::vector<std::string> asked = words;
    asked.insert(asked.begin() + 1, how);
    const CliResult r = wick(asked);
    ASSERT_EQ(r.code, 0) << r.err;
    const Json f = r.event("forecast");
    const double forecast = f["peak_bytes"].get<double>() + f["process_bytes"].get<double>();
    EXPECT_NEAR(forecast / took, 1.0, 0.05) << how << ": " << forecast << " of " << took;
  }
}

// --memory at a quarter, a half and three quarters of what the free plan takes beside the weights:
// the process is held to it as well as the plan, and learns the same.
TEST(MemoryBound, HoldsInTheProcessWithTheSameLosses) {
  TempFolder folder;
  folder.write("data/train.jsonl", long_rows(16));
  struct Taken {
    Json forecast;
    double process = 0;
    std::vector<double> losses;
  };
  auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = train_words(folder);
    words.insert(words.end(), {"--batch-size", "8", "--iters", "2", "--steps-per-report", "1",
                               "--dtype", "f32"});
    words.insert(words.end(), more.begin(), more.end());
    const CliResult r = wick(words);
    EXPECT_EQ(r.code, 0) << r.err;
    Taken taken{r.event("forecast"), r.event("done")["peak_bytes"].get<double>(), {}};
    for (const Json& j : r.lines())
      if (j["event"] == "step") taken.losses.push_back(j["loss"].get<double>());
    return taken;
  };
  const Taken free = run({});
  const auto peak = free.forecast["peak_bytes"].get<int64_t>();
  const auto changing =
      free.forecast["arena"].get<int64_t>() + free.forecast["feeds"].get<int64_t>();
  for (double share : {0.25, 0.5, 0.75}) {
    const int64_t bound =
        peak - changing + static_cast<int64_t>(share * static_cast<double>(changing));
    const Taken held = run({"--memory", std::to_string(bound) + "B"});
    const auto planned = held.forecast["peak_bytes"].get<double>();
    EXPECT_LE(planned, static_cast<double>(bound)) << share;
    const double besides = held.forecast["process_bytes"].get<double>();
    EXPECT_NEAR((planned + besides) / held.process, 1.0, 0.05) << share;
    // What is saved is saved by the process.
    EXPECT_LT(held.process, free.process - 0.8 * (static_cast<double>(peak) - planned)) << share;
    ASSERT_EQ(held.losses.size(), free.losses.size());
    for (size_t i = 0; i < free.losses.size(); ++i)
      EXPECT_NEAR(held.losses[i], free.losses[i], 1e-5) << held.forecast["choice"];
  }
}

// wick plan tries the step where the model is at hand, and says so.
// Whoever follows what is offered finds the plan of that size.
TEST(MemoryBound, WhatIsOfferedTakesWhatIsSaid) {
  TempFolder folder;
  write_tiny_model(folder.path("model"));
  folder.write("long/train.jsonl", long_rows(12));
  folder.write("short/train.jsonl", "{\"text\": \"few\"}\n");
  auto expect_offers = [&](const std::string& data, const std::vector<std::string>& wanted) {
    auto refusal = [&](std::vector<std::string> more) {
      more.insert(more.begin(),
                  {"plan", "--model", folder.path("model"), "--data", folder.path(data), "--dtype",
                   "f32", "--targets", "q_proj", "--group-size", "32", "--memory", "20kB"});
      return wick(more).err;
    };
    const std::string all = refusal({});
    const std::regex offer("with (--[a-z-]+) ([0-9]+) ([0-9.]+ [kM]B)");
    std::vector<std::string> flags;
    for (std::sregex_iterator it(all.begin(), all.end(), offer), end; it != end; ++it) {
      flags.push_back((*it)[1]);
      const std::string then = refusal({(*it)[1], (*it)[2]});
      EXPECT_NE(then.find(" takes " + (*it)[3].str()), std::string::npos) << it->str() << "\n"
                                                                          << then;
    }
    EXPECT_EQ(flags, wanted) << all;
  };
  expect_offers("long", {"--max-seq-length", "--rank"});
  expect_offers("short", {"--rank", "--quantize"});
}

TEST(ForecastTime, SaysWhatWasTried) {
  TempFolder folder;
  folder.write("data/train.jsonl", long_rows(8));
  auto forecast = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", "--json", "--device", "cpu", "--threads", "2",
                                 "--max-seq-length", "128"});
    const CliResult r = wick(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.event("forecast");
  };
  const Json tried = forecast({"--data", folder.path("data")});
  EXPECT_EQ(tried["tried"], true);
  EXPECT_GT(tried["total_seconds"], 0.0);
  EXPECT_LE(tried["step_ms_low"], tried["step_ms"]);
  EXPECT_GE(tried["step_ms_high"], tried["step_ms"]);
  EXPECT_LE(tried["total_seconds_low"], tried["total_seconds"]);
  EXPECT_GE(tried["total_seconds_high"], tried["total_seconds"]);
  const Json estimated = forecast({"--data", folder.path("data"), "--no-try"});
  EXPECT_EQ(estimated["tried"], false);
  EXPECT_GT(estimated["total_seconds"], 0.0);
  for (const char* kind : {"peak_bytes", "arena", "updates"})
    EXPECT_EQ(estimated[kind], tried[kind]);
  EXPECT_EQ(forecast({"--shape", "qwen2.5-0.5b", "--batch-size", "1"})["tried"], false);
  const CliResult people = wick({"plan", "--data", folder.path("data"), "--max-seq-length", "128"});
  EXPECT_NE(people.out.find("(tried"), std::string::npos) << people.out;
}

// Answers at each look are a part of the run, tried or not.
TEST(ForecastTime, CountsAnswersAtEachLook) {
  TempFolder folder;
  folder.write("data/train.jsonl", chats(16));
  folder.write("data/valid.jsonl", chats(4));
  folder.write("prompts.txt", "Count 1 2 3\nCount 4 5 6\nCount 7 8 9\nCount 1 1 1\n");
  auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"plan",
                                      "--json",
                                      "--no-try",
                                      "--data",
                                      folder.path("data"),
                                      "--device",
                                      "cpu",
                                      "--threads",
                                      "2",
                                      "--iters",
                                      "8",
                                      "--steps-per-eval",
                                      "2",
                                      "--max-seq-length",
                                      "512"};
    words.insert(words.end(), more.begin(), more.end());
    const CliResult r = wick(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.event("forecast");
  };
  const Json without = plan({}), with = plan({"--eval-prompts", folder.path("prompts.txt")});
  EXPECT_EQ(without["answer_ms"], 0.0);
  EXPECT_GT(without["eval_ms"], 0.0);
  EXPECT_GT(with["answer_ms"], 0.0);
  EXPECT_GT(with["eval_ms"], with["answer_ms"]);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, PlannedMemory,
    testing::Values(MemoryCase{"answers", 16, {"--iters", "4"}, true},
                    MemoryCase{"high_rank", 16, {"--iters", "4", "--rank", "64"}, true},
                    MemoryCase{"full", 16, {"--iters", "4", "--fine-tune-type", "full"}},
                    MemoryCase{
                        "whole", 16, {"--iters", "4", "--modules-to-save", "embed_tokens"}, true},
                    MemoryCase{"longer_held_out",
                               16,
                               {"--iters", "1", "--batch-size", "1", "--no-shuffle"},
                               false,
                               240}),
    [](const auto& param) { return std::string(param.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Runs, ForecastMemory,
    testing::Values(
        MemoryCase{"packs", 16, {"--iters", "4", "--dtype", "bf16"}},
        MemoryCase{"rows", 16, {"--iters", "4", "--dtype", "bf16", "--no-packing"}},
        MemoryCase{"f32", 16, {"--iters", "4", "--dtype", "f32"}},
        MemoryCase{"muon", 16, {"--iters", "4", "--dtype", "bf16", "--optimizer", "muon"}},
        // Copies of its numbers while they are saved are gone when the prompts are answered.
        MemoryCase{"pissa", 16, {"--iters", "4", "--dtype", "bf16", "--init", "pissa"}},
        MemoryCase{"high_rank", 16, {"--iters", "4", "--dtype", "bf16", "--rank", "64"}},
        MemoryCase{"full", 16, {"--iters", "4", "--dtype", "bf16", "--fine-tune-type", "full"}},
        MemoryCase{"best",
                   16,
                   {"--iters", "4", "--dtype", "bf16", "--fine-tune-type", "full", "--keep-best",
                    "--val-split", "2"}},
        // Adapters of a sweep are saved, and answer, one after the other.
        MemoryCase{"sweep",
                   16,
                   {"--iters", "4", "--dtype", "bf16", "--batch-size", "2", "--sweep",
                    "lr=1e-4,3e-4", "rank=16,32"}},
        MemoryCase{"sweep_that_answers",
                   16,
                   {"--iters", "4", "--dtype", "bf16", "--batch-size", "2", "--keep-best",
                    "--val-split", "2", "--sweep", "lr=1e-4,3e-4", "rank=16,32"},
                   true},
        // Of 64 rows, the run sees eight, and keeps no more.
        MemoryCase{
            "kept_rows",
            64,
            {"--iters", "2", "--batch-size", "4", "--num-layers", "2", "--prefix-cache", "memory"}},
        // Of so small a step the packs that were tried, and code that has answered, are a part.
        MemoryCase{"top_block",
                   64,
                   {"--iters", "30", "--num-layers", "1", "--rank", "1", "--targets", "q_proj",
                    "--max-seq-length", "64", "--val-split", "4"},
                   true},
        MemoryCase{"whole", 16, {"--iters", "4", "--modules-to-save", "embed_tokens"}, true},
        // The longest of the rows does not come.
        MemoryCase{"ends_early", 16, {"--iters", "1", "--batch-size", "1", "--no-shuffle"}},
        // The longest row is never trained on.
        MemoryCase{"longer_held_out",
                   16,
                   {"--iters", "2", "--batch-size", "1", "--no-shuffle", "--no-packing"},
                   false,
                   240},
        MemoryCase{
            "longer_held_out_packs",
            16,
            {"--iters", "4", "--batch-size", "1", "--grad-accumulation-steps", "2", "--no-shuffle"},
            false,
            240},
        // So little that reading the model takes more.
        MemoryCase{"tiny", 2, {"--iters", "3", "--max-seq-length", "32"}}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace wick::test
