// SPDX-License-Identifier: Apache-2.0
// YAML settings files, read into the same values as JSON.
#pragma once

#include <filesystem>
#include <string_view>

#include "io/json.h"

namespace wick {

// Plain scalars are typed by the core schema of YAML 1.2: true/false, null/~, integers (also 0x,
// 0o), floats with or without a point (1e-5 is a number), .inf, .nan; all else, and everything
// quoted or tagged !!str, is a string (so `no` and `on` are). Keys are strings. One document; an
// empty one is null. Equal keys in one mapping, other tags, nesting beyond kMaxJsonDepth, and
// aliases that unfold into more than a million values or 64 MiB of text are refused.
// Throws: kCorruptFile as "where:line:column: what".
Json parse_yaml(std::string_view text, std::string_view where);

// Throws: kNotFound, kIo, and as parse_yaml. At most 16 MiB.
Json read_yaml(const std::filesystem::path& path);

}  // namespace wick
