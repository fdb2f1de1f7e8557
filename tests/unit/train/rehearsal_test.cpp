// SPDX-License-Identifier: Apache-2.0
// A run that was tried before it begins is the same run; and what remains of one.
#include "train/rehearsal.h"

#include <gtest/gtest.h>

#include <numeric>

#include "model/config.h"
#include "train/pack_work.h"
#include "train/time_left.h"
#include "unit/train/small_model.h"

namespace wick {
namespace {

ExampleSet rows_of(std::initializer_list<int64_t> lengths) {
  std::vector<Example> rows;
  for (int64_t n : lengths) {
    Example e;
    for (int64_t i = 0; i < n; ++i) {
      e.ids.push_back(static_cast<int32_t>((7 * i + n) % 64));
      e.trained.push_back(i > n / 2);
    }
    e.full_length = n;
    rows.push_back(std::move(e));
  }
  return ExampleSet::from_examples(std::move(rows), "rows");
}

std::vector<Pack> packs_of(const ExampleSet& set, const PackLimits& limits) {
  std::vector<int64_t> all(static_cast<size_t>(set.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  return pack_rows(set, all, limits, 0, 0, true);
}

class RehearsalTest : public testing::TestWithParam<Op> {
 protected:
  RehearsalTest() {
    LoraOptions lora;
    lora.targets = {"q_proj", "down_proj"};
    lora.num_layers = 2;
    adapter_ = std::make_shared<Adapter>(Adapter::create(lora, adaptable_linears(config_)));
  }
  std::unique_ptr<TrainStep> step(bool split) {
    StepOptions o;
    o.limits = {64, 48};
    o.positions = 64;
    o.split_prefix = split;
    o.optimizer = GetParam();
    auto made = std::make_unique<TrainStep>(config_, weights_, train_adapter(*adapter_), o);
    const std::vector<int64_t> sizes = {32};
    made->add_sizes(weights_, sizes);
    made->compile(*backend_, weights_);
    made->set_params(adapter_->initial_params(3));
    return made;
  }

  ModelConfig config_ = small_model(3);
  ModelWeights weights_ = ModelWeights::random(config_, 0, DType::kF32);
  std::shared_ptr<Adapter> adapter_;
  std::unique_ptr<Backend> backend_ = open_backend({.device = "cpu", .threads = 2});
};

TEST_P(RehearsalTest, LeavesTheRunAsItWas) {
  const ExampleSet rows = rows_of({40, 9, 50, 20, 12});
  for (const auto& [split, whole] :
       {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    const std::unique_ptr<TrainStep> plain = step(split), tried = step(split);
    const std::vector<Pack> packs = packs_of(rows, plain->limits());
    ASSERT_GT(packs.size(), 1U);
    Rehearsal r;
    r.packs = packs;
    r.run_packs = whole ? 1000 : 10;
    if (whole) r.update_packs = {packs.size()};
    r.held_out = packs;
    r.train = &rows;
    r.hyper = AdamwSettings().hyper();
    const RunTimes times = rehearse(*tried, r);
    EXPECT_GT(times.update, 0);
    EXPECT_GT(times.eval, 0);
    EXPECT_EQ(times.prefix > 0, split);
    for (int i = 0; i < 3; ++i) {
      const Hyper hyper = AdamwSettings().hyper();
      const RunStep::Stepped a = plain->step(packs, 0.01f, {&hyper, 1}),
                             b = tried->step(packs, 0.01f, {&hyper, 1});
      EXPECT_EQ(a.loss, b.loss) << i;
      EXPECT_EQ(a.norm, b.norm) << i;
    }
    EXPECT_EQ(plain->params(), tried->params());
    for (size_t s = 0; s < plain->states().size(); ++s)
      EXPECT_EQ(plain->state(s), tried->state(s)) << plain->states()[s].name;
  }
}

// What is called last finds numbers that have moved; the run finds those before.
TEST_P(RehearsalTest, EndsWithWhatFollowsTheTrial) {
  const std::unique_ptr<TrainStep> tried = step(false);
  const ExampleSet rows = rows_of({40, 9});
  const std::vector<Pack> packs = packs_of(rows, tried->limits());
  const std::vector<float> start = tried->params();
  int calls = 0;
  Rehearsal r;
  r.packs = packs;
  r.train = &rows;
  r.hyper = AdamwSettings().hyper();
  r.then = [&](const std::vector<float>& params) {
    ++calls;
    EXPECT_NE(params, start);
  };
  rehearse(*tried, r);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(tried->params(), start);
}

TEST_P(RehearsalTest, WorkGrowsWithWhatAPackHolds) {
  const std::unique_ptr<TrainStep> s = step(false);
  auto of = [&](std::initializer_list<int64_t> lengths) {
    const std::vector<Pack> packs = packs_of(rows_of(lengths), s->limits());
    EXPECT_EQ(packs.size(), 1U);
    return pack_work(s->micro_plan(packs[0]), packs[0]);
  };
  // One program, more targets; the same slots, longer rows; a larger program.
  EXPECT_LT(of({8}), of({8, 8}));
  EXPECT_LT(of({9, 9, 9}), of({25}));
  EXPECT_LT(of({25}), of({60}));
  // All but attention and head is a program's own: half of it at least.
  EXPECT_GT(of({8}), 0.5 * of({30}));
}

TEST_P(RehearsalTest, RowsOfAPackAttendToThemselvesWithinTheWindow) {
  const std::unique_ptr<TrainStep> s = step(false);
  const std::vector<Pack> packs = packs_of(rows_of({9, 9}), s->limits());
  ASSERT_EQ(packs.size(), 1U);
  const int64_t tokens = packs[0].used_tokens / 2;
  const Filling pack = pack_filling(packs[0]), rows = token_filling(0, tokens, 2);
  for (int64_t window : {0, 1, 4, 100}) EXPECT_EQ(pack.attended(window), rows.attended(window));
  EXPECT_EQ(rows.attended(0), static_cast<double>(tokens * (tokens + 1)));
  EXPECT_EQ(rows.attended(1), static_cast<double>(2 * tokens));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, RehearsalTest, testing::Values(Op::kAdamw, Op::kLion));

TEST(TypicalPacks, AreSpreadOverAllAndTheMiddleComesFirst) {
  std::vector<Pack> packs(9);
  std::vector<const Pack*> all;
  for (size_t i = 0; i < packs.size(); ++i) {
    packs[i].used_tokens = 1;
    packs[i].slots = {{0, 1}};
    packs[i].begin = {0};
    packs[i].end = {static_cast<int32_t>((5 * i) % 9 + 1)};
    all.push_back(&packs[i]);
  }
  const std::vector<const Pack*> chosen = typical_packs(all, 3);
  ASSERT_EQ(chosen.size(), 3U);
  EXPECT_EQ(chosen[0]->end[0], 5);
  EXPECT_EQ(chosen[1]->end[0] + chosen[2]->end[0], 10);
  EXPECT_EQ(typical_packs({all[0]}, 3).size(), 1U);
}

TEST(SecondsAt, AFixedPartIsCountedOnce) {
  const double works[] = {1, 2, 4, 9};
  auto sum = [](const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); };
  const double fixed[] = {3, 3, 3, 3};
  EXPECT_NEAR(sum(seconds_at(4, fixed, works)), 12, 1e-12);
  const double in_proportion[] = {2, 4, 8, 18};
  EXPECT_NEAR(sum(seconds_at(4, in_proportion, works)), 32, 1e-12);
  EXPECT_NEAR(sum(seconds_at(6, in_proportion, works)), 48, 1e-12);
  const double both[] = {5, 7, 11, 21};
  for (double s : seconds_at(5, both, works)) EXPECT_NEAR(s, 13, 1e-12);
}

TEST(SecondsAt, NothingFallsBelowZeroOrFollowsAHiccup) {
  const double works[] = {1, 2, 3, 4, 5, 6, 7, 8};
  const double shrinking[] = {8, 7, 6, 5, 4, 3, 2, 1};
  const std::vector<double> same = seconds_at(100, shrinking, works);
  EXPECT_EQ(same, std::vector<double>(std::begin(shrinking), std::end(shrinking)));
  const double disturbed[] = {1, 1, 1, 1, 1, 1, 1, 99};
  EXPECT_EQ(seconds_at(16, disturbed, works).front(), 1);
  const double equal[] = {2, 2}, equal_works[] = {4, 4};
  EXPECT_EQ(seconds_at(8, equal, equal_works).front(), 4);
  EXPECT_TRUE(seconds_at(1, {}, {}).empty());
}

TEST(Spread, IsThatOfStretchesAndNotOfSingleTries) {
  // One try in four is late: every stretch has its share of those.
  std::vector<double> jitter;
  for (int i = 0; i < 64; ++i) jitter.push_back(i % 4 == 0 ? 0.2 : 0.1);
  const Spread even = spread_of(jitter, 1.0);
  EXPECT_NEAR(even.low, 1, 0.1);
  EXPECT_NEAR(even.high, 1, 0.1);
  // The processor is held back by half in the second half.
  std::vector<double> moods(10, 0.1);
  moods.insert(moods.end(), 10, 0.2);
  const Spread moved = spread_of(moods, 0.3);
  EXPECT_NEAR(moved.low, 0.1 / 0.15, 1e-9);
  EXPECT_NEAR(moved.high, 0.2 / 0.15, 1e-9);
  // One hiccup among many stretches is none.
  std::vector<double> hiccup(40, 0.1);
  hiccup[7] = 1.0;
  EXPECT_EQ(spread_of(hiccup, 0.1).high, 1);
  // One stretch has no range.
  EXPECT_EQ(spread_of(moods, 100).high, 1);
  EXPECT_EQ(spread_of({}, 1).low, 1);
}

TEST(TimeLeft, BeginsWithTheForecastAndEndsWithWhatIsMeasured) {
  TimeLeft left({.update = 2, .eval = 4, .save = 1});
  EXPECT_DOUBLE_EQ(left.seconds(0, 10, 2, 1), 20 + 8 + 1);
  for (int64_t i = 0; i < 200; ++i) left.update_took(i, 3);
  EXPECT_NEAR(left.seconds(200, 300, 0, 0), 300, 10);
  // The machine becomes twice as fast.
  for (int64_t i = 200; i < 300; ++i) left.update_took(i, 1.5);
  EXPECT_NEAR(left.seconds(300, 400, 0, 0), 150, 10);
}

TEST(TimeLeft, TheFirstEpochTakesMoreWhereRowsAreKept) {
  TimeLeft left({.update = 2, .prefix = 1, .prefix_updates = 5});
  EXPECT_DOUBLE_EQ(left.seconds(0, 10, 0, 0), 25);
  for (int64_t i = 0; i < 5; ++i) left.update_took(i, 3);
  EXPECT_NEAR(left.seconds(5, 10, 0, 0), 10, 1e-9);
}

TEST(TimeLeft, WithoutAForecastItIsWhatWasMeasured) {
  TimeLeft left({});
  EXPECT_EQ(left.seconds(0, 10, 3, 1), 0);
  left.update_took(0, 5);
  EXPECT_DOUBLE_EQ(left.seconds(1, 3, 0, 0), 10);
}

}  // namespace
}  // namespace wick
