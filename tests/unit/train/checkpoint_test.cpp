// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "io/safetensors_writer.h"

namespace wick {
namespace {

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              cat("wick_checkpoint_", ::getpid(), "_",
                  testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    make_folder(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

Checkpoint example() {
  Checkpoint c;
  c.step = 7;
  c.params = {1.5f, -2.0f};
  c.best = {1.0f, -1.0f};
  c.states = {{"m8", DType::kU8, {std::byte{1}, std::byte{255}}},
              {"scales", DType::kF32, std::vector<std::byte>(8)}};
  c.run = Json{{"rank", 8}, {"data", "x"}};
  c.progress = Json{{"window_loss", 0.1}};
  return c;
}

TEST_F(CheckpointTest, GivesBackWhatWasSaved) {
  EXPECT_FALSE(load_checkpoint(folder_));
  const Checkpoint c = example();
  save_checkpoint(folder_, c);
  const std::optional<Checkpoint> got = load_checkpoint(folder_);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->step, 7);
  EXPECT_EQ(got->params, c.params);
  EXPECT_EQ(got->best, c.best);
  ASSERT_EQ(got->states.size(), 2u);
  for (const CheckpointState& s : got->states) {
    const CheckpointState& want = c.states[s.name == "m8" ? 0 : 1];
    EXPECT_EQ(s.name, want.name);
    EXPECT_EQ(s.dtype, want.dtype);
    EXPECT_EQ(s.bytes, want.bytes);
  }
  EXPECT_EQ(got->progress["window_loss"].get<double>(), 0.1);
}

TEST_F(CheckpointTest, AStepThatIsNoneIsRefused) {
  Checkpoint c = example();
  c.step = -1;
  save_checkpoint(folder_, c);
  try {
    load_checkpoint(folder_);
    FAIL() << "update -1 was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kCorruptFile);
    EXPECT_NE(std::string(e.what()).find("step is \"-1\""), std::string::npos) << e.what();
  }
}

TEST_F(CheckpointTest, EveryChangedByteIsSeen) {
  save_checkpoint(folder_, example());
  const std::string whole = read_file(checkpoint_path(folder_));
  for (size_t i = 0; i < whole.size(); i += 5) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    std::ofstream(checkpoint_path(folder_), std::ios::binary) << changed;
    try {
      const std::optional<Checkpoint> got = load_checkpoint(folder_);
      // What the checksum does not cover does not matter: the name of the format, white space.
      ASSERT_TRUE(got);
      EXPECT_EQ(got->params, example().params) << i;
      EXPECT_EQ(got->step, 7) << i;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCorruptFile) << i << " " << e.what();
    }
  }
  for (size_t length : {size_t{0}, size_t{5}, whole.size() / 2, whole.size() - 1}) {
    std::ofstream(checkpoint_path(folder_), std::ios::binary) << whole.substr(0, length);
    try {
      load_checkpoint(folder_);
      ADD_FAILURE() << length;
    } catch (const Error& e) {
      const std::string said = e.what();
      EXPECT_NE(said.find("without --resume"), std::string::npos) << length << ": " << said;
      EXPECT_EQ(said.find("download"), std::string::npos) << length << ": " << said;
    }
  }
}

// A damaged name of the checksum would pass for a file of a build that had none.
TEST_F(CheckpointTest, ADamagedNameInTheHeaderIsSeen) {
  save_checkpoint(folder_, example());
  const std::string whole = read_file(checkpoint_path(folder_));
  for (const char* name : {"\"crc32c\"", "\"step\"", "\"run\"", "\"progress\""}) {
    std::string changed = whole;
    changed[changed.find(name) + 2] ^= 1;
    std::ofstream(checkpoint_path(folder_), std::ios::binary) << changed;
    for (const bool only_run : {false, true}) {
      try {
        only_run ? void(load_checkpoint_run(folder_)) : void(load_checkpoint(folder_));
        ADD_FAILURE() << name << " " << only_run;
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("the file was damaged after"), std::string::npos)
            << name << ": " << e.what();
      }
    }
  }
}

