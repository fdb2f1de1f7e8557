// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "data/preference.h"
#include "data/row.h"
#include "io/jsonl.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// The names a split's file may have, the first being the one to name in messages.
std::vector<std::string> split_files(const std::string& split) {
  if (split == "train") return {"train.jsonl"};
  if (split == "valid") return {"valid.jsonl", "validation.jsonl", "val.jsonl"};
  if (split == "test") return {"test.jsonl"};
  fail(ErrorCode::kInvalidArgument, "split \"", split, "\": wanted is train, valid or test");
}

std::vector<fs::path> files_of_split(const fs::path& folder, const std::string& split) {
  std::vector<fs::path> found;
  for (const std::string& name : split_files(split)) {
    std::error_code ignored;
    if (fs::exists(folder / name, ignored)) found.push_back(folder / name);
  }
  return found;
}

// Names of a few files of a folder, for the message about one that is missing.
std::string listed(const fs::path& folder) {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  if (names.empty()) return "it is empty";
  std::string list = "it has ";
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    list += cat(i == 0 ? "" : ", ", names[i]);
  if (names.size() > kShown) list += cat(" and ", names.size() - kShown, " more");
  return list;
}

}  // namespace

const char* row_format_name(RowFormat format) {
  switch (format) {
    case RowFormat::kText:
      return "text";
    case RowFormat::kCompletions:
      return "completions";
    case RowFormat::kChat:
      return "chat";
  }
  return "?";
}

std::string DataIssue::str() const {
  return line > 0 ? cat(file, ":", line, ": ", what) : cat(file, ": ", what);
}

class ExampleSet::Loader {
 public:
  Loader(std::string file, const Tokenizer& tokenizer, const ChatTemplate* chat_template,
         const DataOptions& options)
      : encoder_(tokenizer, chat_template, options), options_(options) {
    set_.file_ = std::move(file);
  }

  void add_issue(DataIssueKind kind, int64_t line, std::string what) {
    set_.issues_.push_back({kind, set_.file_, line, std::move(what)});
  }

  void add(int64_t line, Json&& row) {
    ++set_.rows_read_;
    found_.clear();
    Example example;
    try {
      const bool keep_prompt = prompts_ < options_.keep_prompts;
      example = options_.pairs == PairRows::kNone
                    ? encoder_.encode(std::move(row), keep_prompt, found_)
                    : encode_preference(encoder_, options_, std::move(row), keep_prompt, found_);
    } catch (const Error& e) {
      throw Error(e.code(), cat(set_.file_, ":", line, ": ", e.what()));
    }
    example.line = line;
    for (DataIssue& issue : found_) {
      const bool whole = issue.line == RowEncoder::kWholeFile;
      if (whole && !said_.insert(issue.what).second) continue;
      add_issue(issue.kind, whole ? 0 : line, std::move(issue.what));
    }
    if (options_.pairs == PairRows::kNone && example.full_length > options_.max_seq_length)
      cut(example);
    if (std::count(example.trained.begin(), example.trained.end(), 0) ==
        static_cast<int64_t>(example.trained.size())) {
      add_issue(DataIssueKind::kNoTrainedToken, line,
                "the row has no trained token and is left out");
      return;
    }
    if (!options_.keep_text) std::vector<Token>().swap(example.tokens);
    prompts_ += !example.prompt.empty();
    set_.examples_.push_back(std::move(example));
  }

  ExampleSet finish() {
    if (set_.rows_read_ == 0)
      fail(ErrorCode::kInvalidArgument, set_.file_,
           ": the data set is empty; wanted is one JSON object per line");
    if (set_.examples_.empty())
      fail(ErrorCode::kInvalidArgument, set_.file_, ": none of the ", set_.rows_read_,
           " rows has a trained token (no assistant turn or completion within max_seq_length = ",
           options_.max_seq_length,
           "), so there is nothing to learn; the first: ", set_.issues_.front().str());
    return std::move(set_);
  }

