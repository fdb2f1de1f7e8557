// SPDX-License-Identifier: Apache-2.0
#include "data/check_row.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/check.h"
#include "data/messages.h"
#include "data/row.h"
#include "data/text_problems.h"
#include "text/unicode.h"

namespace wick {
namespace {

constexpr std::array kMedia = {"images", "image", "videos", "video", "audios", "audio"};
// Columns that other programs make a part of the prompt, in rows of completions or of messages.
constexpr std::array kBesidePrompt = {"input", "context", "history", "system", "system_prompt"};
constexpr std::array kBesideMessages = {"system", "system_prompt", "functions"};
constexpr std::array kRoles = {"system", "developer", "user", "assistant", "tool", "function"};

// Nothing that a reader would see: white space, and characters without a width.
bool is_blank(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const uint32_t code = unicode::next_char(text, at);
    const bool unseen = (code >= 0x200B && code <= 0x200D) || code == 0x2060 || code == 0xFEFF;
    if (!unseen && !unicode::is_white_space(code)) return false;
  }
  return true;
}

// Every string of a value, with its place: "messages[0].content".
template <typename Visit>
void walk_strings(Json& value, const std::string& place, Visit&& visit) {
  if (value.is_string()) return visit(value, place);
  if (value.is_array())
    for (size_t i = 0; i < value.size(); ++i)
      walk_strings(value[i], cat(place, "[", i, "]"), visit);
  if (value.is_object())
    for (auto& item : value.items())
      walk_strings(item.value(), place.empty() ? item.key() : cat(place, ".", item.key()), visit);
}

std::string role_of(const Json& message) {
  const Json* role = find_member(message, "role");
  return role != nullptr && role->is_string() ? role->get<std::string>() : "";
}

// The content where it is a text; null for parts, null and absent ones.
const std::string* content_of(const Json& message) {
  const Json* content = find_member(message, "content");
  return content != nullptr && content->is_string() ? &content->get_ref<const std::string&>()
                                                    : nullptr;
}

bool is_system(const std::string& role) { return role == "system" || role == "developer"; }

// The ids of the calls that a message makes.
void note_calls(const Json& message, std::set<std::string>& calls) {
  const Json* made = find_member(message, "tool_calls");
  if (made == nullptr || !made->is_array()) return;
  for (const Json& call : *made)
    if (const Json* id = find_member(call, "id"); id != nullptr && id->is_string())
      calls.insert(id->get<std::string>());
}

void check_messages(const Json& messages, const std::string& key, bool whole, RowCheck& check) {
  auto add = [&](const char* kind, auto&&... parts) {
    check.findings.emplace_back(kind, cat(parts...));
  };
  std::string before;
  std::set<std::string> calls;  // that were made and may be answered
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = role_of(messages[i]);
    if (role.empty()) return;  // the encoder says so
    const std::string place = cat(key, "[", i, "]");
    if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
      const std::string near =
          nearest_name(role, std::vector<std::string>{kRoles.begin(), kRoles.end()});
      add("unknown_role", place, ".role is \"", role, "\", wanted system, user, assistant or tool",
          near.empty() ? "" : cat("; did you mean ", near, "?"));
    } else if (is_system(role)) {
      if (i > 0) add("role_order", place, ": a ", role, " message that is not the first");
    } else if (role == "user" && before == "user") {
      add("role_order", place, ": a user message after a user message");
    } else if (role == "assistant" && before == "assistant") {
      add("role_order", place, ": an assistant message after an assistant message");
    } else if (role == "assistant" && whole && (before.empty() || is_system(before))) {
      add("role_order", place, ": an assistant message before any user message");
    } else if ((role == "tool" || role == "function") && before != "assistant" && before != role) {
      add("role_order", place, ": a ", role, " message that follows no assistant message");
    }
    note_calls(messages[i], calls);
    const Json* answered = find_member(messages[i], "tool_call_id");
    if (role == "tool" && answered != nullptr && answered->is_string() && !calls.empty() &&
        !calls.contains(answered->get<std::string>()))
      add("role_order", place, ": answers the tool call ", dump_json(*answered),
          ", which no message before it makes");
    const Json* weight = find_member(messages[i], "weight");
    if (role == "assistant" && weight != nullptr && *weight != 0 && *weight != 1)
      add("ignored_member", place, ".weight is ", dump_json(*weight),
          "; 0 leaves the turn untrained, everything else counts as 1");
    const Json* trained = find_member(messages[i], "train");
    if (role == "assistant" && trained != nullptr && *trained == false)
      add("ignored_member", place, ".train is not read; a weight of 0 leaves the turn untrained");
    if (find_member(messages[i], "function_call") != nullptr)
      add("ignored_member", place, ".function_call is not read; calls are in \"tool_calls\"");
    const std::string* content = content_of(messages[i]);
    if (role == "assistant" && content != nullptr && is_blank(*content) &&
        find_member(messages[i], "tool_calls") == nullptr)
      add("empty_answer", place, ": the assistant's message is empty");
    before = role;
  }
  if (whole && !messages.empty() && before != "assistant")
    add("unanswered", "the conversation ends with a message of the ", before,
        ", so what stands after the last answer is not trained");
}

