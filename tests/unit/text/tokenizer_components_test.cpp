// SPDX-License-Identifier: Apache-2.0
// What goldens do not show: errors, config files, odd decoders, long words, threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "text/decoder.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "wick/error.h"

namespace wick {
namespace {

const std::filesystem::path kFolder =
    std::filesystem::path(WICK_SOURCE_DIR) / "tests/unit/text/tokenizer_goldens";

Json small_tokenizer() {
  return Json::parse(R"({
    "added_tokens": [{"id": 6, "content": "<s>", "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3, "abc": 4, "bc": 5},
              "merges": ["a b", ["ab", "c"], "b c"]}})");
}

Tokenizer small() { return Tokenizer::from_json(small_tokenizer().dump()); }

void expect_error(const Json& tokenizer, ErrorCode code, const std::string& part) {
  try {
    Tokenizer::from_json(tokenizer.dump());
    ADD_FAILURE() << "no error; wanted one with: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Tokenizer, Basics) {
  Tokenizer t = small();
  EXPECT_EQ(t.encode_ids("abcbc<s>ab", false), (std::vector<int32_t>{4, 5, 6, 2}));
  EXPECT_EQ(t.vocab_size(), 7);
  EXPECT_EQ(t.id_of("bc"), 5);
  EXPECT_EQ(t.id_of("<s>"), 6);
  EXPECT_EQ(t.id_of("zz"), std::nullopt);
  EXPECT_EQ(t.piece(4), "abc");
  EXPECT_EQ(t.piece(99), "");
  EXPECT_EQ(t.piece(-1), "");
  EXPECT_TRUE(t.is_special(6));
  EXPECT_FALSE(t.is_special(0));
  EXPECT_EQ(t.decode(std::vector<int32_t>{0, 6, 1, 99, -5}), "a b");
  EXPECT_EQ(t.decode(std::vector<int32_t>{0, 6, 1}, false), "a <s> b");
  EXPECT_EQ(t.bos_id(), std::nullopt);
  EXPECT_EQ(t.chat_template_source(), "");
}

// Behind a template with special tokens the library takes its pieces for several texts; behind one
// without, or behind a pair, it surrounds the text once more.
TEST(Tokenizer, PostProcessorsInARow) {
  const Json special = {{"<s>", {{"ids", {6}}}}};
  const Json text = {{"Sequence", {{"id", "A"}}}}, token = {{"SpecialToken", {{"id", "<s>"}}}};
  const Json plain = {
      {"type", "TemplateProcessing"}, {"single", {text}}, {"special_tokens", special}};
  Json adds = plain, pair = {{"type", "BertProcessing"}, {"cls", {"a", 0}}, {"sep", {"b", 1}}};
  adds["single"] = {token, text};
  auto in_a_row = [&](const Json& first, const Json& second) {
    Json j = small_tokenizer();
    j["post_processor"] = {{"type", "Sequence"}, {"processors", {first, second}}};
    return j;
  };
  auto ids = [](const Json& j) { return Tokenizer::from_json(j.dump()).encode_ids("c", true); };
  EXPECT_EQ(ids(in_a_row(plain, adds)), (std::vector<int32_t>{6, 3}));
  EXPECT_EQ(ids(in_a_row(pair, adds)), (std::vector<int32_t>{6, 0, 3, 1}));
  for (const Json& second : {plain, adds, pair})
    expect_error(in_a_row(adds, second), ErrorCode::kUnsupported,
                 "post_processor.processors[1] is a");
}

TEST(Tokenizer, ErrorsNameTheKey) {
  Json j = small_tokenizer();
  j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Nonsense"}}}}};
  expect_error(j, ErrorCode::kUnsupported, "tokenizer.json: pre_tokenizer.pretokenizers[0].type");
  j = small_tokenizer();
  j["model"]["type"] = "Unigram";
  expect_error(j, ErrorCode::kUnsupported, "model.type is \"Unigram\"");
  j = small_tokenizer();
  j["normalizer"] = {{"type", "Precompiled"}};
  expect_error(j, ErrorCode::kUnsupported, "normalizer.type");
  j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "("}}}, {"content", ""}};
  expect_error(j, ErrorCode::kUnsupported, "normalizer.pattern.Regex");
  j = small_tokenizer();
  j["decoder"] = {{"type", "WordPiece"}};
  expect_error(j, ErrorCode::kUnsupported, "decoder.type");
  j = small_tokenizer();
  j["post_processor"] = {{"type", "TemplateProcessing"},
                         {"single", {{{"SpecialToken", {{"id", "<q>"}}}}}},
                         {"special_tokens", Json::object()}};
  expect_error(j, ErrorCode::kCorruptFile, "post_processor.single[0]");
  // A name that stands for many ids, used often.
  j["post_processor"]["special_tokens"] = {{"<q>", {{"ids", std::vector<int>(1000, 1)}}}};
  j["post_processor"]["single"] = std::vector<Json>(1000, Json{{"SpecialToken", {{"id", "<q>"}}}});
  j["post_processor"]["single"].push_back(Json{{"Sequence", {{"id", "A"}}}});
  expect_error(j, ErrorCode::kCorruptFile, "post_processor.single[4]: the template adds more");
  j = small_tokenizer();
  j["model"]["merges"].push_back("a z");
  expect_error(j, ErrorCode::kCorruptFile, "model.merges[3]: \"z\"");
  j["model"]["merges"][3] = "a b c";
  expect_error(j, ErrorCode::kCorruptFile, "model.merges[3]");
  j = small_tokenizer();
  j["model"]["vocab"]["x"] = 4'000'000'000u;
  expect_error(j, ErrorCode::kCorruptFile, "model.vocab");
  j["model"]["vocab"]["x"] = -1;
  expect_error(j, ErrorCode::kCorruptFile, "model.vocab");
  j = small_tokenizer();
  j["model"]["vocab"]["bc"] = 6;  // the next id is taken, and its own is as well
  j["added_tokens"][0]["id"] = 3;
  expect_error(j, ErrorCode::kCorruptFile, "added_tokens[0]");
  j = small_tokenizer();
  j["model"]["dropout"] = 0.1;
  expect_error(j, ErrorCode::kUnsupported, "dropout");
  j = small_tokenizer();
  j["model"]["unk_token"] = "<unk>";
  expect_error(j, ErrorCode::kCorruptFile, "unk_token");
  expect_error(Json::object(), ErrorCode::kCorruptFile, "model");
  expect_error(Json(3), ErrorCode::kCorruptFile, "model");
  Json nested = {{"type", "NFC"}};
  for (int i = 0; i < 40; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  j = small_tokenizer();
  j["normalizer"] = nested;
  expect_error(j, ErrorCode::kUnsupported, "nested");
  EXPECT_THROW(Tokenizer::load("/no/such/folder"), Error);
}

