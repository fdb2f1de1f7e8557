// SPDX-License-Identifier: Apache-2.0
// Parts of the command line that have no screen of their own.
#include <gtest/gtest.h>

#include "app/conversation.h"
#include "app/format.h"
#include "app/plot.h"
#include "wick/error.h"

namespace wick {
namespace {

TEST(Sizes, DecimalAndExact) {
  EXPECT_EQ(parse_size("1024"), 1024);
  EXPECT_EQ(parse_size("20G"), 20'000'000'000);
  EXPECT_EQ(parse_size("512M"), 512'000'000);
  EXPECT_EQ(parse_size("4.1MB"), 4'100'000);
  EXPECT_EQ(parse_size("16.9GB"), 16'900'000'000);
  EXPECT_EQ(parse_size("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(parse_size("1.5 kb"), 1500);
  EXPECT_EQ(parse_size("7B"), 7);
  for (const char* wrong :
       {"", "GB", "4XB", "-1", "1.2.3", "4GBs", "99999999999999999999", "9999999T", "1e9", "."})
    EXPECT_FALSE(parse_size(wrong)) << wrong;
}

TEST(Format, Columns) {
  EXPECT_EQ(columns_of("abc"), 3u);
  EXPECT_EQ(columns_of("\u00f6\u2192\u2588"), 3u);
  EXPECT_EQ(columns_of("\u6f22\u5b57"), 4u);
  EXPECT_EQ(columns_of("\U0001f44d"), 2u);
  EXPECT_EQ(columns_of("e\u0301"), 1u);
  EXPECT_EQ(fitting("abc", 3), "abc");
  EXPECT_EQ(fitting("abc", 2), "ab");
  EXPECT_EQ(fitting("\u6f22\u5b57", 3), "\u6f22");
  EXPECT_EQ(fitting("e\u0301x", 1), "e\u0301");
  EXPECT_EQ(fitting("\u6f22", 1), "");
}

TEST(Format, ForPeople) {
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(61'400'000), "61.4 MB");
  EXPECT_EQ(format_bytes(999'999), "1.0 MB");
  EXPECT_EQ(format_seconds(0), "0.0 s");
  EXPECT_EQ(format_seconds(0.0105), "10.5 ms");
  EXPECT_EQ(format_seconds(0.12), "0.1 s");
  EXPECT_EQ(format_seconds(4.21), "4.2 s");
  EXPECT_EQ(format_seconds(92), "1 m 32 s");
  EXPECT_EQ(format_seconds(7500), "2 h 05 m");
  EXPECT_EQ(plural(1, "row"), "1 row");
  EXPECT_EQ(plural(2000, "row"), "2,000 rows");
  EXPECT_EQ(shell_quote("a b'c"), "'a b'\\''c'");
  EXPECT_EQ(shell_quote("--rank"), "--rank");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(visible("a\n\x1b[31m"), "a\\n\\x1b[31m");
  EXPECT_EQ(visible("\u009b2J\u00a0\u00f6\xc2"), "\\u009b2J\u00a0\u00f6\xc2");
  EXPECT_EQ(wrap("one two three", 8), (std::vector<std::string>{"one two", "three"}));
}

TEST(Plot, CurveHasAxesAndBothKinds) {
  Curve line{.points = {}, .name = "train"}, marks{.points = {{50, 2}, {100, 1}}, .name = "held"};
  for (int i = 1; i <= 100; ++i) line.points.emplace_back(i, 4.0 / i);
  std::string text = plot_curves(line, marks, "steps", {.columns = 60, .rows = 8});
  for (const char* part : {"4.00", "0.04", "100 steps", "●", "train", "held", "└"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find('\n', begin);
    EXPECT_LE(columns_of(text.substr(begin, end - begin)), 60u) << text;
    begin = end + 1;
  }
  std::string ascii = plot_curves(line, marks, "steps", {.columns = 60, .rows = 8, .utf8 = false});
  for (unsigned char c : ascii) EXPECT_LT(c, 128);
  EXPECT_EQ(plot_curves({}, {}, "x", {}), "");
  EXPECT_NE(plot_curves({.points = {{1, 3}}, .name = "one"}, {}, "x", {}), "");
}

TEST(Plot, NumbersOfANarrowAxisDoNotTouch) {
  const Curve line{.points = {{0, 2}, {60, 1}}, .name = "train"};
  for (int columns = 18; columns < 60; ++columns) {
    const std::string text = plot_curves(line, {}, "updates", {.columns = columns, .rows = 5});
    const size_t at = text.find("60 updates");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text[at - 1], ' ') << columns << "\n" << text;
  }
}

TEST(Plot, HistogramCountsEverything) {
  std::vector<int64_t> values = {3, 3, 17, 40, 99, 100};
  auto buckets = histogram(values, 10);
  EXPECT_LE(buckets.size(), 10u);
  int64_t total = 0;
  for (const auto& b : buckets) total += b.count;
  EXPECT_EQ(total, 6);
  EXPECT_EQ(histogram({5, 5}, 10).size(), 1u);
  EXPECT_TRUE(histogram({}, 10).empty());
  for (int64_t n = 1; n < 3000; n = n * 3 + 1) {
    std::vector<int64_t> wide = {7, 7 + n};
    EXPECT_LE(histogram(wide, 10).size(), 10u) << n;
  }
}

int64_t letters(const std::vector<Message>& messages) {
  int64_t n = 0;
  for (const auto& m : messages) n += static_cast<int64_t>(m.content.size());
  return n;
}

TEST(Conversation, ForgetsTheOldestTurnsAndSaysSo) {
  Conversation chat(100, 10, letters);
  chat.set_system("12345");
  chat.ask(std::string(40, 'a'));
  chat.answer(std::string(10, 'b'));
  auto fit = chat.ask(std::string(30, 'c'));
  EXPECT_EQ(fit.forgotten, 0);
  EXPECT_EQ(fit.tokens, 85);
  EXPECT_TRUE(fit.nearly_full);
  chat.answer("d");
  fit = chat.ask(std::string(20, 'e'));
  EXPECT_EQ(fit.forgotten, 1);
  EXPECT_EQ(fit.tokens, 5 + 30 + 1 + 20);
  EXPECT_EQ(fit.room, 44);
  EXPECT_EQ(chat.messages()[0].role, "system");
  EXPECT_EQ(chat.messages()[1].role, "user");
  EXPECT_EQ(chat.turns(), 2);
}

TEST(Conversation, RefusesWhatCannotFitAndKeepsTheRest) {
  Conversation chat(100, 10, letters);
  chat.ask("hello");
  chat.answer("hi");
  EXPECT_THROW(chat.ask(std::string(100, 'x')), Error);
  EXPECT_EQ(chat.messages().size(), 2u);
  auto fit = chat.ask(std::string(95, 'x'));  // fits alone, with less room than promised
  EXPECT_EQ(fit.forgotten, 1);
  EXPECT_EQ(fit.room, 5);
  chat.take_back();
  EXPECT_TRUE(chat.messages().empty());
  chat.set_system("s");
  chat.ask("q");
  chat.reset();
  EXPECT_EQ(chat.messages().size(), 1u);
  chat.set_system("");
  EXPECT_TRUE(chat.messages().empty());
}

}  // namespace
}  // namespace wick
