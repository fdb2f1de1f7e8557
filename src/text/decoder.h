// SPDX-License-Identifier: Apache-2.0
// "decoder" of a tokenizer.json: tokens back to text, one at a time. ByteLevel, ByteFallback, Fuse,
// Strip, Replace, Metaspace, and sequences of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "text/pattern.h"

namespace wick {

class Decoder {
 public:
  Decoder();  // without a decoder tokens are joined by spaces
  // Throws: kCorruptFile, kUnsupported naming the key.
  Decoder(const Json& json, const std::string& where);

  // What one run of tokens has left undecided.
  struct State {
    struct Stage {
      std::string held;
      size_t count = 0;
    };
    std::vector<Stage> stages;
    size_t taken = 0, grown = 0;  // bytes of tokens, and bytes that replacements made of them
  };
  State start() const;
  // Appends to `out` what is decided, always whole characters.
  void push(State& state, std::string_view token, std::string& out) const;
  // Appends the rest; the state is then as new.
  void finish(State& state, std::string& out) const;

  // The bytes that a token stands for inside a text.
  std::string bytes_of(std::string_view token) const;

 private:
  enum class Kind { kJoin, kByteLevel, kByteFallback, kFuse, kStrip, kReplace, kMetaspace };
  struct Stage {
    Kind kind;
    std::string text;  // Strip, Metaspace: the character; Replace: the new content
    std::optional<Pattern> pattern = {};  // Replace
    size_t start = 0, stop = 0;           // Strip
    bool drop_first = false;              // Metaspace: the first token's marks are no spaces
    // An earlier stage joined all tokens into one, which arrives in pieces.
    bool joined = false;
  };

  void add(const Json& json, const std::string& where, int depth);
  std::string replace(const Stage& stage, State& state, std::string_view text) const;
  void feed(size_t index, State& state, std::string text, std::string& out) const;
  void feed_joined(size_t index, State& state, std::string text, std::string& out) const;
  void flush(size_t index, State& state, std::string& out) const;
  void flush_bytes(size_t index, State& state, std::string& out) const;

  std::vector<Stage> stages_;
};

}  // namespace wick
