// SPDX-License-Identifier: Apache-2.0
// Oniguruma's Ruby syntax to PCRE2's. Most of an expression is copied; what differs is respelt.
#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "base/check.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace wick {

namespace {

constexpr int kMaxSetDepth = 16;

// Members of [...]. PCRE2's own \s has U+180E, and its \w lacks marks: hence by hand.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr std::string_view kNoSpace =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"
    "\\x{3001}-\\x{10ffff}";
constexpr std::string_view kAlphabetic = "\\p{Alphabetic}";
constexpr std::string_view kWord =
    "\\p{L}\\p{Nl}\\p{M}\\p{Nd}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
// What Oniguruma's table of Latin-1 has beside that, outside of sets only: ² ³ ¹ ¼ ½ ¾.
constexpr std::string_view kLatinWord = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr std::string_view kHex = "0-9A-Fa-f";

struct Named {
  std::string_view name, members;
};
// Names without case, spaces, hyphens and underscores. Any other name (the short names of
// categories, most others) means the same to both, but scripts.
constexpr std::array kProperties = {
    Named{"letter", "\\p{L}"},
    Named{"casedletter", "\\p{L&}"},
    Named{"lc", "\\p{L&}"},
    Named{"uppercaseletter", "\\p{Lu}"},
    Named{"lowercaseletter", "\\p{Ll}"},
    Named{"titlecaseletter", "\\p{Lt}"},
    Named{"modifierletter", "\\p{Lm}"},
    Named{"otherletter", "\\p{Lo}"},
    Named{"mark", "\\p{M}"},
    Named{"combiningmark", "\\p{M}"},
    Named{"nonspacingmark", "\\p{Mn}"},
    Named{"spacingmark", "\\p{Mc}"},
    Named{"enclosingmark", "\\p{Me}"},
    Named{"number", "\\p{N}"},
    Named{"decimalnumber", "\\p{Nd}"},
    Named{"letternumber", "\\p{Nl}"},
    Named{"othernumber", "\\p{No}"},
    Named{"punctuation", "\\p{P}"},
    Named{"connectorpunctuation", "\\p{Pc}"},
    Named{"dashpunctuation", "\\p{Pd}"},
    Named{"openpunctuation", "\\p{Ps}"},
    Named{"closepunctuation", "\\p{Pe}"},
    Named{"initialpunctuation", "\\p{Pi}"},
    Named{"finalpunctuation", "\\p{Pf}"},
    Named{"otherpunctuation", "\\p{Po}"},
    Named{"symbol", "\\p{S}"},
    Named{"mathsymbol", "\\p{Sm}"},
    Named{"currencysymbol", "\\p{Sc}"},
    Named{"modifiersymbol", "\\p{Sk}"},
    Named{"othersymbol", "\\p{So}"},
    Named{"separator", "\\p{Z}"},
    Named{"spaceseparator", "\\p{Zs}"},
    Named{"lineseparator", "\\p{Zl}"},
    Named{"paragraphseparator", "\\p{Zp}"},
    Named{"other", "\\p{C}"},
    Named{"control", "\\p{Cc}"},
    Named{"cntrl", "\\p{Cc}"},
    Named{"format", "\\p{Cf}"},
    Named{"unassigned", "\\p{Cn}"},
    Named{"privateuse", "\\p{Co}"},
    Named{"alpha", kAlphabetic},
    Named{"alphabetic", kAlphabetic},
    Named{"digit", "\\p{Nd}"},
    Named{"xdigit", kHex},
    Named{"space", kSpace},
    Named{"whitespace", kSpace},
    Named{"word", kWord},
    Named{"lower", "\\p{Lowercase}"},
    Named{"upper", "\\p{Uppercase}"},
    Named{"punct", "\\p{P}"},
    Named{"blank", "\\p{Zs}\\x{9}"},
    Named{"ascii", "\\x{0}-\\x{7f}"},
    Named{"any", "\\x{0}-\\x{10ffff}"},
};

// A set of characters: the inside of [...], or anything else that matches one character.
struct Set {
  std::string members;
  std::string expression;  // instead of members, when not empty
  bool negated = false;    // of members only

