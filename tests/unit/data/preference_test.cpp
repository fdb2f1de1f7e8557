// SPDX-License-Identifier: Apache-2.0
// Rows of preferences: formats, masks, and that a pair stays together.
#include "data/preference.h"

#include "base/check.h"
#include "data/packing.h"
#include "unit/data/fixture.h"

namespace wick::data_test {
namespace {

const std::string kHi = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";

class PreferenceRows : public DataTest {
 protected:
  PreferenceRows() { options.pairs = PairRows::kPairs; }

  std::string both(std::string_view row, const char* chat_template = kChatMl) {
    ExampleSet set = load(one_line(row), chat_template);
    EXPECT_EQ(set.size(), 1);
    std::string text;
    for (const SequenceView& s : sequences_of(set[0])) {
      Example one;
      one.ids.assign(s.ids.begin(), s.ids.end());
      one.trained.assign(s.trained.begin(), s.trained.end());
      text += (s.rejected ? "-" : "+") + marked(one, tokenizer);
    }
    return text;
  }
};

TEST_F(PreferenceRows, Strings) {
  const std::string row = R"({"prompt": "hi", "chosen": "hello", "rejected": "no"})";
  EXPECT_EQ(both(row), "+" + kHi + "【hello<|im_end|>】\n-" + kHi + "【no<|im_end|>】\n");
  EXPECT_EQ(both(row, nullptr), "+<s>hi【hello<|im_end|>】-<s>hi【no<|im_end|>】");
}

TEST_F(PreferenceRows, MessagesWithAndWithoutThePromptInside) {
  const std::string want = "+" + kHi + "【hello<|im_end|>】\n-" + kHi + "【no<|im_end|>】\n";
  const std::string user = R"({"role": "user", "content": "hi"})",
                    good = R"({"role": "assistant", "content": "hello"})",
                    bad = R"({"role": "assistant", "content": "no"})";
  auto row = [&](const std::string& prompt, const std::string& chosen,
                 const std::string& rejected) {
    return "{" + prompt + "\"chosen\": " + chosen + ", \"rejected\": " + rejected + "}";
  };
  const std::string list = "\"prompt\": [" + user + "], ", text = "\"prompt\": \"hi\", ",
                    messages = "\"messages\": [" + user + "], ";
  const std::string g = "[" + good + "]", b = "[" + bad + "]";
  const std::string with_g = "[" + user + ", " + good + "]", with_b = "[" + user + ", " + bad + "]";
  EXPECT_EQ(both(row(list, g, b)), want);
  EXPECT_EQ(both(row(list, with_g, with_b)), want);
  EXPECT_EQ(both(row("", with_g, with_b)), want);
  EXPECT_EQ(both(row(text, with_g, with_b)), want);
  EXPECT_EQ(both(row(text, g, b)), want);
  EXPECT_EQ(both(row(messages, "\"hello\"", "\"no\"")), want);
  EXPECT_EQ(both(row(messages, good, bad)), want);
}

// Answers of several turns that begin alike hold no question.
TEST_F(PreferenceRows, AnswersOfSeveralTurnsKeepThePromptBesideThem) {
  const std::string begin = R"([{"role": "assistant", "content": "he"},
                                {"role": "user", "content": "x"},
                                {"role": "assistant", "content": )";
  const std::string want = both(cat(R"({"prompt": [{"role": "user", "content": "hi"}], "chosen": )",
                                    begin, R"("hello"}], "rejected": )", begin, R"("no"}]})"));
  EXPECT_EQ(want.rfind("+" + kHi, 0), 0u) << want;
  EXPECT_EQ(both(cat(R"({"prompt": "hi", "chosen": )", begin, R"("hello"}], "rejected": )", begin,
                     R"("no"}]})")),
            want);
}

TEST_F(PreferenceRows, OrpoMarksThePromptOfTheChosenSequence) {
  options.pairs = PairRows::kWithPrompt;
  ExampleSet set = load(R"({"prompt": "hi", "chosen": "hello", "rejected": "no"})", nullptr);
  const Example& e = set[0];
  ASSERT_GT(e.second, 0);
  EXPECT_EQ(e.trained[0], 0);
  EXPECT_EQ(e.trained[1], kLikelihoodOnly);
  EXPECT_EQ(e.trained[static_cast<size_t>(e.second)], 0);
  EXPECT_EQ(e.trained[static_cast<size_t>(e.second) + 1], 0);
}

TEST_F(PreferenceRows, Labels) {
  options.pairs = PairRows::kLabels;
  EXPECT_EQ(both(R"({"prompt": "hi", "completion": "hello", "label": true})", nullptr),
            "+<s>hi【hello<|im_end|>】");
  EXPECT_EQ(both(R"({"prompt": "hi", "completion": "no", "label": "False"})", nullptr),
            "-<s>hi【no<|im_end|>】");
  EXPECT_EQ(both(R"({"prompt": "hi", "chosen": "hello", "rejected": "no"})", nullptr),
            "+<s>hi【hello<|im_end|>】-<s>hi【no<|im_end|>】");
}

// Rows for KTO that are learned as they are: a bad answer would be learned without a word.
TEST_F(PreferenceRows, LabelsThatNobodyReadsAreMentioned) {
  const std::string rows =
      "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n"
      "{\"prompt\": \"a\", \"completion\": \"c\", \"label\": false}\n"
      "{\"prompt\": \"a\", \"completion\": \"d\", \"label\": false}\n";
  auto mentions = [&](PairRows pairs) {
    options.pairs = pairs;
    const ExampleSet set = load(rows, kChatMl);
    return std::count_if(set.issues().begin(), set.issues().end(), [](const DataIssue& issue) {
      return issue.what.find("--loss kto") != std::string::npos;
    });
  };
  EXPECT_EQ(mentions(PairRows::kNone), 1);
  EXPECT_EQ(mentions(PairRows::kLabels), 0);
}

TEST_F(PreferenceRows, WhatCannotBeUsed) {
  refused(R"({"prompt": "hi", "completion": "hello"})",
          {"rows.jsonl:1", "chosen", "leave --loss out"});
  refused(R"({"prompt": "hi", "chosen": "hello"})", {"no \"rejected\""});
  refused(R"({"prompt": "hi", "completion": "hello", "label": true})", {"--loss kto"});
  refused(R"({"chosen": "hello", "rejected": "no"})", {"prompt"});
  options.pairs = PairRows::kLabels;
  refused(R"({"prompt": "hi", "completion": "hello", "label": 3})", {"label", "true or false"});
}

TEST_F(PreferenceRows, EachSequenceIsCutByItself) {
  options.max_seq_length = 5;
  // Of the second row the rejected answer lies behind the cut, so the pair is left out.
  ExampleSet set = load(
      "{\"prompt\": \"ab\", \"chosen\": \"cdefgh\", \"rejected\": \"xyz\"}\n"
      "{\"prompt\": \"abcdefgh\", \"chosen\": \"c\", \"rejected\": \"x\"}",
      nullptr);
  ASSERT_EQ(set.size(), 1);
  EXPECT_EQ(set[0].second, 5);
  EXPECT_EQ(set[0].ids.size(), 10u);
  EXPECT_GE(set.issue_count(DataIssueKind::kCut), 2);
  EXPECT_EQ(set.issue_count(DataIssueKind::kNoTrainedToken), 1);
}

TEST_F(PreferenceRows, APairIsOneRowOfAPackWithTwoSegments) {
  ExampleSet set = load(
      "{\"prompt\": \"hi\", \"chosen\": \"abc\", \"rejected\": \"xy\"}\n"
      "{\"prompt\": \"q\", \"chosen\": \"r\", \"rejected\": \"stuv\"}",
      nullptr);
  // <s>hiabc and <s>hixy; <s>qr and <s>qstuv: the end is only predicted.
  EXPECT_EQ(row_size(set[0]), (PackLimits{6 + 5, 4 + 3}));
  const std::vector<int64_t> rows = {0, 1};
  const std::vector<Pack> packs = pack_rows(set, rows, {24, 20}, 7, 0, true);
  ASSERT_EQ(packs.size(), 1u);
  const Pack& pack = packs[0];
  EXPECT_EQ(pack.examples, rows);
  EXPECT_EQ(pack.used_tokens, 11 + 9);
  EXPECT_EQ(pack.used_targets, 7 + 7);
  EXPECT_EQ(pack.positions[6], 0);
  EXPECT_EQ(pack.begin[6], 6);
  EXPECT_EQ(pack.begin[10], 6);
  EXPECT_EQ(pack.segment[6], 0);
  EXPECT_EQ(pack.segment[7], 1);
  EXPECT_EQ(pack.marks[0], 1);
  EXPECT_EQ(pack.marks[6], 1 | Pack::kRejected);
  EXPECT_EQ(pack.marks[7], 1);
}

TEST_F(PreferenceRows, MismatchedAnswers) {
  ExampleSet set = load(
      "{\"prompt\": \"hi\", \"chosen\": \"abc\", \"rejected\": \"xy\"}\n"
      "{\"prompt\": \"q\", \"chosen\": \"r\", \"rejected\": \"stuv\"}",
      nullptr);
  const std::vector<int64_t> rows = {0, 1};
  const ExampleSet others = mismatched(set, rows, 64);
  ASSERT_EQ(others.size(), 4);
  std::string all;
  for (int64_t i = 0; i < 4; ++i) all += marked(others[i], tokenizer) + "\n";
  EXPECT_EQ(all,
            "<s>hi【stuv<|im_end|>】\n<s>q【abc<|im_end|>】\n<s>hi【r<|im_end|>】\n"
            "<s>q【xy<|im_end|>】\n");
}

}  // namespace
}  // namespace wick::data_test
