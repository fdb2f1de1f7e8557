// SPDX-License-Identifier: Apache-2.0
// Rows of chats, and what wick data says of them.
#pragma once

#include <set>
#include <tuple>

#include "cli/cli.h"

namespace wick::test {

inline std::string turn(const std::string& role, const std::string& content) {
  return "{\"role\": \"" + role + "\", \"content\": \"" + content + "\"}";
}

inline std::string chat(const std::string& user, const std::string& assistant) {
  return "{\"messages\": [" + turn("user", user) + ", " + turn("assistant", assistant) + "]}";
}

using Finding = std::tuple<std::string, std::string, int64_t>;  // kind, file's name, line

inline std::set<Finding> findings_of(const CliResult& r) {
  std::set<Finding> found;
  for (const Json& line : r.lines())
    if (line.value("event", "") == "finding")
      found.insert({line["kind"],
                    std::filesystem::path(line["file"].get<std::string>()).filename().string(),
                    line["line"].get<int64_t>()});
  return found;
}

}  // namespace wick::test
