// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "data/preference.h"
#include "data/row.h"
#include "data/source.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// Streams of the seed; the number is arbitrary and must stay as it is.
constexpr uint64_t kHeldOutStream = 0x68656c64;

uint64_t row_key(uint64_t key, const Example& example) {
  key = mix_key(key, example.ids.size());
  for (int32_t id : example.ids) key = mix_key(key, static_cast<uint64_t>(id));
  return key;
}

// A row for KTO that nobody would want to be learned.
bool says_unwanted(const Json& row) {
  const Json* label = row.is_object() ? find_member(row, "label") : nullptr;
  return label != nullptr && label->is_boolean() && !label->get<bool>();
}

// The row's sequences up to that length; nothing where one of them loses its answer.
std::optional<Example> shortened(const Example& example, int64_t length) {
  Example cut;
  cut.format = example.format;
  cut.line = example.line;
  cut.full_length = example.full_length;
  cut.undesirable = example.undesirable;
  for (const SequenceView& s : sequences_of(example)) {
    const size_t keep = std::min(s.ids.size(), static_cast<size_t>(length));
    const auto trained = s.trained.first(keep);
    if (std::none_of(trained.begin(), trained.end(), [](uint8_t t) { return (t & 1) != 0; }))
      return std::nullopt;
    cut.second = static_cast<int64_t>(cut.ids.size());
    cut.ids.insert(cut.ids.end(), s.ids.begin(), s.ids.begin() + static_cast<ptrdiff_t>(keep));
    cut.trained.insert(cut.trained.end(), trained.begin(), trained.end());
  }
  return cut;
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
  Loader(const Tokenizer& tokenizer, const ChatTemplate* chat_template, const DataOptions& options)
      : encoder_(tokenizer, chat_template, options), options_(options) {}

  void begin(const std::string& file, double weight) {
    set_.file_ += cat(set_.file_.empty() ? "" : ", ", file);
    set_.parts_.push_back({file, set_.size(), set_.size(), weight});
    said_.clear();
  }

  // All rows of a data set's file for that split.
  void read(const DataSource& source, const std::string& split) {
    const fs::path file = file_of_split(source.path, split);
    begin(file.string(), source.weight);
    if (file != source.path) {
      for (const fs::path& other : files_of_split(source.path, split))
        if (other != file)
          add_issue(DataIssueKind::kOther, 0,
                    cat("is read as the ", split, " split; ", other.filename().string(),
                        " beside it is not read"));
      for (const std::string& name : unread_files(source.path))
        set_.issues_.push_back({DataIssueKind::kOther, source.path, 0, unread_text(name)});
    }
    const int64_t before = set_.rows_read_;
    RowFunctions functions{.row = [&](int64_t line, Json&& row) { add(line, std::move(row)); }};
    if (options_.skip_unreadable)
      functions.bad = [&](int64_t line, const std::string& what, std::string_view) {
        ++set_.rows_read_;
        add_issue(DataIssueKind::kUnreadable, line, what);
      };
    try {
      for_each_row(file, functions);
    } catch (const Error& e) {
      const std::string what = e.what(), place = file.string() + ":";
      const bool of_a_row = e.code() == ErrorCode::kCorruptFile && what.starts_with(place) &&
                            what.size() > place.size() && std::isdigit(what[place.size()]);
      if (!of_a_row) throw;
      throw Error(e.code(),
                  cat(what, "; wick data names all such rows, and its --fix leaves them out"));
    }
    if (set_.rows_read_ == before) fail_empty(file.string());
  }

  void add_issue(DataIssueKind kind, int64_t line, std::string what) {
    set_.issues_.push_back({kind, file(), line, std::move(what)});
  }

  void add(int64_t line, Json&& row) {
    ++set_.rows_read_;
    found_.clear();
    Example example;
    const bool unwanted = options_.pairs == PairRows::kNone && says_unwanted(row);
    try {
      const bool keep_prompt = prompts_ < options_.keep_prompts;
      example = as_pair(row)
                    ? encode_preference(encoder_, options_, std::move(row), keep_prompt, found_)
                    : encoder_.encode(std::move(row), keep_prompt, found_);
    } catch (const Error& e) {
      if (options_.skip_unreadable) return add_issue(DataIssueKind::kUnreadable, line, e.what());
      throw Error(e.code(), cat(file(), ":", line, ": ", e.what()));
    }
    example.line = line;
    if (unwanted)
      found_.push_back({DataIssueKind::kOther, "", RowEncoder::kWholeFile,
                        "answers with \"label\": false are learned like the others; --loss kto "
                        "tells wanted from unwanted ones"});
    for (DataIssue& issue : found_) {
      const bool whole = issue.line == RowEncoder::kWholeFile;
      if (whole && !said_.insert(issue.what).second) continue;
      add_issue(issue.kind, whole ? 0 : line, std::move(issue.what));
    }
    // Of a pair each sequence has been cut by itself.
    if (example.second == 0 && static_cast<int64_t>(example.ids.size()) > options_.max_seq_length)
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
    ++set_.parts_.back().end;
  }

  ExampleSet finish() {
    if (set_.rows_read_ == 0) fail_empty(set_.file_);
    if (set_.examples_.empty())
      fail(ErrorCode::kInvalidArgument, set_.file_, ": none of the ", set_.rows_read_,
           " rows has a trained token (no assistant turn or completion within max_seq_length = ",
           options_.max_seq_length,
           "), so there is nothing to learn; the first: ", set_.issues_.front().str());
    return std::move(set_);
  }

 private:
  const std::string& file() const { return set_.parts_.back().file; }

  bool as_pair(const Json& row) const {
    if (options_.pairs == PairRows::kWhereFound) return is_pair(row);
    return options_.pairs != PairRows::kNone;
  }

  [[noreturn]] static void fail_empty(const std::string& file) {
    std::error_code none;
    if (fs::is_fifo(file, none))
      fail(ErrorCode::kInvalidArgument, file,
           ": no rows come from this pipe, which can be read once; write them into a file");
    const RowFileKind kind = row_file_kind(file, {});
    const bool table = kind == RowFileKind::kCsv || kind == RowFileKind::kTsv;
    fail(ErrorCode::kInvalidArgument, file, ": the data set is empty; wanted is ",
         table ? "a header, and below it a line for each row" : "one JSON object per line");
  }

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

ExampleSet ExampleSet::load(std::span<const DataSource> sources, const std::string& split,
                            const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                            const DataOptions& options) {
  if (sources.empty()) fail(ErrorCode::kInvalidArgument, "no data set is named");
  Loader loader(tokenizer, chat_template, options);
  bool any = false;
  for (const DataSource& source : sources) {
    if (!(source.weight > 0) || source.weight > 1e6)
      fail(ErrorCode::kInvalidArgument, source.path, ": its weight is ", source.weight,
           ", wanted more than 0 and at most 1000000");
    // Of several data sets not each need have held-out rows.
    if (sources.size() > 1 && split != "train" && !has_rows(source, split, options)) continue;
    loader.read(source, split);
    any = true;
  }
  if (!any)
    fail(ErrorCode::kNotFound, sources[0].path, " and the other data sets have no ", split,
         ".jsonl (or .json, .csv)");
  return loader.finish();
}

ExampleSet ExampleSet::load(const fs::path& path, const std::string& split,
                            const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                            const DataOptions& options) {
  const DataSource source{path.string(), 1};
  return load(std::span(&source, 1), split, tokenizer, chat_template, options);
}

ExampleSet ExampleSet::from_text(std::string_view text, const std::string& where,
                                 const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                                 const DataOptions& options) {
  Loader loader(tokenizer, chat_template, options);
  loader.begin(where, 1);
  for_each_row(text, where, RowFileKind::kJsonLines,
               {.row = [&](int64_t line, Json&& row) { loader.add(line, std::move(row)); }});
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
  set.parts_.push_back({name, 0, set.size(), 1});
  set.file_ = std::move(name);
  return set;
}

bool ExampleSet::has_split(const fs::path& path, const std::string& split) {
  std::error_code error;
  fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return !files_of_split(path, split).empty();
  return fs::exists(status) && split == "train";
}

bool ExampleSet::has_rows(const DataSource& source, const std::string& split,
                          const DataOptions& options) {
  return has_split(source.path, split) ||
         (options.files_as_any_split && has_split(source.path, "train") &&
          !fs::is_directory(source.path));
}

int64_t DataPart::rows_per_epoch() const {
  return static_cast<int64_t>(std::llround(weight * static_cast<double>(end - begin)));
}

int64_t ExampleSet::rows_per_epoch() const {
  int64_t rows = 0;
  for (const DataPart& part : parts_) rows += part.rows_per_epoch();
  return rows;
}

const std::string& ExampleSet::file_of(int64_t row) const {
  for (const DataPart& part : parts_)
    if (row < part.end) return part.file;
  return file_;
}

ExampleSet ExampleSet::hold_out(double amount, uint64_t seed) {
  const auto rows = static_cast<double>(size());
  const double wanted =
      amount < 1 ? (amount > 0 ? std::max(1.0, std::round(amount * rows)) : 0) : std::floor(amount);
  if (!(wanted >= 1) || wanted >= rows)
    fail(ErrorCode::kInvalidArgument, file_, ": --val-split ", amount, " of ", size(),
         " rows holds out ", wanted, ", wanted at least 1 and at least 1 left to train on");
  std::vector<uint64_t> keys;
  for (const Example& e : examples_) keys.push_back(row_key(mix_key(seed, kHeldOutStream), e));
  std::vector<uint64_t> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  const uint64_t last = sorted[static_cast<size_t>(wanted) - 1];
  if (last == sorted.back())
    fail(ErrorCode::kInvalidArgument, file_, ": --val-split ", amount,
         " would hold out every row, because rows with the same tokens stay together");

  ExampleSet held, kept;
  held.file_ = kept.file_ = file_;
  kept.rows_read_ = rows_read_;
  kept.issues_ = std::move(issues_);
  for (const DataPart& part : parts_) {
    held.parts_.push_back({part.file, held.size(), 0, 1});
    kept.parts_.push_back({part.file, kept.size(), 0, part.weight});
    for (auto i = static_cast<size_t>(part.begin); i < static_cast<size_t>(part.end); ++i)
      (keys[i] <= last ? held : kept).examples_.push_back(std::move(examples_[i]));
    held.parts_.back().end = held.size();
    kept.parts_.back().end = kept.size();
  }
  held.rows_read_ = held.size();
  kept.rows_read_ -= held.rows_read_;
  *this = std::move(kept);
  return held;
}

ExampleSet ExampleSet::shortened(int64_t max_seq_length) const {
  ExampleSet set;
  set.file_ = file_;
  set.rows_read_ = rows_read_;
  for (const DataPart& part : parts_) {
    set.parts_.push_back({part.file, set.size(), 0, part.weight});
    for (int64_t i = part.begin; i < part.end; ++i)
      if (std::optional<Example> row = wick::shortened((*this)[i], max_seq_length))
        set.examples_.push_back(std::move(*row));
    set.parts_.back().end = set.size();
  }
  return set;
}

uint64_t ExampleSet::fingerprint() const {
  uint64_t key = mix_key(0, examples_.size());
  for (const DataPart& part : parts_)
    if (part.weight != 1)
      key = mix_key(mix_key(key, static_cast<uint64_t>(part.begin)),
                    static_cast<uint64_t>(std::llround(part.weight * 1e9)));
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
