// SPDX-License-Identifier: Apache-2.0
// The public interface on the embedded model: a run that is stopped and resumed, adapters at run
// time and merged.
#include <filesystem>
#include <string>

#include "api/run_fixture.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "train/checkpoint.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class Api : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    std::string rows, held_out;
    for (int i = 0; i < 24; ++i)
      rows += cat(R"({"messages":[{"role":"user","content":"Say the word )", "number", i,
                  R"("},{"role":"assistant","content":"number)", i, R"( it is"}]})", "\n");
    for (int i = 30; i < 34; ++i)
      held_out += cat(R"({"prompt":"Say the word number)", i, R"(","completion":"number)", i,
                      R"( it is"})", "\n");
    write_data("data", rows, held_out);
  }

  TrainOptions options(const std::string& name) const {
    TrainOptions o = run_options(name);
    o.iters = 8;
    o.dropout = 0.1;
    o.steps_per_report = 2;
    o.save_every = 3;
    return o;
  }
};

TEST_F(Api, AStoppedAndResumedRunEndsInTheSameBits) {
  Model model = Model::load(engine_);
  Trainer(model, options("whole")).run();

  Model other = Model::load(engine_);
  TrainCallbacks stop;
  int updates = 0;
  stop.should_stop = [&] { return ++updates == 5; };
  TrainResult half = Trainer(other, options("half")).run(stop);
  EXPECT_TRUE(half.interrupted);
  EXPECT_EQ(half.steps, 5);
  TrainOptions again = options("half");
  again.resume = true;
  Model third = Model::load(engine_);
  TrainResult rest = Trainer(third, again).run();
  EXPECT_EQ(rest.steps, 8);
  ASSERT_FALSE(rest.samples.empty());
  EXPECT_EQ(rest.samples[0].prompt, "Say the word number30");
  EXPECT_EQ(bytes("whole/adapter_model.safetensors"), bytes("half/adapter_model.safetensors"));

  again.learning_rate = 1e-3;
  std::string refused = message_of([&] { Trainer(third, again).run(); });
  EXPECT_NE(refused.find("learning_rate: was 0.005, is now 0.001"), std::string::npos) << refused;

  again = options("half");
  again.resume = true;
  std::string rows = read_file(root_ / "data/train.jsonl");
  rows.replace(rows.find("number3"), 7, "number5");
  write_file(root_ / "data/train.jsonl", rows);
  refused = message_of([&] { Trainer(third, again).run(); });
  EXPECT_NE(refused.find("data_fingerprint: was"), std::string::npos) << refused;
}

TEST_F(Api, AResumedRunKeepsItsDay) {
  const fs::path copy = root_ / "model";
  fs::copy(fs::path(WICK_SOURCE_DIR) / "models/tiny", copy);
  Json settings = read_json(copy / "tokenizer_config.json");
  settings["chat_template"] =
      "{{ strftime_now('%d %B %Y') }}\n" + settings["chat_template"].get<std::string>();
  write_file(copy / "tokenizer_config.json", dump_json(settings));
  auto run = [&](const TrainOptions& o, const TrainCallbacks& callbacks = {}) {
    Model model = Model::load(engine_, {.model = copy.string()});
    return Trainer(model, o).run(callbacks);
  };

  TrainOptions o = options("whole");
  o.dataset.date = "2026-01-02";
  run(o);
  o.adapter_path = (root_ / "half").string();
  run(o, {.should_stop = [] { return true; }});
  // Resumed on another day: the rows are those of the day the run was begun.
  o.resume = true;
  o.dataset.date = "";
  EXPECT_EQ(run(o).steps, 8);
  EXPECT_EQ(bytes("whole/adapter_model.safetensors"), bytes("half/adapter_model.safetensors"));
  o.dataset.date = "2026-01-03";
  std::string refused = message_of([&] { run(o); });
  EXPECT_NE(refused.find("date: was \"2026-01-02\", is now \"2026-01-03\""), std::string::npos)
      << refused;
}

