// SPDX-License-Identifier: Apache-2.0
// Several adapters at once: each ends as its lone run does.
#include <filesystem>
#include <string>

#include "api/run_fixture.h"
#include "io/json.h"

namespace wick {
namespace {

class SweepTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    write_texts("data", 12, 4);
  }

  TrainOptions options(const std::string& name) const {
    TrainOptions o = run_options(name);
    o.epochs = 2;
    o.steps_per_eval = 2;
    o.save_every = 2;
    return o;
  }
  SweepResult sweep(const TrainOptions& base, const std::vector<std::string>& axes,
                    const std::vector<std::string>& data = {},
                    const SweepCallbacks& callbacks = {}) {
    Model model = Model::load(engine_, {.dtype = "f32"});
    return Sweep(model, expand_sweep(base, axes, data)).run(base.adapter_path, callbacks);
  }
  // The lone run of each adapter of a sweep, against its result there.
  void expect_lone(const SweepResult& joined, const TrainOptions& base,
                   const std::vector<std::string>& axes) {
    for (SweepAdapter& a : expand_sweep(base, axes, {})) {
      a.options.adapter_path = (root_ / "lone" / a.name).string();
      a.options.resume = false;
      Model model = Model::load(engine_, {.dtype = "f32"});
      const TrainResult lone = Trainer(model, a.options).run();
      for (const SweepEntry& e : joined.entries) {
        if (e.name != a.name) continue;
        ASSERT_EQ(e.result.history.size(), lone.history.size()) << a.name;
        // The same rows in a program of another size: sums of gradients are cut elsewhere, and
        // where kernels go by size every product is rounded in another order, forward too.
        auto bound = [&](double loss) {
          return engine_.device().name == "cpu" ? 1e-5 : 1e-5 * std::max(1.0, loss);
        };
        for (size_t i = 0; i < lone.history.size(); ++i)
          EXPECT_NEAR(e.result.history[i].loss, lone.history[i].loss, bound(lone.history[i].loss))
              << a.name << " " << i;
        EXPECT_NEAR(e.result.valid_loss, lone.valid_loss, bound(lone.valid_loss)) << a.name;
        ASSERT_FALSE(lone.history.empty());
        EXPECT_NEAR(e.result.history.back().preference.margin,
                    lone.history.back().preference.margin, 1e-4)
            << a.name;
      }
    }
  }
};

TEST_F(SweepTest, EachAdapterIsItsLoneRun) {
  const std::vector<std::string> axes = {"lr=5e-3,1e-2", "rank=2,4"};
  const SweepResult r = sweep(options("a"), axes);
  ASSERT_EQ(r.entries.size(), 4U);
  for (size_t i = 0; i + 1 < r.entries.size(); ++i)
    EXPECT_LE(r.entries[i].result.valid_loss, r.entries[i + 1].result.valid_loss);
  EXPECT_EQ(read_json(r.summary_path)["adapters"].size(), 4U);
  expect_lone(r, options("a"), axes);
}

// --val-split draws by the seed, so each has prompts of its own, and answers to them.
TEST_F(SweepTest, SeedsThatHoldOutOtherRowsAreAskedTheirOwnPrompts) {
  std::string rows;
  for (const char* word : {"red", "seven singers", "a", "Paris in June", "list all", "nine", "of",
                           "table", "count them", "why?"})
    rows += cat(R"({"messages":[{"role":"user","content":"Say )", word,
                R"("},{"role":"assistant","content":")", word, "\"}]}\n");
  write_data("data", rows, "");
  std::filesystem::remove(root_ / "data" / "valid.jsonl");
  TrainOptions o = options("a");
  o.epochs = 1;
  o.val_split = 3;
  std::string said;
  const SweepResult joined = sweep(
      o, {"seed=1,2"}, {}, {.on_message = [&](const std::string& line) { said += line + "\n"; }});
  EXPECT_NE(said.find("--val-split draws other rows"), std::string::npos) << said;
  for (const SweepEntry& e : joined.entries) {
    Model model = Model::load(engine_, {.dtype = "f32"});
    TrainOptions lone = o;
    lone.seed = e.name == "seed=1" ? 1 : 2;
    lone.adapter_path = (root_ / "lone" / e.name).string();
    const TrainResult alone = Trainer(model, lone).run();
    ASSERT_EQ(e.result.samples.size(), alone.samples.size());
    ASSERT_FALSE(alone.samples.empty());
    for (size_t i = 0; i < alone.samples.size(); ++i) {
      EXPECT_EQ(e.result.samples[i].prompt, alone.samples[i].prompt);
      EXPECT_EQ(e.result.samples[i].before, alone.samples[i].before) << e.name << " " << i;
    }
  }
}

