// SPDX-License-Identifier: Apache-2.0
// StopText: passes streamed text on until a stop string appears, holding back only what could be
// the beginning of one.
#pragma once

#include <string>
#include <vector>

namespace wick {

class StopText {
 public:
  // Empty strings are left out.
  explicit StopText(std::vector<std::string> stops);

  // Text that cannot be part of a stop string. Once one is found, the text before it and no more.
  std::string push(const std::string& text);
  // What was held back. Requires: nothing was found.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace wick
