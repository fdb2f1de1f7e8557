// SPDX-License-Identifier: Apache-2.0
// Dataset: JSON lines as tokens, and which of them carry loss.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "wick/model.h"

namespace wick {

struct DatasetOptions {
  bool mask_prompt = true;                // loss on assistant turns and completions only
  int64_t max_seq_length = 2048;          // longer rows keep their head, and are named in issues()
  std::string system_prompt = {};         // for conversations that have none
  std::string chat_template_config = {};  // JSON object of template variables
  std::string date = {};                  // "2026-01-02": the template's today; "": today
  std::string prompt_feature = "prompt", completion_feature = "completion", text_feature = "text",
              chat_feature = "messages";
};

struct DatasetToken {
  int32_t id = 0;
  std::string text;  // what it stands for in the row
  bool trained = false;
};

struct DatasetRow {
  std::string format;  // text, completions, chat
  int64_t line = 0;
  int64_t full_length = 0;  // before cutting
  std::vector<DatasetToken> tokens;
};

struct DatasetIssue {
  std::string kind;  // cut, no_trained_token, no_stop_token, duplicate, other
  std::string file;
  int64_t line = 0;  // 0: the whole file
  std::string what;
};

struct DatasetStats {
  int64_t rows = 0, rows_read = 0, tokens = 0, trained_tokens = 0;
  int64_t shortest = 0, longest = 0, median = 0, p90 = 0;  // tokens per row
};

class Dataset {
 public:
  // `path` is a JSON-lines file or a folder with train.jsonl, valid.jsonl, test.jsonl; `split` is
  // train, valid or test. Throws: kNotFound; kCorruptFile as "file:line: what"; kInvalidArgument.
  static Dataset load(const Model& model, const std::string& path, const std::string& split,
                      const DatasetOptions& options = {});
  ~Dataset();
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;

  // Whether the folder has that split.
  static bool has_split(const std::string& path, const std::string& split);

  int64_t size() const;
  DatasetRow row(int64_t index) const;
  DatasetStats stats() const;
  std::vector<DatasetIssue> issues() const;
  std::string file() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Dataset(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace wick
