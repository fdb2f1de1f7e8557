// SPDX-License-Identifier: Apache-2.0
// Prompts from JSON lines.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"

namespace wick {

struct Prompt {
  enum class Kind { kPrompt, kMessages, kText };
  Kind kind = Kind::kPrompt;
  std::string text;
  Json messages;      // of kMessages
  Json tools;         // an array, or null
  std::string where;  // "file:line"
};

// Rows {"prompt": …}, {"messages": […]} (or prompt for it) or {"text": …}, with "tools" where there
// are; other members are ignored, an assistant message at the end is left out (it is the answer).
// Throws: kNotFound, kIo; kCorruptFile as "file:line: what", also for a file without rows.
std::vector<Prompt> read_prompts(const std::string& path);

// What a user would say, one text per prompt: the lines of a text file, or of JSON lines the
// prompt, the text or the last message of a user. Throws: as read_prompts.
std::vector<std::string> read_prompt_texts(const std::string& path);

}  // namespace wick
