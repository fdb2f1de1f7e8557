// SPDX-License-Identifier: Apache-2.0
#include "data/check.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/file.h"
#include "base/rng.h"
#include "data/check_row.h"
#include "data/choices.h"
#include "data/inspect.h"
#include "data/preference.h"
#include "data/row.h"
#include "data/source.h"
#include "text/unicode.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// Two 64-bit keys: a row is dropped on the word of this, so a chance hit must not happen.
using RowKey = std::pair<uint64_t, uint64_t>;

RowKey key_of(std::string_view bytes) {
  RowKey key{1, 2};
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    for (size_t b = i; b < std::min(i + 8, bytes.size()); ++b)
      word = word << 8 | static_cast<uint8_t>(bytes[b]);
    key.first = mix_key(key.first, word);
    key.second = mix_key(key.second, ~word);
  }
  return {mix_key(key.first, bytes.size()), key.second};
}

RowKey key_of(const Example& e) {
  return key_of({reinterpret_cast<const char*>(e.ids.data()), e.ids.size() * sizeof(e.ids[0])});
}

struct Place {
  size_t file = 0;
  int64_t line = 0;
};

// Findings of each kind that are kept; what is said of a whole file is kept beside them.
constexpr int64_t kKeptOfKind = 1000;

class Checker {
 public:
  Checker(const Tokenizer& tokenizer, const ChatTemplate* chat_template, const DataOptions& options,
          const std::string& fix, const std::function<bool()>& should_stop,
          const std::function<void(const DatasetIssue&)>& on_finding)
      : options_(with_text(options)),
        pair_options_(for_pairs(options_)),
        tokenizer_(tokenizer),
        encoder_(tokenizer, chat_template, options_),
        pair_encoder_(tokenizer, chat_template, pair_options_),
        fix_(fix),
        should_stop_(should_stop),
        on_finding_(on_finding) {}

  void split(std::span<const DataSource> sources, const std::string& name) {
    result_.splits.push_back({.split = name});
    lengths_.clear();
    if (!fix_.empty()) out_ = std::make_unique<AtomicFile>(fs::path(fix_) / (name + ".jsonl"));
    for (const DataSource& source : sources) {
      if (!ExampleSet::has_split(source.path, name)) continue;
      const fs::path path = file_of_split(source.path, name);
      file(path);
      if (path == source.path) continue;
      for (const fs::path& other : files_of_split(source.path, name))
        if (other != path)
          add("ignored_file", 0,
              cat("is read as the ", name, " split; ", other.filename().string(),
                  " beside it is not read"));
      if (!folders_.insert(source.path).second) continue;
      for (const std::string& unread : unread_files(source.path))
        add({"ignored_file", source.path, 0, unread_text(unread)});
    }
    finish_split();
  }

  DataCheck finish() {
    for (const auto& [what, count] : fixes_)
      result_.fixes.push_back(cat(count, count == 1 ? " row: " : " rows: ", what));
    return std::move(result_);
  }

 private:
  static DataOptions with_text(DataOptions options) {
    options.keep_text = true;
    return options;
  }

  // As training on preferences reads them, but uncut: what is lost is counted here.
  static DataOptions for_pairs(DataOptions options) {
    options.mask_prompt = true;
    options.pairs = PairRows::kPairs;
    options.max_seq_length = std::numeric_limits<int64_t>::max();
    return options;
  }

  DataSplit& report() { return result_.splits.back(); }

  void add(const char* kind, int64_t line, std::string what) {
    add({kind, files_.back().path, line, std::move(what)});
  }

  void add(DatasetIssue issue) {
    if (on_finding_) on_finding_(issue);
    const int64_t count = ++result_.counts[issue.kind];
    if (issue.line == 0 || count <= kKeptOfKind) result_.findings.push_back(std::move(issue));
  }

