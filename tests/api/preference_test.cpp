// SPDX-License-Identifier: Apache-2.0
// Runs with losses of preferences and of distillation on the embedded model: they learn, stop and
// resume to the bit, and do not depend on packing.
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>

#include "api/run_fixture.h"
#include "io/json.h"

namespace wick {
namespace {

std::string pair_row(int i) {
  return cat(R"({"prompt":"Say the word number)", i, R"(","chosen":"number)", i,
             R"( it is","rejected":"I do not know that word, sorry"})", "\n");
}

class PreferenceRun : public RunTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    std::string rows, held_out;
    for (int i = 0; i < 13; ++i) rows += pair_row(i);
    if (GetParam() == "kto")
      for (int i = 20; i < 24; ++i)
        rows += cat(R"({"prompt":"Say the word number)", i, R"(","completion":"number)", i,
                    R"( it is","label":)", i % 2 == 0 ? "true" : "false", "}\n");
    for (int i = 30; i < 33; ++i) held_out += pair_row(i);
    if (GetParam() == "distill")
      for (std::string* text : {&rows, &held_out})
        for (size_t at; (at = text->find("\"chosen\"")) != std::string::npos;)
          text->replace(at, 8, "\"completion\"");
    write_data("data", rows, held_out);
  }

  TrainOptions options(const std::string& name) const {
    TrainOptions o = run_options(name);
    o.loss = GetParam();
    if (o.loss == "distill") o.teacher = std::string(WICK_SOURCE_DIR) + "/models/tiny";
    o.iters = 7;
    o.save_every = 3;
    return o;
  }
  TrainResult run(const TrainOptions& o, const TrainCallbacks& callbacks = {}) {
    Model model = Model::load(engine_, {.dtype = "f32"});
    return Trainer(model, o).run(callbacks);
  }
  std::string adapter(const std::string& name) const {
    return bytes(name + "/adapter_model.safetensors");
  }
};

TEST_P(PreferenceRun, TheReferenceCanBeGivenUp) {
  bool forecast = false;
  int asked = 0;
  TrainCallbacks callbacks;
  callbacks.on_forecast = [&](const Forecast&) { forecast = true; };
  // At the second question after the forecast: in the reference's rows, else in the first look.
  callbacks.should_give_up = [&] { return forecast && ++asked > 1; };
  TrainOptions o = options("given_up");
  o.packing = false;
  const TrainResult r = run(o, callbacks);
  EXPECT_TRUE(r.interrupted);
  EXPECT_EQ(r.steps, 0);
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(std::filesystem::exists(root_ / "given_up"));
}

TEST_P(PreferenceRun, LearnsAndResumesToTheBit) {
  const TrainResult whole = run(options("whole"));
  EXPECT_EQ(whole.steps, 7);
  EXPECT_LT(whole.history.back().loss, whole.history.front().loss);
  EXPECT_LT(whole.valid_loss, whole.first_valid_loss);
  const PreferenceReport &first = whole.evals.front().preference,
                         &last = whole.evals.back().preference;
  if (GetParam() == "distill") {
    EXPECT_FALSE(last.present);
  } else {
    EXPECT_TRUE(last.present);
    EXPECT_GT(last.margin, first.margin);
    EXPECT_EQ(last.accuracy, 1.0);
    EXPECT_TRUE(whole.history.back().preference.present);
  }
  if (GetParam() == "dpo") {
    // The start state is the reference.
    EXPECT_NEAR(whole.evals.front().loss, std::log(2.0), 1e-6);
    EXPECT_NEAR(first.chosen, 0, 1e-6);
  }

  int updates = 0;
  TrainOptions again = options("half");
  again.metrics = (root_ / "half.jsonl").string();
  const TrainResult half = run(again, {.should_stop = [&] { return ++updates == 4; }});
  EXPECT_TRUE(half.interrupted);
  again.resume = true;
  const TrainResult rest = run(again);
  EXPECT_EQ(rest.steps, 7);
  EXPECT_EQ(adapter("whole"), adapter("half"));
  EXPECT_EQ(rest.evals.front().preference.margin, first.margin);
  // A line for programs has the rewards of its update; so has a report of one update.
  std::istringstream lines(bytes("half.jsonl"));
  std::vector<Json> margins;
  for (std::string line; std::getline(lines, line);) {
    const Json event = parse_json(line, "half.jsonl");
    EXPECT_EQ(event.contains("margin"), GetParam() != "distill" && event["event"] != "saved")
        << line;
    if (event["event"] == "step") margins.push_back(event.value("margin", Json(0.0)));
  }
  ASSERT_EQ(margins.size(), whole.history.size());
  for (size_t i = 0; i < margins.size(); ++i)
    EXPECT_EQ(dump_json(margins[i]), dump_json(Json(whole.history[i].preference.margin)));
  // A loss that is not one of tokens has no perplexity.
  const bool of_tokens = GetParam() == "distill";
  for (const EvalReport& e : rest.evals) EXPECT_EQ(e.perplexity > 0, of_tokens);
  for (const char* file : {"half.jsonl", "half/report.html"})
    EXPECT_EQ(bytes(file).find("perplexity") != std::string::npos, of_tokens) << file;

  again.beta = 0.77;
  again.distill_alpha = 0.77;
  EXPECT_THROW(run(again), Error);
}

