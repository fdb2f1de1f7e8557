// SPDX-License-Identifier: Apache-2.0
#include "app/prompt_file.h"

#include "base/check.h"
#include "io/jsonl.h"

namespace wick {

std::vector<Prompt> read_prompts(const std::string& path) {
  std::vector<Prompt> prompts;
  for_each_json_line(path, [&](int64_t line, Json&& row) {
    Prompt prompt;
    prompt.where = cat(path, ":", line);
    auto text_of = [&](const char* key) {
      return find_member(row, key) ? get_string(row, key, prompt.where) : std::string();
    };
    if (const Json* messages = find_member(row, "messages")) {
      if (!messages->is_array() || messages->empty())
        fail(ErrorCode::kCorruptFile, prompt.where, ": messages is ", json_kind(*messages),
             ", wanted a list of messages");
      prompt.kind = Prompt::Kind::kMessages;
      prompt.messages = *messages;
      const Json* role = find_member(prompt.messages.back(), "role");
      if (role && *role == "assistant") prompt.messages.erase(prompt.messages.size() - 1);
      if (prompt.messages.empty())
        fail(ErrorCode::kCorruptFile, prompt.where, ": there is nothing before the answer");
    } else if (find_member(row, "prompt")) {
      prompt.text = text_of("prompt");
    } else if (find_member(row, "text")) {
      prompt.kind = Prompt::Kind::kText;
      prompt.text = text_of("text");
    } else {
      fail(ErrorCode::kCorruptFile, prompt.where, ": has ", json_kind(row),
           " without prompt, messages or text");
    }
    prompts.push_back(std::move(prompt));
  });
  if (prompts.empty()) fail(ErrorCode::kCorruptFile, path, ": has no rows");
  return prompts;
}

}  // namespace wick
