// SPDX-License-Identifier: Apache-2.0
// How long a checkpoint and its result take on a disk: by writing them, into a folder that is gone
// afterwards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace wick {

// Seconds of a checkpoint with its result, and of the result alone; between which the first lie.
struct Saving {
  double seconds = 0, result = 0, low = 0, high = 0;
};

struct SaveTrial {
  std::filesystem::path place;  // where the run saves; need not be there yet
  int64_t bytes = 0;            // of all that the run writes at once
  // Each writes into the folder that it is given. Where a part stands for the whole, `checkpoint`
  // writes `part` of the bytes and there is no `result`, which has `result_bytes`.
  std::function<void(const std::filesystem::path&)> checkpoint = {}, result = {};
  double part = 1;
  int64_t files = 1, result_bytes = 0;
};

// Never throws: where writing fails the checkpoint will, and say which file; a forecast goes by a
// common disk then.
Saving try_saving(const SaveTrial& trial);
// The same without a trial.
Saving common_saving(int64_t bytes);

}  // namespace wick