// As transformers: special tokens that only tokenizer_config.json names are recognised, too.
TEST(Tokenizer, TokensThatOnlyTheConfigNamesAreSpecial) {
  Json json = small_tokenizer();
  const std::string plain = json.dump();
  Tokenizer t = Tokenizer::from_json(
      plain, R"({"eos_token": "abc", "extra_special_tokens": ["bc"], "pad_token": "nowhere"})");
  ASSERT_TRUE(t.eos_id().has_value());
  EXPECT_TRUE(t.is_special(*t.eos_id()));
  EXPECT_TRUE(t.is_special(*t.id_of("bc")));
  EXPECT_EQ(t.pad_id(), 7);
  EXPECT_EQ(t.decode(t.encode_ids("abcbc", false)), "");
}

// As transformers: every key that ends in _token names a special token, and so do the keys of an
// objects extra_special_tokens and model_specific_special_tokens.
TEST(Tokenizer, SpecialTokensByName) {
  Tokenizer t = Tokenizer::from_json(small_tokenizer().dump(), R"({
    "bos_token": null, "eos_token": {"content": "abc"}, "unk_token": "", "image_token": "bc",
    "num_token": 5, "add_bos_token": true, "extra_special_tokens": {"boi": "ab"},
    "model_specific_special_tokens": {"eoi": "c"}})");
  EXPECT_EQ(t.special_tokens(), (std::map<std::string, std::string>{{"eos_token", "abc"},
                                                                    {"unk_token", ""},
                                                                    {"image_token", "bc"},
                                                                    {"boi", "ab"},
                                                                    {"eoi", "c"}}));
  EXPECT_TRUE(t.is_special(*t.id_of("c")));
  EXPECT_TRUE(t.is_special(*t.id_of("bc")));
  EXPECT_TRUE(t.is_special(*t.id_of("ab")));
  EXPECT_EQ(t.bos(), "");
}

