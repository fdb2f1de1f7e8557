// SPDX-License-Identifier: Apache-2.0
#include "text/pattern.h"

#include "base/check.h"
#include "text/unicode.h"

namespace wick {

Pattern::Pattern(const Json& json, const std::string& where) {
  if (const Json* expression = find_member(json, "Regex"); expression && expression->is_string()) {
    regex_.emplace(expression->get_ref<const std::string&>(), where + ".Regex");
  } else {
    literal_ = get_string(json, "String", where);
  }
}

namespace {

template <typename Find>
std::vector<Range> all_matches(std::string_view text, Find find) {
  std::vector<Range> out;
  for (size_t from = 0; from <= text.size();) {
    std::optional<Range> found = find(from);
    if (!found) break;
    if (found->size() == 0 && !out.empty() && out.back().end == found->end) {
      if (from >= text.size()) break;
      unicode::next_char(text, from);
      continue;
    }
    out.push_back(*found);
    from = found->end;
  }
  return out;
}

}  // namespace

std::vector<Range> Pattern::matches(std::string_view text) const {
  if (regex_) {
    Regex::Search search(*regex_, text);
    return all_matches(text, [&](size_t from) { return search.find(from); });
  }
  return all_matches(text, [&](size_t from) -> std::optional<Range> {
    size_t at = text.find(literal_, from);
    if (at == std::string_view::npos) return {};
    return Range{at, at + literal_.size()};
  });
}

std::string Pattern::replaced(std::string_view text, std::string_view replacement,
                              size_t limit) const {
  std::string out;
  size_t done = 0;
  for (Range m : matches(text)) {
    if (out.size() + replacement.size() > limit)
      fail(ErrorCode::kInvalidArgument,
           "a replacement of the tokenizer blows a text up beyond all measure; is its "
           "tokenizer.json damaged?");
    out += text.substr(done, m.begin - done);
    out += replacement;
    done = m.end;
  }
  out += text.substr(done);
  return out;
}

std::optional<std::string_view> Pattern::literal() const {
  if (regex_) return {};
  return literal_;
}

}  // namespace wick
