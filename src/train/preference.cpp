// SPDX-License-Identifier: Apache-2.0
#include "train/preference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "data/preference.h"
#include "plan/preference.h"
#include "train/step.h"

namespace wick {
namespace {

using Compare = PreferenceAttr::Kind;

// Where a target's log p belongs: 2 * its row in the pack, + 1 of a rejected sequence.
size_t sequence_of(const Pack& pack, size_t m) {
  return 2 * static_cast<size_t>(pack.segment[m]) + ((pack.marks[m] & Pack::kRejected) != 0);
}
bool in_answer(const Pack& pack, size_t m) { return (pack.marks[m] & 1) != 0; }
bool in_chosen(const Pack& pack, size_t m) { return (pack.marks[m] & Pack::kRejected) == 0; }

// Per sequence of a pack, [2 * rows].
struct Sums {
  std::vector<double> logp, tokens;
};
Sums sum_sequences(const Pack& pack, std::span<const float> logp) {
  Sums sums;
  sums.logp.assign(2 * pack.examples.size(), 0.0);
  sums.tokens = sums.logp;
  for (size_t m = 0; m < static_cast<size_t>(pack.used_targets); ++m) {
    if (!in_answer(pack, m)) continue;
    if (!logp.empty()) sums.logp[sequence_of(pack, m)] += static_cast<double>(logp[m]);
    sums.tokens[sequence_of(pack, m)] += 1;
  }
  return sums;
}

int64_t chosen_tokens(const Pack& pack) {
  int64_t n = 0;
  for (size_t m = 0; m < static_cast<size_t>(pack.used_targets); ++m) n += in_chosen(pack, m);
  return n;
}

template <typename T>
void feed_all(Program& program, ValueId id, const std::vector<T>& data) {
  program.feed(id, data.data(), data.size() * sizeof(T));
}

constexpr int64_t kRowsAtOnce = 256;  // of which packs are made

// Of a joined pack, what one lane's targets say: rows, segments and marks, counted from its own.
Pack lane_targets(const Pack& joined, size_t lane, const PackLimits& limits) {
  Pack own;
  const size_t first = lane * static_cast<size_t>(limits.targets);
  for (size_t m = first; m < first + static_cast<size_t>(limits.targets); ++m) {
    if (joined.targets[m] < 0) break;
    own.segment.push_back(joined.segment[m]);
    own.marks.push_back(joined.marks[m]);
    ++own.used_targets;
  }
  for (size_t i = 0; i < joined.examples.size(); ++i)
    if (joined.lanes[i] == static_cast<int32_t>(lane)) own.examples.push_back(joined.examples[i]);
  return own;
}

}  // namespace

PreferenceLoss::PreferenceLoss(PreferenceOptions options) : options_(std::move(options)) {
  PreferenceOptions one = options_;
  one.lanes = 1;
  for (int64_t k = 1; k < options_.lanes; ++k)
    others_.push_back(std::make_unique<PreferenceLoss>(one));
}

Loss* PreferenceLoss::lane(size_t k) {
  if (k == 0) return this;
  return k <= others_.size() ? others_[k - 1].get() : nullptr;
}

ValueId PreferenceLoss::record(DecoderPlan& plan, const TargetTail& tail, const PackLimits& limits,
                               int64_t positions) {
  limits_ = limits;
  if (options_.reference) {
    const ReferenceModel& model = *options_.reference;
    reference_ = std::make_shared<Scorer>(*model.config, *model.weights, model.source, limits,
                                          positions, plan.options().skips_rows);
  }
  for (const auto& other : others_) {
    other->limits_ = limits_;
    other->reference_ = reference_;
  }
  Recorder& r = plan.recorder();
  const int64_t all = options_.lanes * options_.pairs;
  const Shape targets{options_.lanes * limits.targets}, pairs{all}, sequences{2 * all};
  sum_weight_ = r.feed("answer_weight", targets, DType::kF32);
  sum_segment_ = r.feed("answer_segment", targets, DType::kI32);
  reference_feed_ = r.feed("reference", sequences, DType::kF32);
  tokens_ = r.feed("answer_tokens", sequences, DType::kF32);
  pair_weight_ = r.feed("pair_weight", pairs, DType::kF32);
  pair_segment_ = r.feed("pair_segment", pairs, DType::kI32);
  ValueId sums = r.segment_sum(tail.logp, sum_weight_, sum_segment_, 2 * all);
  Recorder::Preference made = r.preference_loss(sums, reference_feed_, tokens_, options_.attr);
  ValueId cost = made.loss;
  if (is(Compare::kOrpo)) {
    likelihood_weight_ = r.feed("likelihood_weight", targets, DType::kF32);
    likelihood_segment_ = r.feed("likelihood_segment", targets, DType::kI32);
    cost = r.add(cost, r.segment_sum(tail.logp, likelihood_weight_, likelihood_segment_, all));
  }
  reward_ = made.reward;
  plan.plan().results.push_back(reward_);
  return r.segment_sum(cost, pair_weight_, pair_segment_, options_.lanes);
}

MemoryForecast PreferenceLoss::forecast(const Backend& backend) const {
  if (!reference_) return {};
  MemoryForecast f = reference_->forecast(backend);
  if (!options_.reference->own_weights) f.weights = 0;
  return f;
}

void PreferenceLoss::compile(Backend& backend, Bindings&) {
  if (!reference_) return;
  BufferPtr buffer;
  if (const std::vector<float>* params = options_.reference->params; params && !params->empty()) {
    const auto count = static_cast<int64_t>(params->size());
    buffer = backend.allocate(DType::kF32, count);
    backend.upload(*buffer, DType::kF32, 0, count, params->data());
  }
  reference_->compile(backend, *options_.reference->weights, buffer, nullptr);
}

void PreferenceLoss::ask_reference(RunStep& step, const Pack& pack, std::span<float> logp,
                                   RowSet set) {
  if (reference_)
    reference_->score(pack, logp);
  else
    step.score(pack, logp, set);
}

template <typename F>
void PreferenceLoss::for_packs(const ExampleSet& set, const F& f) const {
  for (int64_t first = 0; first < set.size(); first += kRowsAtOnce) {
    std::vector<int64_t> rows(static_cast<size_t>(std::min(kRowsAtOnce, set.size() - first)));
    std::iota(rows.begin(), rows.end(), first);
    for (const Pack& pack : pack_rows(set, rows, limits_, options_.seed, 0, options_.packing))
      f(pack);
  }
}

std::vector<float> PreferenceLoss::reference_sums(RunStep& step, const ExampleSet& rows, RowSet set,
                                                  const StopAsked& stop) {
  std::vector<float> sums(2 * static_cast<size_t>(rows.size()), 0.0f);
  if (!options_.uses_reference) return sums;
  std::vector<float> logp(static_cast<size_t>(limits_.targets));
  for_packs(rows, [&](const Pack& pack) {
    check_wanted(stop);
    ask_reference(step, pack, logp, set);
    const Sums made = sum_sequences(pack, logp);
    for (size_t s = 0; s < made.logp.size(); ++s)
      sums[2 * static_cast<size_t>(pack.examples[s / 2]) + s % 2] =
          static_cast<float>(made.logp[s]);
  });
  return sums;
}

void PreferenceLoss::rehearse(const ExampleSet& train, const ExampleSet* valid) {
  train_ = &train;
  valid_ = valid;
  train_sums_.assign(2 * static_cast<size_t>(train.size()), 0.0f);
  if (valid) valid_sums_.assign(2 * static_cast<size_t>(valid->size()), 0.0f);
}

int64_t PreferenceLoss::count_asked(const ExampleSet& train, const ExampleSet* valid) const {
  int64_t packs = 0;
  if (!options_.uses_reference) return packs;
  for_packs(train, [&](const Pack&) { ++packs; });
  if (valid) for_packs(*valid, [&](const Pack&) { ++packs; });
  return packs;
}

void PreferenceLoss::ask(RunStep& step, const Pack& pack) {
  std::vector<float> logp(static_cast<size_t>(limits_.targets));
  ask_reference(step, pack, logp, RowSet::kNone);
}

Loss::Passes PreferenceLoss::passes() const {
  if (!is(Compare::kKto)) return {};
  const double asked = options_.uses_reference ? 1 : 0;
  return {1, asked, 1, asked};
}

void PreferenceLoss::prepare(RunStep& step, const ExampleSet& train, const ExampleSet* valid,
                             const StopAsked& stop) {
  train_ = &train;
  valid_ = valid;
  train_sums_ = reference_sums(step, train, RowSet::kTrain, stop);
  if (valid) valid_sums_ = reference_sums(step, *valid, RowSet::kHeldOut, stop);
}

int64_t PreferenceLoss::count(const Pack& pack) const {
  if (!is(Compare::kKto)) return static_cast<int64_t>(pack.examples.size());
  const Sums sums = sum_sequences(pack, {});
  return std::count_if(sums.tokens.begin(), sums.tokens.end(), [](double n) { return n > 0; });
}

double PreferenceLoss::estimate_divergence(RunStep& step, const ExampleSet& set,
                                           std::span<const Pack> packs, const StopAsked& stop) {
  if (!is(Compare::kKto)) return 0;
  std::vector<int64_t> rows;
  for (const Pack& pack : packs)
    rows.insert(rows.end(), pack.examples.begin(), pack.examples.end());
  std::sort(rows.begin(), rows.end());
  const ExampleSet others = mismatched(set, rows, std::min(options_.max_tokens, limits_.tokens));
  std::vector<int64_t> all(static_cast<size_t>(others.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  std::vector<float> logp(static_cast<size_t>(limits_.targets)), reference = logp;
  double sum = 0;
  for (const Pack& pack : pack_rows(others, all, limits_, options_.seed, 0, options_.packing)) {
    check_wanted(stop);
    step.score(pack, logp, RowSet::kNone);
    std::fill(reference.begin(), reference.end(), 0.0f);
    if (options_.uses_reference) ask_reference(step, pack, reference, RowSet::kNone);
    for (size_t m = 0; m < static_cast<size_t>(pack.used_targets); ++m)
      sum += static_cast<double>(logp[m]) - static_cast<double>(reference[m]);
  }
  return std::max(0.0, sum / static_cast<double>(std::max<int64_t>(1, others.size())));
}

void PreferenceLoss::begin_update(RunStep& step, std::span<const Pack> packs) {
  divergence_ = estimate_divergence(step, *train_, packs, {});
  int64_t pairs = 0, tokens = 0;
  for (const Pack& pack : packs) {
    pairs += static_cast<int64_t>(pack.examples.size());
    tokens += chosen_tokens(pack);
  }
  likelihood_share_ =
      static_cast<double>(pairs) / static_cast<double>(std::max<int64_t>(1, tokens));
}

struct PreferenceLoss::Feeds {
  std::vector<float> sum_weight, likelihood_weight, reference, tokens, pair_weight;
  std::vector<int32_t> sum_segment, likelihood_segment, pair_segment;
};

void PreferenceLoss::fill(Feeds& f, size_t lane, const Pack& pack, float weight) const {
  const size_t rows = pack.examples.size(), most = static_cast<size_t>(options_.pairs);
  WICK_CHECK(rows <= most, rows, " rows in a pack of at most ", most);
  const size_t target = lane * static_cast<size_t>(limits_.targets), pair = lane * most;
  for (size_t m = 0; m < static_cast<size_t>(pack.used_targets); ++m) {
    if (in_answer(pack, m)) {
      f.sum_weight[target + m] = 1.0f;
      f.sum_segment[target + m] = static_cast<int32_t>(2 * pair + sequence_of(pack, m));
    }
    if (in_chosen(pack, m)) {
      f.likelihood_weight[target + m] = -static_cast<float>(likelihood_share_);
      f.likelihood_segment[target + m] = static_cast<int32_t>(pair) + pack.segment[m];
    }
  }
  const Sums sums = sum_sequences(pack, {});
  for (size_t s = 0; s < 2 * rows; ++s) {
    f.tokens[2 * pair + s] = static_cast<float>(sums.tokens[s]);
    const float given = train_sums_[2 * static_cast<size_t>(pack.examples[s / 2]) + s % 2];
    f.reference[2 * pair + s] = static_cast<float>(static_cast<double>(given) + divergence_);
  }
  std::fill_n(f.pair_weight.begin() + static_cast<ptrdiff_t>(pair), rows, weight);
  std::fill_n(f.pair_segment.begin() + static_cast<ptrdiff_t>(pair), rows,
              static_cast<int32_t>(lane));
}

void PreferenceLoss::feed(Program& program, const Pack& pack, std::span<const float> weights) {
  const auto lanes = static_cast<size_t>(options_.lanes);
  const size_t targets = lanes * static_cast<size_t>(limits_.targets),
               pairs = lanes * static_cast<size_t>(options_.pairs);
  Feeds f;
  for (auto* v : {&f.sum_weight, &f.likelihood_weight}) v->assign(targets, 0.0f);
  for (auto* v : {&f.sum_segment, &f.likelihood_segment}) v->assign(targets, -1);
  for (auto* v : {&f.reference, &f.tokens}) v->assign(2 * pairs, 0.0f);
  f.pair_weight.assign(pairs, 0.0f);
  f.pair_segment.assign(pairs, -1);
  if (lanes == 1) fill(f, 0, pack, weights[0]);
  for (size_t k = 0; lanes > 1 && k < lanes; ++k)
    static_cast<PreferenceLoss*>(lane(k))->fill(f, k, lane_targets(pack, k, limits_), weights[k]);
  feed_all(program, sum_weight_, f.sum_weight);
  feed_all(program, sum_segment_, f.sum_segment);
  if (is(Compare::kOrpo)) {
    feed_all(program, likelihood_weight_, f.likelihood_weight);
    feed_all(program, likelihood_segment_, f.likelihood_segment);
  }
  feed_all(program, reference_feed_, f.reference);
  feed_all(program, tokens_, f.tokens);
  feed_all(program, pair_weight_, f.pair_weight);
  feed_all(program, pair_segment_, f.pair_segment);
}

std::vector<float> PreferenceLoss::results(const Program& program) {
  std::vector<float> reward(static_cast<size_t>(2 * options_.lanes * options_.pairs));
  program.read(reward_, reward.data(), reward.size() * sizeof(float));
  return reward;
}

void PreferenceLoss::read(std::span<const float> reward, const Pack& pack, size_t k) {
  if (options_.lanes == 1) return add_rewards(reward, pack);
  const auto each = 2 * static_cast<size_t>(options_.pairs);
  static_cast<PreferenceLoss*>(lane(k))->add_rewards(reward.subspan(k * each, each),
                                                     lane_targets(pack, k, limits_));
}

void RewardSums::add(const bool (&has)[2], const double (&reward)[2]) {
  chosen += has[0] ? reward[0] : 0;
  rejected += has[1] ? reward[1] : 0;
  chosen_count += has[0];
  rejected_count += has[1];
  pairs += has[0] && has[1];
  right += has[0] && has[1] && reward[0] > reward[1];
}

void RewardSums::add(const RewardSums& other) {
  chosen += other.chosen;
  rejected += other.rejected;
  chosen_count += other.chosen_count;
  rejected_count += other.rejected_count;
  pairs += other.pairs;
  right += other.right;
}

PreferenceReport RewardSums::report(double divergence) const {
  auto over = [](double sum, int64_t n) {
    return n > 0 ? sum / static_cast<double>(n) : std::numeric_limits<double>::quiet_NaN();
  };
  PreferenceReport report;
  report.present = true;
  report.chosen = over(chosen, chosen_count);
  report.rejected = over(rejected, rejected_count);
  report.margin = report.chosen - report.rejected;
  report.accuracy = over(static_cast<double>(right), pairs);
  report.divergence = divergence;
  return report;
}

void PreferenceLoss::add_rewards(std::span<const float> reward, const Pack& pack) {
  const Sums sums = sum_sequences(pack, {});
  const double shift = static_cast<double>(options_.attr.beta) * divergence_;
  for (size_t p = 0; p < pack.examples.size(); ++p) {
    const bool has[2] = {sums.tokens[2 * p] > 0, sums.tokens[2 * p + 1] > 0};
    const double r[2] = {static_cast<double>(reward[2 * p]) + shift,
                         static_cast<double>(reward[2 * p + 1]) + shift};
    update_.add(has, r);
  }
}

PreferenceReport PreferenceLoss::take_update() {
  const PreferenceReport report = update_.report(divergence_);
  window_.add(update_);
  update_ = {};
  return report;
}

PreferenceReport PreferenceLoss::take_report() {
  window_.add(update_);
  const PreferenceReport report = window_.report(divergence_);
  update_ = window_ = {};
  return report;
}

Json PreferenceLoss::window() const {
  return Json{{"chosen", window_.chosen},
              {"rejected", window_.rejected},
              {"chosen_count", window_.chosen_count},
              {"rejected_count", window_.rejected_count},
              {"pairs", window_.pairs},
              {"right", window_.right}};
}

void PreferenceLoss::set_window(const Json& window) {
  constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();  // written as null
  window_.chosen = get_float(window, "chosen", "checkpoint", kAbsent);
  window_.rejected = get_float(window, "rejected", "checkpoint", kAbsent);
  window_.chosen_count = get_int(window, "chosen_count", "checkpoint", 0);
  window_.rejected_count = get_int(window, "rejected_count", "checkpoint", 0);
  window_.pairs = get_int(window, "pairs", "checkpoint", 0);
  window_.right = get_int(window, "right", "checkpoint", 0);
}

EvalReport PreferenceLoss::evaluate(RunStep& step, std::span<const Pack> packs,
                                    const StopAsked& stop) {
  const double shift = estimate_divergence(step, *valid_, packs, stop);
  std::vector<float> logp(static_cast<size_t>(limits_.targets));
  double cost = 0, likelihood = 0;
  int64_t counted = 0, tokens = 0;
  RewardSums rewards;
  EvalReport e;
  for (const Pack& pack : packs) {
    check_wanted(stop);
    step.evaluate(pack, logp);
    const Sums sums = sum_sequences(pack, logp);
    for (size_t p = 0; p < pack.examples.size(); ++p) {
      double l[2], reference[2], n[2];
      for (size_t i = 0; i < 2; ++i) {
        // Rounded as the reference is, so that equal sums are equal.
        l[i] = static_cast<double>(static_cast<float>(sums.logp[2 * p + i]));
        n[i] = sums.tokens[2 * p + i];
        reference[i] =
            static_cast<double>(valid_sums_[2 * static_cast<size_t>(pack.examples[p]) + i]) + shift;
      }
      const PairCost<double> made = preference_cost(options_.attr, l, reference, n);
      cost += made.loss;
      const double added = static_cast<double>(options_.attr.beta) * shift;
      rewards.add({n[0] > 0, n[1] > 0}, {made.reward[0] + added, made.reward[1] + added});
    }
    counted += count(pack);
    for (size_t m = 0; m < static_cast<size_t>(pack.used_targets); ++m)
      likelihood -= in_chosen(pack, m) ? static_cast<double>(logp[m]) : 0;
    tokens += chosen_tokens(pack);
    e.tokens += pack.used_targets;
    e.rows += static_cast<int64_t>(pack.examples.size());
  }
  e.loss = cost / static_cast<double>(std::max<int64_t>(1, counted));
  if (is(Compare::kOrpo)) e.loss += likelihood / static_cast<double>(std::max<int64_t>(1, tokens));
  e.preference = rewards.report(shift);
  return e;
}

void add_preference(Json& report, const PreferenceReport& p) {
  if (!p.present) return;
  report["preference"] = Json{{"chosen", p.chosen},
                              {"rejected", p.rejected},
                              {"margin", p.margin},
                              {"accuracy", p.accuracy},
                              {"divergence", p.divergence}};
}

PreferenceReport preference_from_json(const Json& report) {
  PreferenceReport p;
  const Json* j = find_member(report, "preference");
  if (!j) return p;
  p.present = true;
  constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();  // written as null
  p.chosen = get_float(*j, "chosen", "checkpoint", kAbsent);
  p.rejected = get_float(*j, "rejected", "checkpoint", kAbsent);
  p.margin = get_float(*j, "margin", "checkpoint", kAbsent);
  p.accuracy = get_float(*j, "accuracy", "checkpoint", kAbsent);
  p.divergence = get_float(*j, "divergence", "checkpoint", 0.0);
  return p;
}

}  // namespace wick
