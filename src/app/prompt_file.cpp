// SPDX-License-Identifier: Apache-2.0
#include "app/prompt_file.h"

#include <cctype>
#include <sstream>

#include "base/check.h"
#include "base/file.h"
#include "io/jsonl.h"
#include "text/unicode.h"

namespace wick {

namespace {

// `text` is what `path` holds: a pipe can be read only once.
std::vector<Prompt> prompts_of(std::string_view text, const std::string& path) {
  std::vector<Prompt> prompts;
  for_each_json_line(text, path, [&](int64_t line, Json&& row) {
    Prompt prompt;
    prompt.where = cat(path, ":", line);
    auto text_of = [&](const char* key) {
      return find_member(row, key) ? get_string(row, key, prompt.where) : std::string();
    };
    if (const Json* tools = find_member(row, "tools")) {
      // As in rows of a data set: tables can only hold the list as text, and an empty one is none.
      const Json list = tools->is_string() ? parse_json(tools->get_ref<const std::string&>(),
                                                        cat(prompt.where, ": tools"))
                                           : *tools;
      if (!list.is_array() && !list.is_null())
        fail(ErrorCode::kCorruptFile, prompt.where, ": tools is ", json_kind(list),
             ", wanted a list of tools");
      if (!list.empty()) prompt.tools = list;
    }
    // Rows of completions may have messages for a prompt.
    const Json* messages = find_member(row, "messages");
    const char* key = messages ? "messages" : "prompt";
    if (const Json* list = find_member(row, "prompt"); !messages && list && list->is_array())
      messages = list;
    if (messages) {
      if (!messages->is_array() || messages->empty())
        fail(ErrorCode::kCorruptFile, prompt.where, ": ", key, " is ",
             messages->is_array() ? "an empty list" : json_kind(*messages),
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

}  // namespace

std::vector<Prompt> read_prompts(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // Lines of plain words are what a stranger tries first.
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && std::isalpha(static_cast<unsigned char>(text[first])))
    fail(ErrorCode::kCorruptFile, path,
         ": holds no JSON; wanted is one object per line, such as {\"prompt\": \"Hello!\"}");
  return prompts_of(text, path);
}

std::vector<std::string> read_prompt_texts(const std::string& path) {
  std::string all = read_file(path);
  if (all.starts_with("\xEF\xBB\xBF")) all.erase(0, 3);
  const size_t first = all.find_first_not_of(" \t\r\n");
  std::vector<std::string> texts;
  if (first != std::string::npos && all[first] == '{') {
    for (const Prompt& p : prompts_of(all, path)) {
      std::string text = p.text;
      if (p.kind == Prompt::Kind::kMessages) {
        for (const Json& m : p.messages)
          if (get_string(m, "role", p.where, std::string()) == "user")
            text = get_string(m, "content", p.where);
        if (text.empty()) fail(ErrorCode::kCorruptFile, p.where, ": no message of a user");
      }
      texts.push_back(text);
    }
    return texts;
  }
  std::istringstream lines(all);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const bool zero = line.find('\0') != std::string::npos;
    if (zero || !unicode::is_valid(line))
      fail(ErrorCode::kCorruptFile, path, ":", number, ": ",
           zero ? "a zero byte; save the file in UTF-8 (this may be UTF-16)"
                : "the text is not UTF-8 here; save the file in UTF-8");
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") != std::string::npos) texts.push_back(line);
  }
  if (texts.empty()) fail(ErrorCode::kCorruptFile, path, ": no prompt; wanted one in each line");
  return texts;
}

}  // namespace wick
