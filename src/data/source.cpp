// SPDX-License-Identifier: Apache-2.0
#include "data/source.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/check.h"
#include "base/file.h"
#include "base/path_status.h"
#include "data/csv.h"
#include "io/impostor.h"
#include "io/jsonl.h"
#include "text/unicode.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kWhiteSpace = " \t\r\n";
constexpr std::array kExtensions = {".jsonl", ".json", ".csv", ".tsv"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

std::vector<std::string> split_names(const std::string& split) {
  if (split == "train") return {"train"};
  if (split == "valid") return {"valid", "validation", "val", "dev"};
  if (split == "test") return {"test"};
  fail(ErrorCode::kInvalidArgument, "split \"", split, "\": wanted is train, valid or test");
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
  if (std::any_of(names.begin(), names.end(),
                  [](const std::string& n) { return n.ends_with(".parquet"); }))
    list += "; Parquet is not read: write JSON lines, in Python with to_json of datasets";
  return list;
}

// Files that hold rows in a form of their own, or none, by their first bytes.
void refuse_foreign(std::string_view text, const std::string& where) {
  struct Form {
    std::string_view begins, what;
  };
  constexpr Form kForms[] = {
      {"\x1F\x8B", "gzip; unpack it with gunzip"},
      {"\x28\xB5\x2F\xFD", "Zstandard; unpack it with unzstd"},
      {"\xFD\x37zXZ", "xz; unpack it with unxz"},
      {"PK\x03\x04", "a ZIP archive; unpack it (of a table, save it as CSV)"},
      {"PAR1\x15", "Parquet; write JSON lines, in Python with to_json of datasets"},
      {"ARROW1", "Arrow; write JSON lines, in Python with to_json of datasets"},
  };
  for (const Form& form : kForms)
    if (text.starts_with(form.begins))
      fail(ErrorCode::kUnsupported, where, ": this is ", form.what,
           "; wick reads JSON lines, JSON and CSV");
  if (std::string_view hint = impostor_hint(text); !hint.empty())
    fail(ErrorCode::kCorruptFile, where, ": ", hint);
}

// The encoding of a file of wide characters, as iconv calls it; "" for bytes. Rows begin with
// characters of ASCII, which have a zero beside them there.
std::string_view wide_encoding(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xFF\xFE\0\0"sv)) return "UTF-32LE";
  if (text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32BE";
  if (text.starts_with("\xFF\xFE")) return "UTF-16LE";
  if (text.starts_with("\xFE\xFF")) return "UTF-16BE";
  if (text.size() < 4) return {};
  const bool zero[] = {text[0] == 0, text[1] == 0, text[2] == 0, text[3] == 0};
  if (!zero[0] && zero[1] && !zero[2] && zero[3]) return "UTF-16LE";
  if (zero[0] && !zero[1] && zero[2] && !zero[3]) return "UTF-16BE";
  return {};
}

// UTF-16 in UTF-8, with U+FFFD for halves of characters.
std::string narrowed(std::string_view text, bool big_endian) {
  auto unit = [&](size_t at) -> uint32_t {
    const auto first = static_cast<uint8_t>(text[at]), second = static_cast<uint8_t>(text[at + 1]);
    return big_endian ? uint32_t{first} << 8 | second : uint32_t{second} << 8 | first;
  };
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (; at + 1 < text.size(); at += 2) {
    uint32_t code = unit(at);
    if (code >= 0xD800 && code < 0xE000) {
      const uint32_t low = code < 0xDC00 && at + 3 < text.size() ? unit(at + 2) : 0;
      const bool pair = low >= 0xDC00 && low < 0xE000;
      code = pair ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : 0xFFFD;
      at += pair ? 2 : 0;
    }
    unicode::append(out, code);
  }
  if (at < text.size()) out += unicode::kReplacement;
  return out;
}

// What a line that is no JSON may be, by the signs of a file in another layout.
std::string layout_hint(std::string_view line) {
  if (line.find('\r') != std::string_view::npos)
    return "; the line holds a carriage return: save the file with line feeds between rows";
  const size_t first = line.find_first_not_of(kWhiteSpace),
               last = line.find_last_not_of(kWhiteSpace);
  if (first == last && first != std::string_view::npos &&
      (line[first] == '{' || line[first] == '['))
    return "; a .jsonl file has one whole object per line, and one with an array is named .json";
  return {};
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& where, const RowFunctions& functions)
      : text_(text), where_(where), functions_(functions) {}

  void lines() {
    for_each_line(text_, where_, [&](int64_t line, std::string_view row) {
      if (row.find_first_not_of(kWhiteSpace) == std::string_view::npos)
        blank(line);
      else
        json(line, row);
    });
  }

  void array() {
    size_t at = text_.find('[') + 1;
    int64_t line = 1 + count_lines(0, at);
    // Each is looked for up to the end of the file.
    constexpr int kMostTorn = 100;
    int torn_rows = 0;
    bool first = true, torn = false;
    std::string_view whole;  // the last row that was
    while (true) {
      skip_space(at, line);
      if (at >= text_.size()) return bad(line, "the array is not closed", {});
      if (text_[at] == ']') break;
      if (!first && text_[at] == ',') {
        ++at;
        skip_space(at, line);
        if (at < text_.size() && text_[at] == ']') {
          bad(line, "a comma before the end of the array", {});
          break;
        }
      } else if (!first && !torn) {
        bad(line, cat("'", text_[at], "' after an element of the array, wanted ',' or ']'"), {});
        if (text_[at] != '{') return;
      }
      first = false;
      size_t end = element_end(at);
      const size_t torn_at = torn_rows < kMostTorn ? torn_end(at, end, whole) : end;
      torn = torn_at < end;
      torn_rows += torn;
      end = torn_at;
      const int64_t begins = line;
      if (!torn) whole = text_.substr(at, end - at);
      json(begins, text_.substr(at, end - at));
      line += count_lines(at, end);
      at = end;
    }
    ++at;
    skip_space(at, line);
    if (at < text_.size()) bad(line, "text after the array's end", {});
  }

  void csv(bool tabs) {
    CsvReader reader(text_, tabs);
    CsvRecord record;
    if (!reader.next(record))
      fail(ErrorCode::kInvalidArgument, where_, ": is empty; wanted is a header and records");
    if (!record.problem.empty())
      fail(ErrorCode::kCorruptFile, where_, ":", record.line, ": the header: ", record.problem);
    // A column without a name is no part of a row: tables are often written with their index.
    std::vector<std::string> names = record.fields;
    if (std::all_of(names.begin(), names.end(), [](const std::string& n) { return n.empty(); }))
      fail(ErrorCode::kCorruptFile, where_, ":", record.line, ": the header names no column");
    std::unordered_set<std::string_view> seen;
    for (const std::string& name : names)
      if (!name.empty() && !seen.insert(name).second)
        fail(ErrorCode::kCorruptFile, where_, ":1: the header names \"", name, "\" twice");
    while (reader.next(record)) {
      if (record.blank) {
        blank(record.line);
        continue;
      }
      if (record.problem.empty() && record.fields.size() != names.size())
        record.problem =
            cat("the record has ", record.fields.size(), " fields, the header ", names.size());
      if (!record.problem.empty()) {
        bad(record.line, record.problem, record.text);
        continue;
      }
      Json row = Json::object();
      // The names are distinct, so each member is appended without a search for its name.
      auto& members = static_cast<Json::object_t::Container&>(row.get_ref<Json::object_t&>());
      try {
        for (size_t i = 0; i < names.size(); ++i)
          if (!names[i].empty())
            members.emplace_back(names[i], cell(names[i], std::move(record.fields[i])));
      } catch (const Error& e) {
        bad(record.line, e.what(), record.text);
        continue;
      }
      functions_.row(record.line, std::move(row));
    }
  }

 private:
  // A field is a text, but for a list of messages, which a table can only hold as one.
  static Json cell(const std::string& name, std::string&& field) {
    auto begins = [&](std::string_view quote) {
      return field.starts_with(cat("[{", quote, "role", quote)) ||
             field.starts_with(cat("[{", quote, "content", quote));
    };
    if (begins("'"))
      fail(ErrorCode::kCorruptFile, '"', name,
           "\" is a list of messages as Python prints it, in single quotes; write it as JSON, with "
           "json.dumps, or the rows as JSON lines");
    if (!begins("\"")) return std::move(field);
    Json list = parse_json(field, cat('"', name, '"'));
    for (const Json& message : list) {
      const Json* role = find_member(message, "role");
      if (role == nullptr || !role->is_string()) return std::move(field);
    }
    return list;
  }

  void blank(int64_t line) {
    if (functions_.blank) functions_.blank(line);
  }

  void bad(int64_t line, const std::string& what, std::string_view text) {
    if (!functions_.bad) fail(ErrorCode::kCorruptFile, where_, ":", line, ": ", what);
    functions_.bad(line, what, text);
  }

  void json(int64_t line, std::string_view text) {
    Json row;
    try {
      row = parser_.parse(text, where_, line);
    } catch (const Error& e) {
      std::string what = e.what() + layout_hint(text);
      if (!functions_.bad) throw Error(e.code(), what);
      const std::string place = cat(where_, ":", line, ":");
      if (what.starts_with(place + " "))
        what.erase(0, place.size() + 1);
      else if (what.starts_with(place))
        what = "column " + what.substr(place.size());
      else if (what.starts_with(where_ + ":"))
        what = "in line " + what.substr(where_.size() + 1);
      return functions_.bad(line, what, text);
    }
    if (functions_.repeated && !parser_.repeated_key().empty())
      functions_.repeated(line, parser_.repeated_key());
    functions_.row(line, std::move(row));
  }

  int64_t count_lines(size_t begin, size_t end) const {
    return std::count(text_.begin() + static_cast<ptrdiff_t>(begin),
                      text_.begin() + static_cast<ptrdiff_t>(end), '\n');
  }

  void skip_space(size_t& at, int64_t& line) const {
    for (; at < text_.size() && kWhiteSpace.find(text_[at]) != std::string_view::npos; ++at)
      line += text_[at] == '\n';
  }

  // The next line within [at, end) that begins with a bracket, as far from its left edge as `at`
  // is; `end` without one.
  size_t next_like(size_t at, size_t end) const {
    if (text_.substr(at, end - at).find('\n') == std::string_view::npos) return end;
    const size_t before = at > 0 ? text_.rfind('\n', at - 1) : std::string_view::npos;
    const size_t left = before == std::string_view::npos ? 0 : before + 1, column = at - left;
    if (text_.substr(left, column).find_first_not_of(kWhiteSpace) != std::string_view::npos)
      return end;
    for (size_t line = text_.find('\n', at); line < end; line = text_.find('\n', line + 1)) {
      const size_t next = text_.find_first_not_of(" \t", line + 1);
      if (next < end && next - line - 1 == column && text_[next] == '{') return next;
    }
    return end;
  }

  // Where the row that begins at `at` ends: at `end`, or before the next row that stands as it
  // does where a bracket or quote is missing, so that it takes no other row with it. `whole` is a
  // row as they are written: one that has such lines inside tells nothing.
  size_t torn_end(size_t at, size_t end, std::string_view whole) {
    const size_t next = next_like(at, end);
    if (next == end) return end;
    if (!whole.empty()) {
      const auto from = static_cast<size_t>(whole.data() - text_.data());
      if (next_like(from, from + whole.size()) < from + whole.size()) return end;
    }
    try {
      parser_.parse(text_.substr(at, end - at), where_, 1);
      return end;
    } catch (const Error&) {
    }
    const size_t last = text_.find_last_not_of(kWhiteSpace, next - 1);
    return text_[last] == ',' ? last : last + 1;
  }

  // Behind the value that begins at `at`, by brackets and quotes alone.
  size_t element_end(size_t at) const {
    int64_t depth = 0;
    bool in_string = false;
    for (; at < text_.size(); ++at) {
      const char c = text_[at];
      if (in_string) {
        if (c == '\\')
          ++at;
        else if (c == '"')
          in_string = false;
        continue;
      }
      if (c == '"') in_string = true;
      if (c == '{' || c == '[') ++depth;
      if ((c == ',' || c == ']') && depth == 0) return at;
      if ((c == '}' || c == ']') && --depth == 0) return at + 1;
    }
    return text_.size();
  }

  std::string_view text_;
  const std::string& where_;
  const RowFunctions& functions_;
  JsonParser parser_;
};

}  // namespace