TEST_F(SweepTest, EveryKindOfAdapterIsItsLoneRun) {
  auto expect = [&](const char* name, auto&& change) {
    SCOPED_TRACE(name);
    TrainOptions o = options(name);
    o.epochs = 1;
    change(o);
    const std::vector<std::string> axes = {"rank=2,4"};
    expect_lone(sweep(o, axes), o, axes);
  };
  expect("plus", [](TrainOptions& o) { o.lora_plus_ratio = 8; });
  expect("dora", [](TrainOptions& o) { o.dora = true; });
  expect("pissa", [](TrainOptions& o) { o.init = "pissa"; });
  expect("ends", [](TrainOptions& o) { o.targets = {"q_proj", "embed_tokens", "lm_head"}; });
  expect("wholes", [](TrainOptions& o) {
    o.modules_to_save = {"embed_tokens", "lm_head", "norm", "q_norm", "input_layernorm"};
  });
  expect("tokens", [](TrainOptions& o) { o.trainable_token_indices = {5, 17, 300}; });
}

// Each has logits, rows or norms that the others do not have.
TEST_F(SweepTest, AdaptersOfTheEndsBesideOthers) {
  TrainOptions o = options("e");
  o.epochs = 1;
  o.num_layers = 2;
  const std::vector<std::string> axes = {
      "targets=q_proj,lm_head,embed_tokens+v_proj,lm_head+embed_tokens+down_proj"};
  expect_lone(sweep(o, axes), o, axes);
}

TEST_F(SweepTest, PreferencesAreThoseOfTheLoneRun) {
  std::string rows;
  for (int i = 0; i < 13; ++i) {
    std::string words;
    for (int k = 0; k < 2 + 5 * (i % 3); ++k) words += cat(" ", i * 31 + k);
    rows += cat(R"({"prompt":"Say number )", i, R"(","chosen":"number)", words,
                R"(","rejected":"I do not know)", words.substr(0, words.size() / 2), "\"}\n");
  }
  write_data("data", rows, rows.substr(0, rows.find('\n', 300) + 1));
  for (const char* loss : {"dpo", "simpo", "orpo", "kto"}) {
    SCOPED_TRACE(loss);
    TrainOptions o = options(loss);
    o.loss = loss;
    o.num_layers = 3;
    const std::vector<std::string> axes = {"rank=2,4"};
    const SweepResult r = sweep(o, axes);
    ASSERT_EQ(r.entries.size(), 2U);
    for (const SweepEntry& e : r.entries) {
      EXPECT_EQ(e.error, "");
      EXPECT_TRUE(e.result.history.back().preference.present);
    }
    expect_lone(r, o, axes);
    if (o.loss != "kto") continue;
    // Stopped and gone on with.
    TrainOptions half = o;
    half.adapter_path = (root_ / cat("half_", loss)).string();
    int asked = 0;
    EXPECT_TRUE(sweep(half, axes, {}, {.should_stop = [&] { return ++asked > 2; }}).interrupted);
    half.resume = true;
    sweep(half, axes);
    for (const SweepEntry& e : r.entries)
      EXPECT_EQ(bytes(cat("half_", loss, "/", e.name, "/adapter_model.safetensors")),
                bytes(cat(loss, "/", e.name, "/adapter_model.safetensors")))
          << e.name;
  }
}

TEST_F(SweepTest, DistillationIsThatOfTheLoneRun) {
  TrainOptions o = options("distill");
  o.loss = "distill";
  o.teacher = std::string(WICK_SOURCE_DIR) + "/models/tiny";
  o.distill_alpha = 0.7;
  o.distill_temperature = 1.5;
  o.targets = {"q_proj", "embed_tokens"};
  const std::vector<std::string> axes = {"rank=2,4", "lr=5e-3,1e-2"};
  const SweepResult r = sweep(o, axes);
  ASSERT_EQ(r.entries.size(), 4U);
  expect_lone(r, o, axes);
}