// A report is of all updates since the one before, also where a checkpoint lies between them.
TEST_P(PreferenceRun, AReportAcrossAResumeIsThatOfAWholeRun) {
  TrainOptions o = options("whole");
  o.steps_per_report = 3;
  const TrainResult whole = run(o);
  o.adapter_path = (root_ / "cut").string();
  int updates = 0;
  const TrainResult cut = run(o, {.should_stop = [&] { return ++updates == 5; }});
  EXPECT_TRUE(cut.interrupted);
  EXPECT_NE(cut.steps % 3, 0);
  o.resume = true;
  const TrainResult rest = run(o);
  ASSERT_EQ(rest.history.size(), whole.history.size());
  for (size_t i = 0; i < whole.history.size(); ++i) {
    const PreferenceReport &a = rest.history[i].preference, &b = whole.history[i].preference;
    EXPECT_EQ(a.present, b.present);
    for (auto member : {&PreferenceReport::chosen, &PreferenceReport::rejected,
                        &PreferenceReport::margin, &PreferenceReport::accuracy})
      EXPECT_EQ(dump_json(Json(a.*member)), dump_json(Json(b.*member))) << i;
  }
}

// Both by the probe and by trying the step.
TEST_P(PreferenceRun, TheForecastCountsWhatTheReferenceReads) {
  Model model = Model::load(engine_, {.dtype = "f32"});
  Trainer trainer(model, options("timed"));
  const Forecast before = trainer.forecast();
  Forecast tried;
  trainer.run({.on_forecast = [&](const Forecast& f) { tried = f; }});
  const bool asks = GetParam() == "dpo" || GetParam() == "kto";
  for (const Forecast& f : {before, tried}) {
    if (engine_.device().name == "ref") continue;
    EXPECT_EQ(f.prepare_ms > 0, asks);
    EXPECT_GT(f.step_ms, 0);
    EXPECT_GT(f.eval_ms, 0);
    EXPECT_GE(1e3 * f.total_seconds, f.prepare_ms + 7 * f.step_ms + 2 * f.eval_ms);
  }
}

TEST_P(PreferenceRun, KeptRowsDoNotChangeABit) {
  std::vector<double> wanted;
  for (const char* cache : {"off", "memory"}) {
    TrainOptions o = options(cat("kept_", cache));
    o.num_layers = 2;
    o.prefix_cache = cache;
    Model model = Model::load(engine_);
    Trainer trainer(model, o);
    EXPECT_EQ(trainer.forecast().prefix_blocks > 0, o.prefix_cache == "memory");
    const TrainResult r = trainer.run();
    if (o.prefix_cache == "off") wanted = losses(r);
    EXPECT_EQ(losses(r), wanted);
  }
  EXPECT_EQ(adapter("kept_off"), adapter("kept_memory"));
}