RowFileKind row_file_kind(const fs::path& path, std::string_view text) {
  const std::string extension = lower(path.extension().string());
  if (extension == ".csv") return RowFileKind::kCsv;
  if (extension == ".tsv") return RowFileKind::kTsv;
  if (extension != ".json") return RowFileKind::kJsonLines;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const size_t first = text.find_first_not_of(kWhiteSpace);
  return first != std::string_view::npos && text[first] == '[' ? RowFileKind::kJsonArray
                                                               : RowFileKind::kJsonLines;
}

void for_each_row(std::string_view text, const std::string& where, RowFileKind kind,
                  const RowFunctions& functions) {
  Reader reader(text, where, functions);
  switch (kind) {
    case RowFileKind::kJsonLines:
      return reader.lines();
    case RowFileKind::kJsonArray:
      return reader.array();
    case RowFileKind::kCsv:
      return reader.csv(/*tabs=*/false);
    case RowFileKind::kTsv:
      return reader.csv(/*tabs=*/true);
  }
}

void for_each_row(const fs::path& path, const RowFunctions& functions) {
  MappedFile file(path);
  auto bytes = file.bytes();
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::string utf8;
  if (const std::string_view encoding = wide_encoding(text); !encoding.empty()) {
    const bool known = encoding.starts_with("UTF-16");
    if (!known || !functions.wide)
      fail(ErrorCode::kCorruptFile, path.string(), ": this is ", encoding,
           ", and rows are read as UTF-8; ",
           known ? cat("write them so with wick data --data ", path.string(), " --fix FOLDER, or ")
                 : "write them so with ",
           "iconv -f ", encoding, " -t UTF-8 FILE > NEW");
    functions.wide(encoding);
    text = utf8 = narrowed(text, encoding == "UTF-16BE");
  }
  refuse_foreign(text, path.string());
  for_each_row(text, path.string(), row_file_kind(path, text), functions);
}