// As transformers: what the config names is special, although its own entry says otherwise, where
// that entry is the config's, or tokenizer.json's and the config lists none. Nothing becomes plain
// again.
TEST(Tokenizer, ATokenWithANameIsSpecial) {
  Json json = small_tokenizer();
  json["added_tokens"] =
      Json::array({{{"id", 6}, {"content", "<s>"}, {"special", true}},
                   {{"id", 7}, {"content", "<end>"}, {"special", false}, {"normalized", false}},
                   {{"id", 8}, {"content", "<tool>"}, {"special", false}, {"normalized", false}}});
  auto special = [&](const char* config) {
    Tokenizer t = Tokenizer::from_json(json.dump(), config);
    return std::vector<bool>{t.is_special(6), t.is_special(7), t.is_special(8)};
  };
  using Flags = std::vector<bool>;
  EXPECT_EQ(special("{}"), (Flags{true, false, false}));
  EXPECT_EQ(special(R"({"eos_token": "<end>", "additional_special_tokens": ["<tool>"]})"),
            (Flags{true, true, false}));
  EXPECT_EQ(special(R"({"eos_token": "<end>", "image_token": "<tool>", "added_tokens_decoder": {
              "6": {"content": "<s>", "special": false},
              "8": {"content": "<tool>", "special": false, "normalized": false}}})"),
            (Flags{true, false, true}));
}

// Flags beside a name count where no list has the token; beside a name of a family's own,
// transformers does not take an object for a token.
TEST(Tokenizer, ANamedTokenHasItsFlags) {
  Tokenizer t = Tokenizer::from_json(small_tokenizer().dump(), R"({
    "mask_token": {"__type": "AddedToken", "content": "abc", "lstrip": true, "normalized": false},
    "image_token": {"content": "ab"},
    "additional_special_tokens": ["c", {"content": "bc", "rstrip": true, "normalized": false}]})");
  EXPECT_EQ(t.special_tokens(), (std::map<std::string, std::string>{{"mask_token", "abc"}}));
  std::vector<Token> tokens = t.encode("a  abcbc  a", false);
  ASSERT_EQ(tokens.size(), 4u);
  EXPECT_EQ(tokens[1].id, 4);
  EXPECT_EQ(tokens[1].begin, 1u);
  EXPECT_EQ(tokens[2].id, 5);
  EXPECT_EQ(tokens[2].end, 10u);
  EXPECT_TRUE(t.is_special(4));
  EXPECT_FALSE(t.is_special(5));
  EXPECT_TRUE(t.is_special(3));
  EXPECT_FALSE(t.is_special(2));
  t = Tokenizer::from_json(
      small_tokenizer().dump(),
      R"({"extra_special_tokens": ["c"], "additional_special_tokens": ["bc"]})");
  EXPECT_TRUE(t.is_special(3));
  EXPECT_FALSE(t.is_special(5));
  t = Tokenizer::from_json(
      small_tokenizer().dump(),
      R"({"extra_special_tokens": {"boi": "c"}, "additional_special_tokens": ["bc"]})");
  EXPECT_TRUE(t.is_special(3));
  EXPECT_TRUE(t.is_special(5));
}

