// SPDX-License-Identifier: Apache-2.0
// Oniguruma's spellings, run by PCRE2. What is expected here was seen from `tokenizers`, which runs
// Oniguruma.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/pattern.h"
#include "text/regex.h"
#include "wick/error.h"

namespace wick {
namespace {

constexpr const char* kSubject = "a\nb aaab1f\u00fc\u6f22 \u00df\u180e\u200d\u0301\u24b6x";

std::vector<std::string> found(const std::string& expression, std::string_view subject = kSubject) {
  Pattern pattern(Json{{"Regex", expression}}, "test");
  std::vector<std::string> out;
  for (Range r : pattern.matches(subject)) out.emplace_back(subject.substr(r.begin, r.size()));
  return out;
}

using Strings = std::vector<std::string>;

TEST(Regex, OnigurumaEscapes) {
  EXPECT_EQ(found("\\h+"), (Strings{"a", "b", "aaab1f"}));
  EXPECT_EQ(found("\\u0061"), (Strings{"a", "a", "a", "a"}));
  EXPECT_EQ(found("\\w+"), (Strings{"a", "b", "aaab1f\u00fc\u6f22", "\u00df", "\u0301\u24b6x"}));
  EXPECT_EQ(found("\\s+"), (Strings{"\n", " ", " "}));
  EXPECT_EQ(found("\\v", "a\x0b\n"), (Strings{"\x0b"}));
  EXPECT_EQ(found("\\pL"), Strings{});
  EXPECT_EQ(found("\\bb", "b ab"), Strings{"b"});
  EXPECT_EQ(found("[\\b]", "b\x08"), Strings{"\x08"});
}

TEST(Regex, LinesAndDots) {
  EXPECT_EQ(found("^b"), Strings{"b"});
  EXPECT_EQ(found("a$"), Strings{"a"});
  EXPECT_EQ(found("(?m:a.b)"), (Strings{"a\nb", "aab"}));
  EXPECT_EQ(found("a.b"), Strings{"aab"});
  EXPECT_EQ(found("(?i:A\nB)"), Strings{"a\nb"});
}

TEST(Regex, Properties) {
  EXPECT_EQ(found("\\p{Letter}+"), (Strings{"a", "b", "aaab", "f\u00fc\u6f22", "\u00df", "x"}));
  EXPECT_EQ(found("\\p{Han}"), Strings{"\u6f22"});
  EXPECT_EQ(found("\\p{^L}{3,}"), Strings{"\u180e\u200d\u0301\u24b6"});
  EXPECT_EQ(found("\\P{Alpha}+"), (Strings{"\n", " ", "1", " ", "\u180e\u200d\u0301"}));
  EXPECT_EQ(found("[[:digit:]\\p{Han}]"), (Strings{"1", "\u6f22"}));
  // A script is not its extensions: marks and signs that several share are in none.
  EXPECT_EQ(found("\\p{Han}+", "\u3001\u6f22\u3005\u3002\u300c"), (Strings{"\u6f22\u3005"}));
  EXPECT_EQ(found("[^\\p{Hani}]+", "\u6f22\u3002\u300c"), (Strings{"\u3002\u300c"}));
  EXPECT_EQ(found("\\p{Emoji}", "a\U0001f600"), (Strings{"\U0001f600"}));
  EXPECT_EQ(found("\\p{Alpha}+", "a\u0301\u0345b"), (Strings{"a", "\u0345b"}));
  // Fractions and raised digits of Latin-1 are words, but not in sets.
  EXPECT_EQ(found("\\w+", "a\u00bd b\u00b2"), (Strings{"a\u00bd", "b\u00b2"}));
  EXPECT_EQ(found("[\\w]+", "a\u00bd b\u00b2"), (Strings{"a", "b"}));
  EXPECT_EQ(found("\\W", "a\u00bd b\u00b2"), (Strings{" "}));
  EXPECT_EQ(found("a\\b", "a\u00bd a"), (Strings{"a"}));
}

TEST(Regex, SetsInSets) {
  EXPECT_EQ(found("[[a]&&[^b]]+"), (Strings{"a", "aaa"}));
  EXPECT_EQ(found("[a-z&&[^b]]+"), (Strings{"a", "aaa", "f", "x"}));
  EXPECT_EQ(found("[^a-z&&[^b]]+", "ab1"), (Strings{"b1"}));
  EXPECT_EQ(found("[^(\\s|[b])]+", "a b(c|d"), (Strings{"a", "c", "d"}));
  EXPECT_EQ(found("[\\W1]+", "a1,b"), (Strings{"1,"}));
  EXPECT_EQ(found("[^\\W1]+", "a1,b"), (Strings{"a", "b"}));
  EXPECT_EQ(found("[[:alpha:]_]+", "a_b1"), (Strings{"a_b"}));
  EXPECT_EQ(found("[\\S]+", "a b"), (Strings{"a", "b"}));
  EXPECT_EQ(found("[]a]+", "]a["), (Strings{"]a"}));
}

TEST(Regex, Quantifiers) {
  EXPECT_EQ(found("a{1,2}+", "aaab"), Strings{"aaa"});
  EXPECT_EQ(found("(?:ab){1}+", "ababa"), Strings{"abab"});
  EXPECT_EQ(found("a{,2}b", "aaab"), Strings{"aab"});
  EXPECT_EQ(found("a++a", "aaa"), Strings{});
  EXPECT_EQ(found("a{x}", "a{x}"), Strings{"a{x}"});
}

TEST(Regex, EmptyMatchesTouchNoOther) {
  Pattern pattern(Json{{"Regex", "b*"}}, "test");
  EXPECT_EQ(pattern.replaced("abbc", "-", 100), "-a-c-");
  EXPECT_EQ(Pattern(Json{{"String", ""}}, "test").replaced("a\u00e9", "-", 100), "-a-\u00e9-");
  EXPECT_THROW(pattern.replaced("abbc", "----", 6), Error);
}

TEST(Regex, RefusesWhatItCannotRead) {
  for (const char* bad : {"(", "[a", "a\\", "\\p{L", "\\p{Nonsense}", "[]", "\\u00", "(?~x)"}) {
    try {
      Regex(bad, "file.json: key");
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << bad;
      EXPECT_NE(std::string(e.what()).find("file.json: key"), std::string::npos) << e.what();
    }
  }
}

TEST(Regex, GivesUpOnEndlessMatches) {
  Regex regex("(?:a+)+[cd]", "test");
  std::string subject(60, 'a');
  EXPECT_THROW(Regex::Search(regex, subject + "b").find(0), Error);
  // Deep, but within bounds: beyond the JIT's own stack.
  std::string deep(200'000, 'a');
  Regex groups("(?:a|b)*c", "test");
  EXPECT_FALSE(Regex::Search(groups, std::string_view(deep).substr(0, 20'000)).find(19'000));
}

}  // namespace
}  // namespace wick