TEST_P(PreferenceRun, PackingDoesNotChangeWhatIsLearnt) {
  TrainOptions o = options("packed");
  const TrainResult packed = run(o);
  o.adapter_path = (root_ / "alone").string();
  o.packing = false;
  const TrainResult alone = run(o);
  ASSERT_EQ(packed.history.size(), alone.history.size());
  EXPECT_NEAR(packed.history[0].loss, alone.history[0].loss, 1e-5);
  for (size_t i = 0; i < packed.history.size(); ++i)
    EXPECT_NEAR(packed.history[i].loss, alone.history[i].loss, 1e-3) << i;
}

using DistillRun = PreferenceRun;
// The head itself, an adapter on it, rows of a tied one, and all of the model.
TEST_P(DistillRun, TrainsTheHeadToo) {
  auto expect = [&](const char* name, auto&& change) {
    for (const char* dtype : {"f32", "bf16"}) {
      SCOPED_TRACE(cat(name, " ", dtype));
      TrainOptions o = options(cat(name, dtype));
      o.learning_rate = 1e-2;
      change(o);
      Model model = Model::load(engine_, {.dtype = dtype});
      if (o.trainable_token_indices.size() > 0 && std::string(dtype) == "bf16") continue;
      const TrainResult r = Trainer(model, o).run();
      EXPECT_LT(r.history.back().loss, r.history.front().loss);
    }
  };
  expect("head", [](TrainOptions& o) { o.targets = {"lm_head"}; });
  expect("whole", [](TrainOptions& o) { o.modules_to_save = {"lm_head"}; });
  expect("tokens", [](TrainOptions& o) { o.trainable_token_indices = {5, 17, 300}; });
  expect("full", [](TrainOptions& o) {
    o.fine_tune_type = "full";
    o.learning_rate = 1e-3;
  });
  expect("blocks", [](TrainOptions& o) {
    o.fine_tune_type = "full";
    o.learning_rate = 1e-3;
    o.num_layers = 2;
  });
}