TEST_F(CheckpointTest, DamagedTextsAreSaidToBeDamaged) {
  for (const char* broken : {"run", "progress"}) {
    std::map<std::string, std::string> texts = {
        {"format", "wick-training-state"}, {"step", "3"}, {"run", "{}"}, {"progress", "{}"}};
    texts[broken] = "{\"a\" 1}";
    SafetensorsWriter writer(checkpoint_path(folder_), texts);
    const float value = 1;
    writer.declare("params", DType::kF32, {1});
    writer.write("params", std::as_bytes(std::span(&value, 1)));
    writer.commit();
    try {
      load_checkpoint(folder_);
      ADD_FAILURE() << broken;
    } catch (const Error& e) {
      const std::string said = e.what();
      EXPECT_NE(said.find(std::string("its ") + broken + " is no JSON"), std::string::npos) << said;
      EXPECT_NE(said.find("start again without --resume"), std::string::npos) << said;
    }
  }
}

TEST_F(CheckpointTest, FilesWithPlainMomentsAreRead) {
  SafetensorsWriter writer(
      checkpoint_path(folder_),
      {{"format", "wick-training-state"}, {"step", "3"}, {"run", "{}"}, {"progress", "{}"}});
  const float values[] = {1, 2};
  for (const char* name : {"params", "m", "v"}) writer.declare(name, DType::kF32, {2});
  for (const char* name : {"params", "m", "v"})
    writer.write(name, std::as_bytes(std::span(values)));
  writer.commit();
  const std::optional<Checkpoint> got = load_checkpoint(folder_);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->step, 3);
  ASSERT_EQ(got->states.size(), 2u);
  EXPECT_EQ(got->states[0].name, "m");
  EXPECT_EQ(got->states[1].name, "v");
}

TEST_F(CheckpointTest, HalfWrittenFilesOfAKilledRunAreRemoved) {
  const std::filesystem::path left = folder_ / "training_state.safetensors.tmp123";
  std::ofstream(left) << "x";
  save_checkpoint(folder_, example());
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST(Differences, AreAllNamed) {
  const Json was{{"a", 1}, {"b", 2}, {"gone", true}}, now{{"a", 1}, {"b", 3}, {"new", 1}};
  const Json here = {{"model", "m"}, {"weights", "1"}, {"data", "d"}, {"data_fingerprint", "2"}};
  Json moved = here;
  moved["model"] = "/elsewhere/m";
  moved["data"] = "/elsewhere/d";
  EXPECT_TRUE(differences(here, moved).empty());
  moved["data_fingerprint"] = "3";
  EXPECT_EQ(differences(here, moved).size(), 2u);
  const std::vector<std::string> found = differences(was, now);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], "b: was 2, is now 3");
  EXPECT_EQ(found[1], "gone: was true, is now absent");
}

TEST(Crc32c, IsCastagnolis) {
  const std::string text = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(text))), 0xE3069283u);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(text).subspan(4)),
                   crc32c(std::as_bytes(std::span(text).first(4)))),
            0xE3069283u);
}

TEST(OrderDifferences, SayWhatAnotherBuildDoesOtherwise) {
  const Json now = {{"rank", 8},
                    {kOrder, {{"numerics", 2}, {"plan", "1"}, {"kernels", "2"}, {"packs", "3"}}}};
  EXPECT_TRUE(order_differences(now, now).empty());
  Json was = now;
  was[kOrder]["packs"] = "4";
  EXPECT_EQ(order_differences(was, now),
            std::vector<std::string>{"rows are laid into other packs"});
  was[kOrder]["numerics"] = 1;
  EXPECT_EQ(order_differences(was, now).size(), 2u);
  EXPECT_TRUE(differences(was, now).empty());
  was.erase(kOrder);
  EXPECT_EQ(order_differences(was, now).size(), 1u);
}

}  // namespace
}  // namespace wick
