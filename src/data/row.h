// SPDX-License-Identifier: Apache-2.0
// One row of a data file to one example; the rules are those of data/dataset.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace wick {

// A list in a field of a table, which can only hold it as text. Throws: kCorruptFile.
Json parse_field(const std::string& text, const std::string& where);

// Where the text of a conversation has not the reasoning of its last turn, the reasoning's key;
// else "". Of earlier turns templates leave it out on purpose.
std::string unwritten_thoughts(const Json& messages, std::string_view text);
// The first system message whose words it has not.
std::optional<size_t> unwritten_system(const Json& messages, std::string_view text);

// What one row says, before tokens: a conversation, or a text whose part from `trained_from` on is
// trained.
struct RowContent {
  RowFormat format = RowFormat::kText;
  bool is_chat = false;  // `messages` rather than `text`
  std::string text;
  size_t trained_from = 0;           // a byte of `text`
  Json messages, tools;              // tools: null if none
  size_t first_trained_message = 0;  // assistant messages before it are prompt
};

class RowEncoder {
 public:
  // The arguments must outlive it. Throws: kInvalidArgument for wrong options.
  RowEncoder(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
             const DataOptions& options);

  // The example, not yet cut; with its prompt if `keep_prompt`. Appends to `issues`, without file,
  // and without line but for kWholeFile where the same holds for every such row.
  // Throws: Error about the row, without file and line.
  static constexpr int64_t kWholeFile = -1;
  Example encode(Json&& row, bool keep_prompt, std::vector<DataIssue>& issues) const;

 private:
  // row_read.cpp
  RowContent read(Json&& row) const;
  void read_completions(Json& prompt, Json& completion, RowContent& content) const;
  void add_system_prompt(RowContent& content) const;
  [[noreturn]] void refuse_keys(const Json& row) const;
  // row.cpp
  Example encode_text(const RowContent& content, std::vector<DataIssue>& issues) const;
  Example encode_chat(RowContent&& content, std::vector<DataIssue>& issues) const;
  bool is_stop(int32_t id) const;
  // The token that ends the turn of `span`, whose tokens are [first, last).
  std::optional<size_t> stop_of_turn(const RenderedChat& chat, const std::vector<Token>& tokens,
                                     const AssistantSpan& span, size_t first, size_t last) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* template_;
  const DataOptions& options_;
};

}  // namespace wick
