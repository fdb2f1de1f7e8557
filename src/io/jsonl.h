// SPDX-License-Identifier: Apache-2.0
// JSON-lines files: one JSON document per line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "io/json.h"

namespace wick {

constexpr size_t kMaxJsonLineBytes = size_t{64} << 20;

// Calls `f` for each line with its number, counted from 1, without its end (LF or CR LF), blank
// ones too; a byte order mark at the start is left out. Throws: kCorruptFile for a line above
// kMaxJsonLineBytes, and whatever `f` throws.
using LineFunction = std::function<void(int64_t line, std::string_view text)>;
void for_each_line(std::string_view text, std::string_view where, const LineFunction& f);

using JsonLineFunction = std::function<void(int64_t line, Json&& row)>;

// Calls `f` for each line that is not blank, with its number counted from 1. A byte order mark at
// the start, CR LF line ends and a last line without its end are accepted. The file is mapped and
// read in order, so its size does not matter; a line may have kMaxJsonLineBytes bytes.
// Throws: kNotFound, kIo; kCorruptFile as "file:line:column: what"; and whatever `f` throws.
void for_each_json_line(const std::filesystem::path& path, const JsonLineFunction& f);

// The same for text in memory.
void for_each_json_line(std::string_view text, std::string_view where, const JsonLineFunction& f);

}  // namespace wick