// Each with logits of its own.
TEST_F(SweepTest, DistillationOfHeadsIsThatOfTheLoneRun) {
  auto expect = [&](const char* name, auto&& change) {
    SCOPED_TRACE(name);
    TrainOptions o = options(name);
    o.loss = "distill";
    o.teacher = std::string(WICK_SOURCE_DIR) + "/models/tiny";
    o.epochs = 1;
    change(o);
    const std::vector<std::string> axes = {"rank=2,4"};
    expect_lone(sweep(o, axes), o, axes);
  };
  expect("head", [](TrainOptions& o) { o.targets = {"q_proj", "lm_head"}; });
  expect("tokens", [](TrainOptions& o) { o.trainable_token_indices = {5, 17, 300}; });
  expect("whole", [](TrainOptions& o) { o.modules_to_save = {"lm_head"}; });
}

TEST_F(SweepTest, MagnitudesBesideOtherTargets) {
  TrainOptions o = options("d");
  o.epochs = 1;
  o.dora = true;
  const std::vector<std::string> axes = {"targets=q_proj+down_proj,v_proj"};
  expect_lone(sweep(o, axes), o, axes);
  o.adapter_path = (root_ / "dropped").string();
  o.dropout = 0.1;
  expect_lone(sweep(o, axes), o, axes);
}

// Their states are not one number for each parameter.
TEST_F(SweepTest, OptimizersThatKeepOtherNumbersStopAndResume) {
  for (const char* optimizer : {"adafactor", "adamw_8bit"}) {
    SCOPED_TRACE(optimizer);
    TrainOptions o = options(cat("whole_", optimizer));
    o.optimizer = optimizer;
    const std::vector<std::string> axes = {"lr=5e-3,1e-2", "rank=3,4"};
    const SweepResult whole = sweep(o, axes);
    expect_lone(whole, o, axes);
    TrainOptions half = o;
    half.adapter_path = (root_ / cat("half_", optimizer)).string();
    int asked = 0;
    EXPECT_TRUE(sweep(half, axes, {}, {.should_stop = [&] { return ++asked > 4; }}).interrupted);
    half.resume = true;
    sweep(half, axes);
    for (const SweepEntry& e : whole.entries)
      EXPECT_EQ(bytes(cat("half_", optimizer, "/", e.name, "/adapter_model.safetensors")),
                bytes(cat("whole_", optimizer, "/", e.name, "/adapter_model.safetensors")));
  }
}

TEST_F(SweepTest, KeptRowsDoNotChangeABit) {
  write_texts("more", 16, 3);
  for (const std::string& cache : {std::string("off"), std::string("memory")}) {
    TrainOptions o = options("kept_" + cache);
    o.num_layers = 3;
    o.prefix_cache = cache;
    const SweepResult r =
        sweep(o, {"rank=2,4"}, {(root_ / "data").string(), (root_ / "more").string()});
    ASSERT_EQ(r.entries.size(), 4U);
  }
  for (const char* name : {"data_rank=2", "data_rank=4", "more_rank=2", "more_rank=4"})
    EXPECT_EQ(bytes(cat("kept_off/", name, "/adapter_model.safetensors")),
              bytes(cat("kept_memory/", name, "/adapter_model.safetensors")))
        << name;
}

TEST_F(SweepTest, OtherTargetsSeedsAndDropout) {
  TrainOptions o = options("b");
  o.epochs = 1;
  const std::vector<std::string> axes = {"targets=q_proj+v_proj,all-linear", "dropout=0,0.2"};
  expect_lone(sweep(o, axes), o, axes);
}

TEST_F(SweepTest, DataSetsOfOtherSizesAndAResume) {
  write_texts("more", 20, 4);
  TrainOptions o = options("c");
  const std::vector<std::string> data = {(root_ / "data").string(), (root_ / "more").string()};
  int asked = 0;
  SweepResult r = sweep(o, {}, data, {.should_stop = [&] { return ++asked > 3; }});
  EXPECT_TRUE(r.interrupted);
  o.resume = true;
  r = sweep(o, {}, data);
  EXPECT_FALSE(r.interrupted);
  // Packs are as large as the data set that wants the largest has them, so sums are cut elsewhere.
  for (SweepAdapter& a : expand_sweep(o, {}, data)) {
    a.options.adapter_path = (root_ / "lone" / a.name).string();
    a.options.resume = false;
    Model model = Model::load(engine_, {.dtype = "f32"});
    const TrainResult lone = Trainer(model, a.options).run();
    for (const SweepEntry& e : r.entries) {
      if (e.name != a.name) continue;
      EXPECT_EQ(e.result.steps, lone.steps) << a.name;
      EXPECT_NEAR(e.result.final_loss, lone.final_loss, 1e-5) << a.name;
      EXPECT_NEAR(e.result.valid_loss, lone.valid_loss, 1e-5) << a.name;
    }
  }
}

