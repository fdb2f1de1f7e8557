// SPDX-License-Identifier: Apache-2.0
// Whoever waits for an answer or an evaluation can stop it at any moment: while weights are read
// and packed, and between tokens.
#include <string>

#include "api/run_fixture.h"

namespace wick {
namespace {

class Stop : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    write_data("data", kChatRow, kChatRow + kChatRow);
  }
};

// True from the call of that number on.
struct Asked {
  int at = 0, calls = 0;
  std::function<bool()> question() {
    return [this] { return ++calls >= at; };
  }
};

template <typename Work>
ErrorCode code_of(const Work& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.code();
  }
  return ErrorCode::kInternal;
}

TEST_F(Stop, AnAnswerBeforeItsFirstToken) {
  Model model = Model::load(engine_), other = Model::load(engine_);
  Generator generator(model);
  GenerateOptions g;
  g.max_tokens = 8;
  const std::string prompt = "What colour is the sky?";
  for (int at : {1, 2, 30}) {
    Asked asked{at};
    GenerateOptions stopped = g;
    stopped.should_stop = asked.question();
    EXPECT_EQ(code_of([&] { generator.generate(prompt, stopped); }), ErrorCode::kCancelled);
    EXPECT_EQ(asked.calls, at);
    EXPECT_EQ(code_of([&] { generator.complete_many({prompt}, stopped); }), ErrorCode::kCancelled);
  }
  // What was read in part is read to its end by the next.
  EXPECT_EQ(generator.generate(prompt, g).text, Generator(other).generate(prompt, g).text);
}

TEST_F(Stop, AnAnswerBetweenTokens) {
  Model model = Model::load(engine_);
  Generator generator(model);
  generator.generate("Hi", {.max_tokens = 2});
  bool stop = false;
  const Generation cut = generator.generate(
      "What colour is the sky?",
      {.max_tokens = 100, .ignore_eos = true, .should_stop = [&] { return stop; }},
      [&](const std::string&) { return stop = true; });
  EXPECT_EQ(cut.finish_reason, "cancelled");
  EXPECT_LT(cut.generated_tokens, 100);
}

// A special token is no part of an answer's text, and ends it all the same where it is asked for.
TEST_F(Stop, ASpecialTokenAsText) {
  Model model = Model::load(engine_);
  Generator generator(model);
  const std::string special = "<|im_start|>";
  const std::optional<int32_t> id = model.tokenizer().id_of(special);
  ASSERT_TRUE(id && model.tokenizer().is_special(*id));
  GenerateOptions g;
  g.max_tokens = 4;
  g.ignore_eos = true;
  g.logit_bias[*id] = 1e4;
  EXPECT_EQ(generator.generate("Hi", g).finish_reason, "length");
  g.stop = {special};
  const Generation ended = generator.generate("Hi", g);
  EXPECT_EQ(ended.finish_reason, "stop");
  EXPECT_EQ(ended.generated_tokens, 0);
}

TEST_F(Stop, ManyAnswersBetweenTokens) {
  Model model = Model::load(engine_);
  Generator generator(model);
  std::vector<std::string> texts(20, "What colour is the sky?");
  size_t done = 0;
  bool stop = false;
  generator.complete_many(texts, {.max_tokens = 3, .should_stop = [&] { return stop; }}, true,
                          [&](size_t, const Generation&) {
                            ++done;
                            return stop = true;
                          });
  EXPECT_GT(done, 0u);
  EXPECT_LT(done, texts.size());
}

TEST_F(Stop, AnEvaluation) {
  auto loss = [&](Model& m, const EvalOptions& options) {
    const Dataset data = Dataset::load(m, (root_ / "data").string(), "valid");
    return evaluate(m, data, options).loss;
  };
  auto calls_until = [&](Model& model, int at) {
    Asked asked{at};
    EvalOptions options;
    options.should_stop = asked.question();
    const ErrorCode code = code_of([&] { loss(model, options); });
    EXPECT_EQ(code == ErrorCode::kCancelled, asked.calls >= at) << at;
    return asked.calls;
  };
  Model other = Model::load(engine_);
  const int all = calls_until(other, 1 << 30);
  EXPECT_GT(all, 3);
  for (int at : {1, all / 2, all}) {
    Model model = Model::load(engine_);
    EXPECT_EQ(calls_until(model, at), at);
    // What was read in part is read to its end by the next.
    EXPECT_EQ(loss(model, {}), loss(other, {})) << at;
  }
}

}  // namespace
}  // namespace wick
