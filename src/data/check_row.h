// SPDX-License-Identifier: Apache-2.0
// What can be said of one row before and after it is tokens, for data/check.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace wick {

struct RowCheck {
  std::vector<std::pair<const char*, std::string>> findings;  // kind, what
  bool changed = false;                                       // `repaired` differs from the row
  Json repaired;
  // The row as it is read: contents in parts joined, messages in a table's field opened.
  Json plain;
};

// Characters, empty answers, roles and their order. Rows of wrong types are let pass: encoding them
// says what is wrong.
RowCheck check_row_text(const Json& row, const DataOptions& options);

// The rest is asked of RowCheck::plain. The texts of its messages, or its prompt and answers, with
// their places.
std::vector<std::pair<std::string, std::string>> spoken_texts(const Json& row,
                                                              const DataOptions& options);

// What the row says, in lower case and with single blanks.
std::string row_words(const Json& row, const DataOptions& options);

// What is to be said where the template left the last turn's reasoning out of `text`; else "".
std::string lost_thoughts(const Json& row, const std::string& text, const DataOptions& options);

// What is to be said where the template left the row's system message out of `text`; else "".
std::string lost_system_message(const Json& row, const std::string& text,
                                const DataOptions& options);

}  // namespace wick
