// SPDX-License-Identifier: Apache-2.0
// What `wick data` shows of a data set: numbers about all rows, and the tokens of one. Nothing is
// printed here.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace wick {

// Of sorted numbers; a percentile is the smallest number that at least that share does not exceed.
struct NumberStats {
  int64_t min = 0, p50 = 0, p90 = 0, p99 = 0, max = 0, total = 0;
  double mean = 0;
};
NumberStats number_stats(std::vector<int64_t> numbers);  // all 0 for none

struct DataReport {
  int64_t rows_read = 0;  // in the file
  int64_t rows = 0;       // in the data set
  int64_t rows_cut = 0, rows_left_out = 0;
  std::array<int64_t, 3> rows_of_format{};  // by RowFormat
  NumberStats lengths;                      // tokens per row, before cutting
  NumberStats trained;                      // trained tokens per row
  int64_t tokens = 0;                       // after cutting
  // Rows whose tokens are those of an earlier row: (its index, the earlier one's), ascending.
  std::vector<std::pair<int64_t, int64_t>> duplicates;
};
DataReport inspect(const ExampleSet& dataset);

// Rows of `a` whose tokens are also those of a row of `b`: (index in a, index in b). A held-out set
// that shares rows with the training set measures memory, not learning.
std::vector<std::pair<int64_t, int64_t>> shared_rows(const ExampleSet& a, const ExampleSet& b);

struct ShownToken {
  int32_t id = 0;
  std::string piece;  // as the vocabulary spells it
  std::string text;   // valid UTF-8; "" for all but the last token of a character that was cut
  bool trained = false, special = false;
};
// Joined, the texts are the decoded row.
std::vector<ShownToken> shown_tokens(const Example& example, const Tokenizer& tokenizer);

}  // namespace wick
