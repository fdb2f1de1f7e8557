// SPDX-License-Identifier: Apache-2.0
// The state of a run that a resume needs, in one file that is replaced atomically: a crash or a
// full disk leaves the one before whole.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "io/json.h"

namespace wick {

struct Checkpoint {
  int64_t step = 0;  // updates done
  std::vector<float> params, m, v;
  Json run;       // what must be the same on resume: options, data, model
  Json progress;  // history, best loss, tokens so far
};

std::filesystem::path checkpoint_path(const std::filesystem::path& folder);
void save_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint);
// None if the folder has no checkpoint. Throws: kCorruptFile.
std::optional<Checkpoint> load_checkpoint(const std::filesystem::path& folder);
// Its `run` alone, without reading the numbers.
std::optional<Json> load_checkpoint_run(const std::filesystem::path& folder);

// The first member whose value differs, as "name: was …, is now …"; "" if there is none.
std::string first_difference(const Json& was, const Json& now);

}  // namespace wick
