// SPDX-License-Identifier: Apache-2.0
// Dataset: rows of JSON lines, JSON arrays or CSV as tokens, and which of them carry loss.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "wick/model.h"

namespace wick {

// A file (.jsonl, .json, .csv, .tsv), or a folder with one per split: train, valid (validation,
// val, dev) and test.
struct DataSource {
  std::string path;
  double weight = 1;  // how often an epoch has each of its rows: 2 twice, 0.5 a half, drawn anew
};
// "PATH" or "PATH:WEIGHT"; a path that is there is never taken apart.
// Throws: kInvalidArgument for a weight that is not above 0.
DataSource parse_data_source(const std::string& text);

struct DatasetOptions {
  bool mask_prompt = true;                // loss on assistant turns and completions only
  int64_t max_seq_length = 2048;          // longer rows keep their head, and are named in issues()
  std::string system_prompt = {};         // for conversations that have none
  std::string chat_template_config = {};  // JSON object of template variables
  std::string date = {};                  // "2026-01-02": the template's today; "": today
  bool skip_unreadable = false;     // rows that cannot be used are named in issues(), not thrown
  bool files_as_any_split = false;  // also of several data sets, as one file alone is
  std::string prompt_feature = "prompt", completion_feature = "completion", text_feature = "text",
              chat_feature = "messages";
};

struct DatasetToken {
  int32_t id = 0;
  std::string text;  // what it stands for in the row
  bool trained = false;
};

struct DatasetRow {
  std::string format;  // text, completions, chat, preference
  int64_t line = 0;
  int64_t full_length = 0;  // before cutting
  int64_t second = 0;       // of a preference: where the rejected sequence begins in tokens
  std::vector<DatasetToken> tokens;
};

struct DatasetIssue {
  // Of a data set: cut, no_trained_token, no_stop_token, unreadable, dropped, duplicate, other. Of
  // check_data: those that docs/data.md lists.
  std::string kind;
  std::string file;
  int64_t line = 0;  // 0: the whole file
  std::string what;
};

struct DatasetStats {
  int64_t rows = 0, rows_read = 0, tokens = 0, trained_tokens = 0;
  int64_t shortest = 0, longest = 0, median = 0, p90 = 0;  // tokens per row
};

// What check_data found in the files of one split.
struct DataSplit {
  std::string split;
  std::vector<std::string> files = {};
  int64_t rows = 0, rows_read = 0;  // with trained tokens; all, readable or not
  int64_t rows_over_limit = 0;
  int64_t tokens = 0, trained_tokens = 0;       // after cutting
  std::map<std::string, int64_t> formats = {};  // rows of each
  // Tokens per row, before cutting; of a pair, of each of its sequences.
  int64_t shortest = 0, longest = 0, median = 0, p90 = 0;
  std::vector<int64_t> lengths = {};
  std::string written = {};  // the cleaned copy
  int64_t rows_written = 0;
};

struct DataCheck {
  // The first 1,000 of each kind, and all that are about a whole file.
  std::vector<DatasetIssue> findings;
  std::map<std::string, int64_t> counts;  // of all findings, by kind
  std::vector<DataSplit> splits;
  std::vector<std::string> fixes;  // what the cleaned copy leaves out or has otherwise
};

// Looks at every row of the splits (train, valid, test; those that are there) and reports all that
// is wrong, unreadable rows included. `fix`, if not "": a folder for a cleaned copy as JSON lines,
// without files of these splits or with `overwrite`, which replaces them. `on_finding` gets every
// finding as it is found.
// Throws: kNotFound, kIo, kInvalidArgument; kCancelled where `should_stop`, asked at every row,
// says so: then the copy goes again.
DataCheck check_data(const Model& model, const std::vector<DataSource>& sources,
                     const std::vector<std::string>& splits, const DatasetOptions& options = {},
                     const std::string& fix = {}, const std::function<bool()>& should_stop = {},
                     bool overwrite = false,
                     const std::function<void(const DatasetIssue&)>& on_finding = {});

class Dataset {
 public:
  // `split` is train, valid or test; of several sources those that have it are read one after the
  // other. Rows with "chosen" and "rejected" are preferences.
  // Throws: kNotFound; kCorruptFile as "file:line: what"; kInvalidArgument.
  static Dataset load(const Model& model, const std::vector<DataSource>& sources,
                      const std::string& split, const DatasetOptions& options = {});
  static Dataset load(const Model& model, const std::string& path, const std::string& split,
                      const DatasetOptions& options = {});
  ~Dataset();
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;

  // Whether the folder, or one of them, has that split. A file is its own train split only.
  static bool has_split(const std::string& path, const std::string& split);
  static bool has_split(const std::vector<DataSource>& sources, const std::string& split);

  int64_t size() const;
  DatasetRow row(int64_t index) const;
  DatasetStats stats() const;
  std::vector<DatasetIssue> issues() const;
  std::string file() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Dataset(std::unique_ptr<Impl> impl);
  Handle<Impl> impl_;
};

}  // namespace wick
