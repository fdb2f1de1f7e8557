// SPDX-License-Identifier: Apache-2.0
// Loss: what a run minimises where that is not the likelihood of the trained tokens. It records the
// tail of the training plan, feeds it for each pack, and looks at the held-out rows.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "io/json.h"
#include "train/scorer.h"
#include "wick/trainer.h"

namespace wick {

class RunStep;

// Whether whoever waits wants no more of what goes over many packs; empty: asked by nobody.
using StopAsked = std::function<bool()>;
// Throws: kCancelled.
void check_wanted(const StopAsked& stop);

class Loss {
 public:
  virtual ~Loss() = default;

  // From the targets' log-probabilities to a scalar; the last op is a segment_sum.
  virtual ValueId record(DecoderPlan& plan, const TargetTail& tail, const PackLimits& limits,
                         int64_t positions) = 0;
  // What it takes beside the plan.
  virtual MemoryForecast forecast(const Backend&) const { return {}; }
  // Adds the buffers of what it recorded, and compiles programs of its own.
  virtual void compile(Backend&, Bindings&) {}

  // Once, while the parameters are those of the start. Throws: kCancelled, asked between packs.
  virtual void prepare(RunStep&, const ExampleSet& /*train*/, const ExampleSet* /*valid*/,
                       const StopAsked& /*stop*/) {}
  // In place of prepare() while a run is timed (train/rehearsal.h): sizes as there, any numbers.
  virtual void rehearse(const ExampleSet& /*train*/, const ExampleSet* /*valid*/) {}
  // Packs that prepare() asks a model for, and one such question.
  virtual int64_t count_asked(const ExampleSet& /*train*/, const ExampleSet* /*valid*/) const {
    return 0;
  }
  virtual void ask(RunStep&, const Pack&) {}
  // For a forecast without running: forward passes over each pack beside the training plan, of the
  // trained model and of the one beside it, in an update and at a look at held-out rows.
  struct Passes {
    double own = 0, beside = 0, eval_own = 0, eval_beside = 0;
  };
  virtual Passes passes() const { return {}; }
  // Of the model beside; null: the trained one is asked.
  virtual const Plan* beside_plan() const { return nullptr; }
  // What the mean over an update counts in this pack: tokens, pairs, answers.
  virtual int64_t count(const Pack& pack) const { return pack.used_targets; }
  // Before the packs of an update.
  virtual void begin_update(RunStep&, std::span<const Pack>) {}
  // The feeds of what record() recorded; a lane's weight is one over its update's count.
  virtual void feed(Program& program, const Pack& pack, std::span<const float> weights) = 0;
  // After a pack has run: what read() wants of its results.
  virtual std::vector<float> results(const Program&) { return {}; }
  // Of each pack, in order, when a lane finishes its update.
  virtual void read(std::span<const float> /*results*/, const Pack&, size_t /*lane*/) {}
  // Whether begin_update() asks the model: then the update before must be finished.
  virtual bool asks_before_updates() const { return false; }
  // Of the packs that were read since the last call of either; and of all since take_report().
  virtual PreferenceReport take_update() { return {}; }
  virtual PreferenceReport take_report() { return {}; }
  // What take_report() would report, between updates, for a checkpoint, and back; null: nothing.
  virtual Json window() const { return {}; }
  virtual void set_window(const Json&) {}

  // Loss, tokens, rows and rewards of held-out packs. Throws: kCancelled, asked between them.
  virtual EvalReport evaluate(RunStep& step, std::span<const Pack> packs,
                              const StopAsked& stop) = 0;

  // What lane k of a step that several adapters share sees of it (train/sweep.h): all of the above
  // but the plan and its feeds. A loss that knows no lanes is that of the only one.
  virtual Loss* lane(size_t k) { return k == 0 ? this : nullptr; }
};

// Of the targets' likelihood: what runs without a Loss report.
EvalReport evaluate_likelihood(RunStep& step, std::span<const Pack> packs, const StopAsked& stop);

// A loss for each step that is recorded.
using LossMaker = std::function<std::unique_ptr<Loss>()>;

}  // namespace wick
