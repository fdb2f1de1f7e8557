// SPDX-License-Identifier: Apache-2.0
#include "train/rehearsal.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/process.h"
#include "train/pack_work.h"
#include "train/probe.h"
#include "train/sweep.h"

namespace wick {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastSeconds = 0.5;  // of a run that takes as long
constexpr int kMostRounds = 1000;
// Over which a processor's mood is averaged.
constexpr double kStretchSeconds = 0.1;
constexpr size_t kPacksOfProgram = 3;
// Quick updates are tried whole, one after the other as a run has them: what one leaves in the
// caches is then what the next one finds. At least so many must fit, and no more are told apart.
constexpr double kLeastUpdates = 4;
constexpr size_t kMostUpdates = 16;
// Programs that are tried; between their sizes the time of a pack is taken to grow evenly.
constexpr size_t kMostPrograms = 4;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <typename F>
double timed(F&& f) {
  const Clock::time_point start = Clock::now();
  f();
  return seconds_since(start);
}

// The packs of one program, and how long those took that were tried.
struct Group {
  double flops = 0;  // of a full pack
  std::vector<const Pack*> packs, sampled;
  std::vector<double> seconds;
};

// Of a pack of that arithmetic, between the tried groups, which ascend by theirs; beyond them in
// proportion.
double seconds_of(double flops, const std::vector<const Group*>& tried) {
  auto of = [](const Group* g) { return steady_mean(g->seconds); };
  size_t above = 0;
  while (above < tried.size() && tried[above]->flops < flops) ++above;
  if (above == 0) return of(tried.front()) * flops / tried.front()->flops;
  const Group* low = tried[above - 1];
  if (above == tried.size()) return of(low) * flops / low->flops;
  const double share = (flops - low->flops) / (tried[above]->flops - low->flops);
  return (1 - share) * of(low) + share * of(tried[above]);
}

class Rehearser {
 public:
  Rehearser(TrainStep& step, const Rehearsal& run)
      : step_(step), run_(run), kind_(step.loss_kind()) {
    lanes_ = static_cast<size_t>(step.trainable().lane_count());
    params_ = step.params();
    if (lanes_ > 1) joint_.emplace(step);
    for (size_t k = 0; kind_ && k < lanes_; ++k) kinds_.push_back(kind_->lane(k));
    update_work_ = run.update_work > 0 ? run.update_work : work_of(run.packs) / run.updates;
  }

  RunTimes measure();

 private:
  Pack of_all_lanes(const Pack& pack) const {
    return lanes_ == 1 ? pack : join_packs(std::vector<const Pack*>(lanes_, &pack), step_.limits());
  }
  void accumulate(const Pack& pack) {
    step_.accumulate(of_all_lanes(pack), 1.0f / static_cast<float>(pack.used_targets));
  }
  void update() { step_.update(std::vector<Hyper>(lanes_, run_.hyper)); }
  // Seconds of a look at the held-out rows: all of them where that is quick, else by one pack.
  double look();
  // Seconds of an update by running whole ones; 0 where they take too long.
  double whole_updates(double pack_seconds, RunTimes& times);
  // The same from packs of each program and the optimizer, each by itself.
  double by_parts(const std::vector<Group*>& tried, const std::map<const Plan*, Group>& groups,
                  RunTimes& times);
  // Those that are tried, ascending: all, or the smallest, the largest and some between.
  std::vector<Group*> choose_programs(std::map<const Plan*, Group>& groups) const;
  // The same more than once, the first of which does not count; fewer where it takes long.
  template <typename F>
  double repeated(F&& f);
  // What the trial made of them.
  std::vector<float> restore_params();
  void restore_states();
  bool given_up() const { return run_.should_give_up && run_.should_give_up(); }
  double work_of(std::span<const Pack> packs) {
    double sum = 0;
    for (const Pack& pack : packs) sum += pack_work(step_.micro_plan(pack), pack);
    return sum;
  }

  // What a loss asks: the step, or the first of its lanes.
  RunStep& asker() { return joint_ ? joint_->lane(0) : static_cast<RunStep&>(step_); }

