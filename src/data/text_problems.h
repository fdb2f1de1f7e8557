// SPDX-License-Identifier: Apache-2.0
// What can be wrong with the characters of a row, and what of it can be put right.
#pragma once

#include <string>
#include <string_view>

namespace wick {

struct TextProblems {
  int64_t replacements = 0;  // U+FFFD: bytes that were lost when the text was made
  int64_t controls = 0;      // NUL and other control characters but tab and line ends
  int64_t mojibake = 0;      // characters whose UTF-8 was read as Windows-1252 ("Ã©" for "é")
  std::string first_mojibake;
  // The text without control characters and with such characters made whole again. U+FFFD stays:
  // nobody knows what it was.
  std::string repaired;

  bool any() const { return replacements + controls + mojibake > 0; }
};
// Requires: valid UTF-8.
TextProblems text_problems(std::string_view text);

// The text in lower case, white space at both ends gone and elsewhere one blank.
std::string folded(std::string_view text);

}  // namespace wick
