// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/check.h"
#include "text/chat_template_access.h"
#include "text/jinja_ast.h"
#include "text/jinja_eval.h"
#include "text/jinja_lexer.h"

namespace wick {
namespace {

using jinja::Dict;
using jinja::List;
using jinja::Value;

// `message` marks strings and containers as that message's data.
Value from_json(const Json& json, int32_t message, int depth = 0) {
  if (depth >= jinja::kMaxValueDepth)
    jinja::raise("the input nests deeper than ", jinja::kMaxValueDepth);
  switch (json.type()) {
    case Json::value_t::null:
      return Value();
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      uint64_t u = json.get<uint64_t>();
      if (u > static_cast<uint64_t>(INT64_MAX))
        jinja::raise("the integer ", u, " in the input does not fit in 64 bits with sign");
      return Value(static_cast<int64_t>(u));
    }
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return Value(jinja::Str(json.get_ref<const std::string&>(), message));
    case Json::value_t::array: {
      auto list = std::make_shared<List>();
      list->message = message;
      for (const Json& item : json) {
        list->items.push_back(from_json(item, message, depth + 1));
        list->depth = std::max(list->depth, jinja::depth_of(list->items.back()) + 1);
      }
      return Value(std::shared_ptr<const List>(std::move(list)));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      dict->message = message;
      for (const auto& [key, item] : json.items())
        dict->set(key, from_json(item, message, depth + 1));
      return Value(std::shared_ptr<const Dict>(std::move(dict)));
    }
    default:
      jinja::raise("the input holds binary data");
  }
}

// A role is not its message's data, because templates write it into headers; still it tells whose
// it is.
Value role_value(const std::string& role, int32_t index) {
  jinja::Str out(role);
  out.runs.push_back({role.size(), -1, index});
  return Value(std::move(out));
}

// One message. Reasoning goes by several names; as in transformers, templates find it under the two
// that they read.
Value message_value(const Json& json, int32_t index) {
  if (!json.is_object())
    jinja::raise("message ", index, " is ", json_kind(json), ", wanted an object with a role");
  auto dict = std::make_shared<Dict>();
  dict->message = index;
  dict->is_message = true;
  const Json* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    if (!reasoning) reasoning = find_member(json, name);
  if (reasoning) dict->set("thinking", from_json(*reasoning, index, 1));
  for (const auto& [key, item] : json.items())
    dict->set(key, key == "role" && item.is_string()
                       ? role_value(item.get_ref<const std::string&>(), index)
                       : from_json(item, index, 1));
  if (reasoning) dict->set("reasoning_content", from_json(*reasoning, index, 1));
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Value messages_value(const Json& messages) {
  if (!messages.is_array()) jinja::raise("messages are ", json_kind(messages), ", wanted an array");
  auto list = std::make_shared<List>();
  for (const Json& message : messages) {
    list->items.push_back(message_value(message, static_cast<int32_t>(list->items.size())));
    list->depth = std::max(list->depth, jinja::depth_of(list->items.back()) + 1);
  }
  return Value(std::shared_ptr<const List>(std::move(list)));
}

std::tm time_of(const TemplateInput& input) {
  std::tm out = {};
  if (!input.date) {
    std::time_t now = std::time(nullptr);
    localtime_r(&now, &out);
    return out;
  }
  int year = 0, month = 0, day = 0;
  char rest = 0;
  bool good = input.date->size() == 10 &&
              std::sscanf(input.date->c_str(), "%4d-%2d-%2d%c", &year, &month, &day, &rest) == 3;
  out.tm_year = year - 1900;
  out.tm_mon = month - 1;
  out.tm_mday = day;
  std::tm same = out;
  if (good) timegm(&same);  // gives the day of the week, and moves a date that does not exist
  if (!good || same.tm_mon != out.tm_mon || same.tm_mday != out.tm_mday)
    fail(ErrorCode::kInvalidArgument, "the date \"", *input.date,
         "\" is not a day written as 2026-01-02");
  return same;
}

std::vector<std::pair<std::string, Value>> variables(const TemplateInput& input) {
  std::vector<std::pair<std::string, Value>> out;
  out.emplace_back("messages", messages_value(input.messages));
  out.emplace_back("tools", from_json(input.tools, -1));
  out.emplace_back("add_generation_prompt", Value(input.add_generation_prompt));
  size_t reserved = out.size();
  if (!input.extra.is_null()) {
    if (!input.extra.is_object())
      jinja::raise("the template's further variables are ", json_kind(input.extra),
                   ", wanted an object");
    for (const auto& [key, item] : input.extra.items()) {
      for (size_t i = 0; i < reserved; ++i)
        if (out[i].first == key) jinja::raise("the variable \"", key, "\" cannot be given twice");
      out.emplace_back(key, from_json(item, -1));
    }
  }
  auto add = [&](const std::string& name, Value value) {
    bool given =
        std::any_of(out.begin(), out.end(), [&](const auto& v) { return v.first == name; });
    if (!given) out.emplace_back(name, std::move(value));
  };
  add("documents", Value());
  for (const auto& [name, token] : input.special_tokens) add(name, Value(token));
  return out;
}

}  // namespace

struct ChatTemplate::Parsed {
  std::string where;
  jinja::Template plain;
  std::optional<jinja::Template> with_tools;
  std::optional<Error> broken_tools;  // why there is none: of no matter until a row has tools

