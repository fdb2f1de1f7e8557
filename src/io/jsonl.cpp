// SPDX-License-Identifier: Apache-2.0
#include "io/jsonl.h"

#include <algorithm>

#include "base/check.h"
#include "base/file.h"

namespace wick {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// `passed(offset)` is called now and then with a number of bytes that will not be read again.
template <typename Line, typename Passed>
void walk_lines(std::string_view text, std::string_view where, Line&& f, Passed&& passed) {
  size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  for (int64_t line = 1; at < text.size(); ++line) {
    // Only as far as a line may reach: a file without line ends is refused before it is read.
    std::string_view reach = text.substr(at, kMaxJsonLineBytes + 1);
    size_t length = reach.find('\n');
    if (length == std::string_view::npos) {
      if (reach.size() > kMaxJsonLineBytes)
        fail(ErrorCode::kCorruptFile, where, ":", line, ": line longer than ", kMaxJsonLineBytes,
             " bytes; is this a JSON-lines file, one object per line?");
      length = reach.size();
    }
    std::string_view row = reach.substr(0, length);
    if (row.ends_with('\r')) row.remove_suffix(1);
    f(line, row);
    at += length + 1;
    passed(std::min(at, text.size()));
  }
}

}  // namespace

void for_each_line(std::string_view text, std::string_view where, const LineFunction& f) {
  walk_lines(text, where, f, [](size_t) {});
}

void for_each_json_line(const std::filesystem::path& path, const JsonLineFunction& f) {
  constexpr size_t kDropEvery = size_t{64} << 20;
  MappedFile file(path);
  auto bytes = file.bytes();
  size_t dropped = 0;
  JsonParser parser;
  const std::string where = path.string();
  walk_lines(
      {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where,
      [&](int64_t line, std::string_view row) {
        if (!is_blank(row)) f(line, parser.parse(row, where, line));
      },
      [&](size_t offset) {
        if (offset - dropped < kDropEvery) return;
        file.drop_pages(dropped, offset - dropped);
        dropped = offset;
      });
}

void for_each_json_line(std::string_view text, std::string_view where, const JsonLineFunction& f) {
  JsonParser parser;
  for_each_line(text, where, [&](int64_t line, std::string_view row) {
    if (!is_blank(row)) f(line, parser.parse(row, where, line));
  });
}

}  // namespace wick
