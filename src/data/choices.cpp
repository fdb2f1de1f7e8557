// SPDX-License-Identifier: Apache-2.0
#include "data/choices.h"

#include <algorithm>

#include "base/check.h"
#include "data/row.h"
#include "data/source.h"
#include "text/unicode.h"
#include "wick/evaluator.h"

namespace wick {
namespace {

struct Question {
  std::string prompt;
  std::vector<std::string> choices;
  int64_t answer = 0;
};

int64_t answer_of(const Json& answer, const std::vector<std::string>& choices) {
  const auto count = static_cast<int64_t>(choices.size());
  int64_t index = -1;
  if (answer.is_number_integer()) {
    index = answer.get<int64_t>();
  } else if (answer.is_string()) {
    const std::string& text = answer.get_ref<const std::string&>();
    auto found = std::find(choices.begin(), choices.end(), text);
    if (found != choices.end())
      index = found - choices.begin();
    else if (text.size() == 1 && text[0] >= 'A' && text[0] <= 'Z')
      index = text[0] - 'A';
    else if (text.size() == 1 && text[0] >= 'a' && text[0] <= 'z')
      index = text[0] - 'a';
    else if (text.size() == 1 && text[0] >= '0' && text[0] <= '9')
      index = text[0] - '0';
  }
  if (index < 0 || index >= count)
    fail(ErrorCode::kCorruptFile, "\"answer\" is ", dump_json(answer),
         ", wanted the index of a choice (0 to ", count - 1, "), its letter or its text");
  return index;
}

Question read_question(const Json& row, const DataOptions& options) {
  Question q;
  const Json* prompt = find_member(row, "question");
  if (prompt == nullptr) prompt = find_member(row, options.prompt_key);
  const Json *choices = find_member(row, "choices"), *answer = find_member(row, "answer");
  if (prompt == nullptr || !prompt->is_string() || choices == nullptr || answer == nullptr)
    fail(ErrorCode::kCorruptFile,
         "wanted is {\"question\": text, \"choices\": [texts], \"answer\": "
         "index, letter or text}");
  q.prompt = prompt->get<std::string>();
  const Json list = choices->is_string()
                        ? parse_field(choices->get_ref<const std::string&>(), "\"choices\"")
                        : *choices;
  if (!list.is_array() || list.size() < 2)
    fail(ErrorCode::kCorruptFile, "\"choices\" is ", json_kind(list), " of ", list.size(),
         ", wanted an array of at least 2 texts");
  for (const Json& choice : list) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      fail(ErrorCode::kCorruptFile, "\"choices\" has ", dump_json(choice), ", wanted texts");
    q.choices.push_back(choice.get<std::string>());
  }
  q.answer = answer_of(*answer, q.choices);
  return q;
}

int64_t characters_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return !unicode::is_continuation(c); });
}

struct Stop {};  // enough rows

}  // namespace

void check_question(const Json& row, const DataOptions& options) { read_question(row, options); }

ChoiceSet ChoiceSet::load(std::span<const DataSource> sources, const std::string& split,
                          const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                          const DataOptions& options, int64_t max_rows) {
  DataOptions masked = options;
  masked.mask_prompt = true;
  RowEncoder encoder(tokenizer, chat_template, masked);
  ChoiceSet set;
  std::vector<Example> texts;
  std::string files;
  auto add = [&](const Json& row, int64_t line) {
    const Question q = read_question(row, options);
    set.questions_.push_back({line, texts.size(), q.answer, {}});
    for (const std::string& choice : q.choices) {
      const bool glued = chat_template == nullptr && !q.prompt.empty() &&
                         q.prompt.find_last_of(" \t\n") != q.prompt.size() - 1 && choice[0] != ' ';
      Json completion = Json::object();
      completion[options.prompt_key] = q.prompt;
      completion[options.completion_key] = glued ? " " + choice : choice;
      std::vector<DataIssue> ignored;
      Example e = encoder.encode(std::move(completion), false, ignored);
      if (e.full_length > options.max_seq_length)
        fail(ErrorCode::kInvalidArgument, "the question with a choice has ", e.full_length,
             " tokens, more than --max-seq-length ", options.max_seq_length);
      // The model is asked for the words, not for where it would stop.
      int64_t trained = std::count(e.trained.begin(), e.trained.end(), 1);
      for (size_t i = e.ids.size(); i-- > 0 && trained > 1;) {
        if (e.trained[i] == 0) continue;
        if (!tokenizer.is_special(e.ids[i]) && tokenizer.eos_id() != e.ids[i]) break;
        e.trained[i] = 0;
        --trained;
      }
      if (trained == 0) fail(ErrorCode::kInvalidArgument, "a choice has no tokens");
      e.line = line;
      texts.push_back(std::move(e));
      set.questions_.back().characters.push_back(characters_of(choice));
    }
  };
  for (const DataSource& source : sources) {
    if (sources.size() > 1 && !ExampleSet::has_rows(source, split, options)) continue;
    const std::filesystem::path file = file_of_split(source.path, split);
    files += cat(files.empty() ? "" : ", ", file.string());
    try {
      for_each_row(file, {.row = [&](int64_t line, Json&& row) {
                     if (max_rows >= 0 && static_cast<int64_t>(set.questions_.size()) >= max_rows)
                       throw Stop();
                     try {
                       add(row, line);
                     } catch (const Error& e) {
                       throw Error(e.code(), cat(file.string(), ":", line, ": ", e.what()));
                     }
                   }});
    } catch (const Stop&) {
      break;
    }
  }
  if (texts.empty()) fail(ErrorCode::kInvalidArgument, files, ": there are no questions");
  set.texts_ = ExampleSet::from_examples(std::move(texts), files);
  return set;
}

bool has_choices(const std::vector<DataSource>& sources, const std::string& split) {
  bool found = false;
  for (const DataSource& source : sources) {
    try {
      // The first row that can be read tells; whoever reads them all says what is wrong.
      for_each_row(file_of_split(source.path, split),
                   {.row =
                        [&](int64_t, Json&& row) {
                          found = find_member(row, "choices") != nullptr;
                          throw Stop();
                        },
                    .bad = [](int64_t, const std::string&, std::string_view) {}});
    } catch (const Stop&) {
      return found;
    } catch (const Error&) {
      return false;
    }
  }
  return found;
}

}  // namespace wick
