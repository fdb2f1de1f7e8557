// SPDX-License-Identifier: Apache-2.0
#include "io/json.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/file.h"

namespace wick {

namespace {

std::string position_in(std::string_view text, size_t offset, int64_t first_line) {
  offset = std::min(offset, text.size());
  std::string_view before = text.substr(0, offset);
  int64_t line = first_line + std::count(before.begin(), before.end(), '\n');
  size_t start = before.rfind('\n');
  size_t column = start == std::string_view::npos ? offset + 1 : offset - start;
  return cat(line, ":", column);
}

// Of the library's "[json.exception…] parse error at line 1, column 2: syntax error while …" only
// the part after the position: the position is ours.
std::string bare_message(std::string message) {
  size_t cut = message.find("column ");
  if (cut != std::string::npos) cut = message.find(": ", cut);
  if (cut == std::string::npos) cut = message.find("] ");
  return cut == std::string::npos ? message : message.substr(cut + 2);
}

// Builds values from parser events. The library's own builder looks every new key up in its object,
// which is quadratic for objects that keep their order: too slow for a vocabulary.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, std::string_view where, int64_t first_line)
      : text_(text), where_(where), first_line_(first_line) {}

  Json take() { return std::move(root_); }

  bool null() override { return put(Json()), true; }
  bool boolean(bool value) override { return put(Json(value)), true; }
  bool number_integer(number_integer_t value) override { return put(Json(value)), true; }
  bool number_unsigned(number_unsigned_t value) override { return put(Json(value)), true; }
  bool number_float(number_float_t value, const string_t&) override {
    return put(Json(value)), true;
  }
  bool string(string_t& value) override { return put(Json(std::move(value))), true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::value_t::object); }
  bool start_array(std::size_t) override { return open(Json::value_t::array); }
  bool key(string_t& value) override {
    auto& members = stack_.back()->get_ref<Json::object_t&>();
    static_cast<Json::object_t::Container&>(members).emplace_back(std::move(value), Json());
    return true;
  }
  bool end_object() override {
    keep_last_of_equal_keys(stack_.back()->get_ref<Json::object_t&>());
    stack_.pop_back();
    return true;
  }
  bool end_array() override {
    stack_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library reports the number of bytes read, the offending one included.
    fail(ErrorCode::kCorruptFile, where_, ":",
         position_in(text_, position ? position - 1 : 0, first_line_),
         ": not valid JSON: ", bare_message(error.what()));
  }

 private:
  Json* put(Json&& value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      auto& items = parent.get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    Json& slot = parent.get_ref<Json::object_t&>().back().second;
    slot = std::move(value);
    return &slot;
  }

  bool open(Json::value_t type) {
    if (stack_.size() >= kMaxJsonDepth)
      fail(ErrorCode::kCorruptFile, where_, ": JSON nested more than ", kMaxJsonDepth,
           " levels deep; no file that wick reads needs that");
    stack_.push_back(put(Json(type)));
    return true;
  }

  static void keep_last_of_equal_keys(Json::object_t& members) {
    if (members.size() < 2) return;
    std::unordered_map<std::string_view, size_t> last;
    last.reserve(members.size());
    for (size_t i = 0; i < members.size(); ++i) last[(members.begin() + i)->first] = i;
    if (last.size() == members.size()) return;
    Json::object_t kept;
    for (auto& [name, value] : members) {
      auto found = last.find(name);
      if (found == last.end()) continue;
      static_cast<Json::object_t::Container&>(kept).emplace_back(
          name, std::move((members.begin() + found->second)->second));
      last.erase(found);
    }
    members = std::move(kept);
  }

  std::string_view text_, where_;
  int64_t first_line_;
  Json root_;
  std::vector<Json*> stack_;  // open arrays and objects; only the innermost grows, so none moves
};

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

Json parse_json(std::string_view text, std::string_view where, int64_t first_line) {
  Builder builder(text, where, first_line);
  const char* begin = text.data() ? text.data() : "";
  Json::sax_parse(begin, begin + text.size(), &builder);
  return builder.take();
}

Json read_json(const std::filesystem::path& path, size_t limit) {
  MappedFile file(path);
  auto bytes = file.bytes();
  if (bytes.size() > limit)
    fail(ErrorCode::kCorruptFile, path.string(), ": ", bytes.size(), " bytes, at most ", limit,
         " expected for this kind of file");
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

std::string dump_json(const Json& value, int indent) {
  check_depth(value, kMaxJsonDepth);
  try {
    return value.dump(indent);
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