// As the library tokenizers has it: ids behind the vocabulary are given in order, whatever the file
// says, and transformers adds what the config lists, by its ids, and then what it names.
TEST(Tokenizer, AddedTokensAreNumberedInOrder) {
  auto added = [](const std::vector<std::pair<int, const char*>>& tokens) {
    Json json = small_tokenizer();
    json["added_tokens"] = Json::array();
    for (const auto& [id, content] : tokens)
      json["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
    return json;
  };
  auto ids = [](const Json& json, const std::string& config = {}) {
    const Tokenizer t = Tokenizer::from_json(json.dump(), config);
    return std::pair(t.id_of("<x>").value_or(-1), t.id_of("<y>").value_or(-1));
  };
  EXPECT_EQ(ids(added({{6, "<x>"}, {7, "<y>"}})), std::pair(6, 7));
  EXPECT_EQ(ids(added({{8, "<x>"}, {11, "<y>"}})), std::pair(6, 7));
  EXPECT_EQ(ids(added({{7, "<x>"}, {6, "<y>"}})), std::pair(6, 7));
  EXPECT_EQ(ids(added({{2, "<x>"}, {6, "<y>"}})), std::pair(6, 7));
  EXPECT_EQ(ids(added({{6, "<x>"}, {6, "<y>"}})), std::pair(6, 7));
  EXPECT_EQ(ids(added({{9, "abc"}, {9, "<y>"}})), std::pair(-1, 6));
  const std::string listed =
      R"({"added_tokens_decoder": {"10": {"content": "<y>"}, "9": {"content": "<x>"}}})";
  EXPECT_EQ(ids(added({}), listed), std::pair(6, 7));
  EXPECT_EQ(ids(added({{8, "<y>"}}), listed), std::pair(7, 6));
  EXPECT_EQ(ids(added({}), R"({"pad_token": "<x>", "eos_token": "<y>"})"), std::pair(7, 6));

  // In a vocabulary with gaps the library would give one id twice; the file's own are kept.
  auto gaps = [&](int x, int y) {
    Json json = added({{x, "<x>"}, {y, "<y>"}});
    json["model"]["vocab"]["bc"] = 6;
    return json;
  };
  EXPECT_EQ(ids(gaps(8, 9)), std::pair(8, 9));
  EXPECT_EQ(ids(gaps(5, 7)), std::pair(5, 7));
  EXPECT_EQ(ids(gaps(8, 11)), std::pair(8, 11));
  for (const int id : {5, 8}) EXPECT_THROW(ids(gaps(id, id)), Error) << id;
}

// White space that a token strips may be the next one's text.
TEST(Tokenizer, ATokenOfWhiteSpaceIsTakenOnce) {
  Json json = small_tokenizer();
  json["added_tokens"] = Json::array({{{"id", 6},
                                       {"content", "  "},
                                       {"lstrip", true},
                                       {"rstrip", true},
                                       {"normalized", false},
                                       {"special", true}}});
  EXPECT_EQ(Tokenizer::from_json(json.dump()).encode_ids("    ", false), std::vector<int32_t>{6});
}

TEST(Tokenizer, ReadsTheFilesBesideIt) {
  auto folder = std::filesystem::temp_directory_path() /
                ("wick_tokenizer_test_" + std::to_string(::getpid()));
  make_folder(folder);
  write_file(folder / "tokenizer.json", small_tokenizer().dump());
  EXPECT_EQ(Tokenizer::load(folder).eos_id(), std::nullopt);
  write_file(folder / "special_tokens_map.json",
             R"({"eos_token": {"content": "abc"}, "pad_token": "c", "bos_token": "bc"})");
  write_file(folder / "tokenizer_config.json", R"({
    "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": null,
    "added_tokens_decoder": {
      "6": {"content": "<s>", "lstrip": true, "special": true},
      "9": {"content": "<new>", "special": false, "normalized": false}},
    "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  write_file(folder / "chat_template.json", R"({"chat_template": "J"})");
  Tokenizer t = Tokenizer::load(folder);
  EXPECT_EQ(t.bos(), "<s>");
  EXPECT_EQ(t.bos_id(), 6);
  // As transformers: beside added_tokens_decoder the map is not looked at.
  EXPECT_EQ(t.eos_id(), std::nullopt);
  EXPECT_EQ(t.pad_id(), std::nullopt);
  EXPECT_EQ(t.vocab_size(), 8);
  EXPECT_EQ(t.chat_template_source(), "D");
  EXPECT_EQ(t.chat_template_source(/*with_tools=*/true), "T");
  std::vector<Token> tokens = t.encode("a  <s><new>", false);
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[1].id, 6);
  EXPECT_EQ(tokens[1].begin, 1u);  // lstrip of the config
  EXPECT_EQ(tokens[2].id, 7);
  write_file(folder / "chat_template.jinja", "file");
  EXPECT_EQ(Tokenizer::load(folder).chat_template_source(), "file");
  EXPECT_EQ(Tokenizer::load(folder).chat_template_source(true), "file");
  make_folder(folder / "additional_chat_templates");
  write_file(folder / "additional_chat_templates" / "tool_use.jinja", "tools");
  EXPECT_EQ(Tokenizer::load(folder).chat_template_source(), "file");
  EXPECT_EQ(Tokenizer::load(folder).chat_template_source(true), "tools");
  std::filesystem::remove(folder / "chat_template.jinja");
  write_file(folder / "tokenizer_config.json", "{}");
  EXPECT_EQ(Tokenizer::load(folder).chat_template_source(), "J");
  write_file(folder / "tokenizer_config.json", R"({"chat_template": {"default": "by name"}})");
  EXPECT_EQ(Tokenizer::load(folder).chat_template_source(), "by name");
  write_file(folder / "tokenizer_config.json", R"({"bos_token": "<s>", "unk_token": "b"})");
  EXPECT_EQ(
      Tokenizer::load(folder).special_tokens(),
      (std::map<std::string, std::string>{
          {"bos_token", "bc"}, {"eos_token", "abc"}, {"pad_token", "c"}, {"unk_token", "b"}}));
  write_file(folder / "special_tokens_map.json", R"({"additional_special_tokens": ["bc"]})");
  EXPECT_TRUE(Tokenizer::load(folder).is_special(5));
  write_file(folder / "tokenizer_config.json", R"({"additional_special_tokens": ["ab"]})");
  EXPECT_TRUE(Tokenizer::load(folder).is_special(2));
  EXPECT_FALSE(Tokenizer::load(folder).is_special(5));
  write_file(folder / "tokenizer_config.json",
             R"({"added_tokens_decoder": {"x": {"content": "q"}}})");
  EXPECT_THROW(Tokenizer::load(folder), Error);
  std::filesystem::remove_all(folder);
}

// In quadratic time this would take hours.
TEST(Tokenizer, LongWordsTakeLittleTime) {
  Tokenizer t = Tokenizer::from_json(read_file(kFolder / "llama3.tokenizer.json"));
  Tokenizer spm = Tokenizer::from_json(read_file(kFolder / "spm_legacy.tokenizer.json"));
  std::string word;
  for (size_t i = 0; word.size() < 1'000'000; ++i) word += "theboatwatersmallquestion"[i * i % 25];
  EXPECT_GT(t.encode_ids(word, false).size(), 1000u);
  EXPECT_GT(spm.encode_ids(word, false).size(), 1000u);
  EXPECT_GT(t.encode_ids(std::string(1'000'000, ' '), false).size(), 100u);
  EXPECT_GT(t.encode_ids(std::string(1'000'000, 'a'), false).size(), 100u);
  EXPECT_GT(spm.encode_ids(std::string(1'000'000, ' ') + "x", false).size(), 100u);
}

TEST(Tokenizer, LongWordsMergeAsShortOnesDo) {
  Tokenizer t = small();
  std::string unit = "abcbcaab";
  std::vector<int32_t> one = t.encode_ids(unit, false), many;
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += unit;
    many.insert(many.end(), one.begin(), one.end());
  }
  EXPECT_EQ(t.encode_ids(text, false), many);
}

