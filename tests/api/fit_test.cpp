// SPDX-License-Identifier: Apache-2.0
// --memory: what is chosen fits, and the run learns the same.
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>

#include "api/run_fixture.h"
#include "base/process.h"

namespace wick {
namespace {

class FitTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    write_texts("data", 24, 7);
  }

  TrainOptions options() const {
    TrainOptions o = run_options("adapter");
    o.batch_size = 8;
    o.iters = 4;
    return o;
  }
  void expect_held(const TrainOptions& options, bool of_the_whole);
};

// Runs with a quarter, a half and three quarters of what `given` leaves open, against the free run.
void FitTest::expect_held(const TrainOptions& options, bool of_the_whole) {
  Model model = Model::load(engine_, {.dtype = "f32"});
  Trainer free_run(model, options);
  const Forecast free = free_run.forecast();
  EXPECT_EQ(free.activations + free.head + free.workspace, free.arena);
  EXPECT_TRUE(free.choice.empty());
  const std::vector<double> wanted = losses(free_run.run());
  const int64_t changing = of_the_whole ? free.peak_bytes : free.arena + free.feeds;
  for (double share : {0.25, 0.5, 0.75}) {
    TrainOptions o = options;
    o.memory_bytes =
        free.peak_bytes - changing + std::llround(share * static_cast<double>(changing));
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

TEST_F(FitTest, HoldsAQuarterAHalfAndThreeQuartersOfWhatTheFreePlanTakesBesideWeights) {
  if (engine_.device().name == "cuda")
    GTEST_SKIP() << "the workspace of the library of products is most of so small a plan";
  expect_held(options(), false);
}

TEST_F(FitTest, HoldsAQuarterAHalfAndThreeQuartersOfTheWholeFreePlan) {
  // Many short rows in an update: activations outweigh the weights, which cannot give.
  write_texts("data", 96, 7);
  TrainOptions o = options();
  o.batch_size = 48;
  o.iters = 2;
  expect_held(o, true);
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

// The optimizer works where the step's numbers lay: Muon's matrices reach as far as the loss of
// short rows does.
TEST_F(FitTest, TheFirstLossIsThatOfEveryOptimizer) {
  TrainOptions o = options();
  o.rank = 16;
  o.targets = {"q_proj", "embed_tokens"};
  o.dataset.max_seq_length = 16;
  o.iters = 2;
  std::vector<double> first;
  for (const char* name : {"adamw", "muon", "adafactor", "sgd", "lion", "adamw_8bit"}) {
    o.optimizer = name;
    Model model = Model::load(engine_, {.dtype = "f32"});
    first.push_back(losses(Trainer(model, o).run()).front());
    EXPECT_EQ(first.back(), first.front()) << name;
  }
}

// Of a rank that nobody can have meant: said at once, not after gigabytes of its numbers were made.
TEST_F(FitTest, ARunThatFitsNowhereIsForecastWithoutItsMemory) {
  Model model = Model::load(engine_, {.dtype = "f32"});
  TrainOptions o = options();
  o.rank = 65536;
  const int64_t before = peak_memory_bytes();
  Trainer trainer(model, o);
  const Forecast& f = trainer.forecast();
  EXPECT_GT(f.params, int64_t{5} << 30);
  EXPECT_GT(f.peak_bytes, 4 * f.params);
  EXPECT_LT(peak_memory_bytes() - before, int64_t{1} << 30);
}

TEST_F(FitTest, WhatCannotFitSaysWhatWould) {
  Model model = Model::load(engine_, {.dtype = "f32"});
  TrainOptions o = options();
  o.memory_bytes = 1 << 20;
  const std::string message = message_of([&] { Trainer trainer(model, o); });
  std::vector<std::string> parts = {"the smallest plan", "--max-seq-length ",
                                    "--targets q_proj,v_proj ", "or a smaller model"};
  // On the card codes of so small a model save less than widening them takes.
  if (engine_.device().name != "cuda")
    parts.insert(parts.end(), {"--quantize 4 ", "--quantize 4 --targets q_proj,v_proj "});
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
}

// Each size that is offered is what the run would really take, kind of adapter and all: one byte
// less is refused.
TEST_F(FitTest, WhatIsOfferedIsWhatItTakes) {
  if (engine_.device().name == "cuda")
    GTEST_SKIP() << "codes of so small a model save less than widening them takes";
  TrainOptions o = options();
  o.dora = true;
  o.modules_to_save = {"model.norm"};
  auto least = [&](const ModelOptions& m, TrainOptions smaller) {
    Model model = Model::load(engine_, m);
    int64_t low = 1 << 20, high = int64_t{1} << 30;  // too little, enough
    while (high - low > 1000) {
      smaller.memory_bytes = (low + high) / 2;
      const bool fits = message_of([&] { Trainer trainer(model, smaller); }).empty();
      (fits ? high : low) = smaller.memory_bytes;
    }
    return high;
  };
  const ModelOptions plain = {.dtype = "f32"}, codes = {.dtype = "f32", .quantize = 4};
  const int64_t quantized = least(codes, o);
  TrainOptions few = o;
  few.targets = {"q_proj", "v_proj"};
  const int64_t both = least(codes, few);
  ASSERT_LT(both, quantized);

  Model model = Model::load(engine_, plain);
  auto message = [&](int64_t bytes) {
    o.memory_bytes = bytes;
    return message_of([&] { Trainer trainer(model, o); });
  };
  // By itself where that is enough, together with another where it is not.
  const std::string alone = message(quantized + 1000), short_of = message(quantized - 2000);
  EXPECT_NE(alone.find("(fits)"), std::string::npos) << alone;
  EXPECT_EQ(alone.find("--quantize 4 --"), std::string::npos) << alone;
  EXPECT_NE(short_of.find("--quantize 4 --"), std::string::npos) << short_of;
  EXPECT_NE(short_of.find("(fits)"), std::string::npos) << short_of;
}

// Both answers of a pair lie in one pack, each as long as a row may be.
TEST_F(FitTest, ShorterRowsThatAreOfferedForPairsFit) {
  std::string rows;
  for (int i = 0; i < 6; ++i)
    rows += R"({"prompt": "Count them all", "chosen": "one two three four five six seven eight",)"
            R"( "rejected": "eight seven six five four three two one, and none of them again"})"
            "\n";
  TrainOptions o = options();
  write_data("pairs", rows, rows);
  o.data = (root_ / "pairs").string();
  o.loss = "simpo";
  o.memory_bytes = 1 << 20;
  Model model = Model::load(engine_, {.dtype = "f32"});
  const std::string message = message_of([&] { Trainer trainer(model, o); });
  const std::string flag = "with --max-seq-length ";
  const size_t at = message.find(flag);
  ASSERT_NE(at, std::string::npos) << message;
  std::istringstream offered(message.substr(at + flag.size()));
  double megabytes = 0;
  offered >> o.dataset.max_seq_length >> megabytes;
  o.memory_bytes = std::llround(1e6 * megabytes);
  EXPECT_EQ(message_of([&] { Trainer trainer(model, o); }), "") << message;
}

}  // namespace
}  // namespace wick
