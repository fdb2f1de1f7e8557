// SPDX-License-Identifier: Apache-2.0
// The training loop from outside: optimizers, stopping, keeping the best, watching.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/check.h"
#include "base/file.h"
#include "cli/cli.h"

namespace wick::test {
namespace {

class Loop : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(folder_.path("model"));
    write_tiny_data(folder_.path("data"));
  }
  CliResult train(std::vector<std::string> more) const {
    std::vector<std::string> all = {"train",
                                    "--model",
                                    folder_.path("model"),
                                    "--data",
                                    folder_.path("data"),
                                    "--adapter-path",
                                    folder_.path("out"),
                                    "--json",
                                    "--date",
                                    "2026-01-02"};
    all.insert(all.end(), more.begin(), more.end());
    return wick(all);
  }
  std::vector<Json> events(const CliResult& r, const std::string& name) const {
    std::vector<Json> found;
    for (const Json& line : r.lines())
      if (line["event"] == name) found.push_back(line);
    return found;
  }
  std::string out(const char* name) const { return folder_.path("out") + "/" + name; }
  TempFolder folder_;
};

TEST_F(Loop, EveryOptimizerLearns) {
  const std::pair<const char*, const char*> kRates[] = {
      {"adam", "5e-3"}, {"adamw", "5e-3"}, {"adamw_8bit", "5e-3"}, {"sgd", "0.5"},
      {"lion", "1e-3"}, {"muon", "2e-2"},  {"adafactor", "5e-3"}};
  for (const auto& [name, rate] : kRates) {
    const CliResult r = train({"--optimizer", name, "--learning-rate", rate, "--epochs", "8"});
    ASSERT_EQ(r.code, 0) << name << "\n" << r.err;
    const Json done = r.event("done");
    EXPECT_LT(done["final_loss"].get<double>(), 0.97 * done["first_loss"].get<double>()) << name;
    EXPECT_GT(r.event("forecast")["moments"].get<int64_t>(), 0) << name;
  }
}

TEST_F(Loop, AFlagBeatsTheFilesOtherWordForIt) {
  const std::string settings = folder_.write("settings.yaml", "iters: 2\nbatch_size: 4\n");
  EXPECT_EQ(train({"--config", settings}).event("done")["steps"], 2);
  EXPECT_EQ(train({"--config", settings, "--epochs", "1"}).event("done")["steps"], 3);
  // Of the two flags, --iters counts.
  EXPECT_EQ(train({"--epochs", "1", "--iters", "2"}).event("done")["steps"], 2);
}

// Updates are whole, and a run that is longer than what was asked for says so.
TEST_F(Loop, BatchesThatAreNoWholeUpdatesAreNamed) {
  const std::vector<std::string> twos = {"--batch-size", "2", "--grad-accumulation-steps", "2"};
  auto with = [&](const std::string& iters) {
    std::vector<std::string> words = twos;
    words.insert(words.end(), {"--iters", iters});
    return train(words);
  };
  const CliResult five = with("5"), four = with("4");
  EXPECT_EQ(five.event("done")["steps"], 3);
  EXPECT_NE(five.err.find("--iters 5 is no multiple of --grad-accumulation-steps 2: updates are "
                          "whole, so the run has 3 updates of 2 batches"),
            std::string::npos)
      << five.err;
  EXPECT_EQ(four.event("done")["steps"], 2);
  EXPECT_EQ(four.err.find("multiple"), std::string::npos) << four.err;
}

