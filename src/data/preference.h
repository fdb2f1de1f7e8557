// SPDX-License-Identifier: Apache-2.0
// Rows of preferences: two answers to one prompt, or an answer and whether it is wanted. Those of
// TRL are read:
//   {"prompt": …, "chosen": …, "rejected": …}      strings, or lists of messages
//   {"chosen": […], "rejected": […]}               the messages that both begin with are the prompt
//   {"messages": […], "chosen": …, "rejected": …}  the conversation so far is the prompt
//   {"prompt": …, "completion": …, "label": bool}  for KTO alone
// Where chosen and rejected are lists that begin with the prompt, it is taken off both.
//
// A row becomes one Example with two sequences, so that a pair stays together wherever rows go:
// into an update, a pack, the held-out part. Each sequence is encoded and masked as a row of
// completions (data/dataset.h), and cut by itself.
#pragma once

#include "data/row.h"

namespace wick {

// Whether the row has both answers of a pair.
bool is_pair(const Json& row);

// Requires: options.mask_prompt and options.pairs. `options` are those of `encoder`.
// Throws: Error about the row, without file and line.
Example encode_preference(const RowEncoder& encoder, const DataOptions& options, Json&& row,
                          bool keep_prompt, std::vector<DataIssue>& issues);

// One sequence of an example: its own prompt, its answer.
struct SequenceView {
  std::span<const int32_t> ids;
  std::span<const uint8_t> trained;
  bool rejected = false;
  bool empty() const { return ids.empty(); }
  // Tokens before the first that is trained.
  size_t prompt_tokens() const;
};
// The chosen one, then the rejected one; a row with a label has one of them.
std::vector<SequenceView> sequences_of(const Example& example);

// For KTO's estimate: each sequence's prompt with the answer of the one before it, the first with
// the last one's; chosen sequences of all rows first, then the rejected ones. None is longer than
// max_tokens.
ExampleSet mismatched(const ExampleSet& set, std::span<const int64_t> rows, int64_t max_tokens);

}  // namespace wick
