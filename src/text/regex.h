// SPDX-License-Identifier: Apache-2.0
// Regular expressions of tokenizer files: written for Oniguruma (Ruby's syntax), run by PCRE2 with
// its JIT. The only place that knows PCRE2.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/aligned_text.h"

namespace wick {

// Compiled once; find() may be called from several threads at once.
class Regex {
 public:
  // Throws: kUnsupported with the place where `expression` cannot be read; `where` names the file
  // and key that it comes from.
  Regex(std::string_view expression, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // One pass over one subject: owns what a match needs, so that matches do not allocate.
  class Search {
   public:
    // Requires: `subject` is valid UTF-8; it and `regex` outlive the search.
    Search(const Regex& regex, std::string_view subject);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    // The leftmost match that begins at byte `from` (a character's boundary) or later.
    // Throws: kInvalidArgument when the match takes beyond all measure.
    std::optional<Range> find(size_t from);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// Spells an expression of Oniguruma's Ruby syntax as PCRE2 (UTF, UCP, multi-line) understands it:
// \h, \s, \w, \b, \u0041, {,n}, {n,m}+, (?m:…), sets in sets, && in sets, long property names.
// Throws: kUnsupported.
std::string pcre_from_oniguruma(std::string_view expression, std::string_view where);

// Whether PCRE2 reads `expression`: which names of properties it knows depends on its version.
bool pcre_knows(std::string_view expression);

}  // namespace wick