  TrainStep& step_;
  std::optional<JointStep> joint_;
  const Rehearsal& run_;
  Loss* kind_;
  std::vector<Loss*> kinds_;  // of the lanes
  size_t lanes_ = 1;
  std::vector<float> params_;
  double allowed_ = 0;
  double update_work_ = 0;  // of the run's updates, on average
};

template <typename F>
double Rehearser::repeated(F&& f) {
  constexpr int kMost = 8;
  constexpr double kPart = 0.15;
  const Clock::time_point start = Clock::now();
  double least = timed(f);
  std::vector<double> seconds;
  for (int i = 0; i < kMost && (i == 0 || seconds_since(start) < kPart * allowed_); ++i) {
    if (given_up()) break;
    seconds.push_back(timed(f));
  }
  return seconds.empty() ? least : steady_mean(seconds);
}

std::vector<Group*> Rehearser::choose_programs(std::map<const Plan*, Group>& groups) const {
  std::vector<Group*> all;
  for (auto& [plan, group] : groups) all.push_back(&group);
  std::sort(all.begin(), all.end(),
            [](const Group* a, const Group* b) { return a->flops < b->flops; });
  const auto affordable = static_cast<size_t>(std::max(1.0, run_.time.share * run_.run_packs));
  const size_t count = std::min({all.size(), kMostPrograms, affordable});
  std::vector<Group*> chosen;
  for (size_t i = 0; i < count; ++i)
    chosen.push_back(all[count == 1 ? all.size() / 2 : i * (all.size() - 1) / (count - 1)]);
  return chosen;
}

double Rehearser::look() {
  constexpr double kPart = 0.1;
  if (run_.held_out.empty()) return 0;
  std::vector<float> logp(lanes_ * static_cast<size_t>(step_.limits().targets));
  auto evaluate = [&](std::span<const Pack> packs) {
    if (kind_) {
      kind_->evaluate(asker(), packs, {});
      return;
    }
    for (const Pack& pack : packs) step_.evaluate(of_all_lanes(pack), logp);
  };
  const double one = repeated([&] { evaluate(run_.held_out.first(1)); });
  double works = 0;
  for (const Pack& pack : run_.held_out) works += pack_work(step_.score_plan(), pack);
  const double all = one * works / pack_work(step_.score_plan(), run_.held_out.front());
  if (run_.held_out.size() == 1 || all > kPart * allowed_) return all;
  return repeated([&] { evaluate(run_.held_out); });
}

double Rehearser::whole_updates(double pack_seconds, RunTimes& times) {
  const double each = pack_seconds * static_cast<double>(run_.packs.size()) / run_.updates;
  if (lanes_ > 1 || run_.update_packs.empty() || kLeastUpdates * each > 0.6 * allowed_) return 0;
  // Spread over those that are given, which are spread over the run.
  std::vector<std::span<const Pack>> all, updates;
  size_t at = 0;
  for (size_t count : run_.update_packs) {
    all.push_back(run_.packs.subspan(at, count));
    at += count;
  }
  const size_t most = std::min(all.size(), kMostUpdates);
  for (size_t i = 0; i < most; ++i) updates.push_back(all[(2 * i + 1) * all.size() / (2 * most)]);
  auto begin = [&](std::span<const Pack> packs) {
    int64_t counted = 0;
    for (const Pack& pack : packs) counted += kind_ ? kind_->count(pack) : pack.used_targets;
    if (kind_) kind_->begin_update(asker(), packs);
    step_.start(packs, 1.0f / static_cast<float>(std::max<int64_t>(1, counted)), {&run_.hyper, 1});
  };
  // As the run will: the next one is started before this one ends.
  const bool ahead = step_.runs_ahead() && !(kind_ && kind_->asks_before_updates());
  size_t begun = 0;
  auto end = [&](size_t i) {
    while (begun < i + (ahead ? 2 : 1)) begin(updates[begun++ % updates.size()]);
    step_.finish();
  };
  if (PrefixCache* prefix = step_.prefix())
    for (std::span<const Pack> packs : updates)
      for (const Pack& pack : packs) prefix->rows(pack, RowSet::kTrain);
  const Clock::time_point start = Clock::now();
  std::vector<double> tried, works;
  for (size_t i = 0; seconds_since(start) < 0.6 * allowed_ && i < kMostRounds; ++i) {
    if (given_up() && i > 0) break;
    tried.push_back(timed([&] { end(i); }));
    works.push_back(work_of(updates[i % updates.size()]));
  }
  step_.abandon();
  const std::vector<double> seconds = seconds_at(update_work_, tried, works);
  const Spread spread = spread_of(seconds, kStretchSeconds);
  times.low = spread.low;
  times.high = spread.high;
  return steady_mean(seconds);
}

// The first update must find what a new step has. The copy is given back at once: while a
// checkpoint is tried, no more is to be held than while a run writes one.
std::vector<float> Rehearser::restore_params() {
  std::vector<float> tried = step_.params();
  update();  // clears the gradients
  step_.set_params(params_);
  std::vector<float>().swap(params_);
  return tried;
}

void Rehearser::restore_states() {
  for (size_t i = 0; i < step_.states().size(); ++i)
    step_.set_state(i, std::vector<std::byte>(step_.states()[i].bytes()));
  for (Loss* kind : kinds_) kind->take_report();
}

double Rehearser::by_parts(const std::vector<Group*>& tried,
                           const std::map<const Plan*, Group>& groups, RunTimes& times) {
  const Clock::time_point start = Clock::now();
  std::vector<double> rounds;
  for (int round = 0; round < kMostRounds; ++round) {
    if (round > 0 && (seconds_since(start) > 0.6 * allowed_ || given_up())) break;
    rounds.push_back(0);
    for (Group* group : tried) {
      const Pack& pack = *group->sampled[static_cast<size_t>(round) % group->sampled.size()];
      group->seconds.push_back(timed([&] { accumulate(pack); }));
      rounds.back() += group->seconds.back();
    }
  }
  const Spread spread = spread_of(rounds, kStretchSeconds);
  times.low = spread.low;
  times.high = spread.high;
  double packs = 0;
  const std::vector<const Group*> known(tried.begin(), tried.end());
  for (const auto& [plan, group] : groups)
    packs += static_cast<double>(group.packs.size()) * seconds_of(group.flops, known);
  const double own_work = work_of(run_.packs) / run_.updates;
  return packs / run_.updates * update_work_ / own_work + repeated([&] { update(); });
}

RunTimes Rehearser::measure() {
  RunTimes times;
  WICK_CHECK(!run_.packs.empty(), "a run without packs");
  for (Loss* kind : kinds_) kind->rehearse(*run_.train, run_.valid);
  std::map<const Plan*, Group> groups;
  for (const Pack& pack : run_.packs) {
    Group& group = groups[&step_.micro_plan(pack)];
    group.flops = plan_flops(step_.micro_plan(pack));
    group.packs.push_back(&pack);
  }
  const std::vector<Group*> tried = choose_programs(groups);
  for (Group* group : tried) group->sampled = typical_packs(group->packs, kPacksOfProgram);

  // Later epochs, which find the frozen blocks' outputs.
  if (PrefixCache* prefix = step_.prefix()) {
    if (prefix->kept_tokens() == 0)
      prefix->keep_in(std::make_shared<PrefixStore>(std::numeric_limits<int64_t>::max()));
    for (const Group* group : tried)
      for (const Pack* pack : group->sampled) prefix->rows(of_all_lanes(*pack), RowSet::kTrain);
  }
  // Memory is touched, and adapters leave their zeros behind, before anything counts.
  double first = 0;
  if (kind_) kind_->begin_update(asker(), run_.packs.first(1));
  for (const Group* group : tried)
    first = std::max(first, timed([&] { accumulate(*group->sampled.front()); }));
  update();
  const double whole = first * run_.run_packs;
  const RehearsalTime& time = run_.time;
  const double short_run =
      std::clamp(time.short_share * whole, std::min(whole, kLeastSeconds), time.short_seconds);
  allowed_ = std::min(time.most_seconds, std::max(time.share * whole, short_run));

  const double packs_per_update = static_cast<double>(run_.packs.size()) / run_.updates;
  const OthersShare others;
  times.update = whole_updates(first, times);
  const bool by_packs = times.update == 0;
  if (by_packs) times.update = by_parts(tried, groups, times);
  times.others = others.since();
  if (kind_) {
    const auto asked = static_cast<size_t>(std::max(1.0, packs_per_update));
    if (by_packs)
      times.update += repeated([&] { kind_->begin_update(asker(), run_.packs.first(asked)); });
    if (const int64_t count = kind_->count_asked(*run_.train, run_.valid))
      times.prepare = static_cast<double>(count) * repeated([&, i = size_t{0}]() mutable {
                        kind_->ask(asker(), run_.packs[i++ % run_.packs.size()]);
                      });
  }
  const auto held_out = static_cast<double>(run_.held_out.size());
  times.eval = look();
  if (PrefixCache* prefix = step_.prefix()) {
    prefix->keep_in(nullptr);
    prefix->forget();
    const Pack pack = of_all_lanes(run_.packs.front());
    const double one = repeated([&] { prefix->rows(pack, RowSet::kNone); });
    times.prefix = packs_per_update * one;
    times.eval_prefix = held_out * one;
  }
  std::vector<float> params = restore_params();
  if (run_.then && !given_up()) run_.then(std::move(params));
  restore_states();
  return times;
}

}  // namespace