// A settings file of mlx-lm means what it means there, also where its warm-up outlasts the run.
TEST_F(Loop, AnMlxWarmUpKeepsItsPace) {
  const std::string settings = folder_.write(
      "settings.yaml",
      "lr_schedule: {name: cosine_decay, arguments: [1e-3, 20], warmup: 100}\niters: 3\n");
  const CliResult r = train({"--config", settings, "--steps-per-report", "1"});
  ASSERT_EQ(r.code, 0) << r.err;
  const std::vector<Json> steps = events(r, "step");
  ASSERT_EQ(steps.size(), 3u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(steps[i]["learning_rate"].get<double>(), 1e-5 * static_cast<double>(i), 1e-12);
  EXPECT_NE(r.err.find("lr_schedule.warmup 100 is more than the run's 3 updates"),
            std::string::npos)
      << r.err;
}

// A schedule of the command line is wick's, whatever the file's would have been.
TEST_F(Loop, AScheduleOfTheCommandLineTakesThePlaceOfTheFiles) {
  auto rates = [&](const std::string& schedule, std::vector<std::string> more) {
    const std::string settings = folder_.write("settings.yaml", "iters: 8\n" + schedule + "\n");
    more.insert(more.end(), {"--config", settings, "--steps-per-report", "1"});
    const CliResult r = train(more);
    EXPECT_EQ(r.code, 0) << r.err;
    std::vector<double> all;
    for (const Json& step : events(r, "step")) all.push_back(step["learning_rate"]);
    return all;
  };
  const std::string linear = "lr_schedule: {name: linear_schedule, arguments: [1e-3, 0, 1000]";
  const std::vector<std::string> cosine = {"--lr-schedule", "cosine"};
  const std::vector<double> own = rates("learning_rate: 1e-3", cosine);
  EXPECT_EQ(rates(linear + "}", cosine), own);
  EXPECT_EQ(rates("lr_schedule: {name: cosine_decay, arguments: [1e-3, 4]}", cosine), own);
  EXPECT_EQ(rates(linear + ", warmup: 3}", cosine),
            rates("learning_rate: 1e-3\nwarmup: 3", cosine));
  EXPECT_EQ(rates(linear + "}", {"--lr-schedule", "cosine", "--lr-end", "1e-4"}),
            rates("learning_rate: 1e-3", {"--lr-schedule", "cosine", "--lr-end", "1e-4"}));
}

TEST_F(Loop, MoreLooksThanRowsAreAllOfThem) {
  const CliResult all = train({"--epochs", "1", "--val-batches", "-1", "--train", "--test"});
  const CliResult r = train({"--epochs", "1", "--val-batches", "9223372036854775807", "--train",
                             "--test", "--test-batches", "9223372036854775807"});
  ASSERT_EQ(r.code, 0) << r.err;
  ASSERT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(r.event("done")["valid_loss"], all.event("done")["valid_loss"]);
  EXPECT_EQ(r.event("test")["rows"], all.event("test")["rows"]);
}

TEST_F(Loop, TestsWithoutTraining) {
  for (const char* type : {"lora", "full"}) {
    const CliResult first = train({"--epochs", "2", "--fine-tune-type", type, "--train", "--test"});
    ASSERT_EQ(first.code, 0) << first.err;
    const char* file =
        std::string(type) == "full" ? "model.safetensors" : "adapter_model.safetensors";
    const std::string before = contents(out(file));
    // As a settings file of mlx-lm says it.
    const std::string settings = folder_.write("settings.yaml", "train: false\ntest: true\n");
    const CliResult r = train({"--config", settings, "--fine-tune-type", type});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_TRUE(events(r, "forecast").empty()) << r.out;
    EXPECT_EQ(r.event("test")["loss"], first.event("test")["loss"]);
    EXPECT_TRUE(contents(out(file)) == before);
    // As mlx-lm's flags say it.
    const CliResult flags = train({"--test", "--fine-tune-type", type});
    ASSERT_EQ(flags.code, 0) << flags.err;
    EXPECT_TRUE(events(flags, "forecast").empty()) << flags.out;
    EXPECT_EQ(flags.event("test")["loss"], first.event("test")["loss"]);
    std::filesystem::remove_all(folder_.path("out"));
  }
  const CliResult alone = train({"--no-train", "--test", "--adapter-path", ""});
  ASSERT_EQ(alone.code, 0) << alone.err;
  const CliResult none = train({"--test"});  // no adapter there
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("--test alone trains nothing; give --train as well"), std::string::npos)
      << none.err;
}

TEST_F(Loop, FullTrainingDoesNotOverwriteItsModel) {
  const std::string before = contents(folder_.path("model") + "/model.safetensors");
  const CliResult r =
      train({"--epochs", "1", "--fine-tune-type", "full", "--adapter-path", folder_.path("model")});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("own folder"), std::string::npos) << r.err;
  EXPECT_TRUE(contents(folder_.path("model") + "/model.safetensors") == before);
}

TEST_F(Loop, FullTrainingDoesNotOverwriteAnotherModel) {
  std::filesystem::copy(folder_.path("model"), folder_.path("out"));
  const std::vector<std::string> full = {"--epochs", "1", "--fine-tune-type", "full"};
  const CliResult r = train(full);
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("has a model that no full training has left"), std::string::npos) << r.err;
  EXPECT_TRUE(contents(out("model.safetensors")) ==
              contents(folder_.path("model") + "/model.safetensors"));
  std::filesystem::remove_all(folder_.path("out"));
  for (int times = 0; times < 2; ++times) EXPECT_EQ(train(full).code, 0);
}