  void file(const fs::path& path) {
    files_.push_back({path.string(), report().split});
    report().files.push_back(path.string());
    said_.clear();
    file_format_.clear();
    wide_ = false;
    const int64_t before = report().rows_read;
    const size_t first = result_.findings.size();
    bool failed = false;
    try {
      for_each_row(path,
                   {.row = [&](int64_t line, Json&& value) { row(line, std::move(value)); },
                    .bad = [&](int64_t line, const std::string& what,
                               std::string_view text) { bad(line, what, text); },
                    .blank = [&](int64_t line) { add("blank_line", line, "the line is blank"); },
                    .repeated =
                        [&](int64_t line, const std::string& key) {
                          add("repeated_key", line,
                              cat("an object has \"", key, "\" more than once; the last counts"));
                        },
                    .wide =
                        [&](std::string_view encoding) {
                          wide_ = true;
                          add("not_utf8", 0,
                              cat("the file is ", encoding,
                                  ", which training refuses; --fix writes it as UTF-8"));
                        }});
    } catch (const Error& e) {
      if (not_of_the_file_) throw;
      // Of the file as a whole: a header that is none, a line without end.
      std::string what = e.what();
      int64_t line = 0;
      if (const std::string begin = files_.back().path + ":"; what.starts_with(begin)) {
        what.erase(0, begin.size());
        for (; !what.empty() && what[0] >= '0' && what[0] <= '9'; what.erase(0, 1))
          line = line * 10 + (what[0] - '0');
        what.erase(0, what.find_first_not_of(": "));
      }
      add("unreadable", line, what);
      failed = true;
    }
    if (report().rows_read == before && !failed) add("unreadable", 0, "the file has no rows");
    std::stable_sort(result_.findings.begin() + static_cast<std::ptrdiff_t>(first),
                     result_.findings.end(),
                     [](const DatasetIssue& a, const DatasetIssue& b) { return a.line < b.line; });
  }

  void bad(int64_t line, const std::string& what, std::string_view text) {
    ++report().rows_read;
    if (!unicode::is_valid(text))
      add("not_utf8", line, "bytes that are not UTF-8; was the file saved in another encoding?");
    else
      add("unreadable", line, what);
    dropped("unreadable, left out");
  }

  void row(int64_t line, Json&& value) {
    if (should_stop_ && should_stop_()) {
      not_of_the_file_ = true;
      fail(ErrorCode::kCancelled, "stopped; nothing was written to ", fix_);
    }
    ++report().rows_read;
    RowCheck check = check_row_text(value, options_);
    for (auto& [kind, what] : check.findings) add(kind, line, std::move(what));
    if (report().split == "test" && find_member(value, "choices") != nullptr)
      return question(line, value);
    const Json original = value;
    const bool pair = is_pair(value);
    std::vector<DataIssue> issues;
    Example example;
    try {
      example =
          pair ? encode_preference(pair_encoder_, pair_options_, std::move(value), false, issues)
               : encoder_.encode(std::move(value), false, issues);
    } catch (const Error& e) {
      add(e.code() == ErrorCode::kCorruptFile ? "wrong_type" : "template_error", line, e.what());
      return dropped("cannot be used, left out");
    }
    std::string system = lost_system_message(check.plain, example.text, options_),
                thoughts = lost_thoughts(check.plain, example.text, options_);
    for (const DataIssue& issue : issues) {
      if (issue.kind == DataIssueKind::kDropped && !(system.empty() && thoughts.empty())) continue;
      const bool whole = issue.line == RowEncoder::kWholeFile;
      if (whole && !said_.insert(issue.what).second) continue;
      add(issue.kind == DataIssueKind::kNoStopToken ? "no_stop_token" : "template_problem",
          whole ? 0 : line, issue.what);
    }
    if (!system.empty()) add("system_dropped", line, std::move(system));
    if (!thoughts.empty()) add("template_problem", line, std::move(thoughts));
    const std::string format = pair ? "preference" : row_format_name(example.format);
    if (example.format != RowFormat::kText) check_special(line, check.plain);
    mixed(line, format);
    // What training leaves out is nobody's duplicate.
    if (!count(line, example, format)) return dropped("without trained tokens, left out");
    if (seen_before(line, example, check.plain)) return;
    write(check.changed ? check.repaired : original);
    if (wide_ && out_) ++fixes_["written as UTF-8"];
    if (check.changed) ++fixes_["characters repaired"];
  }

  // Of multiple choice: wick eval asks it, nothing is trained on it.
  void question(int64_t line, const Json& value) {
    try {
      check_question(value, options_);
    } catch (const Error& e) {
      add("wrong_type", line, e.what());
      return dropped("cannot be used, left out");
    }
    mixed(line, "choices");
    ++report().rows;
    ++report().formats["choices"];
    write(value);
  }

