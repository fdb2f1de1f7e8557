// SPDX-License-Identifier: Apache-2.0
// Two parsers with one meaning: simdjson for the text that is right, which is nearly all of it, and
// nlohmann's for the rest, which either accepts it after all (a byte order mark, an integer beyond
// 64 bits) or says what is wrong and where.
#include <simdjson.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "io/json.h"

namespace wick {

namespace {

constexpr const char* kNotUtf8 = "the text is not UTF-8 here; save the file in UTF-8";

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

// The character at `at`, or nothing where the text is not UTF-8 there.
std::string character(std::string_view text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  const std::string sign(text.substr(at, end - at));
  return Json(sign).dump(-1, ' ', false, Json::error_handler_t::ignore) == cat('"', sign, '"')
             ? sign
             : std::string();
}

// `repeated` becomes such a key.
void keep_last_of_equal_keys(Json::object_t& members, std::string& repeated) {
  auto first_of_name = [&](auto end) {
    return std::find_if(members.begin(), end, [&](auto& m) { return m.first == end->first; });
  };
  if (members.size() <= 8) {
    bool distinct = true;
    for (auto at = members.begin(); at != members.end(); ++at) distinct &= first_of_name(at) == at;
    if (distinct) return;
  }
  std::unordered_map<std::string_view, size_t> last;
  last.reserve(members.size());
  for (size_t i = 0; i < members.size(); ++i) last[(members.begin() + i)->first] = i;
  if (last.size() == members.size()) return;
  for (size_t i = 0; i < members.size(); ++i)
    if (const std::string& name = (members.begin() + i)->first; last[name] != i) repeated = name;
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

// Only negative integers are signed, so that a kind test says whether one may be a size ("-0" too).
Json integer(int64_t value) { return value < 0 ? Json(value) : Json(static_cast<uint64_t>(value)); }

// Builds values from parser events. The library's own builder looks every new key up in its object,
// which is quadratic for objects that keep their order: too slow for a vocabulary.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, std::string_view where, int64_t first_line, std::string& repeated)
      : text_(text), where_(where), first_line_(first_line), repeated_(repeated) {}

  Json take() { return std::move(root_); }

  bool null() override { return put(Json()), true; }
  bool boolean(bool value) override { return put(Json(value)), true; }
  bool number_integer(number_integer_t value) override { return put(integer(value)), true; }
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
    keep_last_of_equal_keys(stack_.back()->get_ref<Json::object_t&>(), repeated_);
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
    const size_t at = position ? position - 1 : 0;
    std::string message = bare_message(error.what());
    if (message.find("UTF-8") != std::string::npos) message = kNotUtf8;
    // The library's words have the first byte of it alone.
    if (at < text_.size() && static_cast<unsigned char>(text_[at]) >= 0x80 &&
        message.find("last read") != std::string::npos) {
      const std::string sign = character(text_, at);
      message = sign.empty()
                    ? kNotUtf8
                    : cat("unexpected ", sign, " (JSON's quotation marks are straight: \")");
    }
    // What Python writes unless it is told not to.
    const std::string_view here = text_.substr(std::min(text_.size(), at < 1 ? 0 : at - 1), 10);
    if (here.find("NaN") != here.npos || here.find("Infinity") != here.npos)
      message = "NaN and Infinity are not JSON; write null";
    fail(ErrorCode::kCorruptFile, where_, ":", position_in(text_, at, first_line_),
         ": not valid JSON: ", message);
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
      fail(ErrorCode::kCorruptFile, where_, ":", first_line_, ": JSON nested more than ",
           kMaxJsonDepth, " levels deep; no file that wick reads needs that");
    stack_.push_back(put(Json(type)));
    return true;
  }

  std::string_view text_, where_;
  int64_t first_line_;
  std::string& repeated_;
  Json root_;
  std::vector<Json*> stack_;  // open arrays and objects; only the innermost grows, so none moves
};

// simdjson lets an escaped low surrogate without its high one through, as bytes that are not UTF-8.
bool has_surrogate(std::string_view text) {
  for (size_t at = 0; (at = text.find('\xED', at)) != std::string_view::npos; ++at)
    if (at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) >= 0xA0) return true;
  return false;
}

// Throws simdjson_error for what the other parser must judge. Its depth was bounded when parsed.
Json converted(simdjson::dom::element element, std::string& repeated) {
  using Type = simdjson::dom::element_type;
  auto text_of = [](std::string_view text) {
    if (has_surrogate(text)) throw simdjson::simdjson_error(simdjson::STRING_ERROR);
    return std::string(text);
  };
  switch (element.type()) {
    case Type::ARRAY: {
      simdjson::dom::array from = element;
      Json value = Json::array();
      auto& items = value.get_ref<Json::array_t&>();
      items.reserve(from.size());
      for (simdjson::dom::element item : from) items.push_back(converted(item, repeated));
      return value;
    }
    case Type::OBJECT: {
      simdjson::dom::object from = element;
      Json value = Json::object();
      auto& members = value.get_ref<Json::object_t&>();
      members.reserve(from.size());
      for (simdjson::dom::key_value_pair member : from)
        static_cast<Json::object_t::Container&>(members).emplace_back(
            text_of(member.key), converted(member.value, repeated));
      keep_last_of_equal_keys(members, repeated);
      return value;
    }
    case Type::INT64:
      return integer(element);
    case Type::UINT64:
      return Json(static_cast<uint64_t>(element));
    case Type::DOUBLE:
      return Json(static_cast<double>(element));
    case Type::STRING:
      return Json(text_of(element));
    case Type::BOOL:
      return Json(static_cast<bool>(element));
    case Type::NULL_VALUE:
      return Json();
  }
  return Json();
}

Json parse_exactly(std::string_view text, std::string_view where, int64_t first_line,
                   std::string& repeated) {
  // nlohmann's parser takes a zero byte for the end of the text.
  if (size_t zero = text.find('\0'); zero != std::string_view::npos)
    fail(ErrorCode::kCorruptFile, where, ":", position_in(text, zero, first_line),
         ": not valid JSON: a zero byte; save the file in UTF-8 (this may be UTF-16)");
  Builder builder(text, where, first_line, repeated);
  const char* begin = text.data() ? text.data() : "";
  Json::sax_parse(begin, begin + text.size(), &builder);
  return builder.take();
}

}  // namespace

struct JsonParser::Buffers {
  simdjson::dom::parser parser;
};

JsonParser::JsonParser() : buffers_(std::make_unique<Buffers>()) {}
JsonParser::~JsonParser() = default;

Json JsonParser::parse(std::string_view text, std::string_view where, int64_t first_line) {
  simdjson::dom::parser& parser = buffers_->parser;
  repeated_key_.clear();
  simdjson::error_code error = text.empty() ? simdjson::EMPTY : simdjson::SUCCESS;
  // Grown here and not by the parser, which would reset the depth it allows.
  if (!error && text.size() > parser.capacity())
    error = parser.allocate(std::max<size_t>(text.size(), 256), kMaxJsonDepth);
  simdjson::dom::element root;
  if (!error) error = parser.parse(text.data(), text.size()).get(root);
  if (!error) {
    try {
      return converted(root, repeated_key_);
    } catch (const simdjson::simdjson_error&) {
      repeated_key_.clear();
    }
  }
  return parse_exactly(text, where, first_line, repeated_key_);
}

Json parse_json(std::string_view text, std::string_view where, int64_t first_line) {
  return JsonParser().parse(text, where, first_line);
}

}  // namespace wick
