// SPDX-License-Identifier: Apache-2.0
#include "train/sweep.h"

#include <algorithm>
#include <thread>

#include "base/check.h"

namespace wick {

namespace {

// Of a lane that has ended: nothing of it moves.
constexpr Hyper kAtRest = {0.0f, 0.0f, 0.0f, 1.0f, 0.0f, 0.0f, 1.0f, 1.0f};

}  // namespace

Pack join_packs(std::span<const Pack* const> lanes, const PackLimits& each) {
  const size_t count = lanes.size(), t = static_cast<size_t>(each.tokens),
               m = static_cast<size_t>(each.targets);
  Pack joined;
  joined.ids.assign(count * t, 0);
  joined.positions.assign(count * t, 0);
  joined.keys.assign(2 * count * t, 0);
  joined.rows.assign(count * m, -1);
  joined.targets.assign(count * m, -1);
  joined.segment.assign(count * m, -1);
  joined.marks.assign(count * m, 0);
  for (size_t i = 0; i < count * t; ++i) {
    joined.begin.push_back(static_cast<int32_t>(i));
    joined.end.push_back(static_cast<int32_t>(i + 1));
  }
  for (size_t k = 0; k < count; ++k) {
    if (!lanes[k]) continue;
    const Pack& pack = *lanes[k];
    WICK_CHECK(pack.ids.size() == t && pack.targets.size() == m, "lanes of one size");
    const auto slot = static_cast<int32_t>(k * t);
    std::copy(pack.ids.begin(), pack.ids.end(), joined.ids.begin() + slot);
    std::copy(pack.positions.begin(), pack.positions.end(), joined.positions.begin() + slot);
    std::copy(pack.keys.begin(), pack.keys.end(), joined.keys.begin() + 2 * slot);
    for (size_t i = 0; i < t; ++i) joined.begin[k * t + i] = pack.begin[i] + slot;
    for (size_t i = 0; i < m; ++i) {
      joined.rows[k * m + i] = pack.rows[i] < 0 ? -1 : pack.rows[i] + slot;
      joined.targets[k * m + i] = pack.targets[i];
      joined.segment[k * m + i] = pack.segment[i];
      if (i < pack.marks.size()) joined.marks[k * m + i] = pack.marks[i];
    }
    joined.examples.insert(joined.examples.end(), pack.examples.begin(), pack.examples.end());
    for (const Pack::Slots& s : pack.slots) joined.slots.push_back({slot + s.first, s.count});
    joined.lanes.insert(joined.lanes.end(), pack.examples.size(), static_cast<int32_t>(k));
    joined.used_tokens += pack.used_tokens;
    joined.used_targets += pack.used_targets;
  }
  return joined;
}

class JointStep::Lane : public RunStep {
 public:
  Lane(JointStep& joint, size_t index, int64_t offset, int64_t count)
      : joint_(joint), index_(index), offset_(offset), count_(count) {
    // The states of the lone run; the joint's are those of all lanes, side by side.
    auto own = [&](const Adapter& adapter) {
      const Op op = joint.step_.optimizer();
      return optimizer_states(op, update_groups(train_adapter(adapter), op));
    };
    const std::vector<const Adapter*>& lanes = joint.step_.trainable().lanes;
    states_ = own(*lanes[index]);
    first_.assign(states_.size(), 0);
    for (size_t before = 0; before < index; ++before) {
      const std::vector<OptimizerState> other = own(*lanes[before]);
      for (size_t i = 0; i < states_.size(); ++i) first_[i] += other[i].shape.cols();
    }
  }