std::vector<const Pack*> typical_packs(std::vector<const Pack*> packs, size_t most) {
  std::stable_sort(packs.begin(), packs.end(),
                   [](const Pack* a, const Pack* b) { return attended(*a, 0) < attended(*b, 0); });
  const size_t count = std::min(packs.size(), most);
  std::vector<const Pack*> chosen;
  for (size_t i = 0; i < count; ++i)
    chosen.push_back(packs[(2 * i + 1) * packs.size() / (2 * count)]);
  // The middle one first: where there is time for one only, it is that.
  if (count > 1) std::swap(chosen.front(), chosen[count / 2]);
  return chosen;
}

Spread spread_of(std::span<const double> seconds, double stretch) {
  Spread spread;
  double all = 0;
  for (double s : seconds) all += s;
  if (all <= 0) return spread;
  const double mean = all / static_cast<double>(seconds.size());
  std::vector<double> means;
  double sum = 0, count = 0;
  for (double s : seconds) {
    sum += s;
    count += 1;
    if (sum < stretch) continue;
    means.push_back(sum / count);
    sum = count = 0;
  }
  if (means.size() < 2) return spread;
  std::sort(means.begin(), means.end());
  // One of many stretches that met a hiccup says nothing of a run.
  const size_t cut = means.size() / 10;
  return {std::min(1.0, means[cut] / mean), std::max(1.0, means[means.size() - 1 - cut] / mean)};
}

