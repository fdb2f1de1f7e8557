// SPDX-License-Identifier: Apache-2.0
#include "io/json.h"

#include <cmath>

#include "base/check.h"
#include "base/file.h"
#include "io/impostor.h"

namespace wick {

namespace {

std::string bare_message(std::string message) {
  size_t cut = message.find("] ");
  return cut == std::string::npos ? message : message.substr(cut + 2);
}

void check_depth(const Json& value, int left) {
  if (left < 0)
    fail(ErrorCode::kInvalidArgument, "JSON to write is nested more than ", kMaxJsonDepth,
         " levels deep");
  if (value.is_structured())
    for (const Json& child : value) check_depth(child, left - 1);
}

// A value as it may stand in a message: short, and never an error itself.
std::string shown(const Json& value) {
  if (value.is_structured()) return json_kind(value);
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

const Json* member_or_fail(const Json& object, std::string_view key, std::string_view where,
                           const char* wanted, bool has_fallback) {
  if (!object.is_object())
    fail(ErrorCode::kCorruptFile, where, ": expected an object with \"", key, "\", got ",
         shown(object));
  const Json* member = find_member(object, key);
  if (!member && !has_fallback)
    fail(ErrorCode::kCorruptFile, where, ": \"", key, "\" is ",
         object.contains(key) ? "null" : "missing", ", expected ", wanted);
  return member;
}

[[noreturn]] void fail_kind(std::string_view where, std::string_view key, const Json& got,
                            const char* wanted) {
  fail(ErrorCode::kCorruptFile, where, ": \"", key, "\" is ", shown(got), ", expected ", wanted);
}

}  // namespace

Json read_json(const std::filesystem::path& path, size_t limit) {
  const std::string text = read_file(path, limit);
  if (text.empty())
    fail(ErrorCode::kCorruptFile, path.string(),
         ": the file is empty, expected JSON; is the download complete?");
  if (std::string_view hint = impostor_hint(text); !hint.empty())
    fail(ErrorCode::kCorruptFile, path.string(), ": not JSON; ", hint);
  return parse_json(text, path.string());
}

std::string dump_json(const Json& value, int indent) {
  check_depth(value, kMaxJsonDepth);
  try {
    return value.dump(indent, ' ', false, Json::error_handler_t::replace);
  } catch (const nlohmann::detail::exception& error) {
    fail(ErrorCode::kInvalidArgument, "cannot write JSON: ", bare_message(error.what()));
  }
}

const char* json_kind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a number";
    case Json::value_t::binary:
    case Json::value_t::discarded:
      break;
  }
  return "no JSON value";
}

const Json* find_member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

int64_t get_int(const Json& object, std::string_view key, std::string_view where,
                std::optional<int64_t> fallback, IntRange range) {
  constexpr const char* kWanted = "an integer";
  const Json* member = member_or_fail(object, key, where, kWanted, fallback.has_value());
  if (!member) return *fallback;
  int64_t value = 0;
  if (member->is_number_unsigned()) {
    uint64_t large = member->get<uint64_t>();
    if (large > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      fail_kind(where, key, *member, "an integer of 64 bits");
    value = static_cast<int64_t>(large);
  } else if (member->is_number_integer()) {
    value = member->get<int64_t>();
  } else if (member->is_number_float()) {
    double number = member->get<double>();
    // The negated test refuses not-a-number too. 2^63 itself does not fit.
    if (!(number >= -9223372036854775808.0 && number < 9223372036854775808.0) ||
        number != std::floor(number))
      fail_kind(where, key, *member, kWanted);
    value = static_cast<int64_t>(number);
  } else {
    fail_kind(where, key, *member, kWanted);
  }
  if (value < range.min || value > range.max)
    fail(ErrorCode::kCorruptFile, where, ": \"", key, "\" is ", value, ", expected ",
         range.max == IntRange{}.max   ? cat("at least ", range.min)
         : range.min == IntRange{}.min ? cat("at most ", range.max)
                                       : cat(range.min, " to ", range.max));
  return value;
}

double get_float(const Json& object, std::string_view key, std::string_view where,
                 std::optional<double> fallback, FloatRange range) {
  constexpr const char* kWanted = "a number";
  const Json* member = member_or_fail(object, key, where, kWanted, fallback.has_value());
  if (!member) return *fallback;
  if (!member->is_number()) fail_kind(where, key, *member, kWanted);
  double value = member->get<double>();
  if (!std::isfinite(value)) fail_kind(where, key, *member, "a finite number");
  if (value < range.min || value > range.max)
    fail(ErrorCode::kCorruptFile, where, ": \"", key, "\" is ", value, ", expected ",
         range.max == FloatRange{}.max   ? cat("at least ", range.min)
         : range.min == FloatRange{}.min ? cat("at most ", range.max)
                                         : cat(range.min, " to ", range.max));
  return value;
}

bool get_bool(const Json& object, std::string_view key, std::string_view where,
              std::optional<bool> fallback) {
  constexpr const char* kWanted = "true or false";
  const Json* member = member_or_fail(object, key, where, kWanted, fallback.has_value());
  if (!member) return *fallback;
  if (!member->is_boolean()) fail_kind(where, key, *member, kWanted);
  return member->get<bool>();
}

std::string get_string(const Json& object, std::string_view key, std::string_view where,
                       std::optional<std::string> fallback) {
  constexpr const char* kWanted = "a string";
  const Json* member = member_or_fail(object, key, where, kWanted, fallback.has_value());
  if (!member) return *fallback;
  if (!member->is_string()) fail_kind(where, key, *member, kWanted);
  return member->get<std::string>();
}

}  // namespace wick
