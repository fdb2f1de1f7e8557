// SPDX-License-Identifier: Apache-2.0
// "pre_tokenizer" of a tokenizer.json: cuts a text into the words that the model then encodes one
// by one. ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace, and
// sequences of them.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "io/json.h"
#include "text/aligned_text.h"
#include "text/pattern.h"

namespace wick {

struct Words {
  AlignedText text;
  std::vector<Range> ranges;  // none is empty
  // The model shall read every byte as its visible character (GPT-2's alphabet). Kept as a flag
  // since writing the characters out would double the text and hide the simple alignment.
  bool byte_level = false;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // the whole text is one word
  // Throws: kCorruptFile, kUnsupported naming the key.
  PreTokenizer(const Json& json, const std::string& where);

  Words apply(AlignedText text) const;

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct ByteLevel {
    bool add_prefix_space;
    std::optional<Regex> split;
  };
  struct Split {
    Pattern pattern;
    Behavior behavior;
    bool invert;
  };
  struct Digits {
    bool individual;
  };
  struct Whitespace {};
  struct WhitespaceSplit {};
  struct Punctuation {
    Behavior behavior;
  };
  enum class Prepend { kFirst, kNever, kAlways };
  struct Metaspace {
    std::string mark;
    Prepend prepend;
    bool split;
  };
  using Step =
      std::variant<ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace>;

  void add(const Json& json, const std::string& where, int depth);
  static Behavior read_behavior(const Json& json, const std::string& where,
                                std::optional<std::string> fallback);
  static Metaspace read_metaspace(const Json& json, const std::string& where);

  static void run(Words& words, const ByteLevel& step);
  static void run(Words& words, const Split& step);
  static void run(Words& words, Digits step);
  static void run(Words& words, Whitespace);
  static void run(Words& words, WhitespaceSplit);
  static void run(Words& words, Punctuation step);
  static void run(Words& words, const Metaspace& step);

  template <typename FindMatches>
  static void cut(Words& words, FindMatches find_matches, Behavior behavior, bool invert = false);

  std::vector<Step> steps_;
};

}  // namespace wick
