// SPDX-License-Identifier: Apache-2.0
// Lines from a person or a pipe. On a terminal a line can be edited (arrows, Home, End, Ctrl-A, E,
// U, K, W, L), earlier lines come back with the up arrow, and pasted text keeps its line breaks.
#pragma once

#include <string>
#include <vector>

namespace wick {

class LineReader {
 public:
  LineReader();

  enum class Result { kLine, kEnd, kInterrupted };
  // The prompt is shown on a terminal only. `line` is without its line end.
  Result read(const std::string& prompt, std::string& line);
  bool terminal() const { return terminal_; }

 private:
  Result edit(const std::string& prompt, std::string& line);
  bool terminal_;
  std::vector<std::string> history_;
  std::string pending_;  // of a pipe: read, not yet given out
  bool ended_ = false;
};

}  // namespace wick
