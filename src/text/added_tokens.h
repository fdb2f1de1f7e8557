// SPDX-License-Identifier: Apache-2.0
// Tokens beside the model's own: found in the text before anything else is done with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/aligned_text.h"
#include "text/bpe.h"
#include "text/normalizer.h"

namespace wick {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word goes on, left or right
  bool lstrip = false;       // takes the white space before it with it
  bool rstrip = false;       // takes the white space after it with it
  bool normalized = false;   // looked for in the normalised text, in its own normalised form
  bool special = false;
  std::string form;  // what is looked for, and decoded: the content, normalised if it says so
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // Contents are distinct; their forms are made here.
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer);

  struct Part {
    const AddedToken* token;  // nullptr: text in between
    Range range;
  };
  // Leftmost first, of those that begin at one place the longest.
  std::vector<Part> split(std::string_view text, bool normalized) const;

  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(int32_t id) const;
  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  // A tree of bytes. Nodes keep their children in one list each: few nodes have more than one.
  class Finder {
   public:
    void add(std::string_view content, int32_t token);
    // The longest entry at the front of `text`, as index and length; length 0: none.
    std::pair<int32_t, size_t> longest(std::string_view text) const;
    bool empty() const { return nodes_.size() == 1; }
    bool may_begin(char byte) const { return first_[static_cast<uint8_t>(byte)]; }

   private:
    struct Node {
      std::vector<std::pair<char, uint32_t>> children;
      int32_t token = -1;
    };
    std::vector<Node> nodes_{1};
    std::array<bool, 256> first_{};
  };

  std::vector<AddedToken> tokens_;
  StringMap<size_t> by_content_;
  std::unordered_map<int32_t, size_t> by_id_;
  Finder raw_, normal_;
};

}  // namespace wick
