// SPDX-License-Identifier: Apache-2.0
// Data sets: each row becomes token ids and a mask of the tokens that carry loss. data/source.h
// says which files are read.
//
// Three formats, those of mlx-lm, told apart row by row (looked for in this order):
//   completions  {"prompt": …, "completion": …}   strings, or lists of messages
//   chat         {"messages": […], "tools": […]?}
//   text         {"text": "…"}
// A member that is null counts as absent; messages and tools may be strings that hold JSON.
//
// Chat rows, and completions where the model has a chat template, are rendered by the template and
// encoded as transformers does it: special tokens are those that the template writes, none are
// added. Completions without a template are prompt + completion, and texts are themselves, both
// with the special tokens of the tokenizer's post-processor; the eos token ends them.
//
// Which tokens are trained. Trained text is a set of byte ranges: every assistant turn of a chat
// row (text/chat_template.h says where one begins and ends), only the completion's of a completions
// row. A token is trained if its bytes and such a range have a byte in common. So a token that
// holds the end of the header and the beginning of the answer is trained, because no other token
// teaches that beginning; and one that holds the end of the answer and something after it is, too.
// The stop token (a special token that ends a turn) is trained even where {% generation %} blocks
// leave it out; the white space after it is not, even where they hold it. All of a text is trained,
// whatever mask_prompt says. The first token of a row never is: nothing predicts it.
//
// Tool calls. `arguments` written as a string that holds a JSON object are given to the template as
// that object, because templates print them with tojson; any other string stays one. A content that
// is null or absent is passed on as such, since some templates tell it from ""; as "" where the
// template fails on it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "wick/dataset.h"

namespace wick {

// How rows are read: as they are, or as preferences (data/preference.h).
enum class PairRows : uint8_t {
  kNone,
  kWhereFound,  // a row with "chosen" and "rejected" is a pair, others are what they are
  kPairs,
  kWithPrompt,  // pairs, and the chosen sequence's prompt is marked kLikelihoodOnly
  kLabels,      // pairs, or single answers with a label
};
// In Example::trained: a target that is no part of the answer.
constexpr uint8_t kLikelihoodOnly = 2;

struct DataOptions {
  bool mask_prompt = true;        // false: every token but the first is trained
  int64_t max_seq_length = 2048;  // longer rows keep their head
  std::string system_prompt;      // put before the conversations that have no system message
  Json chat_template_config;      // object: further variables for the template; null if none
  std::string prompt_key = "prompt", completion_key = "completion", text_key = "text",
              messages_key = "messages";
  std::optional<std::string> date;  // "2026-01-02": what templates take for today; now if absent
  bool keep_text = false;           // keep Example::text and Example::tokens, for showing rows
  int64_t keep_prompts = 0;         // keep Example::prompt of the first N rows that have one
  PairRows pairs = PairRows::kNone;
  bool skip_unreadable = false;  // a row that cannot be used is an issue, not the end
  // Of several data sets a file counts for every split; else for train alone.
  bool files_as_any_split = false;
};

enum class RowFormat : uint8_t { kText, kCompletions, kChat };
const char* row_format_name(RowFormat format);

struct Example {
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;  // as long as ids; not 0: the loss includes predicting ids[i]
  RowFormat format = RowFormat::kText;
  int64_t line = 0;           // in the file, from 1
  int64_t full_length = 0;    // tokens before cutting
  std::string text;           // what was encoded    | both only with keep_text
  std::vector<Token> tokens;  // offsets into `text` | (an eos that was appended: begin == end)
  // What the last answer of a completions or chat row answers, in the row's own words: the user's
  // message, or the turns as "role: words" where there are several. Only with keep_prompts.
  std::string prompt;
  // Of a preference: where the rejected sequence begins in ids, behind the chosen one; 0 where
  // there is one sequence. trained[second] is 0.
  int64_t second = 0;
  bool undesirable = false;  // the label of a single answer
};

enum class DataIssueKind : uint8_t {
  kCut,             // longer than max_seq_length: the head was kept
  kNoTrainedToken,  // left out of the data set
  kNoStopToken,     // nothing that tells the model to stop is trained
  kUnreadable,      // left out of the data set, with skip_unreadable
  kDropped,         // the chat template does not write what the row has
  kOther,
};

struct DataIssue {
  DataIssueKind kind = DataIssueKind::kOther;
  std::string file;
  int64_t line = 0;  // 0: about the whole file, said once
  std::string what;
  std::string str() const;  // "file:line: what"
};

// The rows [begin, end) of one file. An epoch has each of them weight times: all of them as often
// as the whole part of the weight says, and a share of them, drawn anew for each epoch, once more.
struct DataPart {
  std::string file;
  int64_t begin = 0, end = 0;
  double weight = 1;
  int64_t rows_per_epoch() const;
};

// Rows are in the order of the files. Rows without a trained token are not among them.
class ExampleSet {
 public:
  // Each path is a file (then `split` does not matter) or a folder of splits. Several are read one
  // after the other; for splits other than train, those that have it. `chat_template` may be null.
  // Throws: kNotFound; kCorruptFile as "file:line: what" for rows that cannot be used; what the
  // template throws, with file and line; kInvalidArgument for a data set without any trained token
  // and for wrong options.
  static ExampleSet load(std::span<const DataSource> sources, const std::string& split,
                         const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                         const DataOptions& options);
  static ExampleSet load(const std::filesystem::path& path, const std::string& split,
                         const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                         const DataOptions& options);
  // The same from JSON lines in memory; `where` stands for the file in messages.
  static ExampleSet from_text(std::string_view text, const std::string& where,
                              const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                              const DataOptions& options);
  // Rows that were made elsewhere. Requires: trained[0] == 0 and a trained token in each.
  static ExampleSet from_examples(std::vector<Example> examples, std::string name);
  // Whether the folder `path` has a file of that split. A file is its own "train" split only.
  static bool has_split(const std::filesystem::path& path, const std::string& split);
  // Whether one of several data sets has rows of that split.
  static bool has_rows(const DataSource& source, const std::string& split,
                       const DataOptions& options);

  int64_t size() const { return static_cast<int64_t>(examples_.size()); }
  const Example& operator[](int64_t i) const { return examples_[static_cast<size_t>(i)]; }
  const std::string& file() const { return file_; }  // of several: their names, with commas
  const std::vector<DataPart>& parts() const { return parts_; }
  const std::string& file_of(int64_t row) const;
  int64_t rows_per_epoch() const;
  // Moves rows into a set of their own: `amount` below 1 is a share of the rows, else their number.
  // Which ones depends on the seed and the rows' tokens alone, so equal rows stay together.
  // Throws: kInvalidArgument where nothing would be left on one side.
  ExampleSet hold_out(double amount, uint64_t seed);
  // A copy of what load() would give with that max_seq_length, below the one that it had; nothing
  // is said of it, and it may have no rows.
  ExampleSet shortened(int64_t max_seq_length) const;
  int64_t rows_read() const { return rows_read_; }  // in the file, with those left out
  const std::vector<DataIssue>& issues() const { return issues_; }
  int64_t issue_count(DataIssueKind kind) const;
  // Of every row's tokens, what is trained of them and the weights, in order: a run goes on only
  // with the same.
  uint64_t fingerprint() const;

 private:
  class Loader;
  std::vector<Example> examples_;
  std::vector<DataIssue> issues_;
  std::vector<DataPart> parts_;
  std::string file_;
  int64_t rows_read_ = 0;
};

}  // namespace wick