// What cannot be opened stays as it is: encoding the row says what is wrong.
Json plain_row(const Json& row, const DataOptions& options) {
  Json plain = row;
  for (const std::string& key : {options.messages_key, options.prompt_key, options.completion_key,
                                 std::string("chosen"), std::string("rejected")}) {
    auto member = plain.find(key);
    if (member == plain.end()) continue;
    try {
      if (key == options.messages_key && member->is_string() &&
          member->get_ref<const std::string&>().starts_with('['))
        *member = parse_field(member->get<std::string>(), key);
      for (size_t i = 0; member->is_array() && i < member->size(); ++i)
        if (const Json* content = find_member((*member)[i], "content");
            content != nullptr && content->is_array())
          join_text_parts((*member)[i]["content"], key);
    } catch (const Error&) {
    }
  }
  return plain;
}

const Json* messages_of(const Json& row, const DataOptions& options) {
  const Json* messages = find_member(row, options.messages_key);
  return messages != nullptr && messages->is_array() ? messages : nullptr;
}

// Whether a member says something, and the prompt does not say it already.
bool is_left_out(const Json& value, const Json* prompt) {
  if (value.is_array()) return !value.empty();
  if (!value.is_string() || is_blank(value.get_ref<const std::string&>())) return false;
  return prompt == nullptr || !prompt->is_string() ||
         prompt->get_ref<const std::string&>().find(value.get_ref<const std::string&>()) ==
             std::string::npos;
}

void check_columns(const Json& row, const DataOptions& options, RowCheck& check) {
  auto look = [&](const auto& keys, const Json* prompt) {
    for (const std::string key : keys) {
      if (key == options.prompt_key || key == options.completion_key || key == options.text_key)
        continue;
      const Json* value = find_member(row, key);
      if (value == nullptr || !is_left_out(*value, prompt)) continue;
      check.findings.emplace_back(
          "ignored_member",
          key == "functions"
              ? "\"functions\" is not read; what may be called is in \"tools\""
              : cat('"', key, "\" is not read; what the model shall see is a part of the prompt"));
    }
  };
  const Json* prompt = find_member(row, options.prompt_key);
  if (prompt != nullptr && find_member(row, options.completion_key) != nullptr)
    look(kBesidePrompt, prompt);
  else if (messages_of(row, options) != nullptr)
    look(kBesideMessages, nullptr);
}

// Whether answers that are whole conversations begin with a question, and none of theirs is the
// text in the row's prompt.
bool asks_another(const Json& row, const Json& chosen, const DataOptions& options) {
  const Json* prompt = find_member(row, options.prompt_key);
  if (prompt == nullptr || !prompt->is_string() || !chosen.is_array() || chosen.empty())
    return false;
  const size_t first = chosen.size() > 1 && is_system(role_of(chosen[0])) ? 1 : 0;
  return role_of(chosen[first]) == "user" &&
         std::none_of(chosen.begin(), chosen.end(), [&](const Json& message) {
           const std::string* content = content_of(message);
           return content != nullptr && folded(*content) == folded(prompt->get<std::string>());
         });
}

}  // namespace

