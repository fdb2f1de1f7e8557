// SPDX-License-Identifier: Apache-2.0
#include "train/save_trial.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/file.h"

namespace wick {

namespace {

namespace fs = std::filesystem;

// A common disk: bytes in a second, and what a checkpoint takes whatever its size.
constexpr double kDiskRate = 3e8, kSaveSeconds = 0.02;
// Tries, the first of which makes the files that the others replace, as in a run; one of them where
// it takes longer than this.
constexpr int kTries = 3;
constexpr double kTrySeconds = 0.3;
// A single try says nothing of a disk's moods.
constexpr double kMood = 1.3;

// The folder itself or the nearest above it that is there: on the same disk, most likely.
fs::path existing(const fs::path& folder) {
  std::error_code none;
  fs::path at = fs::absolute(folder, none);
  while (!fs::is_directory(at, none) && at.has_relative_path()) at = at.parent_path();
  return at;
}

// A folder for the moment.
class TrialFolder {
 public:
  explicit TrialFolder(fs::path path) : path_(std::move(path)) {
    remove();
    make_folder(path_);
  }
  ~TrialFolder() { remove(); }
  TrialFolder(const TrialFolder&) = delete;
  TrialFolder& operator=(const TrialFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  void remove() {
    std::error_code none;
    fs::remove_all(path_, none);
  }
  fs::path path_;
};

template <typename F>
double seconds_of(const F& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Saving common_saving(int64_t bytes) {
  const double seconds = kSaveSeconds + static_cast<double>(bytes) / kDiskRate;
  return {seconds, 0, seconds, seconds};
}

Saving try_saving(const SaveTrial& trial) try {
  const TrialFolder folder(existing(trial.place) / ".wick_trial");
  std::vector<double> all;
  double results = 0, spent = 0;
  while (all.empty() || (all.size() < kTries && spent < kTrySeconds)) {
    double result = 0, seconds = 0;
    if (trial.part < 1) {
      // A part of the checkpoint stands for all bytes; each file has its own price.
      const double each = seconds_of([&] { write_file(folder.path() / "empty", ""); });
      const double part = seconds_of([&] { trial.checkpoint(folder.path()); });
      seconds = each * static_cast<double>(trial.files) + std::max(0.0, part - each) / trial.part;
      result = seconds * static_cast<double>(trial.result_bytes) / static_cast<double>(trial.bytes);
      spent += each + part;
    } else {
      const double state = seconds_of([&] { trial.checkpoint(folder.path()); });
      result = seconds_of([&] { trial.result(folder.path()); });
      seconds = state + result;
      spent += seconds;
    }
    all.push_back(seconds);
    results += result;
  }
  Saving saving;
  for (double seconds : all) saving.seconds += seconds / static_cast<double>(all.size());
  saving.result = results / static_cast<double>(all.size());
  const double mood = all.size() > 1 ? 1 : kMood;
  saving.low = *std::min_element(all.begin(), all.end()) / mood;
  saving.high = *std::max_element(all.begin(), all.end()) * mood;
  return saving;
} catch (const std::exception&) {
  return common_saving(trial.bytes);
}

}  // namespace wick
