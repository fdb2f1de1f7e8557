// SPDX-License-Identifier: Apache-2.0
// What one row says: its members, checked, as a conversation or a text.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "data/messages.h"
#include "data/row.h"

namespace wick {
namespace {

Json* member(Json& object, std::string_view key) {
  return const_cast<Json*>(find_member(object, key));
}

std::string quoted_keys(const Json& row) {
  constexpr size_t kShown = 12;
  std::string list;
  size_t n = 0;
  for (const auto& item : row.items()) {
    if (++n > kShown) break;
    list += cat(list.empty() ? "" : ", ", '"', item.key(), '"');
  }
  if (row.size() > kShown) list += cat(" and ", row.size() - kShown, " more");
  return list;
}

const std::string& want_string(const Json& value, std::string_view key) {
  if (!value.is_string())
    fail(ErrorCode::kCorruptFile, '"', key, "\" is ", json_kind(value), ", expected a string");
  return value.get_ref<const std::string&>();
}

void check_message(Json& message, size_t index, std::string_view key) {
  auto where = [&] { return cat(key, "[", index, "]"); };
  if (!message.is_object())
    fail(ErrorCode::kCorruptFile, where(), " is ", json_kind(message),
         ", expected an object with \"role\" and \"content\"");
  const Json* role = find_member(message, "role");
  if (role == nullptr)
    fail(ErrorCode::kCorruptFile, where(), " has no \"role\"; it has ", quoted_keys(message),
         message.contains("from") && message.contains("value")
             ? "; ShareGPT's \"from\" and \"value\" are \"role\" (user, assistant) and \"content\" "
               "here"
             : "");
  if (!role->is_string())
    fail(ErrorCode::kCorruptFile, where(), ".role is ", json_kind(*role), ", expected a string");
  Json* content = member(message, "content");
  if (content != nullptr && content->is_array()) join_text_parts(*content, where());
  if (content != nullptr && !content->is_string() && !content->is_object())
    fail(ErrorCode::kCorruptFile, where(), ".content is ", json_kind(*content),
         ", expected a string");
  Json* calls = member(message, "tool_calls");
  if (calls != nullptr) {
    if (!calls->is_array())
      fail(ErrorCode::kCorruptFile, where(), ".tool_calls is ", json_kind(*calls),
           ", expected an array");
    for (const Json& call : *calls)
      if (!call.is_object())
        fail(ErrorCode::kCorruptFile, where(), ".tool_calls has ", json_kind(call),
             ", expected objects");
  }
  const bool has_calls = calls != nullptr && !calls->empty();
  if (content == nullptr && !has_calls)
    fail(ErrorCode::kCorruptFile, where(), " has no \"content\"",
         *role == "assistant" ? " and no \"tool_calls\"" : "");
  drop_empty_members(message);
}

void check_messages(Json& messages, std::string_view key) {
  if (!messages.is_array())
    fail(ErrorCode::kCorruptFile, '"', key, "\" is ", json_kind(messages),
         ", expected an array of messages");
  if (messages.empty()) fail(ErrorCode::kCorruptFile, '"', key, "\" is an empty array");
  for (size_t i = 0; i < messages.size(); ++i) check_message(messages[i], i, key);
}

Json read_tools(Json& row) {
  Json* tools = member(row, "tools");
  if (tools == nullptr) return nullptr;
  // Table formats cannot hold differing schemas, so exported rows often carry them as a string.
  if (tools->is_string()) *tools = parse_field(tools->get_ref<const std::string&>(), "\"tools\"");
  if (tools->is_null()) return nullptr;
  if (!tools->is_array())
    fail(ErrorCode::kCorruptFile, "\"tools\" is ", json_kind(*tools), ", expected an array");
  if (tools->empty()) return nullptr;
  return std::move(*tools);
}

Json message_of(const char* role, std::string content) {
  Json message = Json::object();
  message["role"] = role;
  message["content"] = std::move(content);
  return message;
}

}  // namespace

Json parse_field(const std::string& text, const std::string& where) {
  try {
    return parse_json(text, where);
  } catch (const Error& e) {
    // What str() gives of a list, and so pandas in a CSV.
    const size_t quote = text.find_first_of("'\"");
    if (quote == std::string::npos || text[quote] != '\'') throw;
    fail(ErrorCode::kCorruptFile, where,
         " is a list as Python prints it, in single quotes; write it as JSON, with json.dumps");
  }
}

namespace {

// How rows of common data sets that use other names are read.
std::string feature_hint(const Json& row) {
  auto first_of = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names)
      if (row.contains(name)) return name;
    return {};
  };
  if (find_member(row, "choices") != nullptr)
    return "; questions with \"choices\" are for wick eval, nothing is trained on them";
  const std::string prompt = first_of({"prompt", "question", "instruction", "query", "problem",
                                       "input", "source"}),
                    completion = first_of(
                        {"completion", "answer", "output", "response", "solution", "target"}),
                    messages =
                        first_of({"messages", "conversations", "conversation", "dialogue", "chat"}),
                    text = first_of({"text", "content", "body", "document", "sentence"});
  if (!prompt.empty() && !completion.empty()) {
    // Alpaca's: what the instruction is about stands apart from it.
    const Json* input = prompt != "input" ? find_member(row, "input") : nullptr;
    return cat("; to read them so: --prompt-feature ", prompt, " --completion-feature ", completion,
               input != nullptr && *input != ""
                   ? " (\"input\" is not read then: write both into one prompt)"
                   : "");
  }
  if (!messages.empty()) {
    const Json& list = row[messages];
    if (list.is_array() && !list.empty() && list[0].is_object() && list[0].contains("from"))
      return cat("; \"", messages,
                 "\" is ShareGPT's: rename it to \"messages\", and in it \"from\" to "
                 "\"role\" (human: user, gpt: assistant) and \"value\" to \"content\"");
    return cat("; to read it so: --chat-feature ", messages);
  }
  if (!text.empty()) return cat("; to read it so: --text-feature ", text);
  return {};
}

}  // namespace