// Whoever loads a folder with a model and an adapter takes one or the other.
TEST_F(Loop, AnAdapterTakesThePlaceOfAFullModel) {
  using std::filesystem::exists;
  ASSERT_EQ(train({"--epochs", "1", "--fine-tune-type", "full"}).code, 0);
  std::filesystem::copy(folder_.path("out"), folder_.path("base"));
  // The model that is trained on is not an earlier result.
  const CliResult beside = train({"--epochs", "1", "--model", folder_.path("out")});
  ASSERT_EQ(beside.code, 0) << beside.err;
  EXPECT_TRUE(exists(out("model.safetensors")) && exists(out("adapter_model.safetensors")));

  std::filesystem::remove_all(folder_.path("out"));
  std::filesystem::rename(folder_.path("base"), folder_.path("out"));
  const CliResult r = train({"--epochs", "1"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("the adapter takes its place"), std::string::npos) << r.err;
  EXPECT_TRUE(exists(out("adapter_model.safetensors")));
  EXPECT_FALSE(exists(out("model.safetensors")) || exists(out("config.json")));

  // What no run has left there stays, and is named.
  std::filesystem::remove_all(folder_.path("out"));
  std::filesystem::copy(folder_.path("model"), folder_.path("out"));
  const CliResult other = train({"--epochs", "1"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_NE(other.err.find("has a model (config.json), which stays"), std::string::npos);
  EXPECT_TRUE(exists(out("model.safetensors")) && exists(out("adapter_model.safetensors")));
}

TEST_F(Loop, AnAdapterToStartFromIsNotContradicted) {
  ASSERT_EQ(train({"--epochs", "1", "--rank", "3", "--dora", "--targets", "q_proj"}).code, 0);
  std::filesystem::rename(folder_.path("out"), folder_.path("first"));
  const std::vector<std::string> from = {"--epochs", "1", "--init-adapter", folder_.path("first")};
  auto more = [&](std::vector<std::string> words) {
    words.insert(words.begin(), from.begin(), from.end());
    return train(words);
  };
  EXPECT_EQ(more({}).code, 0);
  EXPECT_EQ(more({"--rank", "3", "--targets", "q_proj", "--fine-tune-type", "dora"}).code, 0);
  const std::pair<std::vector<std::string>, const char*> kWrong[] = {
      {{"--rank", "4"}, "rank 3"},         {{"--alpha", "7"}, "alpha 16"},
      {{"--targets", "v_proj"}, "others"}, {{"--num-layers", "1"}, "others"},
      {{"--rslora"}, "its own kind"},      {{"--lora-dropout", "0.5"}, "dropout 0"}};
  for (const auto& [words, what] : kWrong) {
    const CliResult r = more(words);
    EXPECT_EQ(r.code, 1) << words[0];
    EXPECT_NE(r.err.find(what), std::string::npos) << r.err;
  }
  // A rank that is not the tensors' leaves open what the factor is.
  Json config = read_json(folder_.path("first") + "/adapter_config.json");
  config["r"] = 5;
  folder_.write("first/adapter_config.json", dump_json(config));
  const CliResult r = more({});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("gives it rank 5"), std::string::npos) << r.err;
}

TEST_F(Loop, ANameOfTheHubStaysOneInTheAdapter) {
  const std::string hub = folder_.path("hub");
  write_tiny_model(hub + "/models--some--model/snapshots/abc");
  setenv("HF_HUB_CACHE", hub.c_str(), 1);
  const CliResult r = train({"--epochs", "1", "--model", "some/model"});
  unsetenv("HF_HUB_CACHE");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(read_json(out("adapter_config.json"))["base_model_name_or_path"], "some/model");
}

TEST_F(Loop, StopsEarlyAndKeepsTheBest) {
  const CliResult r = train({"--learning-rate", "0.3", "--lr-schedule", "constant", "--warmup", "0",
                             "--epochs", "50", "--steps-per-eval", "1", "--early-stop", "2"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json done = r.event("done");
  EXPECT_TRUE(done["stopped_early"].get<bool>());
  EXPECT_EQ(done["kept_step"], done["best_step"]);
  EXPECT_LT(done["steps"].get<int64_t>(), 150);
  EXPECT_EQ(done["steps"].get<int64_t>(), done["best_step"].get<int64_t>() + 2);
  double lowest = 1e9;
  for (const Json& e : events(r, "eval")) lowest = std::min(lowest, e["loss"].get<double>());
  EXPECT_EQ(done["valid_loss"].get<double>(), lowest);
  EXPECT_TRUE(contents(out("adapter_model.safetensors")) ==
              contents(out("best/adapter_model.safetensors")));
  // A finished run that is resumed stays as it is.
  const std::string before = contents(out("adapter_model.safetensors"));
  const CliResult again =
      train({"--learning-rate", "0.3", "--lr-schedule", "constant", "--warmup", "0", "--epochs",
             "50", "--steps-per-eval", "1", "--early-stop", "2", "--resume"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.event("done")["steps"], done["steps"]);
  EXPECT_TRUE(contents(out("adapter_model.safetensors")) == before);
}

// The delta is what patience waits for; what is kept is the lowest all the same.
TEST_F(Loop, StopsEarlyByADelta) {
  const CliResult r =
      train({"--learning-rate", "0.003", "--epochs", "50", "--steps-per-eval", "1",
             "--steps-per-report", "100", "--early-stop", "3", "--early-stop-delta", "100"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json done = r.event("done");
  EXPECT_EQ(done["steps"], 3);
  double lowest = 1e9;
  for (const Json& e : events(r, "eval")) lowest = std::min(lowest, e["loss"].get<double>());
  EXPECT_EQ(done["valid_loss"].get<double>(), lowest);
  EXPECT_GT(done["best_step"], 0);
  EXPECT_EQ(events(r, "step").back()["step"], 3);
}

TEST_F(Loop, WhatGoesByHeldOutRowsWantsSome) {
  const std::string only = folder_.write("only/train.jsonl", "{\"text\": \"one two\"}\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--early-stop", "2"}, {"--keep-best"}}) {
    std::vector<std::string> all = {"train", "--model", folder_.path("model"), "--data", only};
    all.insert(all.end(), words.begin(), words.end());
    const CliResult r = wick(all);
    EXPECT_EQ(r.code, 1);
    EXPECT_NE(r.err.find("--val-split"), std::string::npos) << r.err;
  }
}

TEST_F(Loop, ASweepThatEndsInNothingFails) {
  const std::vector<std::string> sweep = {"--sweep", "lr=1e-4,2e-4"};
  ASSERT_EQ(train(sweep).code, 0);
  std::vector<std::string> other = sweep;
  other.insert(other.end(), {"--resume", "--seed", "5"});
  const CliResult r = train(other);
  EXPECT_EQ(r.code, 1) << r.out;
  EXPECT_NE(r.err.find("no adapter of the sweep"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("seed: was 0, is now 5"), std::string::npos) << r.err;
}

// As mlx-lm's files say it; alpha is then another for each rank.
TEST_F(Loop, ASweepOverRanksKeepsAScale) {
  const std::string settings = folder_.write("run.yaml", "lora_parameters: {rank: 8, scale: 3}\n");
  const CliResult r = train({"-c", settings, "--sweep", "rank=2,4", "--epochs", "1"});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const auto& [folder, alpha] : {std::pair{"rank=2", 6.0}, {"rank=4", 12.0}})
    EXPECT_EQ(read_json(out(folder) + "/adapter_config.json")["lora_alpha"], alpha) << folder;
}

// Rows learned by rote have a lower loss than held-out ones.
TEST_F(Loop, ASweepRanksByHeldOutRowsFirst) {
  folder_.write("rote/train.jsonl", "{\"text\": \"aaaaaaaaaaaaaaaa\"}\n");
  const CliResult r = wick({"train", "--model", folder_.path("model"), "--adapter-path",
                            folder_.path("out"), "--json", "--sweep-data", folder_.path("rote"),
                            folder_.path("data"), "--epochs", "20", "--learning-rate", "0.02"});
  ASSERT_EQ(r.code, 0) << r.err;
  const std::vector<Json> ranked = events(r, "ranked");
  ASSERT_EQ(ranked.size(), 2u);
  EXPECT_EQ(ranked[0]["name"], "data") << r.out;
  EXPECT_LT(ranked[1]["final_loss"], ranked[0]["valid_loss"]);
  EXPECT_NE(r.err.find("1 adapter has no held-out rows: behind"), std::string::npos) << r.err;
}

// A loss of easy rows is no better than one of hard ones.
TEST_F(Loop, ASweepSaysWhichRowsALossIsOf) {
  const std::string easy = "{\"text\": \"aaaaaaaaaaaaaaaa\"}\n";
  folder_.write("easy/train.jsonl", easy);
  folder_.write("easy/valid.jsonl", easy);
  auto sweep = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--model", folder_.path("model"), "--adapter-path",
                               folder_.path("out"), "--epochs", "1", "--sweep"});
    return wick(more);
  };
  const CliResult r =
      sweep({"lr=1e-3,0.02", "--sweep-data", folder_.path("data"), folder_.path("easy"), "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const std::vector<Json> ranked = events(r, "ranked");
  ASSERT_EQ(ranked.size(), 4u);
  const Json summary = read_json(out("summary.json"));
  EXPECT_EQ(summary["row_sets"], 2);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ranked[i]["rank"], 1 + i);
    EXPECT_EQ(summary["adapters"][i]["rank"], 1 + i);
    if (i > 0) {
      EXPECT_GE(ranked[i]["valid_loss"], ranked[i - 1]["valid_loss"]);
    }
    const std::string file = ranked[i]["rows_file"].get<std::string>();
    EXPECT_NE(file.find(ranked[i]["rows"] == 1 ? "data" : "easy"), std::string::npos) << file;
  }
  EXPECT_NE(r.err.find("2 different sets of rows: only those of the same rows compare"),
            std::string::npos)
      << r.err;
  const CliResult text =
      sweep({"lr=1e-3,0.02", "--sweep-data", folder_.path("data"), folder_.path("easy")});
  EXPECT_NE(text.out.find("loss of"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("rows 2, "), std::string::npos) << text.out;
  const CliResult same = sweep({"lr=1e-3,0.02", "--data", folder_.path("easy")});
  EXPECT_EQ(same.out.find("rows 1,"), std::string::npos) << same.out;
  EXPECT_EQ(same.err.find("sets of rows"), std::string::npos) << same.err;
}

// A device in the place of a file is written to, and never replaced by one.
TEST_F(Loop, MetricsMayGoToADevice) {
  const std::string pipe = folder_.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  EXPECT_EQ(train({"--iters", "2", "--metrics", pipe}).code, 0);
  char begin[9] = {};
  EXPECT_EQ(::read(reader, begin, 8), 8);
  ::close(reader);
  EXPECT_STREQ(begin, "{\"event\"");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_THROW(write_file(pipe, "text"), Error);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST_F(Loop, CanBeWatched) {
  const std::string prompts = folder_.write("prompts.txt", "\xEF\xBB\xBFwhat is it?\n\nand why?\n");
  const CliResult r =
      train({"--epochs", "4", "--steps-per-eval", "4", "--save-every", "5", "--save-numbered",
             "--metrics", out("run.jsonl"), "--tensorboard", out("logs"), "--eval-prompts", prompts,
             "--hook", "cat >> " + out("hooked")});
  ASSERT_EQ(r.code, 0) << r.err;
  std::istringstream lines(contents(out("run.jsonl")));
  int steps = 0, evals = 0, saves = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json event = parse_json(line, "run.jsonl");
    steps += event["event"] == "step";
    evals += event["event"] == "eval";
    saves += event["event"] == "saved";
  }
  EXPECT_EQ(steps, 12);
  EXPECT_EQ(evals, 4);  // 0, 4, 8, 12
  EXPECT_EQ(saves, 3);  // 5, 10, 12
  for (const Json& e : events(r, "eval")) {
    ASSERT_EQ(e["samples"].size(), 2u);
    EXPECT_EQ(e["samples"][0]["prompt"], "what is it?");
    EXPECT_EQ(e["samples"][1]["prompt"], "and why?");
  }
  const std::string hooked = contents(out("hooked"));
  EXPECT_EQ(std::count(hooked.begin(), hooked.end(), '\n'), 4);
  EXPECT_FALSE(std::filesystem::is_empty(out("logs")));
  EXPECT_TRUE(std::filesystem::exists(out("step-0000010/adapter_model.safetensors")));
  EXPECT_NE(contents(out("report.html")).find("The same prompts at each look"), std::string::npos);
}

}  // namespace
}  // namespace wick::test