TEST_P(DistillRun, ATeachersHeadIsAsItsFileHasIt) {
  TrainOptions o = options("teacher_head");
  o.loss = "sft";
  o.teacher = "";
  o.targets = {"lm_head"};
  run(o);
  TrainOptions taught = options("taught");
  taught.teacher_adapter = o.adapter_path;
  const std::string refused = message_of([&] { run(taught); });
  EXPECT_NE(refused.find("wick merge"), std::string::npos) << refused;
}
// A model has nothing to learn from itself, in whichever form its device keeps the heads.
TEST_P(DistillRun, OfItselfStartsAtZero) {
  for (const char* dtype : {"f32", "bf16"}) {
    TrainOptions o = options(dtype);
    o.distill_alpha = 1;
    o.iters = 1;
    Model model = Model::load(engine_, {.dtype = dtype});
    EXPECT_EQ(Trainer(model, o).run().history[0].loss, 0.0) << dtype;
  }
}
// Kinds of adapter whose numbers come from the weights when the run starts, and of which the
// embedding's rows need more than is in an adapter's file.
using ReferencedRun = PreferenceRun;
TEST_P(ReferencedRun, TheStartStateIsTheReferenceOfEveryKind) {
  auto expect = [&](const std::string& name, auto&& change) {
    SCOPED_TRACE(name);
    TrainOptions o = options(name);
    o.iters = 1;
    change(o);
    const TrainResult r = run(o);
    const PreferenceReport &look = r.evals.front().preference, &step = r.history[0].preference;
    for (double reward : {look.chosen, look.rejected, step.chosen, step.rejected, step.divergence})
      EXPECT_NEAR(reward, 0, 1e-4);
    EXPECT_NEAR(r.history[0].loss, GetParam() == "kto" ? 0.5 : std::log(2.0), 1e-4);
  };
  expect("dora", [](TrainOptions& o) { o.dora = true; });
  expect("pissa", [](TrainOptions& o) { o.init = "pissa"; });
  expect("whole", [](TrainOptions& o) { o.modules_to_save = {"lm_head", "model.norm"}; });
  expect("tokens", [](TrainOptions& o) { o.trainable_token_indices = {5, 17, 300}; });
  TrainOptions trained = options("trained_tokens");
  trained.trainable_token_indices = {5, 17, 300};
  run(trained);
  for (const std::string& reference : {std::string("base"), trained.adapter_path})
    expect("from_tokens", [&](TrainOptions& o) {
      o.init_adapter = trained.adapter_path;
      o.reference = reference;
    });
}
INSTANTIATE_TEST_SUITE_P(Asked, ReferencedRun, testing::Values("dpo", "kto"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Whole, DistillRun, testing::Values("distill"));

INSTANTIATE_TEST_SUITE_P(Losses, PreferenceRun,
                         testing::Values("dpo", "simpo", "orpo", "kto", "distill"),
                         [](const auto& info) { return info.param; });

// Labels of single answers are no pairs, and an update may have but one kind of them.
TEST_F(RunTest, LabelsHaveNoAccuracy) {
  std::string good, bad;
  for (int i = 0; i < 4; ++i) {
    const std::string row = cat(R"({"prompt":"Say )", i, R"(","completion":")", i, R"(","label":)");
    good += row + "true}\n";
    bad += row + "false}\n";
  }
  write_data("data", good + bad, good + bad);
  TrainOptions o = run_options("run");
  o.loss = "kto";
  o.shuffle = false;
  o.iters = 3;
  o.steps_per_report = 3;
  o.metrics = (root_ / "run.jsonl").string();
  Model model = Model::load(engine_);
  const TrainResult r = Trainer(model, o).run();
  std::istringstream lines(bytes("run.jsonl"));
  std::vector<Json> steps;
  for (std::string line; std::getline(lines, line);)
    if (Json event = parse_json(line, "run.jsonl"); event["event"] == "step")
      steps.push_back(event);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_TRUE(steps[0]["rewards/chosen"].is_number() && steps[0]["rewards/rejected"].is_null());
  EXPECT_TRUE(steps[1]["rewards/chosen"].is_null() && steps[1]["rewards/rejected"].is_number());
  for (const Json& step : steps)
    EXPECT_TRUE(step["margin"].is_null() && step["accuracy"].is_null()) << step;
  // Since the report of the first update there were both.
  const PreferenceReport& both = r.history.back().preference;
  EXPECT_TRUE(std::isfinite(both.margin) && std::isnan(both.accuracy));
  EXPECT_EQ(bytes("run/report.html").find("accuracy"), std::string::npos);
  EXPECT_NE(bytes("run/report.html").find("margin of rewards"), std::string::npos);

  // A run that is over resumes into what its checkpoint says of it.
  o.resume = true;
  const TrainResult again = Trainer(model, o).run();
  EXPECT_EQ(again.history.back().preference.margin, both.margin);
  EXPECT_TRUE(std::isnan(again.history.back().preference.accuracy));
}

// KTO also asks for the answer of another row, behind which no row is as long as the two together.
TEST_F(RunTest, DivergenceOfAnswersLongerThanAnyRow) {
  auto row = [](int prompt, int completion) {
    std::string words[2];
    for (int i = 0; i < prompt; ++i) words[0] += cat(" word ", i);
    for (int i = 0; i < completion; ++i) words[1] += cat(" number ", i);
    return cat(R"({"prompt":")", words[0], R"(","completion":")", words[1], R"(","label":true})",
               "\n");
  };
  const std::string rows = row(16, 2) + row(2, 16), longer = row(30, 30);
  write_data("data", rows, rows);
  write_data("longer", rows, longer);
  TrainResult results[2];
  for (const bool has_longer : {false, true}) {
    TrainOptions o = run_options(has_longer ? "two" : "one");
    if (has_longer) o.data = (root_ / "longer").string();
    o.loss = "kto";
    o.batch_size = 2;
    o.iters = 4;
    o.steps_per_eval = 0;
    Model model = Model::load(engine_, {.dtype = "f32"});
    results[has_longer] = Trainer(model, o).run();
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(results[0].history[i].loss, results[1].history[i].loss, 1e-5) << i;
    EXPECT_NEAR(results[0].history[i].preference.divergence,
                results[1].history[i].preference.divergence, 1e-3)
        << i;
  }
  EXPECT_GT(results[0].history[3].preference.divergence, 0.01);
}

}  // namespace
}  // namespace wick