TEST_F(Api, ACheckpointOfABuildThatComputesOtherwiseNeedsForce) {
  auto begin = [&] {
    Model model = Model::load(engine_);
    TrainCallbacks stop;
    stop.should_stop = [] { return true; };
    Trainer(model, options("half")).run(stop);
    std::optional<Checkpoint> c = load_checkpoint(root_ / "half");
    EXPECT_TRUE(c && c->run.contains(kOrder));
    return *c;
  };
  TrainOptions again = options("half");
  again.resume = true;
  auto resumed = [&](bool force) {
    Model model = Model::load(engine_);
    again.force = force;
    std::string said;
    const std::string failed = message_of([&] {
      Trainer(model, again).run({.on_message = [&](const std::string& line) { said += line; }});
    });
    return failed.empty() ? said : failed;
  };
  Checkpoint c = begin();
  c.run[kOrder]["numerics"] = kNumerics - 1;
  save_checkpoint(root_ / "half", c);
  std::string said = resumed(false);
  EXPECT_NE(said.find("computes this run otherwise"), std::string::npos) << said;
  EXPECT_NE(said.find("arithmetic"), std::string::npos) << said;
  EXPECT_NE(said.find("--force"), std::string::npos) << said;
  said = resumed(true);
  EXPECT_NE(said.find("not to the same bits"), std::string::npos) << said;

  c = begin();
  c.run.erase(kOrder);
  save_checkpoint(root_ / "half", c);
  said = resumed(false);
  EXPECT_NE(said.find("does not say how"), std::string::npos) << said;
}

// Also of what is computed from the weights before the first update; and a run may be resumed on
// another number of threads.
TEST_F(Api, OneAndTwoThreadsGiveTheSameBits) {
  for (const char* kind : {"default", "pissa"}) {
    for (int threads : {1, 2}) {
      Engine engine({.device = "cpu", .threads = threads});
      Model model = Model::load(engine);
      TrainOptions o = options(cat(kind, threads));
      o.init = kind;
      if (o.init == "pissa") o.optimizer = "muon";
      Trainer(model, o).run();
    }
    EXPECT_EQ(bytes(cat(kind, "1/adapter_model.safetensors")),
              bytes(cat(kind, "2/adapter_model.safetensors")));
  }
  Engine one({.device = "cpu", .threads = 1}), two({.device = "cpu", .threads = 2});
  Model model = Model::load(one);
  TrainOptions o = options("both");
  Trainer(model, o).run({.should_stop = [] { return true; }});
  o.resume = true;
  Model other = Model::load(two);
  Trainer(other, o).run();
  EXPECT_EQ(bytes("both/adapter_model.safetensors"), bytes("default1/adapter_model.safetensors"));
}

// In f32: rounded to bf16, sums that are cut elsewhere differ by its steps.
TEST_F(Api, MemoryAndPackingDoNotChangeWhatIsLearnt) {
  Model model = Model::load(engine_, {.dtype = "f32"});
  TrainOptions o = options("a");
  Trainer free_run(model, o);
  TrainResult packed = free_run.run();
  o.adapter_path = (root_ / "b").string();
  o.packing = false;
  Model second = Model::load(engine_, {.dtype = "f32"});
  TrainResult single = Trainer(second, o).run();
  EXPECT_NEAR(packed.final_loss, single.final_loss, 1e-4);
  EXPECT_NEAR(packed.valid_loss, single.valid_loss, 1e-4);

  o.packing = true;
  o.adapter_path = (root_ / "c").string();
  o.grad_checkpoint = true;
  Model third = Model::load(engine_, {.dtype = "f32"});
  Trainer recomputed(third, o);
  EXPECT_LT(recomputed.forecast().arena, free_run.forecast().arena);
  recomputed.run();
  EXPECT_EQ(bytes("a/adapter_model.safetensors"), bytes("c/adapter_model.safetensors"));

  o.grad_checkpoint = false;
  o.memory_bytes = recomputed.forecast().peak_bytes;
  EXPECT_TRUE(Trainer(third, o).forecast().recompute);
  o.memory_bytes = 1 << 20;
  EXPECT_NE(message_of([&] { Trainer(third, o); }).find("the smallest plan"), std::string::npos);
}

// A forecast is there to be looked at: who does not want the run then is not kept waiting.
TEST_F(Api, GivenUpBeforeTheFirstUpdateNothingIsDone) {
  for (bool after_forecast : {false, true}) {
    Model model = Model::load(engine_);
    TrainOptions o = options("given_up");
    o.iters = 100000;
    bool given_up = !after_forecast, looked = false;
    TrainCallbacks callbacks;
    callbacks.on_forecast = [&](const Forecast&) { given_up = true; };
    callbacks.on_eval = [&](const EvalReport&) { looked = true; };
    callbacks.should_give_up = [&] { return given_up; };
    const TrainResult r = Trainer(model, o).run(callbacks);
    EXPECT_TRUE(r.interrupted);
    EXPECT_EQ(r.steps, 0);
    EXPECT_TRUE(r.adapter_path.empty());
    EXPECT_FALSE(looked);
    EXPECT_FALSE(fs::exists(root_ / "given_up"));
  }
}

