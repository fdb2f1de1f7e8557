// SPDX-License-Identifier: Apache-2.0
#include "data/messages.h"

#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"

namespace wick {

namespace {

Json* member(Json& object, std::string_view key) {
  return const_cast<Json*>(find_member(object, key));
}

// A string that holds an object becomes that object.
bool open_arguments(Json& call) {
  Json* function = member(call, "function");
  Json* arguments = member(function != nullptr ? *function : call, "arguments");
  if (arguments == nullptr || !arguments->is_string()) return false;
  try {
    Json parsed = parse_json(arguments->get_ref<const std::string&>(), "arguments");
    if (!parsed.is_object()) return false;
    *arguments = std::move(parsed);
    return true;
  } catch (const Error&) {
    return false;  // not JSON: some templates take free text here
  }
}

// The messages with arguments opened; nothing where there are none to open.
std::optional<Json> with_open_arguments(const Json& messages) {
  std::optional<Json> out;
  if (!messages.is_array()) return out;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json* calls = find_member(messages[i], "tool_calls");
    if (calls == nullptr || !calls->is_array()) continue;
    for (size_t k = 0; k < calls->size(); ++k) {
      Json call = (*calls)[k];
      if (!open_arguments(call)) continue;
      if (!out) out = messages;
      (*out)[i]["tool_calls"][k] = std::move(call);
    }
  }
  return out;
}

RenderedChat render_filled(const ChatTemplate& chat_template, TemplateInput& input) {
  try {
    return chat_template.render(input);
  } catch (const Error&) {
    bool changed = false;
    TemplateInput filled = input;
    for (Json& message : filled.messages) {
      if (!message.is_object() || find_member(message, "content") != nullptr) continue;
      message["content"] = "";
      changed = true;
    }
    if (!changed) throw;
    RenderedChat chat = chat_template.render(filled);
    input = std::move(filled);
    return chat;
  }
}

}  // namespace

void join_text_parts(Json& content, const std::string& where) {
  std::string text;
  for (const Json& part : content) {
    const Json* words = find_member(part, "text");
    const Json* type = find_member(part, "type");
    if (words == nullptr || !words->is_string() || (type != nullptr && *type != "text"))
      fail(ErrorCode::kCorruptFile, where, ".content has a part ",
           type != nullptr ? cat("of type ", dump_json(*type)) : "without a type",
           "; wick reads text: {\"type\": \"text\", \"text\": …}");
    text += words->get_ref<const std::string&>();
  }
  content = std::move(text);
}

void drop_empty_members(Json& message) {
  Json* calls = member(message, "tool_calls");
  if (calls != nullptr && calls->is_array() && calls->empty()) *calls = nullptr;
  for (auto it = message.begin(); it != message.end();)
    it = it->is_null() && it.key() != "content" ? message.erase(it) : std::next(it);
}

RenderedChat render_messages(const ChatTemplate& chat_template, TemplateInput& input) {
  std::optional<Json> opened = with_open_arguments(input.messages);
  if (!opened) return render_filled(chat_template, input);
  Json given = std::exchange(input.messages, std::move(*opened));
  try {
    return render_filled(chat_template, input);
  } catch (const Error& error) {
    TemplateInput as_given = input;
    as_given.messages = std::move(given);
    try {
      RenderedChat chat = render_filled(chat_template, as_given);
      input = std::move(as_given);
      return chat;
    } catch (const Error&) {
      throw error;
    }
  }
}

}  // namespace wick