  // Words in a message that are the template's own signs, such as a stop token: a model reads them
  // as such. Rows of plain text may hold them on purpose.
  void check_special(int64_t line, const Json& row) {
    for (const auto& [place, text] : spoken_texts(row, options_)) {
      if (text.find_first_of("<[|") == std::string::npos) continue;  // what every such sign has
      for (const int32_t id : tokenizer_.encode_ids(text, false)) {
        if (!tokenizer_.is_special(id)) continue;
        add("special_token", line,
            cat(place, " holds ", tokenizer_.piece(id), ", a special token of the model"));
        break;
      }
    }
  }

  // Lengths and trained tokens; false where nothing is trained. The two sequences of a pair are cut
  // and counted each by itself; one that loses its answer takes the pair with it.
  bool count(int64_t line, const Example& example, const std::string& format) {
    const int64_t limit = options_.max_seq_length;
    const bool pair = example.second > 0;
    int64_t tokens = 0, trained = 0;
    bool complete = true;
    for (const SequenceView& s : sequences_of(example)) {
      const auto length = static_cast<int64_t>(s.ids.size());
      const int64_t kept = std::min(limit, length);
      const auto cut = s.trained.begin() + static_cast<std::ptrdiff_t>(kept);
      auto is_trained = [](uint8_t t) { return t != 0; };
      const int64_t here = std::count_if(s.trained.begin(), cut, is_trained);
      lengths_.push_back(length);
      if (length > limit) {
        ++report().rows_over_limit;
        add("over_limit", line,
            cat(pair ? (s.rejected ? "the rejected sequence" : "the chosen sequence") : "the row",
                " has ", length, " tokens and is cut to ", limit, "; ",
                std::count_if(cut, s.trained.end(), is_trained), " trained tokens are lost"));
      }
      tokens += kept;
      trained += here;
      complete = complete && here > 0;
    }
    if (!complete) {
      add("no_trained_token", line,
          format == "preference" ? "an answer of the pair has no trained token, and it is left out"
                                 : "the row has no trained token and is left out");
      return false;
    }
    ++report().rows;
    report().tokens += tokens;
    report().trained_tokens += trained;
    ++report().formats[format];
    return true;
  }

  void mixed(int64_t line, const std::string& format) {
    if (file_format_.empty()) {
      file_format_ = format;
      format_line_ = line;
    } else if (format != file_format_) {
      add("mixed_formats", line,
          cat("a row of ", format, " in a file that begins with ", file_format_, " (line ",
              format_line_, ")"));
    }
  }

  std::string shown(const Place& place) const {
    return cat(files_[place.file].path, ":", place.line);
  }

  // Whether the row was there before, so that a cleaned copy leaves it out.
  bool seen_before(int64_t line, const Example& example, const Json& original) {
    const Place here{files_.size() - 1, line};
    const RowKey ids = key_of(example);
    auto [exact, fresh] = exact_.emplace(ids, here);
    auto [near, new_fold] = near_.emplace(key_of(row_words(original, options_)), here);
    // Turns with a weight of 0, or an answer's label, may set rows of the same tokens apart.
    std::string lesson(example.trained.begin(), example.trained.end());
    if (auto label = original.find("label"); label != original.end()) lesson += label->dump();
    const RowKey taught = key_of(lesson);
    const bool new_lesson =
        lessons_.emplace(mix_key(ids.first, taught.first), mix_key(ids.second, taught.second))
            .second;
    if (!fresh) {
      const std::string& split = files_[exact->second.file].split;
      const bool same_split = split == report().split;
      if (same_split && new_lesson) return false;
      add(same_split ? "duplicate" : "overlap", line,
          cat("has the same tokens as ", shown(exact->second),
              same_split ? "" : cat(" of the ", split, " split")));
      dropped(same_split ? "the same as an earlier one, left out"
                         : "also in another split, left out");
      return true;
    }
    if (!new_fold) {
      const std::string& split = files_[near->second.file].split;
      const bool same_split = split == report().split;
      add(same_split ? "near_duplicate" : "near_overlap", line,
          cat("differs from ", shown(near->second), " only in case and white space",
              same_split ? "" : cat(" (the ", split, " split)")));
    }
    return false;
  }

  void dropped(const char* why) {
    if (out_) ++fixes_[why];
  }

