// SPDX-License-Identifier: Apache-2.0
// What is tried before a run about its saving, on a disk that is left as it was.
#include "train/save_trial.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/file.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class SaveTrialTest : public testing::Test {
 protected:
  SaveTrialTest() {
    std::string name = (fs::temp_directory_path() / "wick_trial_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~SaveTrialTest() override { fs::remove_all(folder_); }

  // Writes to the trial's folder, and notes it.
  std::function<void(const fs::path&)> writer(const char* file, int& calls) {
    return [this, file, &calls](const fs::path& folder) {
      write_file(folder / file, std::string(1000, 'x'));
      folders_.insert(folder);
      ++calls;
    };
  }

  fs::path folder_;
  std::set<fs::path> folders_;
};

TEST_F(SaveTrialTest, WritesBesideTheResultAndLeavesNothing) {
  int checkpoints = 0, results = 0;
  // Where the run will save is not there yet: the trial is in the nearest folder that is.
  const fs::path place = folder_ / "runs/first";
  const Saving saving = try_saving({.place = place,
                                    .bytes = 2000,
                                    .checkpoint = writer("checkpoint", checkpoints),
                                    .result = writer("result", results)});
  EXPECT_GE(checkpoints, 1);
  EXPECT_EQ(results, checkpoints);
  ASSERT_EQ(folders_.size(), 1U);
  EXPECT_EQ(folders_.begin()->parent_path(), folder_);
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_GT(saving.result, 0);
  EXPECT_GT(saving.seconds, saving.result);
  EXPECT_LE(saving.low, saving.seconds);
  EXPECT_GE(saving.high, saving.seconds);
}

TEST_F(SaveTrialTest, APartStandsForTheWhole) {
  int checkpoints = 0;
  const Saving saving = try_saving({.place = folder_,
                                    .bytes = 4000,
                                    .checkpoint = writer("checkpoint", checkpoints),
                                    .part = 0.25,
                                    .files = 3,
                                    .result_bytes = 1000});
  EXPECT_GE(checkpoints, 1);
  EXPECT_GT(saving.seconds, 0);
  EXPECT_NEAR(saving.result, saving.seconds / 4, 1e-9);
  EXPECT_LE(saving.low, saving.seconds);
  EXPECT_GE(saving.high, saving.seconds);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SaveTrialTest, ADiskThatFailsIsTakenForACommonOne) {
  const int64_t bytes = 600'000'000;
  const Saving saving =
      try_saving({.place = folder_,
                  .bytes = bytes,
                  .checkpoint =
                      [](const fs::path& folder) {
                        write_file(folder / "half", "x");
                        throw std::runtime_error("the disk is full");
                      },
                  .result = [](const fs::path&) { FAIL() << "after a failure"; }});
  EXPECT_EQ(saving.seconds, common_saving(bytes).seconds);
  EXPECT_GT(saving.seconds, 1);
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace wick