  const PackLimits& limits() const override { return joint_.step_.limits(); }
  int64_t param_count() const override { return count_; }
  double micro_flops() const override {
    return joint_.step_.micro_flops() / static_cast<double>(joint_.lanes());
  }
  double pack_flops(const Pack&) const override { return micro_flops(); }
  void set_params(std::span<const float> params) override {
    WICK_CHECK(static_cast<int64_t>(params.size()) == count_);
    joint_.step_.set_params(offset_, params);
  }
  std::vector<float> params() const override {
    std::vector<float> own(static_cast<size_t>(count_));
    joint_.step_.get_params(offset_, own);
    return own;
  }
  const std::vector<OptimizerState>& states() const override { return states_; }
  void set_state(size_t which, std::span<const std::byte> bytes) override {
    WICK_CHECK(bytes.size() == states_[which].bytes());
    for_rows(which, [&](size_t mine, int64_t theirs, size_t size) {
      joint_.step_.set_state(which, theirs, bytes.subspan(mine, size));
    });
  }
  std::vector<std::byte> state(size_t which) const override {
    std::vector<std::byte> own(states_[which].bytes());
    for_rows(which, [&](size_t mine, int64_t theirs, size_t size) {
      joint_.step_.get_state(which, theirs, std::span(own).subspan(mine, size));
    });
    return own;
  }
  void start(std::span<const Pack> packs, float weight, std::span<const Hyper> hyper) override {
    Request& r = joint_.requests_[index_];
    r = {};
    r.kind = Request::Kind::kStart;
    r.packs = packs;
    r.weight = weight;
    r.hyper = hyper[0];
    joint_.ask(index_);
  }
  Stepped finish() override { return joint_.finish(index_); }
  void abandon() noexcept override { joint_.abandon(index_); }
  bool runs_ahead() const override { return joint_.step_.runs_ahead(); }
  Loss* loss_kind() const override {
    Loss* kind = joint_.step_.loss_kind();
    return kind ? kind->lane(index_) : nullptr;
  }
  void evaluate(const Pack& pack, std::span<float> logp) override {
    score(pack, logp, RowSet::kHeldOut);
  }
  void score(const Pack& pack, std::span<float> logp, RowSet set) override {
    Request& r = joint_.requests_[index_];
    r = {};
    r.kind = Request::Kind::kScore;
    r.packs = {&pack, 1};
    r.logp = logp;
    r.set = set;
    joint_.ask(index_);
  }

 private:
  // f(first byte in this lane's state, first element in the joint one, bytes) of each row of one.
  template <typename F>
  void for_rows(size_t which, const F& f) const {
    const Shape &own = states_[which].shape, &all = joint_.step_.states()[which].shape;
    const size_t bytes = static_cast<size_t>(own.cols()) * dtype_bytes(states_[which].dtype);
    for (int64_t row = 0; row < own.elements() / own.cols(); ++row)
      f(static_cast<size_t>(row) * bytes, row * all.cols() + first_[which], bytes);
  }

