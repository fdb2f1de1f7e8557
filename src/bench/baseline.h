// SPDX-License-Identifier: Apache-2.0
// Results kept under a name, and what changed since.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/stats.h"
#include "io/json.h"

namespace wick {

// A name without a slash and without an ending is NAME.json in $XDG_DATA_HOME/wick/bench (or
// ~/.local/share/wick/bench); everything else is a path. Throws: kInvalidArgument where there is
// neither of the two folders.
std::filesystem::path baseline_path(const std::string& name_or_path);

// `lines` are those of to_json(). Throws: kIo.
void save_baseline(const std::filesystem::path& path, const std::vector<Json>& lines);
// Throws: kNotFound, kCorruptFile.
std::vector<Json> load_baseline(const std::filesystem::path& path);

struct Comparison {
  std::string bench, what;
  Timing now, before;
  Change change = Change::kNoise;
};

// The lines that both have, in the order of `now`. Lines without a time are left out.
std::vector<Comparison> compare_lines(const std::vector<Json>& now,
                                      const std::vector<Json>& before);

}  // namespace wick
