// SPDX-License-Identifier: Apache-2.0
// Multiple-choice rows: {"question" or "prompt": text, "choices": [texts], "answer": the index of
// the right one from 0, its letter (A is the first) or its text}. As a choice may be a number's
// text or a letter, a text answer is looked for among the choices first.
//
// Each choice becomes a row of its own, as a completion of the question would: through the chat
// template where the model has one, else behind the question with a blank between. Only the tokens
// of the choice are trained, not the stop token.
#pragma once

#include <span>
#include <vector>

#include "data/dataset.h"

namespace wick {

struct ChoiceQuestion {
  int64_t line = 0;
  size_t first = 0;                 // the row of its first choice; the others follow
  int64_t answer = 0;               // among the choices
  std::vector<int64_t> characters;  // of each choice
};

class ChoiceSet {
 public:
  // `max_rows`: the first N questions; negative: all. Throws: as ExampleSet::load, and kCorruptFile
  // with file and line for a question that is wrong.
  static ChoiceSet load(std::span<const DataSource> sources, const std::string& split,
                        const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                        const DataOptions& options, int64_t max_rows);

  const std::vector<ChoiceQuestion>& questions() const { return questions_; }
  const ExampleSet& texts() const { return texts_; }

 private:
  std::vector<ChoiceQuestion> questions_;
  ExampleSet texts_;
};

// Throws: kCorruptFile for a row that is no question of this form.
void check_question(const Json& row, const DataOptions& options);

}  // namespace wick
