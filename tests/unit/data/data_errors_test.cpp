// SPDX-License-Identifier: Apache-2.0
// Rows and files that cannot be used, or only in part; and what `wick data` counts.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/check.h"
#include "base/file.h"
#include "data/check.h"
#include "unit/data/fixture.h"

namespace wick::data_test {
namespace {

namespace fs = std::filesystem;

TEST_F(DataTest, BrokenJsonNamesTheLine) {
  refused("{\"text\": \"a\"}\n{\"text\": \n", {"rows.jsonl:2"});
  refused("{\"text\": \"a\"}\n\n{'text': 1}\n", {"rows.jsonl:3"});
}

TEST_F(DataTest, WrongTypes) {
  refused("[1]", {"rows.jsonl:1: ", "the row is an array", "an object"});
  refused(R"({"text": 3})", {"rows.jsonl:1: ", "\"text\" is an integer", "a string"});
  refused(R"({"prompt": 3, "completion": "a"})", {"\"prompt\" is an integer"});
  refused(R"({"prompt": "a", "completion": {}})", {"\"completion\" is an object"});
  refused(R"({"prompt": "a", "completion": {}})", {"\"completion\" is an object"}, nullptr);
  refused(R"({"messages": "a"})", {"\"messages\" is a string", "an array"});
  refused(R"({"messages": []})", {"\"messages\" is an empty array"});
  refused(R"({"messages": "[{'role': 'user', 'content': 'a'}]"})",
          {"\"messages\" is a list as Python prints it", "json.dumps"});
  refused(R"({"messages": ["a"]})", {"messages[0] is a string", "an object"});
  refused(R"({"messages": [{"content": "a"}]})", {"messages[0] has no \"role\"", "\"content\""});
  refused(R"({"messages": [{"role": 1, "content": "a"}]})", {"messages[0].role is an integer"});
  refused(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
          {"messages[0].content has a part of type \"image_url\""});
  refused(R"({"messages": [{"role": "user", "content": ["a"]}]})",
          {"messages[0].content has a part without a type"});
  refused(R"({"messages": [{"role": "user", "content": 1}]})",
          {"messages[0].content is an integer"});
  refused(R"({"messages": [{"role": "user"}]})", {"messages[0] has no \"content\""});
  refused(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]})",
      {"messages[1] has no \"content\" and no \"tool_calls\""});
  refused(R"({"messages": [{"role": "assistant", "tool_calls": {}}]})",
          {"messages[0].tool_calls is an object"});
  refused(R"({"messages": [{"role": "assistant", "tool_calls": [1]}]})",
          {"messages[0].tool_calls has an integer"});
}

TEST_F(DataTest, UnknownKeysNameWhatIsThereAndTheNearest) {
  refused("{\"text\": \"a\"}\n{\"promt\": \"a\", \"completion\": \"b\"}",
          {"rows.jsonl:2: ", "\"promt\", \"completion\"", "\"text\"", "\"messages\"",
           "did you mean \"prompt\" by \"promt\"?"});
  refused(R"({"txt": "a"})", {"did you mean \"text\" by \"txt\"?"});
  refused(R"({"prompt": "a", "chosen": "b", "rejected": "c"})",
          {"\"chosen\" and \"rejected\"", "--loss dpo"});
  refused(R"({"prompt": "a"})", {"the row has \"prompt\";", "\"completion\""});
  // A hint that is followed must not lose a part of the row, nor end at the next refusal.
  refused(R"({"instruction": "a", "input": "b", "output": "c"})",
          {"--prompt-feature instruction --completion-feature output", "\"input\" is not read"});
  refused(R"({"conversations": [{"from": "human", "value": "a"}]})",
          {"ShareGPT", "\"from\" to \"role\"", "\"value\" to \"content\""});
  refused("{}", {"empty object"});
}

TEST_F(DataTest, ChatNeedsATemplate) {
  refused(R"({"messages": [{"role": "user", "content": "a"}]})",
          {"rows.jsonl:1: ", "chat template"}, nullptr);
  refused(R"({"prompt": [{"role": "user", "content": "a"}], "completion": "b"})",
          {"rows.jsonl:1: ", "chat template"}, nullptr);
}