TEST(Tokenizer, IsUsableFromSeveralThreads) {
  Tokenizer t = Tokenizer::from_json(read_file(kFolder / "qwen2.tokenizer.json"));
  Json strings = read_json(kFolder / "strings.json");
  std::vector<std::vector<int32_t>> want;
  for (const Json& s : strings) want.push_back(t.encode_ids(s.get<std::string>(), true));
  std::vector<int> wrong(3);
  std::vector<std::thread> threads;
  for (size_t k = 0; k < wrong.size(); ++k)
    threads.emplace_back([&, k] {
      for (size_t i = 0; i < strings.size(); ++i)
        wrong[k] += t.encode_ids(strings[i].get<std::string>(), true) != want[i];
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(3, 0));
}

TEST(Tokenizer, BytesOfTokens) {
  Tokenizer bytes = Tokenizer::from_json(read_file(kFolder / "gpt2.tokenizer.json"));
  EXPECT_EQ(bytes.bytes_of(*bytes.id_of("\u0120the")), " the");
  EXPECT_EQ(bytes.bytes_of(*bytes.id_of("\u010a")), "\n");
  EXPECT_EQ(bytes.bytes_of(*bytes.id_of("<s>")), "<s>");
  Tokenizer spm = Tokenizer::from_json(read_file(kFolder / "spm_legacy.tokenizer.json"));
  EXPECT_EQ(spm.bytes_of(*spm.id_of("<0xE2>")), "\xE2");
  EXPECT_EQ(spm.bytes_of(*spm.id_of("\u2581the")), " the");
}

TEST(Tokenizer, RangesOfBrokenBytesAreThoseBytes) {
  Json j = small_tokenizer();
  j["model"]["vocab"]["\ufffd"] = 7;
  Tokenizer t = Tokenizer::from_json(j.dump());
  std::vector<Token> tokens = t.encode(
      "a\xE2\x82"
      "b\xFF",
      false);
  ASSERT_EQ(tokens.size(), 4u);
  EXPECT_EQ(tokens[1].id, 7);
  EXPECT_EQ(tokens[1].begin, 1u);
  EXPECT_EQ(tokens[1].end, 3u);
  EXPECT_EQ(tokens[2].begin, 3u);
  EXPECT_EQ(tokens[3].begin, 4u);
  EXPECT_EQ(tokens[3].end, 5u);
}

std::string decoded(const Json& json, const std::vector<std::string>& tokens) {
  Decoder decoder(json, "decoder");
  Decoder::State state = decoder.start();
  std::string out;
  for (const std::string& token : tokens) decoder.push(state, token, out);
  decoder.finish(state, out);
  return out;
}

Json sequence(std::vector<Json> decoders) {
  return {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
}

// Without an unknown token a character that the vocabulary lacks becomes nothing. What stands
// behind it keeps its place.
TEST(Tokenizer, CharactersThatBecomeNothingShiftNoRanges) {
  auto ranges = [](const Json& j, std::string_view text) {
    Json out = Json::array();
    for (const Token& token : Tokenizer::from_json(j.dump()).encode(text, false))
      out.push_back({token.id, token.begin, token.end});
    return out;
  };
  Json j = small_tokenizer();
  EXPECT_EQ(ranges(j, "xxc\u20acab?<s>?a"), Json::parse("[[3,0,3],[2,3,9],[6,9,12],[0,12,14]]"));
  EXPECT_EQ(ranges(j, "a?b"), Json::parse("[[2,0,3]]"));
  EXPECT_EQ(ranges(j, "??"), Json::array());
  std::string more;
  Json expected = Json::array();
  for (int i = 0; i < 60; ++i) {  // longer than words that are looked up
    more += "?a";
    expected.push_back({0, 2 * i, 2 * i + 2});
  }
  EXPECT_EQ(ranges(j, more), expected);
  j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  EXPECT_EQ(ranges(j, "b\u00e9a c"), Json::parse("[[1,0,1],[0,1,4],[3,4,6]]"));
}

TEST(Decoder, StagesAfterFuse) {
  Json fuse = {{"type", "Fuse"}};
  Json strip = {{"type", "Strip"}, {"content", "e"}, {"start", 2}, {"stop", 2}};
  EXPECT_EQ(decoded(sequence({fuse, strip}), {"e", "e", "eae", "eb", "e", "e", "e"}), "eaeebe");
  EXPECT_EQ(decoded(strip, {"eeae", "be", "e"}), "ab");
  Json replace = {{"type", "Replace"}, {"pattern", {{"String", "abc"}}}, {"content", "X"}};
  EXPECT_EQ(decoded(sequence({fuse, replace}), {"a", "ab", "cab", "c", "ab"}), "aXXab");
  EXPECT_EQ(decoded(replace, {"a", "abc", "ab", "c"}), "aXabc");
  Json expression = {{"type", "Replace"}, {"pattern", {{"Regex", "b+"}}}, {"content", "X"}};
  EXPECT_EQ(decoded(sequence({fuse, expression}), {"a", "b", "ba"}), "aXa");
  Json fallback = {{"type", "ByteFallback"}};
  EXPECT_EQ(decoded(sequence({fuse, fallback}), {"<0x", "41>"}), "A");
  EXPECT_EQ(decoded(fallback, {"<0xE2>", "<0x82>", "<0xAC>", "x", "<0xE2>", "<0x41>", "<0xZZ>"}),
            "\u20acx\ufffd\ufffd<0xZZ>");
  Json meta = {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", true}};
  EXPECT_EQ(decoded(meta, {"_a_b", "_c"}), "ab c");
  EXPECT_EQ(decoded(sequence({fuse, meta}), {"_a", "_c"}), "ac");
  Json bytes = {{"type", "ByteLevel"}};
  EXPECT_EQ(decoded(bytes, {"\u00e2", "\u0124", "x"}), "\ufffdx");
  EXPECT_EQ(decoded(sequence({bytes, strip}), {"e", "\u0120", "e"}), " ");
}

TEST(PreTokenizer, SplitBehaviours) {
  auto words = [](const char* behavior, bool invert) {
    PreTokenizer p(Json{{"type", "Split"},
                        {"pattern", {{"String", "-"}}},
                        {"behavior", behavior},
                        {"invert", invert}},
                   "p");
    Words w = p.apply(AlignedText("-a-b--c-"));
    std::string out;
    for (Range r : w.ranges)
      out += std::string(out.empty() ? "" : " ") + std::string(w.text.slice_text(r));
    return out;
  };
  EXPECT_EQ(words("Removed", false), "a b c");
  EXPECT_EQ(words("Removed", true), "- - - - -");
  EXPECT_EQ(words("Isolated", false), "- a - b - - c -");
  EXPECT_EQ(words("MergedWithPrevious", false), "- a- b- - c-");
  EXPECT_EQ(words("MergedWithPrevious", true), "-a -b - -c -");
  EXPECT_EQ(words("MergedWithNext", false), "-a -b - -c -");
  EXPECT_EQ(words("MergedWithNext", true), "- a- b- - c-");
  EXPECT_EQ(words("Contiguous", false), "- a - b -- c -");
}

TEST(Unicode, LossyReadingAsRustDoesIt) {
  auto lossy = [](std::string bytes) {
    std::string out;
    unicode::take_lossy(bytes, true, out);
    return out;
  };
  EXPECT_EQ(lossy("a\xFFz"), "a\ufffdz");
  EXPECT_EQ(lossy("\xF0\x9F\x98z"), "\ufffdz");
  EXPECT_EQ(lossy("\xE0\x80\x80"), "\ufffd\ufffd\ufffd");
  EXPECT_EQ(lossy("\xED\xA0\x80"), "\ufffd\ufffd\ufffd");
  EXPECT_EQ(lossy("\xF4\x90\x80\x80"), "\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(lossy("\xC3"), "\ufffd");
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(unicode::char_to_byte(unicode::byte_to_char(static_cast<uint8_t>(byte))), byte);
}

}  // namespace
}  // namespace wick
