// SPDX-License-Identifier: Apache-2.0
#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "base/rng.h"
#include "wick/error.h"

namespace wick {
namespace {

using Filter = std::function<void(std::vector<TokenWeight>&)>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The distribution that a filter leaves of another.
std::vector<float> filtered(const std::vector<float>& probabilities, const Filter& filter) {
  std::vector<TokenWeight> candidates;
  for (size_t i = 0; i < probabilities.size(); ++i)
    candidates.push_back({static_cast<int32_t>(i), probabilities[i]});
  filter(candidates);
  float sum = 0;
  for (const TokenWeight& c : candidates) sum += c.weight;
  std::vector<float> result(probabilities.size(), 0.0f);
  for (const TokenWeight& c : candidates) result[static_cast<size_t>(c.id)] = c.weight / sum;
  return result;
}

Filter top_k(int k) {
  return [=](auto& c) { keep_top_k(c, k); };
}
Filter top_p(float p, int keep = 1) {
  return [=](auto& c) { keep_top_p(c, p, keep); };
}
Filter min_p(float p, int keep = 1) {
  return [=](auto& c) { keep_min_p(c, p, keep); };
}
Filter xtc(float threshold, std::vector<int32_t> spared = {}) {
  return [=](auto& c) { drop_top_choices(c, threshold, spared); };
}

void expect_near(const std::vector<float>& got, const std::vector<float>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-4) << "token " << i;
}

TEST(Filters, TopP) {
  std::vector<float> a = {.9f, 0, 0, .1f}, b = {0, .5f, .4f, .1f};
  expect_near(filtered(a, top_p(.3f)), {1, 0, 0, 0});
  expect_near(filtered(a, top_p(.95f)), a);
  expect_near(filtered(b, top_p(.4f)), {0, 1, 0, 0});
  expect_near(filtered(b, top_p(.6f)), {0, .5556f, .4444f, 0});
  expect_near(filtered(b, top_p(.95f)), b);
  expect_near(filtered(b, top_p(1)), b);
  expect_near(filtered(a, top_p(.3f, 2)), a);
}

TEST(Filters, MinP) {
  std::vector<float> a = {.9f, 0, 0, .1f};
  expect_near(filtered(a, min_p(.8f)), {1, 0, 0, 0});
  expect_near(filtered(a, min_p(.05f)), a);
  expect_near(filtered(a, min_p(.8f, 2)), a);
}

TEST(Filters, TopK) {
  expect_near(filtered({.6f, 0, .1f, .3f}, top_k(2)), {.6667f, 0, 0, .3333f});
  expect_near(filtered({.6f, 0, .1f, .3f}, top_k(0)), {.6f, 0, .1f, .3f});
  expect_near(filtered({.6f, 0, .1f, .3f}, top_k(9)), {.6f, 0, .1f, .3f});
  expect_near(filtered({.25f, .25f, .25f, .25f}, top_k(3)), {.3333f, .3333f, .3333f, 0});
}

TEST(Filters, Xtc) {
  std::vector<float> a = {.4f, .3f, .15f, .15f};
  expect_near(filtered(a, xtc(.2f)), {0, .5f, .25f, .25f});
  expect_near(filtered(a, xtc(.1f)), {0, 0, .5f, .5f});
  expect_near(filtered(a, xtc(.1f, {0})), {4 / 7.0f, 0, 1.5f / 7, 1.5f / 7});
  expect_near(filtered(a, xtc(.5f)), a);
}

// Against sorting, on distributions from peaked to nearly flat.
TEST(Filters, CutsAreThoseOfASort) {
  for (float spread : {8.0f, 1.0f, 1e-3f, 1e-6f, 0.0f}) {
    Rng rng(7);
    std::vector<TokenWeight> all(3001);
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = {static_cast<int32_t>(i), std::exp(spread * rng.uniform(-1, 0))};
    std::vector<TokenWeight> sorted = all;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.weight > b.weight; });
    auto ids_of = [](std::vector<TokenWeight> c) {
      std::vector<int32_t> ids;
      for (const TokenWeight& x : c) ids.push_back(x.id);
      std::sort(ids.begin(), ids.end());
      return ids;
    };
    for (int k : {1, 2, 40, 1500, 3000}) {
      std::vector<TokenWeight> kept = all;
      keep_top_k(kept, k);
      EXPECT_EQ(ids_of(kept), ids_of({sorted.begin(), sorted.begin() + k})) << spread << " " << k;
    }
    double total = 0;
    for (const TokenWeight& c : all) total += c.weight;
    for (float p : {.001f, .31f, .5f, .937f, .9999f}) {
      std::vector<TokenWeight> kept = all;
      keep_top_p(kept, p, 1);
      EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(),
                                 [](const auto& a, const auto& b) { return a.id < b.id; }));
      EXPECT_EQ(ids_of(kept), ids_of({sorted.begin(),
                                      sorted.begin() + static_cast<std::ptrdiff_t>(kept.size())}));
      double mass = 0, least = kInf;
      for (const TokenWeight& c : kept) {
        mass += c.weight;
        least = std::min<double>(least, c.weight);
      }
      EXPECT_GE(mass, p * total * (1 - 1e-12)) << spread << " " << p;
      EXPECT_LT(mass - least, p * total * (1 + 1e-12)) << spread << " " << p;
    }
  }
}

