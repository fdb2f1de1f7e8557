// SPDX-License-Identifier: Apache-2.0
// "normalizer" of a tokenizer.json: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend,
// Replace, ByteLevel, and sequences of them.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "io/json.h"
#include "text/aligned_text.h"
#include "text/pattern.h"
#include "text/unicode.h"

namespace wick {

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // Throws: kCorruptFile, kUnsupported naming the key.
  Normalizer(const Json& json, const std::string& where);

  AlignedText apply(AlignedText text) const;
  bool empty() const { return steps_.empty(); }

 private:
  struct Lowercase {};
  struct StripAccents {};
  struct ByteLevel {};
  struct Strip {
    bool left, right;
  };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  using Step =
      std::variant<unicode::Form, Lowercase, StripAccents, ByteLevel, Strip, Prepend, Replace>;

  void add(const Json& json, const std::string& where, int depth);

  static AlignedText run(const AlignedText& text, unicode::Form form);
  static AlignedText run(const AlignedText& text, Lowercase);
  static AlignedText run(const AlignedText& text, StripAccents);
  static AlignedText run(const AlignedText& text, ByteLevel);
  static AlignedText run(const AlignedText& text, Strip strip);
  static AlignedText run(const AlignedText& text, const Prepend& prepend);
  static AlignedText run(const AlignedText& text, const Replace& replace);

  std::vector<Step> steps_;
};

// A copy in which every byte is its visible character (GPT-2's alphabet).
AlignedText byte_level_text(const AlignedText& text);

}  // namespace wick
