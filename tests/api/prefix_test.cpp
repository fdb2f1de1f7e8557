// SPDX-License-Identifier: Apache-2.0
// Kept outputs of the frozen blocks: the same bits with and without, in memory and on disk, stopped
// and resumed.
#include <filesystem>
#include <string>

#include "api/run_fixture.h"
#include "train/prefix_store.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class PrefixTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    write_texts("data", 12, 5);
  }

  TrainOptions options(const std::string& name, const std::string& cache) const {
    TrainOptions o = run_options(name);
    o.prefix_cache = cache;
    o.num_layers = 3;
    o.epochs = 3;
    o.dropout = 0.1;
    o.steps_per_eval = 2;
    o.save_every = 2;
    return o;
  }
  TrainResult run(const TrainOptions& o, const TrainCallbacks& callbacks = {}) {
    Model model = Model::load(engine_);
    return Trainer(model, o).run(callbacks);
  }
};

TEST_F(PrefixTest, TheSameBitsWithAndWithoutInMemoryAndOnDisk) {
  const std::string folder = (root_ / "kept").string();
  const TrainResult plain = run(options("off", "off"));
  for (const std::string& cache : {std::string("memory"), folder, folder, std::string("auto")}) {
    TrainOptions o = options("on", cache);
    Model model = Model::load(engine_);
    Trainer trainer(model, o);
    EXPECT_GT(trainer.forecast().prefix_blocks, 0) << cache;
    const TrainResult kept = trainer.run();
    ASSERT_EQ(plain.history.size(), kept.history.size());
    for (size_t i = 0; i < plain.history.size(); ++i)
      EXPECT_EQ(plain.history[i].loss, kept.history[i].loss) << cache << " update " << i;
    ASSERT_EQ(plain.evals.size(), kept.evals.size());
    for (size_t i = 0; i < plain.evals.size(); ++i)
      EXPECT_EQ(plain.evals[i].loss, kept.evals[i].loss) << cache << " evaluation " << i;
    EXPECT_EQ(bytes("off/adapter_model.safetensors"), bytes("on/adapter_model.safetensors"));
  }
  EXPECT_GT(fs::file_size(root_ / "kept/prefix_rows.bin"), 1000U);
}

// Few rows are multiplied in another order of sums, so no pack may lie in a program of so few slots
// while rows are kept from a larger one.
TEST_F(PrefixTest, TheSameBitsWhereSomePacksAreOfFewTokens) {
  for (const bool packing : {true, false}) {
    for (const char* cache : {"off", "memory"}) {
      TrainOptions o = options(cache, cache);
      o.batch_size = 1;
      o.packing = packing;
      Model model = Model::load(engine_, {.dtype = "f32"});
      Trainer(model, o).run();
    }
    EXPECT_TRUE(bytes("off/adapter_model.safetensors") ==
                bytes("memory/adapter_model.safetensors"));
  }
}

TEST_F(PrefixTest, StoppedAndResumedAndWithTooSmallABudget) {
  run(options("whole", "off"));
  for (const std::string& cache : {std::string("memory"), (root_ / "kept").string()}) {
    TrainOptions o = options("half", cache);
    fs::remove_all(root_ / "half");
    int updates = 0;
    run(o, {.should_stop = [&] { return ++updates == 4; }});
    o.resume = true;
    run(o);
    EXPECT_EQ(bytes("whole/adapter_model.safetensors"), bytes("half/adapter_model.safetensors"));
  }
  TrainOptions o = options("small", "memory");
  o.prefix_cache_bytes = 8000;
  run(o);
  EXPECT_EQ(bytes("whole/adapter_model.safetensors"), bytes("small/adapter_model.safetensors"));
}

TEST_F(PrefixTest, AStoreKeepsWholeRecordsOnly) {
  const fs::path file = root_ / "rows.bin";
  std::vector<std::byte> a(100, std::byte{7}), b(60, std::byte{9}), got(100);
  {
    PrefixStore store(file, 5, 1000);
    store.put({0, 3}, a);
    store.put({1, 3}, b);
    EXPECT_THROW(PrefixStore(file, 5, 1000), Error);
  }
  {
    PrefixStore store(file, 5, 1000);
    EXPECT_EQ(store.rows(), 2);
    EXPECT_TRUE(store.get({0, 3}, got));
    EXPECT_EQ(got, a);
    EXPECT_FALSE(store.get({1, 3}, got));  // of another size
  }
  fs::resize_file(file, fs::file_size(file) - 1);
  {
    PrefixStore store(file, 5, 1000);
    EXPECT_EQ(store.rows(), 1);
    store.put({1, 3}, b);
    got.resize(60);
    EXPECT_TRUE(store.get({1, 3}, got));
    EXPECT_EQ(got, b);
    store.put({1, 4}, std::vector<std::byte>(900));
    EXPECT_FALSE(store.has({1, 4}));  // beyond the budget
  }
  EXPECT_EQ(PrefixStore(file, 6, 1000).rows(), 0);
}

}  // namespace
}  // namespace wick