std::vector<double> seconds_at(double work, std::span<const double> seconds,
                               std::span<const double> works) {
  WICK_CHECK(seconds.size() == works.size(), "durations without work");
  // Those that something else made long say nothing of work.
  const double usual = 3 * steady_mean(seconds);
  double count = 0, sum_seconds = 0, sum_works = 0;
  auto each = [&](auto&& f) {
    for (size_t i = 0; i < seconds.size(); ++i)
      if (seconds[i] <= usual) f(seconds[i], works[i]);
  };
  each([&](double s, double w) {
    count += 1;
    sum_seconds += s;
    sum_works += w;
  });
  double both = 0, square = 0;
  each([&](double s, double w) {
    both += (s - sum_seconds / count) * (w - sum_works / count);
    square += (w - sum_works / count) * (w - sum_works / count);
  });
  const double most = count > 0 ? sum_seconds / sum_works : 0;
  // Of equal works nothing is known but that.
  const double slope = square > 0 ? std::clamp(both / square, 0.0, most) : most;
  std::vector<double> moved(seconds.begin(), seconds.end());
  for (size_t i = 0; i < moved.size(); ++i)
    moved[i] = std::max(0.0, moved[i] + slope * (work - works[i]));
  return moved;
}

RunTimes rehearse(TrainStep& step, const Rehearsal& run) { return Rehearser(step, run).measure(); }

}  // namespace wick
