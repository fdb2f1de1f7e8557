// SPDX-License-Identifier: Apache-2.0
// A run's folder that another run has used: what stays there, what goes, and what is said of it.
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "api/run_fixture.h"
#include "base/folder_lock.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class Folder : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    std::string rows;
    for (int i = 0; i < 12; ++i) rows += kChatRow;
    write_data("data", rows, kChatRow);
  }
  TrainOptions options(const std::string& name) const {
    TrainOptions o = run_options(name);
    o.iters = 4;
    return o;
  }
};

TEST_F(Folder, ADivergingRunStopsAndSaysWhatIsKept) {
  Model model = Model::load(engine_);
  auto refusal = [&](const TrainOptions& o) {
    return message_of([&] { Trainer(model, o).run(); });
  };
  auto expect_parts = [](const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  Trainer(model, options("run")).run();
  const std::string good = bytes("run/adapter_model.safetensors");

  // Finite numbers whose product is not.
  fs::copy(root_ / "run", root_ / "wild");
  SafetensorsFile file(root_ / "run/adapter_model.safetensors");
  SafetensorsWriter writer(root_ / "wild/adapter_model.safetensors");
  for (const TensorInfo& t : file.tensors()) writer.declare(t.name, DType::kF32, t.shape);
  for (const TensorInfo& t : file.tensors()) {
    std::vector<float> huge(static_cast<size_t>(t.shape.elements()), 1e30f);
    writer.write(t.name, std::as_bytes(std::span(huge)));
  }
  writer.commit();

  TrainOptions o = options("run");
  o.init_adapter = (root_ / "wild").string();
  expect_parts(refusal(o), {"before the first update: the held-out loss is ",
                            "nothing of this run had been saved yet, and ",
                            "run still has an earlier run's; nothing was trained before it"});
  EXPECT_EQ(bytes("run/adapter_model.safetensors"), good);
  o.adapter_path = (root_ / "fresh").string();
  fs::remove(root_ / "data/valid.jsonl");
  expect_parts(refusal(o), {"update 1: the loss is ",
                            "nothing of this run had been saved yet; nothing was trained before"});

  // Each update makes the parameters a hundred times larger.
  TrainOptions steep = options("steep");
  steep.iters = 60;
  steep.save_every = 1;
  steep.learning_rate = steep.weight_decay = 10;
  steep.lr_schedule = "constant";
  const std::string said = refusal(steep);
  const int64_t bad = std::stoll(said.substr(std::string("update ").size()));
  expect_parts(said, {": the loss is ", cat("the checkpoint of update ", bad - 1, " in "),
                      "steep is kept; try a lower --learning-rate"});
  EXPECT_EQ(said.find("--resume"), std::string::npos) << said;  // it would only diverge again

  // What the held-out rows show first is not saved.
  write_file(root_ / "data/valid.jsonl", kChatRow);
  steep.steps_per_eval = 1;
  const std::string earlier = refusal(steep);
  const std::string begin = "after update ";
  ASSERT_TRUE(earlier.starts_with(begin)) << earlier;
  const int64_t seen = std::stoll(earlier.substr(begin.size()));
  EXPECT_EQ(seen, bad - 1);
  expect_parts(earlier, {": the held-out loss is ", cat("the checkpoint of update ", seen - 1)});
}

// The name may be another run's by the time that this one saves.
TEST_F(Folder, AFolderThatIsRemovedWhileTheRunGoesOn) {
  Model model = Model::load(engine_);
  TrainOptions o = options("run");
  o.iters = 3;
  o.save_every = 1;
  const fs::path folder = root_ / "run";
  std::vector<std::string> said;
  std::optional<FolderLock> other;
  bool taken = false;
  TrainCallbacks callbacks;
  callbacks.on_message = [&](const std::string& line) { said.push_back(line); };
  callbacks.on_save = [&](const SaveReport& r) {
    if (r.step != 1) return;
    fs::remove_all(folder);
    if (!taken) return;
    fs::create_directory(folder);
    other.emplace(folder);
  };
  Trainer(model, o).run(callbacks);
  EXPECT_TRUE(fs::exists(folder / "adapter_model.safetensors"));
  ASSERT_FALSE(said.empty());
  EXPECT_NE(said.back().find("run was removed or moved while the run went on"), std::string::npos)
      << said.back();

  taken = true;
  const std::string refused = message_of([&] { Trainer(model, o).run(callbacks); });
  for (const char* part : {"run: was removed or moved", "another run is writing"})
    EXPECT_NE(refused.find(part), std::string::npos) << refused;
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(Folder, ASweepHoldsTheFolderOfItsSummary) {
  Model model = Model::load(engine_);
  TrainOptions o = options("sweep");
  o.iters = 1;
  const std::string folder = o.adapter_path;
  const auto adapters = expand_sweep(o, {"rank=2,4"}, {});
  fs::create_directories(folder);
  {
    const FolderLock run(folder);
    EXPECT_THROW(Sweep(model, adapters).run(folder), Error);
  }
  EXPECT_FALSE(fs::exists(fs::path(folder) / "summary.json"));
  SweepCallbacks callbacks;
  bool held = false;
  callbacks.on_step = [&](const std::string&, const StepReport&) {
    try {
      const FolderLock run(folder);
    } catch (const Error&) {
      held = true;
    }
  };
  Sweep(model, adapters).run(folder, callbacks);
  EXPECT_TRUE(held);
  EXPECT_TRUE(fs::exists(fs::path(folder) / "summary.json"));
}

// Beside a result of another run it would be taken for that one's.
TEST_F(Folder, AFolderThatIsUsedAgainLosesTheBestOfTheRunBefore) {
  Model model = Model::load(engine_);
  TrainOptions o = options("run");
  o.iters = 2;
  o.keep_best = true;
  Trainer(model, o).run();
  ASSERT_TRUE(fs::exists(root_ / "run/best/adapter_model.safetensors"));
  o.keep_best = false;
  // Stopped before the first update, it has taken the place of nothing.
  TrainCallbacks callbacks;
  callbacks.should_give_up = [] { return true; };
  Trainer(model, o).run(callbacks);
  EXPECT_TRUE(fs::exists(root_ / "run/best/adapter_model.safetensors"));
  Trainer(model, o).run();
  EXPECT_FALSE(fs::exists(root_ / "run/best"));

  // What is not wick's stays.
  o.keep_best = true;
  Trainer(model, o).run();
  write_file(root_ / "run/best/notes.txt", "mine");
  o.keep_best = false;
  Trainer(model, o).run();
  EXPECT_FALSE(fs::exists(root_ / "run/best/adapter_model.safetensors"));
  EXPECT_EQ(bytes("run/best/notes.txt"), "mine");
}

TEST_F(Folder, AFolderThatIsUsedAgainLosesTheNumberedResultsOfTheRunBefore) {
  Model model = Model::load(engine_);
  TrainOptions o = options("run");
  auto numbered = [&] {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_ / "run"))
      if (fs::exists(entry.path() / "adapter_model.safetensors"))
        names.insert(entry.path().filename().string());
    return names;
  };
  using Names = std::set<std::string>;
  o.iters = 4;
  o.save_every = 1;
  o.save_numbered = true;
  Trainer(model, o).run();
  EXPECT_EQ(numbered(), (Names{"step-0000001", "step-0000002", "step-0000003", "step-0000004"}));

  // Names that are only like them, and what a link leads to, are not wick's.
  for (const char* other : {"step-3", "step-0000003a", "step--000003", "step-00000003"})
    fs::copy(root_ / "run/step-0000003", root_ / "run" / other);
  fs::copy(root_ / "run/step-0000003", root_ / "elsewhere");
  fs::create_directory_symlink(root_ / "elsewhere", root_ / "run/step-0000009");
  const Names theirs = {"step-3", "step-0000003a", "step--000003", "step-00000003", "step-0000009"};
  auto with_theirs = [&](Names names) {
    names.insert(theirs.begin(), theirs.end());
    return names;
  };
  o.save_every = 2;
  o.iters = 3;
  int64_t steps = 0;
  TrainCallbacks callbacks;
  callbacks.on_progress = [&](const StepReport&) { ++steps; };
  callbacks.should_stop = [&] { return steps == 2; };
  EXPECT_TRUE(Trainer(model, o).run(callbacks).interrupted);
  EXPECT_EQ(numbered(), with_theirs({"step-0000002"}));
  // A run that is resumed keeps its own.
  o.resume = true;
  Trainer(model, o).run();
  EXPECT_EQ(numbered(), with_theirs({"step-0000002", "step-0000003"}));
  o.resume = o.save_numbered = false;
  Trainer(model, o).run();
  EXPECT_EQ(numbered(), theirs);
}

TEST_F(Folder, AWholeModelIsNotTheBaseOfTheAdapterBefore) {
  Model model = Model::load(engine_, {.dtype = "f32"});
  TrainOptions o = options("run");
  o.iters = 2;
  Trainer(model, o).run();
  ASSERT_TRUE(fs::exists(root_ / "run/adapter_config.json"));
  o.fine_tune_type = "full";
  Model whole = Model::load(engine_, {.dtype = "f32"});
  Trainer(whole, o).run();
  EXPECT_TRUE(fs::exists(root_ / "run/config.json"));
  EXPECT_FALSE(fs::exists(root_ / "run/adapter_config.json"));
  EXPECT_FALSE(fs::exists(root_ / "run/adapter_model.safetensors"));
}

}  // namespace
}  // namespace wick
