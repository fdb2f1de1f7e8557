// SPDX-License-Identifier: Apache-2.0
#include "data/csv.h"

#include <algorithm>

#include "text/unicode.h"

namespace wick {

namespace {

// Spreadsheets write semicolons where the comma is the decimal sign, and tabs when pasted. What
// stands in quotes is a column's name.
char separator(std::string_view text, bool tabs) {
  const std::string_view header = text.substr(0, text.find('\n'));
  bool comma = false, tab = false, semicolon = false, in_quotes = false;
  for (const char c : header) {
    in_quotes = in_quotes != (c == '"');
    comma = comma || (c == ',' && !in_quotes);
    tab = tab || (c == '\t' && !in_quotes);
    semicolon = semicolon || (c == ';' && !in_quotes);
  }
  if (tabs && (tab || !(comma || semicolon))) return '\t';
  if (comma) return ',';
  if (tab) return '\t';
  return semicolon ? ';' : ',';
}

}  // namespace

CsvReader::CsvReader(std::string_view text, bool tabs)
    : text_(text), separator_(separator(text, tabs)) {
  if (text.starts_with("\xEF\xBB\xBF")) at_ = 3;
}

bool CsvReader::next(CsvRecord& record) {
  if (at_ >= text_.size()) return false;
  record = {};
  record.line = line_;
  const size_t begin = at_;
  std::string field;
  bool in_quotes = false, closed = false, any_quotes = false;
  size_t end = text_.size();  // of the record, before its line end
  size_t i = at_;
  for (; i < text_.size(); ++i) {
    const char c = text_[i];
    if (in_quotes) {
      if (c != '"') {
        field += c;
      } else if (i + 1 < text_.size() && text_[i + 1] == '"') {
        field += '"';
        ++i;
      } else {
        in_quotes = false;
        closed = true;
      }
      continue;
    }
    if (c == '\n' || (c == '\r' && i + 1 < text_.size() && text_[i + 1] == '\n')) {
      end = i;
      i += c == '\r' ? 2 : 1;
      break;
    }
    if (c == separator_) {
      record.fields.push_back(std::move(field));
      field.clear();
      closed = false;
    } else if (c == '"' && field.empty() && !closed) {
      in_quotes = any_quotes = true;
    } else {
      if (closed && record.problem.empty())
        record.problem = "text behind the closing quote of a field; quotes inside are doubled";
      field += c;
    }
  }
  if (in_quotes) {
    record.problem = "a quote that is never closed";
    const size_t line_end = text_.find('\n', begin);
    end = std::min(line_end, text_.size());
    i = end == text_.size() ? end : end + 1;
  }
  record.fields.push_back(std::move(field));
  record.text = text_.substr(begin, end - begin);
  record.blank = !any_quotes && record.fields.size() == 1 &&
                 record.fields[0].find_first_not_of(" \t\r") == std::string::npos;
  if (record.problem.empty() && !unicode::is_valid(record.text))
    record.problem = "bytes that are not UTF-8";
  line_ += std::count(text_.begin() + static_cast<std::ptrdiff_t>(begin),
                      text_.begin() + static_cast<std::ptrdiff_t>(std::min(i, text_.size())), '\n');
  at_ = i;
  return true;
}

}  // namespace wick