// Reading and packing the weights of a large model takes long enough to be stopped. The reference
// is not tried before the run, so that nothing else asks so often.
TEST_F(Api, GivenUpWhileWeightsAreReadNothingIsDone) {
  Engine plain({.device = "ref"});
  Model unread = Model::load(plain), model = Model::load(engine_), other = Model::load(engine_);
  TrainOptions o = options("unread");
  o.dora = true;
  for (Model* m : {&unread, &model})
    for (int at : {2, 40, 80}) {
      int asked = 0;
      bool forecast = false;
      const TrainResult r =
          Trainer(*m, o).run({.on_forecast = [&](const Forecast&) { forecast = true; },
                              .should_give_up = [&] { return ++asked >= at; }});
      EXPECT_TRUE(r.interrupted && !forecast) << at;
      EXPECT_FALSE(fs::exists(root_ / "unread"));
    }
  // What was read in part is read to its end by the next.
  o.iters = 2;
  EXPECT_EQ(losses(Trainer(model, o).run()), losses(Trainer(other, o).run()));
}

// At whatever moment a run is stopped, also in the middle of a look at the held-out rows, it ends
// in the same bits and has looked as often.
TEST_F(Api, StoppedAtALookItGoesOnThere) {
  auto wanted = [&](const std::string& name) {
    TrainOptions o = options(name);
    o.iters = 4;
    o.steps_per_eval = 2;
    o.keep_best = true;
    o.packing = false;  // a pack for each held-out row
    return o;
  };
  Model model = Model::load(engine_);
  const TrainResult whole = Trainer(model, wanted("whole")).run();
  ASSERT_EQ(whole.evals.size(), 3U);
  int stops = 0, in_looks = 0;
  for (int at = 1; at < 40; ++at) {
    fs::remove_all(root_ / "part");
    int asked = 0;
    TrainOptions o = wanted("part");
    Model other = Model::load(engine_);
    TrainResult r = Trainer(other, o).run({.should_stop = [&] { return ++asked == at; }});
    if (!r.interrupted) break;
    ++stops;
    in_looks += r.evals.size() < 1 + static_cast<size_t>(r.steps / 2);
    o.resume = true;
    r = Trainer(other, o).run();
    EXPECT_EQ(r.steps, 4) << at;
    EXPECT_EQ(r.evals.size(), whole.evals.size()) << at;
    EXPECT_EQ(r.evals.back().loss, whole.evals.back().loss) << at;
    EXPECT_EQ(bytes("whole/adapter_model.safetensors"), bytes("part/adapter_model.safetensors"));
  }
  EXPECT_GT(stops, 6);
  EXPECT_GT(in_looks, 4);
}

TEST_F(Api, AWarmUpThatIsLongerThanTheRunIsMentioned) {
  Model model = Model::load(engine_);
  auto lines_with = [&](double warmup) {
    TrainOptions o = options("warm");
    o.warmup = warmup;
    std::string lines;
    TrainCallbacks callbacks;
    callbacks.on_message = [&](const std::string& line) { lines += line + "\n"; };
    Trainer(model, o).run(callbacks);
    return lines;
  };
  const std::string said = "--warmup 100 is more than the run's updates: the rate rises over all 8";
  EXPECT_NE(lines_with(100).find(said), std::string::npos);
  EXPECT_EQ(lines_with(8).find("--warmup"), std::string::npos);
}

TEST_F(Api, MergedAndRunTimeAdapterGiveTheSameTextAndUnmergeTheBase) {
  Model model = Model::load(engine_);
  Trainer(model, options("adapter")).run();
  GenerateOptions g;
  g.max_tokens = 12;
  std::string at_run_time = Generator(model).generate("Say the word number3", g).text;

  for (bool reversible : {false, true}) {
    MergeOptions m;
    m.adapter_path = (root_ / "adapter").string();
    m.save_path = (root_ / (reversible ? "r" : "m")).string();
    m.reversible = reversible;
    MergeResult merged = merge_adapter(engine_, m);
    EXPECT_GT(merged.changed, 0);
    Model plain = Model::load(engine_, {.model = m.save_path});
    EXPECT_EQ(Generator(plain).generate("Say the word number3", g).text, at_run_time);

    std::string back = m.save_path + "_back";
    unmerge_adapter(m.save_path, back);
    SafetensorsSet base =
        SafetensorsSet::open(fs::path(WICK_SOURCE_DIR) / "models/tiny/model.safetensors");
    SafetensorsSet restored = SafetensorsSet::open(back);
    EXPECT_EQ(base.names(), restored.names());
    for (const std::string& name : base.names()) {
      auto a = base.find(name).bytes(), b = restored.find(name).bytes();
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
    }
  }
}

