// SPDX-License-Identifier: Apache-2.0
// The training loop from outside: optimizers, stopping, keeping the best, resuming with changes,
// watching.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

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

TEST_F(Loop, ResumingWithChangesSaysThemAll) {
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
  EXPECT_EQ(forced.event("done")["steps"], 12);
}

TEST_F(Loop, CanBeWatched) {
  const std::string prompts = folder_.write("prompts.txt", "what is it?\n\nand why?\n");
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
