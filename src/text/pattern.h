// SPDX-License-Identifier: Apache-2.0
// What Split and Replace look for: a piece of text, or a regular expression.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "text/aligned_text.h"
#include "text/regex.h"

namespace wick {

class Pattern {
 public:
  // {"String": "…"} or {"Regex": "…"}. Throws: kCorruptFile, kUnsupported.
  Pattern(const Json& json, const std::string& where);

  // All matches in order, disjoint. An empty match counts unless it touches the one before.
  std::vector<Range> matches(std::string_view text) const;
  // Throws: kInvalidArgument when the result would be longer than `limit`.
  std::string replaced(std::string_view text, std::string_view replacement, size_t limit) const;
  // The text it looks for; nullopt for an expression.
  std::optional<std::string_view> literal() const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace wick