// PEFT writes a model's own table beside the adapter when it was resized or named.
TEST_F(Api, ATiedTableThatNothingChangedDoesNotHinderAMerge) {
  Model model = Model::load(engine_);
  Trainer(model, options("adapter")).run();
  const std::string table = "model.embed_tokens.weight";
  const SafetensorsSet base =
      SafetensorsSet::open(fs::path(WICK_SOURCE_DIR) / "models/tiny/model.safetensors");
  const SafetensorsSet::Found own = base.find(table);
  const fs::path file = root_ / "adapter/adapter_model.safetensors";
  const fs::path plain = root_ / "plain.safetensors";
  fs::copy_file(file, plain);
  auto merge_with = [&](std::vector<std::byte> copy) {
    const SafetensorsFile adapter(plain);
    SafetensorsWriter out(file);
    out.declare("base_model.model." + table, *own.info->dtype, own.info->shape);
    for (const TensorInfo& t : adapter.tensors()) out.declare(t.name, *t.dtype, t.shape);
    out.write("base_model.model." + table, copy);
    for (const TensorInfo& t : adapter.tensors()) out.write(t.name, adapter.bytes(t));
    out.commit();
    MergeOptions m;
    m.adapter_path = (root_ / "adapter").string();
    m.save_path = (root_ / "merged").string();
    return merge_adapter(engine_, m);
  };
  std::vector<std::byte> copy(own.bytes().begin(), own.bytes().end());
  const MergeResult merged = merge_with(copy);
  EXPECT_EQ(merged.tensors, static_cast<int64_t>(base.names().size()));
  // The table is not among what has changed, and stays as it was.
  const SafetensorsSet result = SafetensorsSet::open(root_ / "merged");
  const SafetensorsSet::Found now = result.find(table);
  EXPECT_TRUE(std::equal(copy.begin(), copy.end(), now.bytes().begin(), now.bytes().end()));
  EXPECT_EQ(bytes("merged/wick_merge.json").find(table), std::string::npos);
  copy[0] ^= std::byte{1};
  EXPECT_NE(message_of([&] { merge_with(copy); }).find("embed_tokens alone"), std::string::npos);
}

TEST_F(Api, ManyPromptsGetWhatTheyGetAlone) {
  Model model = Model::load(engine_);
  std::vector<std::string> texts;
  for (const char* word : {"red", "a", "seven birds", "What is the sky?", "one two three four"})
    texts.push_back(model.render_chat({{"user", cat("Repeat: ", word)}}));
  GenerateOptions g;
  g.max_tokens = 10;
  g.temperature = 0;
  std::vector<Generation> together = Generator(model).complete_many(texts, g, false);
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(together[i].text, Generator(model).complete(texts[i], g, {}, false).text);
}

TEST_F(Api, ACachedConversationAnswersAsAFreshOne) {
  Model model = Model::load(engine_);
  GenerateOptions g;
  g.max_tokens = 8;
  Generator kept(model);
  kept.chat({{"user", "What colour is the sky?"}}, g);
  std::vector<Message> longer = {{"user", "What colour is the sky?"},
                                 {"assistant", "The sky is blue."},
                                 {"user", "And the grass?"}};
  EXPECT_EQ(kept.chat(longer, g).text, Generator(model).chat(longer, g).text);
}

TEST_F(Api, FullTrainingWritesAModelThatLoads) {
  Model model = Model::load(engine_, {.random_weights = true, .seed = 7});
  TrainOptions o = options("full");
  o.fine_tune_type = "full";
  o.save_dtype = "bf16";
  TrainResult result = Trainer(model, o).run();
  EXPECT_LT(result.final_loss, result.first_loss);
  Model loaded = Model::load(engine_, {.model = o.adapter_path});
  EXPECT_EQ(loaded.info().weight_dtype, "bf16");
  GenerateOptions g;
  g.max_tokens = 4;
  g.ignore_eos = true;
  EXPECT_EQ(Generator(loaded).generate("Say", g).generated_tokens, 4);
}

}  // namespace
}  // namespace wick
