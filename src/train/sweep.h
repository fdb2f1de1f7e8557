// SPDX-License-Identifier: Apache-2.0
// JointStep: several adapters on one base, trained by one step (train_adapters). Each adapter is a
// lane: a RunStep of its own with its own rows, numbers, optimizer and order, so that a TrainRun
// over it is the run it would be alone. The lanes' packs lie one after the other in the joined
// micro-batch: the base's products, norms, attention and head run over all of them at once.
//
// The lanes' runs are written as if each were alone, so each has a thread; but they take turns. A
// lane runs until it asks for an update or for held-out losses; when every lane has asked, the
// joined program is started once for all. Nothing on the host ever runs at the same time as
// something else; the device may work on an update meanwhile, which the first lane that wants its
// part finishes for all.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "train/step.h"

namespace wick {

// The packs of several lanes as one, lane k's in slots [k T, (k + 1) T) and targets [k M, …); null:
// the lane has none, and its slots are unused.
Pack join_packs(std::span<const Pack* const> lanes, const PackLimits& each);

class JointStep {
 public:
  // `step` trains several adapters and is compiled; it must outlive this.
  explicit JointStep(TrainStep& step);
  ~JointStep();

  size_t lanes() const { return lanes_.size(); }
  RunStep& lane(size_t k);

  // Calls work(k) for every lane, in turns; returns when all have returned. What a lane threw is in
  // its place of the result; the others go on without it.
  std::vector<std::exception_ptr> run(const std::function<void(size_t)>& work);

 private:
  class Lane;
  // What a lane waits for.
  struct Request {
    enum class Kind { kNone, kStart, kScore } kind = Kind::kNone;
    std::span<const Pack> packs;
    float weight = 0;
    Hyper hyper = {};
    std::span<float> logp;
    RowSet set = RowSet::kHeldOut;
    std::exception_ptr failed;
  };
  // An update that was started, until every lane of it has finished it.
  struct Joined {
    std::vector<Pack> packs;
    std::set<size_t> waiting;  // lanes that have not finished it
    bool finished = false;     // by one of them
    TrainStep::Update update;
    std::exception_ptr failed;
  };
  void ask(size_t lane);
  void serve();
  void serve_scores(RowSet set);
  void start_update();
  // The lane's oldest, and those before it, which it ends for the other lanes.
  RunStep::Stepped finish(size_t lane);
  void abandon(size_t lane) noexcept;

  TrainStep& step_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Request> requests_;
  std::vector<char> active_;
  std::deque<Joined> started_;
  std::mutex mutex_;
  std::condition_variable turn_changed_;
  ptrdiff_t turn_ = -1;  // the lane that runs; -1: the caller of run()
};

}  // namespace wick