  const jinja::Template& chosen(const TemplateInput& input) const {
    if (input.tools.is_null()) return plain;
    if (broken_tools) throw *broken_tools;
    return with_tools ? *with_tools : plain;
  }
};

ChatTemplate::ChatTemplate(std::string source, std::string where, const std::string& with_tools) {
  auto parse = [&](const std::string& text, const char* which) {
    try {
      return jinja::parse_template(text);
    } catch (const jinja::SyntaxError& error) {
      fail(error.unsupported ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument, where, which,
           ":", error.line, ": ", error.message);
    }
  };
  Parsed parsed{where, parse(source, ""), {}, {}};
  try {
    if (!with_tools.empty()) parsed.with_tools = parse(with_tools, " (tool_use)");
  } catch (const Error& error) {
    parsed.broken_tools = error;
  }
  parsed_ = std::make_unique<Parsed>(std::move(parsed));
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::has_generation_blocks(const TemplateInput& input) const {
  return parsed_->chosen(input).has_generation;
}
const std::string& ChatTemplate::where() const { return parsed_->where; }

jinja::Str ChatTemplateAccess::render(const ChatTemplate& chat_template,
                                      const TemplateInput& input) {
  const auto& parsed = *chat_template.parsed_;
  std::tm now = time_of(input);
  std::vector<std::pair<std::string, Value>> context;
  try {
    context = variables(input);
  } catch (const jinja::Raised& error) {
    fail(error.code, parsed.where, ": ", error.message);
  }
  jinja::Evaluator evaluator(parsed.chosen(input), std::move(context), now);
  try {
    return evaluator.run();
  } catch (const jinja::Raised& error) {
    fail(error.code, parsed.where, ":", evaluator.line(), ": ", error.message);
  }
}

bool has_words(std::string_view text, std::string_view message) {
  constexpr const char* kWhiteSpace = " \t\r\n\v\f";
  const size_t begin = message.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return true;
  const size_t end = message.find_last_not_of(kWhiteSpace) + 1;
  return text.find(message.substr(begin, end - begin)) != std::string_view::npos;
}

RenderedChat ChatTemplate::render(const TemplateInput& input) const {
  jinja::Str text = ChatTemplateAccess::render(*this, input);
  RenderedChat out;
  out.has_generation_blocks = has_generation_blocks(input);
  out.messages = message_regions(text, input.messages.size());
  size_t begin = 0;
  int32_t open = -1;
  for (const jinja::Run& run : text.runs) {
    if (run.generation >= 0) {
      if (open == run.generation && out.generation.back().end == begin)
        out.generation.back().end = run.end;
      else
        out.generation.push_back({begin, run.end});
    }
    open = run.generation;
    begin = run.end;
  }
  out.text = std::move(text.text);
  return out;
}

}  // namespace wick
