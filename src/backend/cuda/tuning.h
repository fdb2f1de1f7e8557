// SPDX-License-Identifier: Apache-2.0
// TuningTable: what was measured to be fastest on this card, kept between runs in a file of lines
// "name = hex bytes". A file that cannot be read counts as empty; one that cannot be written makes
// the table unusable, so that nothing is chosen by a measurement that the next run would not know.
#pragma once

#include <map>
#include <string>

namespace wick::cuda {

class TuningTable {
 public:
  // "": unusable.
  explicit TuningTable(const std::string& file);

  bool usable() const { return !file_.empty(); }
  // False where there is no entry of that name and size.
  bool find(const std::string& name, void* value, size_t bytes) const;
  // Adds to the file at once, so that a run that is killed and resumed finds what it chose. An
  // entry that another process has added meanwhile stays, and is given back in `value`, unless it
  // is the one that this replaces. Nothing where the table is unusable.
  void add(const std::string& name, void* value, size_t bytes, bool replaces = false);

 private:
  void load();

  std::string file_;
  std::map<std::string, std::string> entries_;  // in hex
};

// This user's folder for such files, or "" where there is none: $XDG_CACHE_HOME/wick or
// ~/.cache/wick.
std::string tuning_folder();

}  // namespace wick::cuda