RowCheck check_row_text(const Json& row, const DataOptions& options) {
  RowCheck check;
  auto add = [&](const char* kind, auto&&... parts) {
    check.findings.emplace_back(kind, cat(parts...));
  };
  check.repaired = row;
  walk_strings(check.repaired, "", [&](Json& value, const std::string& place) {
    TextProblems p = text_problems(value.get_ref<const std::string&>());
    if (!p.any()) return;
    if (p.controls > 0)
      add("control_character", place, ": ", p.controls,
          p.controls == 1 ? " control character" : " control characters", " (NUL or the like)");
    if (p.replacements > 0)
      add("replacement_character", place, ": ", p.replacements,
          " times U+FFFD, which stands for bytes that were lost");
    if (p.mojibake > 0)
      add("mojibake", place, ": ", p.mojibake, p.mojibake == 1 ? " character" : " characters",
          " read in a wrong encoding, such as \"", p.first_mojibake, "\"");
    if (p.controls + p.mojibake == 0) return;
    value = std::move(p.repaired);
    check.changed = true;
  });
  if (!row.is_object()) return check;

  check.plain = plain_row(row, options);
  const Json& plain = check.plain;
  for (const char* key : kMedia)
    if (const Json* media = find_member(plain, key);
        media != nullptr && (media->is_string() || (media->is_array() && !media->empty())))
      add("ignored_member", '"', key, "\" is not read: wick trains text");
  check_columns(plain, options, check);
  const Json *chosen = find_member(plain, "chosen"), *rejected = find_member(plain, "rejected");
  // Beside the two answers of a preference the messages are its prompt.
  if (const Json* messages = messages_of(plain, options))
    check_messages(*messages, options.messages_key, chosen == nullptr || rejected == nullptr,
                   check);
  for (const std::string& key :
       {options.completion_key, std::string("chosen"), std::string("rejected")})
    if (const Json* answer = find_member(plain, key)) {
      if (answer->is_string() && is_blank(answer->get_ref<const std::string&>()))
        add("empty_answer", '"', key, "\" is empty");
      if (answer->is_array()) check_messages(*answer, key, false, check);
    }
  const Json* text = find_member(plain, options.text_key);
  if (text != nullptr && text->is_string() && is_blank(text->get_ref<const std::string&>()))
    add("empty_answer", '"', options.text_key, "\" is empty");
  if (chosen != nullptr && rejected != nullptr && asks_another(plain, *chosen, options))
    add("ignored_member", '"', options.prompt_key,
        "\" is not read: \"chosen\" and \"rejected\" begin with another question");
  if (chosen != nullptr && rejected != nullptr && *chosen == *rejected)
    add("same_answers", "\"chosen\" and \"rejected\" are the same, so the pair teaches nothing");
  return check;
}

std::vector<std::pair<std::string, std::string>> spoken_texts(const Json& row,
                                                              const DataOptions& options) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const std::string& key : {options.messages_key, options.prompt_key, options.completion_key,
                                 std::string("chosen"), std::string("rejected")}) {
    const Json* member = find_member(row, key);
    if (member == nullptr) continue;
    if (member->is_string()) texts.emplace_back(key, member->get<std::string>());
    for (size_t i = 0; member->is_array() && i < member->size(); ++i)
      if (const std::string* content = content_of((*member)[i]))
        texts.emplace_back(cat(key, "[", i, "].content"), *content);
  }
  return texts;
}

std::string row_words(const Json& row, const DataOptions& options) {
  const std::string keys[] = {options.prompt_key, options.completion_key,
                              options.text_key,   options.messages_key,
                              "chosen",           "rejected"};
  std::string words;
  for (const std::string& key : keys) {
    const Json* member = find_member(row, key);
    if (member == nullptr) continue;
    Json copy = *member;
    walk_strings(copy, key, [&](Json& value, const std::string& place) {
      words += cat(place, '\x1f', folded(value.get_ref<const std::string&>()), '\x1e');
    });
  }
  return words;
}

std::string lost_thoughts(const Json& row, const std::string& text, const DataOptions& options) {
  const Json* messages = messages_of(row, options);
  const std::string key = messages != nullptr ? unwritten_thoughts(*messages, text) : "";
  if (key.empty()) return {};
  return cat("the chat template does not write ", options.messages_key, "[", messages->size() - 1,
             "].", key, ", so it is not learned");
}

std::string lost_system_message(const Json& row, const std::string& text,
                                const DataOptions& options) {
  const Json* messages = messages_of(row, options);
  const std::optional<size_t> lost =
      messages != nullptr ? unwritten_system(*messages, text) : std::nullopt;
  if (!lost) return {};
  return cat("the chat template leaves out ", options.messages_key, "[", *lost, "], a ",
             role_of((*messages)[*lost]), " message");
}

}  // namespace wick
