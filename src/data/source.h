// SPDX-License-Identifier: Apache-2.0
// Where rows come from: JSON lines, JSON arrays and CSV files, alone or as the splits of a folder.
//
//   .jsonl, others  one JSON object per line
//   .json           an array of objects; where the file does not begin with '[', JSON lines
//   .csv            RFC 4180: a header that names the columns, fields in quotes may hold commas,
//                   line ends and doubled quotes; every field is a string
//
// A byte order mark and CR LF are accepted everywhere. The number of a row is the line on which it
// begins. Text is UTF-8; UTF-16 is known by its mark or its zeros, and read where that is allowed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace wick {

enum class RowFileKind : uint8_t { kJsonLines, kJsonArray, kCsv, kTsv };
RowFileKind row_file_kind(const std::filesystem::path& path, std::string_view text);

struct RowFunctions {
  std::function<void(int64_t line, Json&& row)> row;
  // A record that is none: `what` is wrong with its bytes `text`. Without this function it is
  // thrown as "file:line: what", kCorruptFile.
  std::function<void(int64_t line, const std::string& what, std::string_view text)> bad = {};
  std::function<void(int64_t line)> blank = {};  // an empty line between records
  // A record, given next, has this key more than once in one object.
  std::function<void(int64_t line, const std::string& key)> repeated = {};
  // The file is UTF-16, of this name, and is read as such. Without this function it is refused,
  // kCorruptFile.
  std::function<void(std::string_view encoding)> wide = {};
};

// Throws: kNotFound, kIo, kCorruptFile, and what the functions throw.
void for_each_row(const std::filesystem::path& path, const RowFunctions& functions);
void for_each_row(std::string_view text, const std::string& where, RowFileKind kind,
                  const RowFunctions& functions);

// The files of a split in a folder, the one to read first. valid is also validation, val or dev;
// each with .jsonl, .json or .csv. Throws: kInvalidArgument for another split.
std::vector<std::filesystem::path> files_of_split(const std::filesystem::path& folder,
                                                  const std::string& split);
// Names of files of a folder that speak of a split and are no split's file: eval.jsonl,
// train-00000-of-00002.jsonl, valid.parquet.
std::vector<std::string> unread_files(const std::filesystem::path& folder);
// What is said of such a file.
std::string unread_text(const std::string& name);
// The file of `path` to read for a split: itself, or the folder's.
// Throws: kNotFound, saying what there is instead.
std::filesystem::path file_of_split(const std::filesystem::path& path, const std::string& split);

}  // namespace wick
