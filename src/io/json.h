// SPDX-License-Identifier: Apache-2.0
// JSON values and their checked reading. An object keeps the order of its file, so looking a key
// up is linear in its size: walk large objects (a vocabulary) once with items() instead.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace wick {

using Json = nlohmann::ordered_json;

constexpr int kMaxJsonDepth = 256;

// Parses one JSON document. `where` (usually a file name) begins every message, followed by line
// and column, counted from 1 (columns in bytes). Strings are checked UTF-8. Of equal keys in one
// object the last value wins, at the first one's place. Arrays and objects nest at most
// kMaxJsonDepth deep. `first_line` is the number of the text's first line, for texts that are part
// of a larger file. Throws: kCorruptFile.
Json parse_json(std::string_view text, std::string_view where, int64_t first_line = 1);

// The same for many documents in turn, with one set of buffers.
class JsonParser {
 public:
  JsonParser();
  ~JsonParser();
  JsonParser(const JsonParser&) = delete;
  JsonParser& operator=(const JsonParser&) = delete;

  Json parse(std::string_view text, std::string_view where, int64_t first_line = 1);
  // A key that an object of the last document had more than once; "" without one.
  const std::string& repeated_key() const { return repeated_key_; }

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
  std::string repeated_key_;
};

// Throws: kNotFound, kIo; kCorruptFile, also for a file above `limit` bytes.
Json read_json(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

// Text of a value; indent < 0 gives one line. Not-a-number and infinities become null, bytes that
// are not UTF-8 (of a path, say) U+FFFD.  Throws: kInvalidArgument for nesting beyond
// kMaxJsonDepth.
std::string dump_json(const Json& value, int indent = -1);

// "a string", "an integer", …: for messages about a value of the wrong kind.
const char* json_kind(const Json& value);

// The member of that name, or nullptr when it is absent or null, or `object` is no object.
const Json* find_member(const Json& object, std::string_view key);

struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};
struct FloatRange {
  double min = -std::numeric_limits<double>::max();
  double max = std::numeric_limits<double>::max();
};

// Members with their kind checked. A member that is absent or null gives `fallback`, or an error
// where there is none. An integer may be written as a whole float (1e6). Infinities and
// not-a-number are refused. Throws: kCorruptFile naming where, key, got and wanted.
int64_t get_int(const Json& object, std::string_view key, std::string_view where,
                std::optional<int64_t> fallback = {}, IntRange range = {});
double get_float(const Json& object, std::string_view key, std::string_view where,
                 std::optional<double> fallback = {}, FloatRange range = {});
bool get_bool(const Json& object, std::string_view key, std::string_view where,
              std::optional<bool> fallback = {});
std::string get_string(const Json& object, std::string_view key, std::string_view where,
                       std::optional<std::string> fallback = {});

}  // namespace wick