TEST_F(DataTest, ATemplateThatRaisesNamesTheRow) {
  refused("{\"text\": \"a\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}",
          {"rows.jsonl:2: ", "roles must alternate"},
          "{{ raise_exception('roles must alternate') }}");
}

TEST_F(DataTest, EmptySets) {
  refused("", {"rows.jsonl", "empty"});
  refused("\n\n", {"rows.jsonl", "empty"});
  refused("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
          {"none of the 1 rows has a trained token"});
}

TEST_F(DataTest, RowsWithoutATrainedTokenAreLeftOutAndNamed) {
  ExampleSet set = load(
      "{\"text\": \"a\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"
      "{\"text\": \"b\"}\n");
  EXPECT_EQ(set.size(), 2);
  EXPECT_EQ(set.rows_read(), 3);
  ASSERT_EQ(set.issues().size(), 1u);
  EXPECT_EQ(set.issues()[0].kind, DataIssueKind::kNoTrainedToken);
  EXPECT_EQ(set.issues()[0].str(), "rows.jsonl:2: the row has no trained token and is left out");
}

TEST_F(DataTest, LongRowsAreCutAndNamed) {
  options.max_seq_length = 4;
  options.keep_text = true;
  ExampleSet set = load("{\"text\": \"abcdef\"}\n{\"text\": \"ab\"}");
  ASSERT_EQ(set.size(), 2);
  EXPECT_EQ(marked(set[0], tokenizer), "<s>【abc】");
  EXPECT_EQ(set[0].full_length, 8);
  EXPECT_EQ(set[0].tokens.size(), 4u);
  EXPECT_EQ(marked(set[1], tokenizer), "<s>【ab<|im_end|>】");
  ASSERT_EQ(set.issues().size(), 1u);
  EXPECT_EQ(set.issues()[0].kind, DataIssueKind::kCut);
  EXPECT_EQ(set.issues()[0].str(),
            "rows.jsonl:1: the row has 8 tokens and is cut to max_seq_length = 4; 4 trained tokens "
            "are lost");
}

TEST_F(DataTest, ARowCutBeforeItsAnswerIsLeftOut) {
  options.max_seq_length = 6;
  ExampleSet set = load("{\"text\": \"a\"}\n{\"prompt\": \"hello hello\", \"completion\": \"a\"}");
  EXPECT_EQ(set.size(), 1);
  EXPECT_EQ(set.issue_count(DataIssueKind::kCut), 1);
  EXPECT_EQ(set.issue_count(DataIssueKind::kNoTrainedToken), 1);
  options.max_seq_length = 1;
  refused(R"({"text": "a"})", {"max_seq_length is 1"});
}

TEST_F(DataTest, ATurnWithoutAStopTokenIsNamed) {
  ExampleSet set = load(R"({"prompt": "a", "completion": "b"})",
                        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                        "{% if add_generation_prompt %}assistant: {% endif %}");
  EXPECT_EQ(set.size(), 1);
  ASSERT_EQ(set.issues().size(), 1u);
  EXPECT_EQ(set.issues()[0].kind, DataIssueKind::kNoStopToken);
  EXPECT_EQ(set.issues()[0].line, 1);
}

TEST_F(DataTest, ATokenizerWithoutEosIsNamed) {
  tokenizer = make_tokenizer({.names_eos = false});
  ExampleSet set = load("{\"text\": \"ab\"}\n{\"text\": \"abc\"}");
  EXPECT_EQ(marked(set[0], tokenizer), "<s>【ab】");
  ASSERT_EQ(set.issues().size(), 1u);
  EXPECT_EQ(set.issues()[0].kind, DataIssueKind::kNoStopToken);
  EXPECT_EQ(set.issues()[0].line, 0);
}