TEST(Sampler, Penalties) {
  const std::vector<int32_t> history = {0, 0, 0, 1, 1};
  auto processed = [&](SampleOptions options, std::vector<float> logits) {
    Sampler(options, 4).process(logits, history);
    return logits;
  };
  expect_near(processed({.presence_penalty = .5f}, {0, 0, 0, 0}), {-.5f, -.5f, 0, 0});
  expect_near(processed({.frequency_penalty = .5f}, {0, 0, 0, 0}), {-1.5f, -1, 0, 0});
  expect_near(processed({.repetition_penalty = 2}, {1, -1, 1, -1}), {.5f, -2, 1, -1});
  expect_near(
      processed({.repetition_penalty = 1.5f, .presence_penalty = .5f, .frequency_penalty = .25f},
                {1, .5f, 0, -.5f}),
      {-.5833f, -.6667f, 0, -.5f});
  // Only the last tokens count; 0 means all.
  expect_near(processed({.presence_penalty = .5f, .presence_context = 2}, {0, 0, 0, 0}),
              {0, -.5f, 0, 0});
  expect_near(processed({.frequency_penalty = 1, .frequency_context = 3}, {0, 0, 0, 0}),
              {-1, -2, 0, 0});
  expect_near(processed({.frequency_penalty = 1, .frequency_context = 0}, {0, 0, 0, 0}),
              {-3, -2, 0, 0});
  // Bias comes first: the penalty divides what the bias made positive.
  expect_near(processed({.repetition_penalty = 2, .logit_bias = {{0, 5}}}, {-1, 0, 0, 0}),
              {2, 0, 0, 0});
}

TEST(Sampler, ForeignIdsInTheHistoryAreIgnored) {
  Sampler sampler({.presence_penalty = 1}, 2);
  std::vector<float> logits = {0, 0};
  sampler.process(logits, std::vector<int32_t>{-1, 2, 1 << 30, 1});
  expect_near(logits, {0, -1});
}

TEST(Sampler, Greedy) {
  Sampler sampler({}, 5);
  float logprob = 0;
  std::vector<float> logits = {1, 3, 2, 3, -kInf};
  EXPECT_EQ(sampler.sample(logits, {}, 0, &logprob), 1);
  EXPECT_NEAR(logprob, 3 - std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0)), 1e-5);
  logits = {kNan, -1, kNan, -2, kNan};
  EXPECT_EQ(sampler.sample(logits, {}, 0, &logprob), 1);
  EXPECT_NEAR(logprob, -std::log1p(std::exp(-1.0)), 1e-5);
  logits = {0, kInf, 0, kInf, 0};
  EXPECT_EQ(sampler.sample(logits, {}, 0, &logprob), 1);
  logits.assign(5, kNan);
  EXPECT_THROW(sampler.sample(logits, {}, 0), Error);
}

TEST(Sampler, GreedyIgnoresFilters) {
  Sampler sampler({.top_k = 1, .top_p = .1f, .xtc_probability = 1, .xtc_threshold = 0}, 3);
  std::vector<float> logits = {1, 2, 1.9f};
  EXPECT_EQ(sampler.sample(logits, {}, 0), 1);
}

// Frequencies of many draws against the exact probabilities.
void expect_frequencies(const SampleOptions& options, const std::vector<float>& logits,
                        const std::vector<double>& probabilities) {
  constexpr int kDraws = 10000;
  Sampler sampler(options, static_cast<int64_t>(logits.size()));
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> copy = logits;
    ++counts[static_cast<size_t>(sampler.sample(copy, {}, i))];
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    double p = probabilities[i];
    EXPECT_NEAR(counts[i] / static_cast<double>(kDraws), p,
                5 * std::sqrt(p * (1 - p) / kDraws) + 1e-9)
        << "token " << i;
  }
}

