// SPDX-License-Identifier: Apache-2.0
#include "io/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "io/jsonl.h"
#include "unit/io/temporary_folder.h"

namespace wick {
namespace {

std::string parse_error(std::string_view text) {
  return message_of([&] { parse_json(text, "f.json"); });
}

TEST(Json, KeepsOrderAndTypes) {
  Json v = parse_json(R"({"z": 1, "a": [true, null, -2, 1.5, "x\u00e9"], "m": {}})", "f");
  EXPECT_EQ(dump_json(v), "{\"z\":1,\"a\":[true,null,-2,1.5,\"x\xC3\xA9\"],\"m\":{}}");
  EXPECT_EQ(dump_json(parse_json("{\"a\":[1]}", "f"), 2), "{\n  \"a\": [\n    1\n  ]\n}");
  EXPECT_EQ(parse_json(" 7 ", "f"), Json(7));
  EXPECT_EQ(parse_json("\xEF\xBB\xBF[]", "f"), Json::array());
}

TEST(Json, OfEqualKeysTheLastWinsAtTheFirstPlace) {
  Json v = parse_json(R"({"a": 1, "b": 2, "a": {"x": 1, "x": 2}, "c": 3, "b": 4})", "f");
  EXPECT_EQ(dump_json(v), R"({"a":{"x":2},"b":4,"c":3})");
}

TEST(Json, EqualKeysInALargeObject) {
  std::string text = "{";
  for (int i = 0; i < 40; ++i) text += cat(i ? "," : "", "\"k", i % 20, "\":", i);
  Json v = parse_json(text + "}", "f");
  ASSERT_EQ(v.size(), 20u);
  EXPECT_EQ(v["k0"], Json(20));
  EXPECT_EQ(v.begin().key(), "k0");
  EXPECT_EQ(v["k19"], Json(39));
}

// The parser for right text and the one for the rest must agree; a byte order mark forces the
// second.
TEST(Json, BothParsersAgree) {
  for (const char* text :
       {"0", "-0", "-0.0", "9223372036854775808", "-9223372036854775808", "18446744073709551615",
        "18446744073709551616", "0.1", "1E+2", "5e-324", "[[],{}]", "\"\\u0000\\ud83d\\ude00\"",
        "{\"a\":1,\"a\":2}", "{\"\":null}"}) {
    Json fast = parse_json(text, "f"), exact = parse_json("\xEF\xBB\xBF" + std::string(text), "f");
    EXPECT_EQ(fast.type(), exact.type()) << text;
    EXPECT_EQ(dump_json(fast), dump_json(exact)) << text;
  }
}

TEST(Json, ErrorsSayWhereAndWhat) {
  EXPECT_PRED2(contains, parse_error("{\n  \"a\": 1,\n  \"b\": x\n}"),
               "f.json:3:8: not valid JSON");
  EXPECT_PRED2(contains, parse_error(""), "f.json:1:1: not valid JSON");
  EXPECT_PRED2(contains, parse_error("[1, 2"), "f.json:1:6: ");
  EXPECT_PRED2(contains, parse_error("[1] 2"), "f.json:1:5: ");
  EXPECT_PRED2(contains, parse_error("{\u201ca\u201d: 1}"),
               "f.json:1:2: not valid JSON: unexpected \u201c");
  EXPECT_PRED2(contains, parse_error("[1, 2\x85]"),
               "f.json:1:6: not valid JSON: the text is not UTF-8 here");
  for (const char* bad :
       {"nul", "[1,]", "{\"a\"}", "{a: 1}", "\"\\q\"", "\"\\ud800\"", "\"\\udc00\"",
        "{\"\\udc00\":1}", "01", "NaN", "1e999", "\"a\nb\"", "'a'", "[1}", "\"\xC3\x28\"",
        "\"\xED\xA0\x80\"", "\"\xF5\x80\x80\x80\"", "\"\xC0\xAF\"", "\xFF"})
    EXPECT_PRED2(contains, parse_error(bad), "f.json:1:") << bad;
  EXPECT_PRED2(contains, parse_error(std::string_view("[1]\0", 4)), "f.json:1:4: ");
  EXPECT_FALSE(contains(parse_error("[1, 2"), "json.exception"));
}

TEST(Json, AFileThatIsAnotherSaysSo) {
  TemporaryFolder folder("json_impostors");
  auto error = [&](std::string_view text) {
    return message_of([&] { read_json(folder.write("config.json", text)); });
  };
  EXPECT_EQ(error("{}"), "");
  EXPECT_PRED2(contains, error("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
               "config.json: not JSON; this is a Git LFS pointer");
  EXPECT_PRED2(contains, error("<!DOCTYPE html><html>gated</html>"), "this is a web page");
  EXPECT_PRED2(contains, error(""), "the file is empty");
}

TEST(Json, DepthIsBounded) {
  auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_NO_THROW(parse_json(nested(kMaxJsonDepth), "f"));
  EXPECT_PRED2(contains, parse_error(nested(kMaxJsonDepth + 1)), "levels deep");
  EXPECT_PRED2(contains, parse_error(std::string(5'000'000, '[')), "levels deep");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_PRED2(contains, parse_error(objects), "levels deep");
  Json deep;
  for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_THROW(dump_json(deep), Error);
}

// A lookup for each key would take longer than a test may.
TEST(Json, ALargeObjectTakesLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 500'000; ++i) text += cat(i ? "," : "", "\"token", i, "\":", i);
  text += "}";
  EXPECT_EQ(parse_json(text, "f").size(), 500'000u);
}

TEST(Json, GettersCheckKindAndRange) {
  Json o = parse_json(R"({"i": 3, "f": 1.5, "w": 1e6, "s": "x", "b": true, "n": null,
                          "huge": 18446744073709551615, "big": 1e300})",
                      "c");
  EXPECT_EQ(get_int(o, "i", "c"), 3);
  EXPECT_EQ(get_int(o, "w", "c"), 1000000);
  EXPECT_EQ(get_int(o, "missing", "c", 7), 7);
  EXPECT_EQ(get_int(o, "n", "c", 7), 7);
  EXPECT_EQ(get_float(o, "i", "c"), 3.0);
  EXPECT_EQ(get_float(o, "f", "c"), 1.5);
  EXPECT_TRUE(get_bool(o, "b", "c"));
  EXPECT_FALSE(get_bool(o, "n", "c", false));
  EXPECT_EQ(get_string(o, "s", "c"), "x");
  EXPECT_EQ(get_string(o, "zz", "c", "d"), "d");
  EXPECT_EQ(find_member(o, "n"), nullptr);

  auto error = [&](auto f) { return message_of(f); };
  EXPECT_EQ(error([&] { get_int(o, "x", "c.json"); }),
            "c.json: \"x\" is missing, expected an integer");
  EXPECT_EQ(error([&] { get_int(o, "n", "c.json"); }),
            "c.json: \"n\" is null, expected an integer");
  EXPECT_EQ(error([&] { get_int(o, "s", "c.json", 1); }),
            "c.json: \"s\" is \"x\", expected an integer");
  EXPECT_EQ(error([&] { get_int(o, "f", "c"); }), "c: \"f\" is 1.5, expected an integer");
  EXPECT_EQ(error([&] { get_int(o, "i", "c", {}, {4}); }), "c: \"i\" is 3, expected at least 4");
  EXPECT_EQ(error([&] { get_int(o, "i", "c", {}, {0, 2}); }), "c: \"i\" is 3, expected 0 to 2");
  EXPECT_EQ(error([&] { get_float(o, "f", "c", {}, {0, 1}); }), "c: \"f\" is 1.5, expected 0 to 1");
  EXPECT_THROW(get_int(o, "huge", "c"), Error);
  EXPECT_THROW(get_int(o, "big", "c"), Error);
  EXPECT_THROW(get_float(o, "s", "c"), Error);
  EXPECT_THROW(get_float(Json{{"x", HUGE_VAL}}, "x", "c"), Error);
  EXPECT_THROW(get_bool(o, "i", "c"), Error);
  EXPECT_THROW(get_string(o, "b", "c"), Error);
  EXPECT_THROW(get_int(Json(3), "b", "c", 1), Error);
}

TEST(Json, DumpRefusesBrokenText) {
  EXPECT_EQ(dump_json(Json("a\xFF")), "\"a\xEF\xBF\xBD\"");
  EXPECT_EQ(dump_json(Json(std::nan(""))), "null");
}

TEST(JsonLines, AcceptsWhatPeopleHave) {
  TemporaryFolder folder("jsonl");
  auto path =
      folder.write("a.jsonl", "\xEF\xBB\xBF{\"a\":1}\r\n\n  \t\r\n{\"a\": 2}\n[3]\n\n\"x\"");
  std::vector<std::string> rows;
  for_each_json_line(
      path, [&](int64_t line, Json&& row) { rows.push_back(cat(line, " ", dump_json(row))); });
  EXPECT_EQ(rows, (std::vector<std::string>{"1 {\"a\":1}", "4 {\"a\":2}", "5 [3]", "7 \"x\""}));
  int count = 0;
  for_each_json_line(folder.write("empty.jsonl", ""), [&](int64_t, Json&&) { ++count; });
  EXPECT_EQ(count, 0);
  EXPECT_THROW(for_each_json_line(folder / "missing", [](int64_t, Json&&) {}), Error);
}

TEST(JsonLines, ABrokenLineIsNamed) {
  TemporaryFolder folder("jsonl_broken");
  auto path = folder.write("a.jsonl", "{\"a\":1}\n\n{\"a\":\n{\"a\":3}\n");
  int count = 0;
  std::string message =
      message_of([&] { for_each_json_line(path, [&](int64_t, Json&&) { ++count; }); });
  EXPECT_EQ(count, 1);
  EXPECT_PRED2(contains, message, path.string() + ":3:6: not valid JSON");
}

TEST(JsonLines, ALineIsBounded) {
  std::string text = "\"" + std::string(kMaxJsonLineBytes, 'x') + "\"";
  EXPECT_PRED2(contains, message_of([&] {
                 for_each_json_line("1\n" + text, "a.jsonl", [](int64_t, Json&&) {});
               }),
               "a.jsonl:2: line longer than");
}

}  // namespace
}  // namespace wick
