// SPDX-License-Identifier: Apache-2.0
// --memory: what is chosen fits, and the run learns the same.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "api/test_device.h"
#include "base/check.h"
#include "base/file.h"
#include "wick/wick.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class FitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / cat("wick_fit_", ::getpid());
    fs::remove_all(root_);
    make_folder(root_ / "data");
    std::string rows;
    for (int i = 0; i < 24; ++i) {
      std::string words;
      for (int k = 0; k < 4 + 3 * (i % 7); ++k) words += cat(" ", i * 31 + k);
      rows += cat(R"({"text":"row)", words, R"("})", "\n");
    }
    write_file(root_ / "data/train.jsonl", rows);
    write_file(root_ / "data/valid.jsonl", rows.substr(0, rows.find('\n', 400) + 1));
  }
  void TearDown() override { fs::remove_all(root_); }

  TrainOptions options() const {
    TrainOptions o;
    o.data = (root_ / "data").string();
    o.adapter_path = (root_ / "adapter").string();
    o.rank = 4;
    o.batch_size = 8;
    o.iters = 4;
    o.learning_rate = 5e-3;
    o.steps_per_report = 1;
    return o;
  }

  fs::path root_;
  Engine engine_{test_device()};
};

std::vector<double> losses(const TrainResult& r) {
  std::vector<double> all;
  for (const StepReport& step : r.history) all.push_back(step.loss);
  return all;
}

TEST_F(FitTest, HoldsAQuarterAHalfAndThreeQuartersOfWhatTheFreePlanTakesBesideWeights) {
  Model model = Model::load(engine_, {.dtype = "f32"});
  Trainer free_run(model, options());
  const Forecast free = free_run.forecast();
  EXPECT_EQ(free.activations + free.head + free.workspace, free.arena);
  EXPECT_TRUE(free.choice.empty());
  const std::vector<double> wanted = losses(free_run.run());
  const int64_t changing = free.arena + free.feeds, fixed = free.peak_bytes - changing;
  for (double share : {0.25, 0.5, 0.75}) {
    TrainOptions o = options();
    o.memory_bytes = fixed + std::llround(share * static_cast<double>(changing));
    Model again = Model::load(engine_, {.dtype = "f32"});
    Trainer trainer(again, o);
    const Forecast& f = trainer.forecast();
    EXPECT_LE(f.peak_bytes, o.memory_bytes) << share;
    EXPECT_EQ(f.free_bytes, free.peak_bytes);
    EXPECT_FALSE(f.choice.empty()) << share;
    EXPECT_GT(f.time_factor, 1.0) << f.choice;
    const std::vector<double> got = losses(trainer.run());
    ASSERT_EQ(got.size(), wanted.size());
    // Programs of other sizes cut the gradients' sums elsewhere.
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-5) << f.choice;
  }
}

TEST_F(FitTest, TheSameChoiceEachTimeAndNoMoreRecomputeThanNeeded) {
  Model model = Model::load(engine_, {.dtype = "f32"});
  const Forecast free = Trainer(model, options()).forecast();
  TrainOptions o = options();
  o.memory_bytes = free.peak_bytes - 1;
  const Forecast a = Trainer(model, o).forecast(), b = Trainer(model, o).forecast();
  EXPECT_EQ(a.choice, b.choice);
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
  EXPECT_LT(a.recompute_blocks, a.blocks) << a.choice;
  EXPECT_LT(a.peak_bytes, free.peak_bytes);
}

TEST_F(FitTest, WhatCannotFitSaysWhatWould) {
  Model model = Model::load(engine_, {.dtype = "f32"});
  TrainOptions o = options();
  o.memory_bytes = 1 << 20;
  std::string message;
  try {
    Trainer trainer(model, o);
  } catch (const Error& e) {
    message = e.what();
  }
  for (const char* part : {"the smallest plan", "--max-seq-length ", "--quantize 4 "})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace
}  // namespace wick
