// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace wick {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer)
    : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    by_content_.emplace(tokens_[i].content, i);
    by_id_.emplace(tokens_[i].id, i);
    AddedToken& token = tokens_[i];
    token.form = token.content;
    if (token.normalized) token.form = normalizer.apply(AlignedText(token.content)).text();
  }
  // Two may have one normalised form: special tokens go first.
  for (bool special : {true, false}) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const AddedToken& token = tokens_[i];
      if (token.special != special) continue;
      (token.normalized ? normal_ : raw_).add(token.form, static_cast<int32_t>(i));
    }
  }
}

void AddedTokens::Finder::add(std::string_view content, int32_t token) {
  if (content.empty()) return;
  first_[static_cast<uint8_t>(content[0])] = true;
  uint32_t node = 0;
  for (char byte : content) {
    auto& children = nodes_[node].children;
    auto child = std::find_if(children.begin(), children.end(),
                              [&](const auto& c) { return c.first == byte; });
    if (child != children.end()) {
      node = child->second;
      continue;
    }
    auto next = static_cast<uint32_t>(nodes_.size());
    children.emplace_back(byte, next);
    nodes_.emplace_back();
    node = next;
  }
  if (nodes_[node].token < 0) nodes_[node].token = token;
}

std::pair<int32_t, size_t> AddedTokens::Finder::longest(std::string_view text) const {
  std::pair<int32_t, size_t> best{-1, 0};
  uint32_t node = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto& children = nodes_[node].children;
    auto child = std::find_if(children.begin(), children.end(),
                              [&](const auto& c) { return c.first == text[at]; });
    if (child == children.end()) break;
    node = child->second;
    if (nodes_[node].token >= 0) best = {nodes_[node].token, at + 1};
  }
  return best;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, bool normalized) const {
  const Finder& finder = normalized ? normal_ : raw_;
  std::vector<Part> out;
  size_t done = 0;
  for (size_t at = 0; !finder.empty() && at < text.size();) {
    if (!finder.may_begin(text[at])) {
      ++at;
      continue;
    }
    auto [index, length] = finder.longest(text.substr(at));
    if (length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    Range range{at, at + length};
    at = range.end;
    if (token.single_word) {
      size_t before = range.begin, after = range.end;
      if (range.begin > 0 && unicode::is_word(unicode::previous_char(text, before))) continue;
      if (range.end < text.size() && unicode::is_word(unicode::next_char(text, after))) continue;
    }
    if (token.lstrip) {
      for (size_t before = range.begin; before > done; range.begin = before)
        if (!unicode::is_white_space(unicode::previous_char(text, before))) break;
      range.begin = std::max(range.begin, done);
    }
    if (token.rstrip) {
      for (size_t after = range.end; after < text.size(); range.end = after)
        if (!unicode::is_white_space(unicode::next_char(text, after))) break;
    }
    // White space that is itself a token may be gone with the one before.
    if (range.begin >= range.end) continue;
    if (done < range.begin) out.push_back({nullptr, {done, range.begin}});
    out.push_back({&token, range});
    done = range.end;
  }
  if (done < text.size()) out.push_back({nullptr, {done, text.size()}});
  return out;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(int32_t id) const {
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

}  // namespace wick
