// SPDX-License-Identifier: Apache-2.0
#include "bench/baseline.h"

#include <cstdlib>
#include <map>

#include "base/check.h"
#include "base/file.h"
#include "base/path_status.h"
#include "bench/result.h"

namespace wick {

namespace fs = std::filesystem;

fs::path baseline_path(const std::string& name) {
  if (name.find('/') != std::string::npos || fs::path(name).has_extension()) return name;
  const char* data = std::getenv("XDG_DATA_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (data && *data)
    folder = data;
  else if (home && *home)
    folder = fs::path(home) / ".local" / "share";
  else
    fail(ErrorCode::kInvalidArgument, "baseline ", name,
         ": neither XDG_DATA_HOME nor HOME says where it is kept; give a path such as ./", name,
         ".json");
  return folder / "wick" / "bench" / (name + ".json");
}

void save_baseline(const fs::path& path, const std::vector<Json>& lines) {
  if (path.has_parent_path()) make_folder(path.parent_path());
  Json file = {{"format", "wick bench"}, {"results", lines}};
  write_file(path, file.dump(1) + "\n");
}

std::vector<Json> load_baseline(const fs::path& path) {
  if (!path_exists(path))
    fail(ErrorCode::kNotFound, path.string(),
         ": there is no such baseline; make it with "
         "--save-baseline");
  const std::string where = path.string();
  Json file = parse_json(read_file(path), where);
  const Json* results = file.is_object() ? find_member(file, "results") : nullptr;
  if (!results || !results->is_array())
    fail(ErrorCode::kCorruptFile, where, ": has no list of results; is it a baseline of wick?");
  std::vector<Json> lines;
  for (const Json& line : *results) {
    result_from_json(line, where);
    lines.push_back(line);
  }
  return lines;
}

std::vector<Comparison> compare_lines(const std::vector<Json>& now,
                                      const std::vector<Json>& before) {
  std::map<std::string, Timing> earlier;
  for (const Json& line : before) earlier[result_key(line)] = result_from_json(line, "baseline").ms;
  std::vector<Comparison> all;
  for (const Json& line : now) {
    const BenchResult r = result_from_json(line, "result");
    auto found = earlier.find(result_key(line));
    if (found == earlier.end() || r.ms.median <= 0 || found->second.median <= 0) continue;
    all.push_back({r.bench, r.what, r.ms, found->second, compare(r.ms, found->second)});
  }
  return all;
}

}  // namespace wick
