// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"
#include "wick/evaluator.h"

namespace wick {

namespace {

constexpr int kDraws = 2000;
constexpr uint64_t kBootstrapStream = 0x626f6f74;

// Two-sided: how likely a split at least as uneven is where both sides are as likely.
double sign_test(int64_t a, int64_t b) {
  const int64_t n = a + b;
  const double ln2 = std::log(2.0);
  auto log_choose = [&](int64_t k) {
    return std::lgamma(static_cast<double>(n) + 1) - std::lgamma(static_cast<double>(k) + 1) -
           std::lgamma(static_cast<double>(n - k) + 1);
  };
  double tail = 0;
  for (int64_t k = 0; k <= std::min(a, b); ++k)
    tail += std::exp(log_choose(k) - static_cast<double>(n) * ln2);
  return std::min(1.0, 2 * tail);
}

void check_pairs(size_t a, size_t b) {
  if (a != b)
    fail(ErrorCode::kInvalidArgument, "the results are of ", a, " and of ", b,
         " rows; wanted are two results on the same rows");
}

}  // namespace

PairedDifference paired_difference(const std::vector<PairedRow>& rows, uint64_t seed) {
  PairedDifference d;
  d.rows = static_cast<int64_t>(rows.size());
  if (rows.empty()) return d;
  double sum = 0, weight = 0;
  for (const PairedRow& row : rows) {
    sum += row.b - row.a;
    weight += row.weight;
    d.a_higher += row.a > row.b;
    d.b_higher += row.b > row.a;
  }
  d.difference = weight > 0 ? sum / weight : 0.0;
  d.p = sign_test(d.a_higher, d.b_higher);
  std::vector<double> draws;
  Rng rng(mix_key(seed, kBootstrapStream));
  for (int i = 0; i < kDraws; ++i) {
    sum = weight = 0;
    for (size_t n = 0; n < rows.size(); ++n) {
      const PairedRow& row = rows[rng.below(rows.size())];
      sum += row.b - row.a;
      weight += row.weight;
    }
    draws.push_back(weight > 0 ? sum / weight : 0.0);
  }
  std::sort(draws.begin(), draws.end());
  d.low = draws[static_cast<size_t>(0.025 * kDraws)];
  d.high = draws[static_cast<size_t>(0.975 * kDraws) - 1];
  return d;
}

PairedDifference compare_losses(const EvalResult& a, const EvalResult& b, uint64_t seed) {
  check_pairs(a.examples.size(), b.examples.size());
  std::vector<PairedRow> rows;
  for (size_t i = 0; i < a.examples.size(); ++i) {
    const auto tokens = static_cast<double>(a.examples[i].tokens);
    rows.push_back({a.examples[i].loss * tokens, b.examples[i].loss * tokens, tokens});
  }
  return paired_difference(rows, seed);
}

PairedDifference compare_matches(const EvalResult& a, const EvalResult& b, uint64_t seed) {
  check_pairs(a.examples.size(), b.examples.size());
  std::vector<PairedRow> rows;
  for (size_t i = 0; i < a.examples.size(); ++i)
    if (a.examples[i].has_match && b.examples[i].has_match)
      rows.push_back(
          {a.examples[i].exact_match ? 1.0 : 0.0, b.examples[i].exact_match ? 1.0 : 0.0});
  return paired_difference(rows, seed);
}

PairedDifference compare_preferences(const EvalResult& a, const EvalResult& b, uint64_t seed) {
  check_pairs(a.examples.size(), b.examples.size());
  auto likelier = [](const ExampleResult& e) {
    return e.chosen_logp > e.rejected_logp ? 1.0 : 0.0;
  };
  std::vector<PairedRow> rows;
  for (size_t i = 0; i < a.examples.size(); ++i)
    if (a.examples[i].is_pair && b.examples[i].is_pair)
      rows.push_back({likelier(a.examples[i]), likelier(b.examples[i]), 1});
  return paired_difference(rows, seed);
}

PairedDifference compare_choices(const ChoiceResult& a, const ChoiceResult& b, uint64_t seed) {
  check_pairs(a.examples.size(), b.examples.size());
  std::vector<PairedRow> rows;
  for (size_t i = 0; i < a.examples.size(); ++i)
    rows.push_back({a.examples[i].chosen == a.examples[i].answer ? 1.0 : 0.0,
                    b.examples[i].chosen == b.examples[i].answer ? 1.0 : 0.0});
  return paired_difference(rows, seed);
}

}  // namespace wick