 private:
  void cut(Example& example) {
    auto keep = static_cast<size_t>(options_.max_seq_length);
    int64_t lost = std::count_if(example.trained.begin() + static_cast<std::ptrdiff_t>(keep),
                                 example.trained.end(), [](uint8_t t) { return t != 0; });
    add_issue(DataIssueKind::kCut, example.line,
              cat("the row has ", example.full_length, " tokens and is cut to max_seq_length = ",
                  options_.max_seq_length, "; ", lost, " trained tokens are lost"));
    example.ids.resize(keep);
    example.trained.resize(keep);
    example.tokens.resize(keep);
  }

  RowEncoder encoder_;
  const DataOptions& options_;
  ExampleSet set_;
  std::vector<DataIssue> found_;
  std::set<std::string> said_;  // of the whole file
  int64_t prompts_ = 0;         // kept
};

ExampleSet ExampleSet::load(const fs::path& path, const std::string& split,
                            const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                            const DataOptions& options) {
  std::error_code error;
  fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    fail(ErrorCode::kNotFound, path.string(),
         ": no such file or folder; data is a .jsonl file, or a folder with train.jsonl, "
         "valid.jsonl and test.jsonl");
  if (!fs::is_directory(status)) {
    Loader loader(path.string(), tokenizer, chat_template, options);
    for_each_json_line(path, [&](int64_t line, Json&& row) { loader.add(line, std::move(row)); });
    return loader.finish();
  }

  std::vector<fs::path> files = files_of_split(path, split);
  if (files.empty())
    fail(ErrorCode::kNotFound, path.string(), ": the folder has no ", split_files(split)[0], "; ",
         listed(path));
  Loader loader(files[0].string(), tokenizer, chat_template, options);
  for (size_t i = 1; i < files.size(); ++i)
    loader.add_issue(DataIssueKind::kOther, 0,
                     cat("is read as the ", split, " split; ", files[i].filename().string(),
                         " beside it is not read"));
  for_each_json_line(files[0], [&](int64_t line, Json&& row) { loader.add(line, std::move(row)); });
  return loader.finish();
}

ExampleSet ExampleSet::from_text(std::string_view text, const std::string& where,
                                 const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                                 const DataOptions& options) {
  Loader loader(where, tokenizer, chat_template, options);
  for_each_json_line(text, where,
                     [&](int64_t line, Json&& row) { loader.add(line, std::move(row)); });
  return loader.finish();
}

ExampleSet ExampleSet::from_examples(std::vector<Example> examples, std::string name) {
  for (const Example& example : examples)
    WICK_CHECK(!example.ids.empty() && example.ids.size() == example.trained.size() &&
                   example.trained[0] == 0 &&
                   std::find_if(example.trained.begin(), example.trained.end(),
                                [](uint8_t t) { return t != 0; }) != example.trained.end(),
               name, ": an example without a trained token");
  ExampleSet set;
  set.rows_read_ = static_cast<int64_t>(examples.size());
  set.examples_ = std::move(examples);
  set.file_ = std::move(name);
  return set;
}

bool ExampleSet::has_split(const fs::path& path, const std::string& split) {
  std::error_code error;
  fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return !files_of_split(path, split).empty();
  return fs::exists(status) && split == "train";
}

uint64_t ExampleSet::fingerprint() const {
  uint64_t key = mix_key(0, examples_.size());
  for (const Example& e : examples_) {
    key = mix_key(key, e.ids.size());
    if (e.second > 0 || e.undesirable)
      key = mix_key(key, static_cast<uint64_t>(e.second) * 2 + e.undesirable);
    for (size_t i = 0; i < e.ids.size(); ++i)
      key = mix_key(key, static_cast<uint64_t>(e.ids[i]) * 2 + (e.trained[i] != 0));
  }
  return key;
}

int64_t ExampleSet::issue_count(DataIssueKind kind) const {
  return std::count_if(issues_.begin(), issues_.end(),
                       [&](const DataIssue& issue) { return issue.kind == kind; });
}

}  // namespace wick
