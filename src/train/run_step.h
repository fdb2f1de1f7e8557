// SPDX-License-Identifier: Apache-2.0
// RunStep: what a run asks of a training step. TrainStep is one; so is each lane of a step that
// several adapters share (train/sweep.h).
#pragma once

#include <span>
#include <vector>

#include "data/packing.h"
#include "train/optimizer.h"

namespace wick {

class Loss;
enum class RowSet : int32_t;

class RunStep {
 public:
  virtual ~RunStep() = default;

  virtual const PackLimits& limits() const = 0;
  virtual int64_t param_count() const = 0;
  // Of one micro-batch, forward and backward: one causal row that fills it.
  virtual double micro_flops() const = 0;
  // The same of this pack, by the program that runs it.
  virtual double pack_flops(const Pack& pack) const = 0;
  // What is minimised, where it is not the likelihood of the targets.
  virtual Loss* loss_kind() const { return nullptr; }

  virtual void set_params(std::span<const float> params) = 0;
  virtual std::vector<float> params() const = 0;
  // What the optimizer keeps, as plain bytes of each state's type.
  virtual const std::vector<OptimizerState>& states() const = 0;
  virtual void set_state(size_t which, std::span<const std::byte> bytes) = 0;
  virtual std::vector<std::byte> state(size_t which) const = 0;

  // All packs of an update and the update itself: the sum of their losses and the norm of the
  // gradients before clipping.
  struct Stepped {
    double loss = 0;
    float norm = 0;
  };
  // An update may be started before the one before it is finished, and no more than that; its packs
  // must live until it is finished itself. finish() is of the oldest, and waits for it. Parameters
  // and states are those of the last update that was started: who wants them finishes it first.
  virtual void start(std::span<const Pack> packs, float weight, std::span<const Hyper> hyper) = 0;
  virtual Stepped finish() = 0;
  // Waits for what was started and forgets it, whatever became of it.
  virtual void abandon() noexcept = 0;
  // Whether start() returns before the update is done.
  virtual bool runs_ahead() const = 0;
  Stepped step(std::span<const Pack> packs, float weight, std::span<const Hyper> hyper) {
    start(packs, weight, hyper);
    return finish();
  }
  // log p of each target of the pack, [M]; 0 beyond used_targets.
  virtual void evaluate(const Pack& pack, std::span<float> logp) = 0;
  // The same of rows of another set (train/prefix_cache.h).
  virtual void score(const Pack& pack, std::span<float> logp, RowSet set) = 0;
};

}  // namespace wick