// As a single run: what was killed before its first checkpoint begins again.
TEST_F(SweepTest, ResumeBeforeTheFirstCheckpoint) {
  TrainOptions o = options("early");
  o.epochs = 1;
  o.resume = true;
  EXPECT_NE(message_of([&] { sweep(o, {"rank=2,4"}); }).find("leave --resume out"),
            std::string::npos);
  make_folder(root_ / "early" / "rank=4");
  for (const SweepEntry& e : sweep(o, {"rank=2,4"}).entries) EXPECT_EQ(e.result.steps, 3) << e.name;
}

TEST_F(SweepTest, AnAdapterThatDivergesLeavesTheOthersAlone) {
  TrainOptions o = options("d");
  o.grad_clip = 0;
  o.lr_schedule = "constant";
  o.warmup = 0;
  const SweepResult r = sweep(o, {"lr=5e-3,9"});
  ASSERT_EQ(r.entries.size(), 2U);
  EXPECT_EQ(r.entries[0].name, "lr=5e-3");
  EXPECT_EQ(r.entries[0].error, "");
}

TEST_F(SweepTest, WrongAxesAreNamed) {
  auto message = [&](const std::string& axis) {
    try {
      expand_sweep(options("x"), {axis}, {});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message("rnak=1,2").find("did you mean rank"), std::string::npos);
  EXPECT_NE(message("rank=1,x").find("\"x\" is no number"), std::string::npos);
  EXPECT_NE(message("rank").find("wanted key=value"), std::string::npos);
  EXPECT_NE(message("rank=2,2").find("two adapters would be called rank=2"), std::string::npos);
}

// An adapter's folder is in that of the sweep, whatever its data is called.
TEST_F(SweepTest, NamesOfDataSetsAreNamesOfFolders) {
  std::filesystem::create_directories(root_ / "rows.v1" / "deep");
  std::filesystem::create_directories(root_ / "rows.v2");
  auto names = [&](const std::vector<std::string>& data) {
    std::vector<std::string> all;
    for (const SweepAdapter& a : expand_sweep(options("x"), {}, data)) all.push_back(a.name);
    return all;
  };
  using Names = std::vector<std::string>;
  const std::string root = root_.string();
  EXPECT_EQ(names({root + "/rows.v1", root + "/rows.v2/"}), (Names{"rows.v1", "rows.v2"}));
  EXPECT_EQ(names({root + "/rows.v1/deep/..", root + "/rows.v2/."}), (Names{"rows.v1", "rows.v2"}));
  EXPECT_EQ(names({root + "/one.jsonl", root + "/...jsonl"}), (Names{"one", "data"}));
  for (const std::string& name : names({".", ".."})) EXPECT_NE(name.front(), '.') << name;
}

// Before the first update nothing is kept; whenever it is, nothing is written.
TEST_F(SweepTest, GivenUpBeforeTheFirstUpdateNothingIsDone) {
  TrainOptions base = options("given_up");
  base.epochs = 10000;
  for (int at : {1, 2, 5, 20, 60}) {
    int asked = 0;
    SweepCallbacks callbacks;
    callbacks.should_give_up = callbacks.should_stop = [&] { return ++asked >= at; };
    const SweepResult r = sweep(base, {"lr=1e-3,5e-3"}, {}, callbacks);
    EXPECT_TRUE(r.interrupted) << at;
    if (!r.entries.empty()) {  // the updates had begun
      for (const SweepEntry& e : r.entries) EXPECT_LE(e.result.steps, 2) << at;
      continue;
    }
    EXPECT_TRUE(r.summary_path.empty());
    EXPECT_FALSE(std::filesystem::exists(root_ / "given_up")) << at;
  }
}

}  // namespace
}  // namespace wick
