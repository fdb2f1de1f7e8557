// SPDX-License-Identifier: Apache-2.0
// CSV as RFC 4180 has it, record by record; fields may also be separated by semicolons or tabs
// where the header has no comma outside quotes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

struct CsvRecord {
  int64_t line = 0;  // on which it begins, from 1
  std::vector<std::string> fields;
  std::string_view text;  // its bytes
  bool blank = false;     // an empty line
  std::string problem;    // not empty: what is wrong with it
};

class CsvReader {
 public:
  // `text` must outlive it. A byte order mark is passed over. With `tabs` it is tabs where the
  // header has one, or none of the three.
  explicit CsvReader(std::string_view text, bool tabs = false);

  // False at the end. After a record whose quotes are not closed, reading goes on at the next line.
  bool next(CsvRecord& record);

 private:
  std::string_view text_;
  char separator_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace wick