class DataFolderTest : public DataTest {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "wick_data_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }
  void put(const std::string& name) { write_file(folder / name, "{\"text\": \"" + name + "\"}\n"); }
  ExampleSet load_split(const fs::path& path, const std::string& split) {
    return ExampleSet::load(path, split, tokenizer, nullptr, options);
  }
  std::string refused_split(const fs::path& path, const std::string& split) {
    try {
      load_split(path, split);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }
  fs::path folder;
};

TEST_F(DataFolderTest, Splits) {
  put("train.jsonl");
  put("val.jsonl");
  EXPECT_EQ(marked(load_split(folder, "train")[0], tokenizer), "<s>【train.jsonl<|im_end|>】");
  EXPECT_EQ(marked(load_split(folder, "valid")[0], tokenizer), "<s>【val.jsonl<|im_end|>】");
  put("validation.jsonl");
  ExampleSet valid = load_split(folder, "valid");
  EXPECT_EQ(marked(valid[0], tokenizer), "<s>【validation.jsonl<|im_end|>】");
  ASSERT_EQ(valid.issues().size(), 1u);
  EXPECT_NE(valid.issues()[0].str().find("val.jsonl"), std::string::npos);
  put("valid.jsonl");
  EXPECT_EQ(marked(load_split(folder, "valid")[0], tokenizer), "<s>【valid.jsonl<|im_end|>】");

  EXPECT_TRUE(ExampleSet::has_split(folder, "train"));
  EXPECT_TRUE(ExampleSet::has_split(folder, "valid"));
  EXPECT_FALSE(ExampleSet::has_split(folder, "test"));
  std::string message = refused_split(folder, "test");
  EXPECT_NE(message.find("no test.jsonl"), std::string::npos) << message;
  EXPECT_NE(message.find("train.jsonl, val.jsonl"), std::string::npos) << message;
  EXPECT_NE(refused_split(folder, "tests").find("train, valid or test"), std::string::npos);
}

TEST_F(DataFolderTest, ASingleFile) {
  put("mine.jsonl");
  fs::path file = folder / "mine.jsonl";
  EXPECT_EQ(load_split(file, "train").size(), 1);
  EXPECT_EQ(load_split(file, "test").size(), 1);
  EXPECT_TRUE(ExampleSet::has_split(file, "train"));
  EXPECT_FALSE(ExampleSet::has_split(file, "valid"));
  EXPECT_FALSE(ExampleSet::has_split(folder / "none", "train"));
  EXPECT_NE(refused_split(folder / "none", "train").find("no such file"), std::string::npos);
}

TEST(NumberStats, Percentiles) {
  EXPECT_EQ(number_stats({}).max, 0);
  NumberStats stats = number_stats({5, 1, 3, 2, 4});
  EXPECT_EQ(stats.min, 1);
  EXPECT_EQ(stats.p50, 3);
  EXPECT_EQ(stats.p90, 5);
  EXPECT_EQ(stats.max, 5);
  EXPECT_EQ(stats.total, 15);
  EXPECT_DOUBLE_EQ(stats.mean, 3);
  std::vector<int64_t> hundred;
  for (int64_t i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(number_stats(hundred).p99, 99);
  EXPECT_EQ(number_stats({7}).p50, 7);
}

TEST_F(DataTest, Report) {
  options.max_seq_length = 6;
  ExampleSet set = load(
      "{\"text\": \"ab\"}\n"
      "{\"text\": \"abcdefgh\"}\n"
      "{\"text\": \"ab\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"
      "{\"prompt\": \"a\", \"completion\": \"b\"}\n",
      "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
  DataReport report = inspect(set);
  EXPECT_EQ(report.rows_read, 5);
  EXPECT_EQ(report.rows, 4);
  EXPECT_EQ(report.rows_cut, 1);
  EXPECT_EQ(report.rows_left_out, 1);
  EXPECT_EQ(report.rows_of_format[static_cast<size_t>(RowFormat::kText)], 3);
  EXPECT_EQ(report.rows_of_format[static_cast<size_t>(RowFormat::kCompletions)], 1);
  EXPECT_EQ(report.lengths.max, 10);
  EXPECT_EQ(report.tokens, 4 + 6 + 4 + 4);
  EXPECT_EQ(report.trained.total, 3 + 5 + 3 + 2);
  EXPECT_EQ(report.duplicates, (std::vector<std::pair<int64_t, int64_t>>{{2, 0}}));

  ExampleSet other = load("{\"text\": \"zz\"}\n{\"text\": \"ab\"}\n");
  EXPECT_EQ(shared_rows(other, set), (std::vector<std::pair<int64_t, int64_t>>{{1, 0}}));
}

// A file of nothing but findings must not take many times its size.
TEST_F(DataTest, FindingsAreCountedAndTheFirstOfAKindKept) {
  const fs::path file = fs::temp_directory_path() / cat("wick_findings_", getpid(), ".jsonl");
  std::string text = "{\"text\": \"a\"}\n";
  for (int i = 0; i < 3000; ++i) text += i % 2 == 0 ? "\n" : "{\n";
  AtomicFile out(file);
  out.write(text);
  out.commit();
  const DataSource source{file.string()};
  const std::string splits[] = {"train"};
  std::map<std::string, int64_t> heard;
  const DataCheck check = check_data({&source, 1}, splits, tokenizer, nullptr, options, {}, {},
                                     false, [&](const DatasetIssue& f) { ++heard[f.kind]; });
  fs::remove(file);
  const std::map<std::string, int64_t> all = {{"blank_line", 1500}, {"unreadable", 1500}};
  EXPECT_EQ(check.counts, all);
  EXPECT_EQ(heard, all);
  ASSERT_EQ(check.findings.size(), 2000u);
  EXPECT_EQ(check.findings.front().line, 2);
  EXPECT_EQ(check.findings.back().line, 2001);
}

TEST_F(DataTest, ShownTokens) {
  std::vector<ShownToken> shown = shown_tokens(load(R"({"text": "hello é"})")[0], tokenizer);
  ASSERT_EQ(shown.size(), 6u);
  EXPECT_EQ(shown[0].text, "<s>");
  EXPECT_TRUE(shown[0].special);
  EXPECT_FALSE(shown[0].trained);
  EXPECT_EQ(shown[1].text, "hello");
  EXPECT_EQ(shown[1].piece, "hello");
  EXPECT_TRUE(shown[1].trained);
  EXPECT_EQ(shown[2].piece, byte_piece(' '));
  EXPECT_EQ(shown[3].text, "");
  EXPECT_EQ(shown[4].text, "é");
  EXPECT_EQ(shown[5].text, "<|im_end|>");
}

// A decoder holds bytes back until it knows whether they are text; they are still those tokens'.
TEST(ShownTokens, OfBytesThatAreHeldBack) {
  const Tokenizer spm = Tokenizer::from_json(R"({"added_tokens": [{"id": 6, "content": "<e>",
      "special": true, "single_word": false, "lstrip": false, "rstrip": false,
      "normalized": false}], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
      "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
      "model": {"type": "BPE", "dropout": null, "unk_token": null,
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
        "byte_fallback": true, "merges": [], "vocab": {"a": 0, "\u2581": 1, "<0x0A>": 2,
        "<0xC3>": 3, "<0xA9>": 4, "<0xFF>": 5}}})");
  auto texts = [&](std::vector<int32_t> ids) {
    Example row;
    row.trained.assign(ids.size(), 1);
    row.ids = std::move(ids);
    std::vector<std::string> all;
    for (const ShownToken& token : shown_tokens(row, spm)) all.push_back(token.text);
    return all;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts({6, 2, 0, 6, 2}), (Texts{"<e>", "\n", "a", "<e>", "\n"}));
  EXPECT_EQ(texts({0, 3, 4, 2, 0}), (Texts{"a", "", "é", "\n", "a"}));
  EXPECT_EQ(texts({0, 3, 4}), (Texts{"a", "", "é"}));
  EXPECT_EQ(texts({1, 2, 2, 0}), (Texts{"", "\n", "\n", "a"}));
  EXPECT_EQ(texts({2, 5, 0}), (Texts{"\uFFFD", "\uFFFD", "a"}));
}

}  // namespace
}  // namespace wick::data_test