  std::string spelled() const {
    if (!expression.empty()) return expression;
    return cat(negated ? "[^" : "[", members, "]");
  }
};

class Translator {
 public:
  Translator(std::string_view expression, std::string_view where)
      : in_(expression), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::kUnsupported, where_, ": the regular expression \"", in_, "\" has ", what,
         " before byte ", at_, ", which wick cannot read");
  }

  bool done() const { return at_ >= in_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (in_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  // One character of UTF-8, or what is left of it.
  std::string_view take_char() {
    size_t length = unicode::first_char(in_.substr(at_)).length;
    at_ += length;
    return in_.substr(at_ - length, length);
  }
  void atom(std::string_view text) {
    atom_start_ = out_.size();
    out_ += text;
  }

  void step() {
    switch (peek()) {
      case '\\':
        ++at_;
        escape();
        break;
      case '[':
        ++at_;
        atom(set(0).spelled());
        break;
      case '(':
        group();
        break;
      case ')':
        ++at_;
        out_ += ')';
        atom_start_ = out_.size() - 1;
        if (!groups_.empty()) {
          atom_start_ = groups_.back();
          groups_.pop_back();
        }
        break;
      case '{':
        interval();
        break;
      case '*':
      case '+':
      case '?':
      case '|':
        out_ += in_[at_++];
        break;
      default:
        atom(take_char());
    }
  }

  void group() {
    ++at_;
    groups_.push_back(out_.size());
    out_ += '(';
    if (!take("?")) return;
    out_ += '?';
    if (take("#")) {  // a comment ends at the first parenthesis
      out_ += '#';
      while (!done() && peek() != ')') out_ += in_[at_++];
      return;
    }
    // Ruby's m lets the dot match a line's end: PCRE's s. ^ and $ are about lines in both.
    size_t end = at_;
    while (end < in_.size() &&
           (std::isalpha(static_cast<unsigned char>(in_[end])) || in_[end] == '-'))
      ++end;
    if (end < in_.size() && (in_[end] == ':' || in_[end] == ')'))
      for (; at_ < end; ++at_) out_ += in_[at_] == 'm' ? 's' : in_[at_];
  }

  // {n,m}; in Ruby {,m} begins at nothing, and + after it repeats the whole.
  void interval() {
    size_t close = in_.find('}', at_);
    std::string_view body =
        close == std::string_view::npos ? "" : in_.substr(at_ + 1, close - at_ - 1);
    bool is_interval = !body.empty() && body != "," &&
                       body.find_first_not_of("0123456789,") == std::string_view::npos &&
                       std::count(body.begin(), body.end(), ',') <= 1;
    if (!is_interval) {
      ++at_;
      return atom("\\{");
    }
    at_ = close + 1;
    out_ += cat("{", body[0] == ',' ? "0" : "", body, "}");
    if (peek() == '+') {
      out_.insert(std::min(atom_start_, out_.size()), "(?:");
      out_ += ')';
    }
  }

  // After a backslash, outside of a set.
  void escape() {
    if (done()) refuse("a lone backslash");
    if (peek() == 'b' || peek() == 'B') {
      bool at_edge = in_[at_++] == 'b';
      std::string w = cat("[", kWord, kLatinWord, "]");
      return atom(at_edge ? cat("(?:(?<=", w, ")(?!", w, ")|(?<!", w, ")(?=", w, "))")
                          : cat("(?:(?<=", w, ")(?=", w, ")|(?<!", w, ")(?!", w, "))"));
    }
    Set named;
    if (class_escape(named)) {
      // A property alone is quicker than a set of one.
      bool single =
          named.members.starts_with("\\p{") && named.members.find('}') + 1 == named.members.size();
      if (single && named.negated) named.members[1] = 'P';
      if (named.members == kWord) named.members += kLatinWord;
      if (named.members == kNoSpace) named = {std::string(kSpace), "", true};
      return atom(single ? named.members : named.spelled());
    }
    atom(char_escape());
  }

  // \s, \W, \h, \p{…} and their like, after the backslash.
  bool class_escape(Set& out) {
    char c = peek();
    auto is = [&](std::string_view members, bool negated) {
      ++at_;
      out.members = members;
      out.negated = negated;
      return true;
    };
    switch (c) {
      case 's':
        return is(kSpace, false);
      case 'S':
        return is(kNoSpace, false);
      case 'w':
        return is(kWord, false);
      case 'W':
        return is(kWord, true);
      case 'd':
        return is("\\p{Nd}", false);
      case 'D':
        return is("\\p{Nd}", true);
      case 'h':
        return is(kHex, false);
      case 'H':
        return is(kHex, true);
      case 'p':
      case 'P':
        break;
      default:
        return false;
    }
    if (peek(1) != '{') return false;
    size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) refuse("a property without its end");
    std::string_view name = in_.substr(at_ + 2, close - at_ - 2);
    bool negated = c == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (name.empty() || !std::all_of(name.begin(), name.end(), [](unsigned char b) {
          return std::isalnum(b) || b == '_' || b == '-' || b == ' ' || b == '&';
        }))
      refuse("a property of an odd name");
    at_ = close;
    return is(property(name), negated);
  }

  static std::string property(std::string_view name) {
    std::string key;
    for (unsigned char b : name)
      if (b != ' ' && b != '_' && b != '-') key += static_cast<char>(std::tolower(b));
    if (key == "alnum") return cat(kAlphabetic, "\\p{Nd}");
    for (const Named& p : kProperties)
      if (p.name == key) return std::string(p.members);
    // PCRE2 takes the bare name of a script for its extensions: \p{Han} with 、 and 。
    if (std::string script = cat("\\p{sc:", name, "}"); pcre_knows(script)) return script;
    return cat("\\p{", name, "}");
  }

  // One character, after the backslash, spelt the same in and outside of sets.
  std::string char_escape() {
    if (take("v")) return "\\x{b}";
    if (take("u")) {
      std::string_view hex = in_.substr(at_, 4);
      if (hex.size() != 4 || hex.find_first_not_of("0123456789abcdefABCDEF") != hex.npos)
        refuse("\\u without four digits");
      at_ += 4;
      return cat("\\x{", hex, "}");
    }
    if (peek() == 'p' || peek() == 'P') return std::string(1, in_[at_++]);
    if (static_cast<unsigned char>(peek()) >= 0x80) return std::string(take_char());
    return cat("\\", in_[at_++]);
  }

  // After the opening bracket; consumes the closing one.
  Set set(int depth) {
    if (depth > kMaxSetDepth) refuse("sets nested too deep");
    bool negated = take("^");
    std::vector<std::string> operands;  // of &&; all but the last are whole
    Set current;
    std::vector<std::string> others;  // members of `current` that a PCRE set cannot hold
    bool first = true;
    auto operand = [&] {
      if (!others.empty() && current.members.empty() && others.size() == 1) return others[0];
      std::string out = current.members.empty() ? "" : current.spelled();
      for (const std::string& other : others) out += cat(out.empty() ? "" : "|", other);
      if (out.empty()) refuse("an empty set");
      return others.empty() ? out : cat("(?:", out, ")");
    };
    while (true) {
      if (done()) refuse("a set without its end");
      if (peek() == ']' && !first) break;
      first = false;
      if (take("&&")) {
        operands.push_back(operand());
        current = {};
        others.clear();
        continue;
      }
      member(current, others, depth);
    }
    ++at_;
    if (operands.empty() && others.empty()) {
      if (current.members.empty()) refuse("an empty set");
      current.negated = negated;
      return current;
    }
    // a && b: what matches a where b matches too.
    std::string all = operand();
    for (const std::string& other : operands) all = cat("(?=", other, ")", all);
    Set out;
    out.expression = negated ? cat("(?:(?!", all, ")(?s:.))") : cat("(?:", all, ")");
    return out;
  }

  void member(Set& current, std::vector<std::string>& others, int depth) {
    auto merge = [&](const Set& inner) {
      if (inner.expression.empty() && !inner.negated)
        current.members += inner.members;
      else
        others.push_back(inner.spelled());
    };
    if (take("[:")) {
      bool negated = take("^");
      size_t close = in_.find(":]", at_);
      if (close == std::string_view::npos) refuse("[: without :]");
      std::string_view name = in_.substr(at_, close - at_);
      // Not the same as \p{Punct}.
      Set named{name == "punct" ? "\\p{P}\\p{S}" : property(name), "", negated};
      at_ = close + 2;
      return merge(named);
    }
    if (take("[")) return merge(set(depth + 1));
    if (take("\\")) {
      if (done()) refuse("a lone backslash");
      Set named;
      if (class_escape(named)) {
        if (named.negated && named.members.starts_with("\\p{") &&
            named.members.find('}') + 1 == named.members.size()) {
          named.members[1] = 'P';
          named.negated = false;
        }
        return merge(named);
      }
      if (take("b")) {
        current.members += "\\x{8}";
        return;
      }
      current.members += char_escape();
      return;
    }
    std::string_view c = take_char();
    // A sign that is harmless here may stand first, or before another, once sets are joined.
    if (c == "]" || c == "^") current.members += '\\';
    current.members += c;
  }

  std::string_view in_, where_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_start_ = 0;       // in out_: what a following quantifier repeats
  std::vector<size_t> groups_;  // where the open groups begin in out_
};

}  // namespace

std::string pcre_from_oniguruma(std::string_view expression, std::string_view where) {
  return Translator(expression, where).run();
}

}  // namespace wick
