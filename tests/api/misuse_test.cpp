// SPDX-License-Identifier: Apache-2.0
// A caller's mistakes: each ends in a wick::Error that says so, and nothing is lost by it.
#include <limits>
#include <optional>
#include <thread>

#include "api/run_fixture.h"

namespace wick {
namespace {

class Misuse : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    write_data("data", kChatRow + kChatRow + kChatRow, kChatRow);
  }
};

// The code of the Error that `work` throws; none where it throws nothing. Anything else fails.
template <typename Work>
std::optional<ErrorCode> thrown(const Work& work) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_STRNE(e.what(), "");
    return e.code();
  }
  return std::nullopt;
}

TEST_F(Misuse, WhatWasMovedFromSaysSo) {
  constexpr auto kWrong = ErrorCode::kInvalidArgument;
  Model model = Model::load(engine_);
  Generator generator(model);
  Dataset data = Dataset::load(model, (root_ / "data").string(), "train");
  Trainer trainer(model, run_options("out"));
  Tokenizer tokenizer = Tokenizer::from_json(
      R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":null})");
  StreamDecoder decoder(tokenizer);
  Sweep sweep(model, expand_sweep(run_options("sweep"), {"lr=1e-3,1e-4"}, {}));

  Generator other_generator = std::move(generator);
  EXPECT_EQ(thrown([&] { generator.generate("x"); }), kWrong);
  EXPECT_EQ(thrown([&] { generator.complete_many({"x"}); }), kWrong);
  Dataset other_data = std::move(data);
  EXPECT_EQ(thrown([&] { data.size(); }), kWrong);
  EXPECT_EQ(thrown([&] { evaluate(model, data); }), kWrong);
  Trainer other_trainer = std::move(trainer);
  EXPECT_EQ(thrown([&] { trainer.run(); }), kWrong);
  EXPECT_EQ(thrown([&] { trainer.forecast(); }), kWrong);
  StreamDecoder other_decoder = std::move(decoder);
  EXPECT_EQ(thrown([&] { decoder.push(0); }), kWrong);
  Tokenizer other_tokenizer = std::move(tokenizer);
  EXPECT_EQ(thrown([&] { tokenizer.encode_ids("a", true); }), kWrong);
  EXPECT_EQ(thrown([&] { StreamDecoder{tokenizer}; }), kWrong);
  Sweep other_sweep = std::move(sweep);
  EXPECT_EQ(thrown([&] { sweep.run((root_ / "sweep").string()); }), kWrong);
  EXPECT_EQ(other_generator.generate("x").finish_reason, "stop");
  EXPECT_EQ(other_decoder.push(0), "a");

  Model other_model = std::move(model);
  EXPECT_EQ(thrown([&] { model.info(); }), kWrong);
  EXPECT_EQ(thrown([&] { model.attach_adapter("x"); }), kWrong);
  EXPECT_EQ(thrown([&] { Generator{model}; }), kWrong);
  EXPECT_EQ(thrown([&] { Trainer(model, run_options("out")); }), kWrong);
  Engine other_engine = std::move(engine_);
  EXPECT_EQ(thrown([&] { engine_.device(); }), kWrong);
  EXPECT_EQ(thrown([&] { Model::load(engine_); }), kWrong);
  // And may be given something new.
  engine_ = Engine(test_device());
  EXPECT_FALSE(engine_.device().name.empty());
}