  JointStep& joint_;
  size_t index_;
  int64_t offset_, count_;
  std::vector<OptimizerState> states_;
  std::vector<int64_t> first_;  // of each state: this lane's first column in the joint one
};

JointStep::JointStep(TrainStep& step) : step_(step) {
  int64_t offset = 0;
  for (const Adapter* adapter : step.trainable().lanes) {
    lanes_.push_back(std::make_unique<Lane>(*this, lanes_.size(), offset, adapter->param_count()));
    offset += adapter->param_count();
  }
  WICK_CHECK(!lanes_.empty(), "a step with lanes");
  requests_.resize(lanes_.size());
  active_.assign(lanes_.size(), 0);
}

JointStep::~JointStep() = default;

RunStep& JointStep::lane(size_t k) { return *lanes_[k]; }

// On a lane's thread: hands the turn back and waits until it is this lane's again.
void JointStep::ask(size_t lane) {
  std::unique_lock lock(mutex_);
  const auto mine = static_cast<ptrdiff_t>(lane);
  if (turn_ != mine) {
    // Outside run(): the lane is alone.
    active_[lane] = 1;
    serve();
    active_[lane] = 0;
  } else {
    turn_ = -1;
    turn_changed_.notify_all();
    turn_changed_.wait(lock, [&] { return turn_ == mine; });
  }
  if (requests_[lane].failed) std::rethrow_exception(requests_[lane].failed);
}

std::vector<std::exception_ptr> JointStep::run(const std::function<void(size_t)>& work) {
  std::vector<std::exception_ptr> errors(lanes());
  std::vector<std::thread> threads;
  active_.assign(lanes(), 1);
  for (size_t k = 0; k < lanes(); ++k)
    threads.emplace_back([&, k] {
      {
        std::unique_lock lock(mutex_);
        turn_changed_.wait(lock, [&] { return turn_ == static_cast<ptrdiff_t>(k); });
      }
      try {
        work(k);
      } catch (...) {
        errors[k] = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      active_[k] = 0;
      requests_[k] = {};
      turn_ = -1;
      turn_changed_.notify_all();
    });
  auto any_active = [&] {
    return std::any_of(active_.begin(), active_.end(), [](char a) { return a; });
  };
  while (any_active()) {
    for (size_t k = 0; k < lanes(); ++k) {
      if (!active_[k] || requests_[k].kind != Request::Kind::kNone) continue;
      std::unique_lock lock(mutex_);
      turn_ = static_cast<ptrdiff_t>(k);
      turn_changed_.notify_all();
      turn_changed_.wait(lock, [&] { return turn_ < 0; });
    }
    serve();
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

// Losses of rows first: lanes that wait for an update wait for those, too, as each would alone.
// Those of one set of rows at a time.
void JointStep::serve() {
  const Request* first = nullptr;
  for (size_t k = 0; k < lanes(); ++k) {
    const Request& r = requests_[k];
    if (!active_[k] || r.kind == Request::Kind::kNone) continue;
    if (!first || (first->kind == Request::Kind::kStart && r.kind == Request::Kind::kScore))
      first = &r;
  }
  if (!first) return;
  const Request::Kind kind = first->kind;
  const RowSet set = first->set;
  std::exception_ptr failed;
  try {
    if (kind == Request::Kind::kScore)
      serve_scores(set);
    else
      start_update();
  } catch (...) {
    failed = std::current_exception();
  }
  for (size_t k = 0; k < lanes(); ++k) {
    if (!active_[k] || requests_[k].kind != kind || requests_[k].set != set) continue;
    requests_[k].failed = failed;
    requests_[k].kind = Request::Kind::kNone;
  }
}

void JointStep::serve_scores(RowSet set) {
  std::vector<const Pack*> packs(lanes(), nullptr);
  for (size_t k = 0; k < lanes(); ++k)
    if (active_[k] && requests_[k].kind == Request::Kind::kScore && requests_[k].set == set)
      packs[k] = &requests_[k].packs[0];
  const auto targets = static_cast<size_t>(step_.limits().targets);
  std::vector<float> logp(lanes() * targets);
  step_.score(join_packs(packs, step_.limits()), logp, set);
  for (size_t k = 0; k < lanes(); ++k)
    if (packs[k])
      std::copy_n(logp.begin() + static_cast<ptrdiff_t>(k * targets),
                  std::min(targets, requests_[k].logp.size()), requests_[k].logp.begin());
}

void JointStep::start_update() {
  std::vector<float> weights(lanes(), 0.0f);
  std::vector<Hyper> hyper(lanes(), kAtRest);
  Joined joined;
  size_t most = 0;
  for (size_t k = 0; k < lanes(); ++k) {
    if (!active_[k] || requests_[k].kind != Request::Kind::kStart) continue;
    weights[k] = requests_[k].weight;
    hyper[k] = requests_[k].hyper;
    most = std::max(most, requests_[k].packs.size());
    joined.waiting.insert(k);
  }
  for (size_t i = 0; i < most; ++i) {
    std::vector<const Pack*> packs(lanes(), nullptr);
    for (size_t k = 0; k < lanes(); ++k)
      if (joined.waiting.count(k) > 0 && i < requests_[k].packs.size())
        packs[k] = &requests_[k].packs[i];
    joined.packs.push_back(join_packs(packs, step_.limits()));
  }
  started_.push_back(std::move(joined));
  try {
    step_.start_lanes(started_.back().packs, weights, hyper);
  } catch (...) {
    started_.pop_back();
    throw;
  }
}

RunStep::Stepped JointStep::finish(size_t lane) {
  auto own = started_.begin();
  while (own != started_.end() && own->waiting.count(lane) == 0) ++own;
  WICK_CHECK(own != started_.end(), "no update is under way");
  // In order: those before are finished by it, too.
  for (auto each = started_.begin(); each <= own; ++each) {
    if (each->finished) continue;
    each->finished = true;
    try {
      each->update = step_.finish_lanes();
    } catch (...) {
      each->failed = std::current_exception();
    }
  }
  own->waiting.erase(lane);
  const std::exception_ptr failed = own->failed;
  RunStep::Stepped done;
  if (!failed) {
    step_.tell_loss(own->update, lane);
    done = own->update.lanes[lane];
  }
  while (!started_.empty() && started_.front().waiting.empty()) started_.pop_front();
  if (failed) std::rethrow_exception(failed);
  return done;
}

void JointStep::abandon(size_t lane) noexcept {
  auto waits = [&](const Joined& j) { return j.waiting.count(lane) > 0; };
  while (std::any_of(started_.begin(), started_.end(), waits)) {
    try {
      finish(lane);
    } catch (const Error&) {
      // Whoever abandons knows of a failure already.
    }
  }
}

}  // namespace wick