void RowEncoder::refuse_keys(const Json& row) const {
  const std::string wanted[] = {options_.text_key, options_.prompt_key, options_.completion_key,
                                options_.messages_key};
  std::string hint = feature_hint(row);
  for (const auto& item : row.items()) {
    std::string near = nearest_name(item.key(), wanted);
    if (!near.empty() && near != item.key()) {
      hint = cat("; did you mean \"", near, "\" by \"", item.key(), "\"?");
      break;
    }
  }
  for (const std::string& key : wanted)
    if (row.contains(key) && row[key].is_null()) hint = cat("; \"", key, "\" is null");
  // Nothing is wrong with such a row; it is another kind of run that reads it.
  const bool preference = row.contains("chosen") || row.contains("rejected");
  if (preference)
    hint =
        "; a preference has \"chosen\" and \"rejected\", and wants --loss dpo, simpo, orpo or kto";
  fail(preference ? ErrorCode::kInvalidArgument : ErrorCode::kCorruptFile,
       row.empty() ? "the row is an empty object" : cat("the row has ", quoted_keys(row)),
       "; wanted are \"", options_.text_key, "\", or \"", options_.prompt_key, "\" and \"",
       options_.completion_key, "\", or \"", options_.messages_key, '"', hint);
}

RowContent RowEncoder::read(Json&& row) const {
  if (!row.is_object())
    fail(ErrorCode::kCorruptFile, "the row is ", json_kind(row), ", expected an object",
         row.is_array() ? "; a file with one array of rows is named .json" : "");
  Json* prompt = member(row, options_.prompt_key);
  Json* completion = member(row, options_.completion_key);
  Json* messages = member(row, options_.messages_key);
  Json* text = member(row, options_.text_key);

  RowContent content;
  if (prompt != nullptr && completion != nullptr) {
    content.format = RowFormat::kCompletions;
    read_completions(*prompt, *completion, content);
    if (content.is_chat) content.tools = read_tools(row);
  } else if (messages != nullptr) {
    content.format = RowFormat::kChat;
    // Tables (CSV) can only hold them as text.
    if (messages->is_string() && messages->get_ref<const std::string&>().starts_with('['))
      *messages = parse_field(messages->get_ref<const std::string&>(),
                              cat('"', options_.messages_key, '"'));
    check_messages(*messages, options_.messages_key);
    if (template_ == nullptr)
      fail(ErrorCode::kInvalidArgument, "a row of \"", options_.messages_key,
           "\" needs a chat template and the model has none; use a model with one, or rows of \"",
           options_.prompt_key, "\" and \"", options_.completion_key, '"');
    content.is_chat = true;
    content.messages = std::move(*messages);
    content.tools = read_tools(row);
  } else if (text != nullptr) {
    content.text = want_string(*text, options_.text_key);
  } else {
    refuse_keys(row);
  }
  if (content.is_chat) add_system_prompt(content);
  return content;
}

void RowEncoder::read_completions(Json& prompt, Json& completion, RowContent& content) const {
  bool lists = prompt.is_array() || completion.is_array();
  if (template_ == nullptr) {
    if (lists)
      fail(ErrorCode::kInvalidArgument, '"', options_.prompt_key, "\" or \"",
           options_.completion_key,
           "\" is a list of messages, which needs a chat template, and the model has none");
    if (!options_.system_prompt.empty())
      fail(ErrorCode::kInvalidArgument,
           "a system prompt needs a chat template, and the model has none");
    content.text = want_string(prompt, options_.prompt_key);
    content.trained_from = content.text.size();
    content.text += want_string(completion, options_.completion_key);
    return;
  }
  content.is_chat = true;
  if (prompt.is_array()) {
    check_messages(prompt, options_.prompt_key);
    content.messages = std::move(prompt);
  } else {
    content.messages = Json::array({message_of("user", want_string(prompt, options_.prompt_key))});
  }
  content.first_trained_message = content.messages.size();
  if (completion.is_array()) {
    check_messages(completion, options_.completion_key);
    for (Json& message : completion) content.messages.push_back(std::move(message));
  } else {
    content.messages.push_back(
        message_of("assistant", want_string(completion, options_.completion_key)));
  }
}

void RowEncoder::add_system_prompt(RowContent& content) const {
  if (options_.system_prompt.empty()) return;
  for (const Json& message : content.messages) {
    const std::string& role = message.at("role").get_ref<const std::string&>();
    if (role == "system" || role == "developer") return;
  }
  content.messages.insert(content.messages.begin(), message_of("system", options_.system_prompt));
  ++content.first_trained_message;
}

}  // namespace wick
