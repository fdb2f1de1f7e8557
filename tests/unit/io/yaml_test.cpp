// SPDX-License-Identifier: Apache-2.0
#include "io/yaml.h"

#include <gtest/gtest.h>

#include <cmath>

#include "unit/io/temporary_folder.h"

namespace wick {
namespace {

Json value_of(const std::string& scalar) { return parse_yaml("v: " + scalar, "c.yaml")["v"]; }

std::string yaml_error(std::string_view text) {
  return message_of([&] { parse_yaml(text, "c.yaml"); });
}

TEST(Yaml, PlainScalarsFollowTheCoreSchema) {
  EXPECT_EQ(value_of("12"), Json(12));
  EXPECT_EQ(value_of("-12"), Json(-12));
  EXPECT_EQ(value_of("+12"), Json(12));
  EXPECT_EQ(value_of("012"), Json(12));
  EXPECT_EQ(value_of("0x1F"), Json(31));
  EXPECT_EQ(value_of("0o17"), Json(15));
  for (const char* text : {"1e-5", "1E-5", "1.0e-5", "+1e-5", "0.00001", ".00001"}) {
    EXPECT_TRUE(value_of(text).is_number_float()) << text;
    EXPECT_EQ(value_of(text).get<double>(), 1e-5) << text;
  }
  EXPECT_TRUE(value_of("1.").is_number_float());
  EXPECT_TRUE(value_of("99999999999999999999").is_number_float());
  EXPECT_EQ(value_of("true"), Json(true));
  EXPECT_EQ(value_of("False"), Json(false));
  for (const char* text : {"", "~", "null", "Null", "NULL"}) EXPECT_TRUE(value_of(text).is_null());
  EXPECT_TRUE(std::isinf(value_of("-.inf").get<double>()));
  EXPECT_TRUE(std::isnan(value_of(".nan").get<double>()));
  for (const char* text : {"no", "yes", "on", "Off", "1e", "e5", "1_000", "0x", "0xg", "0o8", ".",
                           "-", "1.2.3", "12abc", "nan", "1 2", "q_proj,v_proj"})
    EXPECT_EQ(value_of(std::string(text) == "-" ? "\"-\"" : text), Json(text)) << text;
}

TEST(Yaml, QuotedScalarsStayStrings) {
  for (const char* text : {"'12'", "\"12\"", "!!str 12", "|-\n  12"})
    EXPECT_EQ(value_of(text), Json("12")) << text;
  EXPECT_EQ(value_of("\"\""), Json(""));
  EXPECT_EQ(value_of("'null'"), Json("null"));
  EXPECT_EQ(value_of("!!int 12"), Json(12));
}

TEST(Yaml, ReadsNestedSettingsInOrder) {
  TemporaryFolder folder("yaml");
  auto path = folder.write("c.yaml",
                           "# a comment\nmodel: m\nlora_parameters:\n  keys: [q_proj, \"v_proj\"]\n"
                           "  rank: 8\nlr_schedule: {name: cosine, arguments: [1e-5, 100]}\n"
                           "base: &b {x: 1}\nother: *b\n");
  EXPECT_EQ(dump_json(read_yaml(path)),
            R"({"model":"m","lora_parameters":{"keys":["q_proj","v_proj"],"rank":8},)"
            R"("lr_schedule":{"name":"cosine","arguments":[1e-05,100]},)"
            R"("base":{"x":1},"other":{"x":1}})");
  EXPECT_TRUE(parse_yaml("", "f").is_null());
  EXPECT_TRUE(parse_yaml("# nothing\n", "f").is_null());
  EXPECT_THROW(read_yaml(folder / "missing.yaml"), Error);
}

// Of YAML 1.1, as PyYAML reads it: what the mapping has itself counts, then the first.
TEST(Yaml, MergesMappings) {
  EXPECT_EQ(dump_json(parse_yaml("a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\n"
                                 "c: {x: 5, <<: *a}\nd: {<<: [*a, *b], w: 6}\ne: {'<<': 7}\n",
                                 "f")),
            R"({"a":{"x":1,"y":2},"b":{"y":3,"z":4},"c":{"x":5,"y":2},)"
            R"("d":{"w":6,"x":1,"y":2,"z":4},"e":{"<<":7}})");
  EXPECT_PRED2(contains, yaml_error("a: 1\nb: {<<: 2}\n"), "c.yaml:2:9: << merges a mapping");
}

TEST(Yaml, ErrorsSayWhere) {
  EXPECT_PRED2(contains, yaml_error("a: 1\nb: [1, 2\nc: 3\n"), "c.yaml:");
  EXPECT_PRED2(contains, yaml_error("a: 1\nb: *nothing\n"), "c.yaml:2:");
  EXPECT_PRED2(contains, yaml_error("a: 1\nb: 2\na: 3\n"),
               "c.yaml:3:1: the key \"a\" is given twice");
  EXPECT_PRED2(contains, yaml_error("a: 1\nb: !python/object:os.system x\n"), "c.yaml:2:");
  EXPECT_PRED2(contains, yaml_error("a: 1\n[x, y]: 2\n"), "c.yaml:2:1: a key must be");
  EXPECT_PRED2(contains, yaml_error("a: 1\n---\nb: 2\n"), "second document");
}

TEST(Yaml, BombsAndDepthAreBounded) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += cat("a", i, ": &a", i, " [");
    for (int j = 0; j < 10; ++j) bomb += cat(j ? ", " : "", "*a", i - 1);
    bomb += "]\n";
  }
  EXPECT_PRED2(contains, yaml_error(bomb), "too many aliases");
  std::string text_bomb = "a: &a " + std::string(1'000'000, 'x') + "\nb: [";
  for (int i = 0; i < 100; ++i) text_bomb += i ? ", *a" : "*a";
  EXPECT_PRED2(contains, yaml_error(text_bomb + "]\n"), "too many aliases");
  EXPECT_PRED2(contains, yaml_error("a: &a [*a]\n"), "c.yaml:");
  EXPECT_PRED2(contains, yaml_error(std::string(100'000, '[')), "c.yaml:");
  EXPECT_PRED2(contains, yaml_error(std::string(300, '[') + std::string(300, ']')), "levels deep");
  std::string dashes;
  for (int i = 0; i < 50'000; ++i) dashes += "- ";
  EXPECT_NE(yaml_error(dashes), "");
}

}  // namespace
}  // namespace wick