TEST_F(Misuse, AnEvaluationNamesTheOptionThatIsWrong) {
  Model model = Model::load(engine_);
  const Dataset data = Dataset::load(model, (root_ / "data").string(), "train");
  for (const auto& [options, name] : {std::pair{EvalOptions{.batch_size = 0}, "--batch-size is 0"},
                                      {EvalOptions{.max_tokens = 0}, "--max-tokens is 0"}}) {
    try {
      evaluate(model, data, options);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
}

// What is made from an object keeps what it needs of it: moves, replacements and ends in any order
// are all the same to it.
TEST_F(Misuse, ObjectsMoveAndEndInAnyOrder) {
  Model model = Model::load(engine_);
  const GenerateOptions few = {.max_tokens = 6};
  const std::string answer = Generator(model).generate("x", few).text;

  Engine moved = std::move(engine_);
  EXPECT_EQ(Generator(model).generate("x", few).text, answer);
  EXPECT_EQ(model.engine().device().name, moved.device().name);
  Generator generator(model);
  EXPECT_EQ(generator.generate("x", few).text, answer);
  std::vector<Model> models;
  models.push_back(std::move(model));
  for (int i = 0; i < 4; ++i) models.push_back(Model::load(moved));  // which moves the first one
  EXPECT_EQ(generator.generate("x", few).text, answer);

  const Dataset data = Dataset::load(models.front(), (root_ / "data").string(), "train");
  Trainer trainer(models.front(), run_options("out"));
  Sweep sweep(models.front(), expand_sweep(run_options("sweep"), {"lr=1e-3,1e-4"}, {}));
  models.front() = Model::load(moved);
  moved = Engine(test_device());
  models.clear();
  EXPECT_EQ(generator.generate("x", few).text, answer);
  EXPECT_FALSE(data.row(0).tokens.empty());
  EXPECT_GT(trainer.run().steps, 0);
  EXPECT_GT(sweep.run((root_ / "sweep").string()).entries.front().result.steps, 0);
  EXPECT_NE(generator.generate("x", few).text, "");
}

// A text is made in its generator's cache, which a callback must not have made anew.
TEST_F(Misuse, GeneratorAskedByItsOwnCallback) {
  Model model = Model::load(engine_);
  Generator generator(model), other(model);
  const GenerateOptions few = {.max_tokens = 12};
  const std::string answer = generator.generate("Who lives in the forest?", few).text;
  const std::string inner = other.generate("x", few).text;

  std::optional<ErrorCode> refused, refused_many;
  std::string told;
  auto ask = [&](const std::string&) {
    refused = thrown([&] { generator.generate("x", few); });
    told = other.generate("x", few).text;
    return true;
  };
  EXPECT_EQ(generator.generate("Who lives in the forest?", few, ask).text, answer);
  EXPECT_EQ(refused, ErrorCode::kInvalidArgument);
  EXPECT_EQ(told, inner);
  const std::vector<std::string> texts(20, "Who");
  EXPECT_EQ(generator
                .complete_many(texts, few, true,
                               [&](size_t, const Generation&) {
                                 refused_many = thrown([&] { generator.generate("x", few); });
                                 return true;
                               })
                .size(),
            texts.size());
  EXPECT_EQ(refused_many, ErrorCode::kInvalidArgument);
  EXPECT_EQ(generator.generate("Who lives in the forest?", few).text, answer);
}

TEST_F(Misuse, NumbersThatAreNone) {
  Model model = Model::load(engine_);
  Generator generator(model);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto refuses = [&](auto change, int line = __builtin_LINE()) {
    GenerateOptions o;
    change(o);
    EXPECT_EQ(thrown([&] { generator.generate("x", o); }), ErrorCode::kInvalidArgument) << line;
  };
  refuses([&](GenerateOptions& o) { o.max_tokens = -1; });
  refuses([&](GenerateOptions& o) { o.temperature = nan; });
  refuses([&](GenerateOptions& o) { o.temperature = -1; });
  refuses([&](GenerateOptions& o) { o.top_p = nan; });
  refuses([&](GenerateOptions& o) { o.top_k = -2; });
  refuses([&](GenerateOptions& o) { o.top_k = -(int64_t{1} << 32); });
  refuses([&](GenerateOptions& o) { o.repetition_context = -(int64_t{1} << 32); });
  refuses([&](GenerateOptions& o) { o.repetition_penalty = nan; });
  refuses([&](GenerateOptions& o) { o.presence_penalty = nan; });
  refuses([&](GenerateOptions& o) { o.logit_bias = {{-1, 1.0}}; });
  refuses([&](GenerateOptions& o) { o.logit_bias = {{1 << 30, 1.0}}; });
  refuses([&](GenerateOptions& o) { o.logit_bias = {{1, nan}}; });
  refuses([&](GenerateOptions& o) { o.extra_eos_tokens = {"no such token"}; });
  EXPECT_TRUE(generator.complete_many({}).empty());
  try {
    generator.complete_many({"x", "", "y"});
    ADD_FAILURE() << "an empty text";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("text 1 (from 0): the prompt is empty"), std::string::npos)
        << e.what();
  }
  GenerateOptions most;
  most.max_tokens = most.top_k = most.min_tokens_to_keep = std::numeric_limits<int64_t>::max();
  most.repetition_context = most.presence_context = most.frequency_context = most.top_k;
  EXPECT_EQ(generator.generate("x", most).finish_reason, "stop");
  EXPECT_EQ(generator.complete_many({"x", "y"}, most).size(), 2u);

  auto refuses_run = [&](auto change, int line = __builtin_LINE()) {
    TrainOptions o = run_options("out");
    change(o);
    EXPECT_EQ(thrown([&] { Trainer(model, o); }), ErrorCode::kInvalidArgument) << line;
  };
  refuses_run([&](TrainOptions& o) { o.batch_size = 0; });
  refuses_run([&](TrainOptions& o) { o.epochs = 0; });
  refuses_run([&](TrainOptions& o) { o.epochs = 1e18; });
  refuses_run([&](TrainOptions& o) { o.epochs = nan; });
  for (const int64_t rank : {int64_t{0}, int64_t{9'000'000'000'000'000}, INT64_MAX}) {
    refuses_run([&](TrainOptions& o) { o.rank = rank; });
    refuses_run([&](TrainOptions& o) { o.rank_pattern = {{"q_proj", rank}}; });
  }
  refuses_run([&](TrainOptions& o) { o.learning_rate = nan; });
  refuses_run([&](TrainOptions& o) { o.alpha = nan; });
  refuses_run([&](TrainOptions& o) { o.dropout = 1.5; });
  refuses_run([&](TrainOptions& o) { o.targets = {}; });
  refuses_run([&](TrainOptions& o) { o.targets = {"nobody"}; });
  refuses_run([&](TrainOptions& o) { o.num_layers = 1000; });
  refuses_run([&](TrainOptions& o) { o.steps_per_report = 0; });
  refuses_run([&](TrainOptions& o) { o.save_every = 0; });
  refuses_run([&](TrainOptions& o) { o.grad_accumulation_steps = -1; });
  refuses_run([&](TrainOptions& o) { o.val_split = nan; });
  refuses_run([&](TrainOptions& o) { o.weight_decay = nan; });
  refuses_run([&](TrainOptions& o) { o.grad_clip = nan; });
  refuses_run([&](TrainOptions& o) { o.warmup = nan; });
  refuses_run([&](TrainOptions& o) { o.beta = nan; });
  for (const char* loss : {"dpo", "simpo", "kto"})
    refuses_run([&](TrainOptions& o) {
      o.loss = loss;
      o.beta = 0;
    });
  refuses_run([&](TrainOptions& o) {
    o.loss = "dpo";
    o.beta = 1e-300;
  });
  refuses_run([&](TrainOptions& o) {
    o.loss = "kto";
    o.desirable_weight = o.undesirable_weight = 0;
  });
  refuses_run([&](TrainOptions& o) { o.memory_bytes = -5; });
  refuses_run([&](TrainOptions& o) { o.optimizer = "none"; });
  refuses_run([&](TrainOptions& o) { o.dataset.max_seq_length = 0; });
  refuses_run([&](TrainOptions& o) { o.data_sources = {{o.data, nan}}; });

  Dataset data = Dataset::load(model, (root_ / "data").string(), "train");
  EXPECT_EQ(thrown([&] { data.row(-1); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(thrown([&] { data.row(data.size()); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(thrown([&] { Sweep(model, {}); }), ErrorCode::kInvalidArgument);
  const std::vector<int32_t> odd = {-1, 1 << 30, 5};
  EXPECT_EQ(model.tokenizer().decode(odd), model.tokenizer().decode(std::vector<int32_t>{5}));
}

// A callback may wait for a thread that would like the engine too.
TEST_F(Misuse, JsonTextsThatAreNotWhatTheyShouldBe) {
  constexpr auto kWrong = ErrorCode::kInvalidArgument;
  Model model = Model::load(engine_);
  const std::string messages = R"([{"role": "user", "content": "x"}])";
  for (const char* text : {"[{", "", "{}", "3", "null", "\xff"})
    EXPECT_EQ(thrown([&] { model.render_chat_json(text); }), kWrong) << text;
  for (const char* text : {"[", "{}", R"({"a": 1})", "3", R"("x")"})
    EXPECT_EQ(thrown([&] { model.render_chat_json(messages, {.tools_json = text}); }), kWrong)
        << text;
  for (const char* text : {"{", "[]", "3"})
    EXPECT_EQ(thrown([&] { model.render_chat_json(messages, {.template_config_json = text}); }),
              kWrong)
        << text;
  EXPECT_EQ(model.render_chat_json(messages, {.tools_json = "[]"}),
            model.render_chat_json(messages));
}

TEST_F(Misuse, FullTrainingHasNoSettingsOfAdapters) {
  Model model = Model::load(engine_);
  auto refused = [&](auto&& set) {
    TrainOptions o = run_options("out");
    o.fine_tune_type = "full";
    set(o);
    return thrown([&] { Trainer(model, o); });
  };
  const auto kWrong = ErrorCode::kInvalidArgument;
  EXPECT_EQ(refused([](TrainOptions& o) { o.init_adapter = "elsewhere"; }), kWrong);
  EXPECT_EQ(refused([](TrainOptions& o) { o.rslora = true; }), kWrong);
  EXPECT_EQ(refused([](TrainOptions& o) { o.modules_to_save = {"lm_head"}; }), kWrong);
  EXPECT_EQ(refused([](TrainOptions& o) { o.layers_to_transform = {0}; }), kWrong);
  EXPECT_EQ(refused([](TrainOptions& o) { o.num_layers = 1; }), std::nullopt);
}

TEST_F(Misuse, OtherThreadsAreRefusedWhileOneTrains) {
  Model model = Model::load(engine_);
  Generator generator(model), own(model);
  std::optional<ErrorCode> code;
  int answers = 0;
  TrainCallbacks callbacks;
  callbacks.on_save = [&](const SaveReport&) {
    std::thread([&] { code = thrown([&] { generator.generate("Say red"); }); }).join();
    answers += !own.generate("Say red").tokens.empty();
  };
  Trainer(model, run_options("out")).run(callbacks);
  EXPECT_EQ(code, ErrorCode::kInvalidArgument);
  EXPECT_GT(answers, 0);
  EXPECT_EQ(thrown([&] { generator.generate("Say red"); }), std::nullopt);
}

struct Mine {};

TEST_F(Misuse, WhatACallbackThrowsComesThrough) {
  Model model = Model::load(engine_);
  Generator generator(model);
  const std::string text = generator.generate("Say red").text;
  EXPECT_THROW(generator.generate("Say red", {}, [](const std::string&) -> bool { throw Mine(); }),
               Mine);
  EXPECT_EQ(generator.generate("Say red").text, text);
  TrainCallbacks callbacks;
  callbacks.on_step = [](const StepReport&) { throw Mine(); };
  EXPECT_THROW(Trainer(model, run_options("out")).run(callbacks), Mine);
  // The folder is free again, and the model works.
  EXPECT_EQ(Trainer(model, run_options("out")).run().steps, 3);
  EXPECT_EQ(thrown([&] { generator.generate("Say red"); }), std::nullopt);
}

// A trainer that has run has other numbers than it began with.
TEST_F(Misuse, ATrainerRunsOnce) {
  Model model = Model::load(engine_);
  Trainer trainer(model, run_options("out"));
  TrainCallbacks nothing;
  nothing.should_give_up = [] { return true; };
  EXPECT_TRUE(trainer.run(nothing).interrupted);
  EXPECT_FALSE(trainer.run().interrupted);
  EXPECT_EQ(thrown([&] { trainer.run(); }), ErrorCode::kInvalidArgument);
}

// Threads with a generator each, on one model whose weights nobody has asked for before.
TEST_F(Misuse, SeveralThreadsOnOneModel) {
  Model first = Model::load(engine_), model = Model::load(engine_);
  const std::string wanted = Generator(first).generate("Say something long").text;
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::string& text : texts)
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) text = Generator(model).generate("Say something long").text;
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& text : texts) EXPECT_EQ(text, wanted);
}

}  // namespace
}  // namespace wick
