// SPDX-License-Identifier: Apache-2.0
#include "io/yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "base/check.h"
#include "base/file.h"

namespace wick {

namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr int64_t kMaxValues = 1'000'000;
constexpr int64_t kMaxTextBytes = int64_t{64} << 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool one_of(std::string_view text, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

std::optional<Json> based_integer(std::string_view digits, int base) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
    return std::nullopt;
  return Json(value);
}

// A decimal number by the core schema, or none. An integer beyond 64 bits becomes a float.
std::optional<Json> decimal(std::string_view text) {
  std::string_view body = text;
  if (body.starts_with('+') || body.starts_with('-')) body.remove_prefix(1);
  size_t at = 0, whole = 0, fraction = 0;
  while (at < body.size() && is_digit(body[at])) ++at, ++whole;
  bool integer = true;
  if (at < body.size() && body[at] == '.') {
    integer = false;
    ++at;
    while (at < body.size() && is_digit(body[at])) ++at, ++fraction;
  }
  if (whole + fraction == 0) return std::nullopt;
  if (at < body.size() && (body[at] == 'e' || body[at] == 'E')) {
    integer = false;
    ++at;
    if (at < body.size() && (body[at] == '+' || body[at] == '-')) ++at;
    size_t digits_begin = at;
    while (at < body.size() && is_digit(body[at])) ++at;
    if (at == digits_begin) return std::nullopt;
  }
  if (at != body.size()) return std::nullopt;
  if (text.starts_with('+')) text.remove_prefix(1);
  const char *begin = text.data(), *end = begin + text.size();
  if (integer) {
    int64_t value = 0;
    if (std::from_chars(begin, end, value).ec == std::errc()) return Json(value);
  }
  double value = 0;
  if (std::from_chars(begin, end, value).ec != std::errc()) return std::nullopt;
  return Json(value);
}

Json plain_scalar(const std::string& text) {
  if (text.empty() || one_of(text, {"~", "null", "Null", "NULL"})) return Json();
  if (one_of(text, {"true", "True", "TRUE"})) return Json(true);
  if (one_of(text, {"false", "False", "FALSE"})) return Json(false);
  if (one_of(text, {".nan", ".NaN", ".NAN"})) return Json(std::nan(""));
  std::string_view body = text;
  bool negative = body.starts_with('-');
  if (negative || body.starts_with('+')) body.remove_prefix(1);
  if (one_of(body, {".inf", ".Inf", ".INF"})) return Json(negative ? -HUGE_VAL : HUGE_VAL);
  std::optional<Json> number;
  if (text.starts_with("0x")) number = based_integer(std::string_view(text).substr(2), 16);
  if (text.starts_with("0o")) number = based_integer(std::string_view(text).substr(2), 8);
  if (!number) number = decimal(text);
  return number ? *number : Json(text);
}

class Reader {
 public:
  explicit Reader(std::string_view where) : where_(where) {}

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& what) const {
    std::string position = mark.is_null() ? "" : cat(":", mark.line + 1, ":", mark.column + 1);
    fail(ErrorCode::kCorruptFile, where_, position, ": ", what);
  }

  // A cycle of aliases ends at the depth limit, an alias bomb at the budgets.
  Json read(const YAML::Node& node, int depth) {
    if (depth > kMaxJsonDepth)
      refuse(node.Mark(), cat("nested more than ", kMaxJsonDepth, " levels deep"));
    if (--values_left_ < 0)
      refuse(node.Mark(), cat("more than ", kMaxValues, " values; too many aliases?"));
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        return Json();
      case YAML::NodeType::Scalar:
        return scalar(node);
      case YAML::NodeType::Sequence: {
        Json items = Json::array();
        for (const YAML::Node& item : node) items.push_back(read(item, depth + 1));
        return items;
      }
      case YAML::NodeType::Map:
        return mapping(node, depth);
    }
    return Json();
  }

 private:
  Json scalar(const YAML::Node& node) {
    const std::string& text = node.Scalar();
    text_left_ -= static_cast<int64_t>(text.size());
    if (text_left_ < 0) refuse(node.Mark(), "too much text; too many aliases?");
    const std::string& tag = node.Tag();
    // The library marks plain scalars "?" and quoted ones "!".
    if (tag == "!" || tag == "tag:yaml.org,2002:str") return Json(text);
    if (tag.empty() || tag == "?") return plain_scalar(text);
    if (one_of(tag, {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:bool",
                     "tag:yaml.org,2002:null"}))
      return plain_scalar(text);
    refuse(node.Mark(), cat("the tag ", tag, " is not read; write the value without it"));
  }

  Json mapping(const YAML::Node& node, int depth) {
    Json object = Json::object();
    auto& members = static_cast<Json::object_t::Container&>(object.get_ref<Json::object_t&>());
    std::unordered_set<std::string> seen;
    std::vector<Json> merged;
    for (const auto& member : node) {
      const YAML::Node &key = member.first, &value = member.second;
      if (!key.IsScalar() && !key.IsNull())
        refuse(key.Mark(), "a key must be a plain word, not a list or a mapping");
      std::string name = key.IsNull() ? "null" : key.Scalar();
      text_left_ -= static_cast<int64_t>(name.size());
      if (text_left_ < 0) refuse(key.Mark(), "too much text; too many aliases?");
      if (name == "<<" && key.Tag() != "!") {
        merge(value, depth + 1, merged);
        continue;
      }
      if (!seen.insert(name).second)
        refuse(key.Mark(), cat("the key \"", name, "\" is given twice"));
      members.emplace_back(std::move(name), read(value, depth + 1));
    }
    for (const Json& from : merged)
      for (const auto& [name, value] : from.items())
        if (seen.insert(name).second) members.emplace_back(name, value);
    return object;
  }

  // YAML 1.1's merge key: the members of a mapping, or of several, that the one it stands in does
  // not have itself; the first counts.
  void merge(const YAML::Node& value, int depth, std::vector<Json>& merged) {
    if (value.IsSequence()) {
      for (const YAML::Node& item : value) merge_one(item, depth, merged);
    } else {
      merge_one(value, depth, merged);
    }
  }
  void merge_one(const YAML::Node& value, int depth, std::vector<Json>& merged) {
    if (!value.IsMap()) refuse(value.Mark(), "<< merges a mapping, or a list of them");
    merged.push_back(read(value, depth));
  }

  std::string_view where_;
  int64_t values_left_ = kMaxValues;
  int64_t text_left_ = kMaxTextBytes;
};

}  // namespace

Json parse_yaml(std::string_view text, std::string_view where) {
  Reader reader(where);
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(std::string(text));
  } catch (const YAML::Exception& error) {
    reader.refuse(error.mark, cat("not valid YAML: ", error.msg));
  }
  if (documents.size() > 1)
    reader.refuse(documents[1].Mark(), "a second document; only one is read, remove the `---`");
  return documents.empty() ? Json() : reader.read(documents[0], 1);
}

Json read_yaml(const std::filesystem::path& path) {
  return parse_yaml(read_file(path, kMaxFileBytes), path.string());
}

}  // namespace wick