TEST(Sampler, DrawsFollowTheDistribution) {
  auto log_of = [](std::vector<float> p) {
    for (float& x : p) x = std::log(x);
    return p;
  };
  std::vector<float> logits = log_of({.4f, .3f, .2f, .1f, 0});
  expect_frequencies({.temperature = 1}, logits, {.4, .3, .2, .1, 0});
  expect_frequencies({.temperature = .5f}, logits, {16 / 30., 9 / 30., 4 / 30., 1 / 30., 0});
  expect_frequencies({.temperature = 1, .top_k = 2}, logits, {4 / 7., 3 / 7., 0, 0, 0});
  expect_frequencies({.temperature = 1, .top_p = .65f}, logits, {4 / 7., 3 / 7., 0, 0, 0});
  // top-p sees what top-k left: of .4, .3 and .2 renormalised, the first two have .777.
  expect_frequencies({.temperature = 1, .top_k = 3, .top_p = .75f}, logits,
                     {4 / 7., 3 / 7., 0, 0, 0});
  expect_frequencies({.temperature = 1, .min_p = .45f}, logits, {4 / 9., 3 / 9., 2 / 9., 0, 0});
  // Half of the time the first two, being above the threshold with the third, are dropped.
  expect_frequencies({.temperature = 1, .xtc_probability = .5f, .xtc_threshold = .15f}, logits,
                     {.2, .15, .1 + 1 / 3., .05 + .5 / 3., 0});
  // Temperature comes last: the filter judges at temperature 1.
  expect_frequencies({.temperature = .5f, .top_p = .65f}, logits, {16 / 25., 9 / 25., 0, 0, 0});
  // A temperature next to nothing is greedy, not NaN.
  expect_frequencies({.temperature = 1e-42f}, logits, {1, 0, 0, 0, 0});
  expect_frequencies({.temperature = 1e-42f, .top_k = 3}, logits, {1, 0, 0, 0, 0});
}

TEST(Sampler, ADrawDependsOnSeedAndPositionOnly) {
  const std::vector<float> logits(1000, 0.0f);
  auto draw = [&](uint64_t seed, int64_t position) {
    std::vector<float> copy = logits;
    return Sampler({.temperature = 1, .seed = seed}, 1000).sample(copy, {}, position);
  };
  EXPECT_EQ(draw(1, 5), draw(1, 5));
  int same = 0;
  for (int i = 0; i < 100; ++i) same += draw(1, i) == draw(2, i) || draw(1, i) == draw(1, i + 100);
  EXPECT_LT(same, 5);
}

// What the op draws where a back end does it.
TEST(Sampler, DrawsWhatTheOpDraws) {
  Rng rng(99);
  for (int i = 0; i < 400; ++i) {
    std::vector<float> logits(static_cast<size_t>(1 + rng.below(3000)));
    const float spread = rng.uniform(0.1f, 6.0f);
    const bool ties = rng.below(3) == 0;
    for (float& x : logits) {
      x = spread * rng.normal();
      if (ties) x = std::round(x);
      if (rng.below(50) == 0) x = kNan;
    }
    logits[rng.below(logits.size())] = 1;
    SampleOptions o;
    o.temperature = rng.below(5) == 0 ? 0 : rng.uniform(0.3f, 2.0f);
    if (rng.below(2) == 0) o.top_k = static_cast<int>(1 + rng.below(100));
    if (rng.below(2) == 0) o.top_p = rng.uniform(0.05f, 1.0f);
    if (rng.below(2) == 0) o.min_p = rng.uniform(0.0f, 0.3f);
    o.seed = static_cast<uint64_t>(i);
    Sampler sampler(o, static_cast<int64_t>(logits.size()));
    DrawHow how = sampler.draws().value();
    how.position = i;
    const int32_t got = draw_token(logits, how);
    EXPECT_EQ(got, sampler.sample(logits, {}, i)) << i;
  }
  EXPECT_FALSE(Sampler({.temperature = 1, .xtc_probability = 0.5f}, 10).draws());
  EXPECT_FALSE(Sampler({.presence_penalty = 1}, 10).draws());
}

TEST(Sampler, LogitBiasBans) {
  Sampler sampler({.temperature = 1, .logit_bias = {{1, -kInf}}}, 3);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> logits = {0, 5, 0};
    EXPECT_NE(sampler.sample(logits, {}, i), 1);
  }
  Sampler all({.logit_bias = {{0, -kInf}}}, 1);
  std::vector<float> logits = {0};
  EXPECT_THROW(all.sample(logits, {}, 0), Error);
}

TEST(Sampler, RefusesWrongOptions) {
  auto refused = [](SampleOptions options, const std::string& name) {
    try {
      Sampler sampler(options, 10);
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  };
  refused({.temperature = -1}, "temperature");
  refused({.temperature = kNan}, "temperature");
  refused({.top_k = -1}, "top_k");
  refused({.top_p = 0}, "top_p");
  refused({.top_p = 1.5f}, "top_p");
  refused({.top_p = kNan}, "top_p");
  refused({.min_p = -.1f}, "min_p");
  refused({.min_p = 1.1f}, "min_p");
  refused({.xtc_probability = 2}, "xtc_probability");
  refused({.xtc_threshold = .6f}, "xtc_threshold");
  refused({.min_tokens_to_keep = 0}, "min_tokens_to_keep");
  refused({.repetition_penalty = 0}, "repetition_penalty");
  refused({.presence_penalty = kInf}, "presence_penalty");
  refused({.frequency_penalty = kNan}, "frequency_penalty");
  refused({.repetition_context = -1}, "repetition_context");
  refused({.presence_context = -1}, "presence_context");
  refused({.frequency_context = -1}, "frequency_context");
  refused({.logit_bias = {{10, 1}}}, "logit_bias");
  refused({.logit_bias = {{0, kNan}}}, "logit_bias");
}

}  // namespace
}  // namespace wick