std::vector<fs::path> files_of_split(const fs::path& folder, const std::string& split) {
  std::vector<fs::path> found;
  for (const std::string& name : split_names(split))
    for (const char* extension : kExtensions) {
      std::error_code ignored;
      // A link to nothing is there too: opening it says what is wrong with it.
      if (fs::exists(fs::symlink_status(folder / (name + extension), ignored)))
        found.push_back(folder / (name + extension));
    }
  return found;
}

std::vector<std::string> unread_files(const fs::path& folder) {
  static constexpr std::string_view kWords[] = {
      "train", "training", "valid", "validation", "val",  "dev",     "development",
      "test",  "testing",  "eval",  "evaluation", "held", "heldout", "holdout"};
  static constexpr std::string_view kRowFiles[] = {".jsonl", ".json", ".csv", ".tsv", ".parquet",
                                                   ".arrow", ".gz",   ".zst", ".xz",  ".zip"};
  std::vector<fs::path> read;
  for (const char* split : {"train", "valid", "test"})
    for (const fs::path& file : files_of_split(folder, split)) read.push_back(file.filename());
  std::vector<std::string> names;
  std::error_code error, ignored;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const fs::path name = it->path().filename();
    const std::string text = lower(name.string()), extension = lower(name.extension().string());
    const auto word_end =
        std::find_if(text.begin(), text.end(), [](char c) { return c < 'a' || c > 'z'; });
    const std::string_view word(text.begin(), word_end);
    auto is = [](const auto& list, std::string_view x) {
      return std::find(std::begin(list), std::end(list), x) != std::end(list);
    };
    if (is(kWords, word) && is(kRowFiles, extension) &&
        std::find(read.begin(), read.end(), name) == read.end() && !it->is_directory(ignored))
      names.push_back(name.string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string unread_text(const std::string& name) {
  return cat(name, " is not read: the files of a data set are train, valid (or validation, val, ",
             "dev) and test, each .jsonl, .json, .csv or .tsv");
}

fs::path file_of_split(const fs::path& path, const std::string& split) {
  if (!path_exists(path))
    fail(ErrorCode::kNotFound, path.string(),
         ": no such file or folder; data is a .jsonl, .json or .csv file, or a folder with "
         "train.jsonl, valid.jsonl and test.jsonl");
  if (!is_folder_at(path)) return path;
  std::vector<fs::path> files = files_of_split(path, split);
  if (files.empty())
    fail(ErrorCode::kNotFound, path.string(), ": the folder has no ", split_names(split)[0],
         ".jsonl (or .json, .csv); ", listed(path));
  return files[0];
}

}  // namespace wick