  void write(const Json& value) {
    if (!out_) return;
    not_of_the_file_ = true;  // whatever goes wrong here is the copy's
    out_->write(dump_json(value) + "\n");
    not_of_the_file_ = false;
    ++report().rows_written;
  }

  void finish_split() {
    DataSplit& s = report();
    const NumberStats stats = number_stats(lengths_);
    s.shortest = stats.min;
    s.median = stats.p50;
    s.p90 = stats.p90;
    s.longest = stats.max;
    s.lengths = lengths_;
    if (out_) {
      // A file without rows would be refused by training.
      if (s.rows_written > 0) {
        out_->commit();
        s.written = (fs::path(fix_) / (s.split + ".jsonl")).string();
      }
      out_.reset();
    }
  }

  const DataOptions options_, pair_options_;
  const Tokenizer& tokenizer_;
  RowEncoder encoder_, pair_encoder_;
  std::string fix_;
  std::function<bool()> should_stop_;
  std::function<void(const DatasetIssue&)> on_finding_;
  bool not_of_the_file_ = false;  // what is thrown now
  DataCheck result_;
  struct File {
    std::string path, split;
  };
  std::vector<File> files_;  // of all splits; Place counts in them
  std::vector<int64_t> lengths_;
  std::set<std::string> said_;     // of a whole file
  std::set<std::string> folders_;  // whose unread files have been named
  std::string file_format_;
  int64_t format_line_ = 0;
  bool wide_ = false;  // the file is UTF-16
  std::map<RowKey, Place> exact_, near_;
  std::set<RowKey> lessons_;  // of tokens and of what is trained of them
  std::map<std::string, int64_t> fixes_;
  std::unique_ptr<AtomicFile> out_;
};

// What training would read of the folder beside a copy or in its place.
std::vector<fs::path> files_of_splits(const fs::path& folder, std::span<const std::string> splits) {
  std::vector<fs::path> files;
  for (const std::string& split : splits)
    for (fs::path& file : files_of_split(folder, split)) files.push_back(std::move(file));
  return files;
}

void refuse_folder(const fs::path& fix, std::span<const DataSource> sources,
                   std::span<const std::string> splits, bool overwrite) {
  for (const DataSource& source : sources) {
    std::error_code ignored;
    const fs::path path = source.path;
    if (fs::equivalent(fix, fs::is_directory(path) ? path : path.parent_path(), ignored))
      fail(ErrorCode::kInvalidArgument, "--fix ", fix.string(),
           ": is the folder of the data itself; name another one");
  }
  if (overwrite) return;
  if (const std::vector<fs::path> files = files_of_splits(fix, splits); !files.empty())
    fail(ErrorCode::kInvalidArgument, "--fix ", fix.string(), " has a data set (",
         files.front().filename().string(),
         ") already; name another folder, or say --overwrite to replace what is there");
}

}  // namespace

DataCheck check_data(std::span<const DataSource> sources, std::span<const std::string> splits,
                     const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                     const DataOptions& options, const std::string& fix,
                     const std::function<bool()>& should_stop, bool overwrite,
                     const std::function<void(const DatasetIssue&)>& on_finding) {
  std::optional<NewFolder> made;
  if (!fix.empty()) {
    refuse_folder(fix, sources, splits, overwrite);
    made.emplace(fix);
  }
  Checker checker(tokenizer, chat_template, options, fix, should_stop, on_finding);
  bool any = false;
  for (const std::string& split : splits) {
    if (std::none_of(sources.begin(), sources.end(), [&](const DataSource& source) {
          return ExampleSet::has_split(source.path, split);
        }))
      continue;
    any = true;
    checker.split(sources, split);
  }
  if (!any) file_of_split(sources[0].path, splits.front());
  DataCheck check = checker.finish();
  // A copy without rows takes the place of nothing.
  if (made && std::any_of(check.splits.begin(), check.splits.end(),
                          [](const DataSplit& s) { return !s.written.empty(); })) {
    made->keep();
    // Of the data set that was there, which is not to be mixed with this one.
    for (const fs::path& file : files_of_splits(fix, splits))
      if (std::none_of(check.splits.begin(), check.splits.end(),
                       [&](const DataSplit& s) { return s.written == file.string(); }))
        fs::remove(file);
  }
  return check;
}

}  // namespace wick
