// SPDX-License-Identifier: Apache-2.0
// TrainStep: one model's training step as programs: micro (forward and backward of one pack, adding
// to the gradients), update (norm, clipping, AdamW, gradients cleared) and evaluate (forward only).
// The three share weights, parameters and one arena.
//
// Constructing it records the plans and touches no weight, so that a forecast costs nothing;
// compile() reads the weights and allocates.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "train/loss.h"
#include "train/prefix_cache.h"
#include "train/scorer.h"

namespace wick {

// What is trained: an adapter's numbers, or whole weights of the model.
struct Trainable {
  const Adapter* adapter = nullptr;
  ParamLayout layout;             // the adapter's, or the weights'
  std::vector<WeightSpec> specs;  // of the weights; empty for an adapter

  ParamSource source() const { return {adapter, adapter ? nullptr : &layout}; }
};
Trainable train_adapter(const Adapter& adapter);
// All weights; with num_layers > 0 the last N blocks only, as in mlx-lm.
Trainable train_weights(const ModelConfig& config, int64_t num_layers);
// The first block with a trained number, or something trained below all of them: 0.
int64_t first_trained_block(const Trainable& trainable, const ModelConfig& config);
// The weights' numbers in the layout's order.
std::vector<float> initial_weights(const Trainable& trainable, const ModelWeights& weights);

struct AdamwSettings {
  float learning_rate = 1e-4f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  float clip = 1.0f;  // 0: off
  int64_t step = 1;   // of the bias correction, from 1
};

struct StepOptions {
  PackLimits limits;
  int64_t positions = 0;         // above every position in the data
  int64_t recompute_blocks = 0;  // the first N of the trained blocks; -1: all of them
  // The blocks below the first trained one are a program of their own whose rows can be kept.
  bool split_prefix = false;
  float skip_below = 0;  // HeadAttr's
  LossMaker loss = {};   // null: the likelihood of the targets
};

struct StepForecast {
  int64_t weights = 0, params = 0, grads = 0, moments = 0, feeds = 0, arena = 0;
  int64_t total() const { return weights + params + grads + moments + feeds + arena; }
};

class TrainStep {
 public:
  // Keeps copies; `weights` is only asked for element types here.
  TrainStep(const ModelConfig& config, const ModelWeights& weights, Trainable trainable,
            const StepOptions& options);

  StepForecast forecast(const Backend& backend) const;
  // Of one micro-batch, forward and backward.
  double micro_flops() const { return plan_flops(micro_->plan()); }
  const Plan& micro_plan() const { return micro_->plan(); }
  const Plan& score_plan() const { return scorer_->plan(); }
  const Trainable& trainable() const { return trainable_; }
  const PackLimits& limits() const { return options_.limits; }
  Loss* loss_kind() const { return loss_kind_.get(); }  // null: the likelihood of the targets

  void compile(Backend& backend, ModelWeights& weights);
  // The program below the first trained block, if it was split off; null otherwise.
  PrefixCache* prefix() { return prefix_.get(); }
  const PrefixCache* prefix() const { return prefix_.get(); }
  // Bytes that the shared arena really has, after compile().
  int64_t arena_bytes() const { return static_cast<int64_t>(arena_->bytes()); }

  // Requires compile() for all below. Vectors are as long as the layout.
  void set_params(std::span<const float> params);
  std::vector<float> params() const;
  void set_moments(std::span<const float> m, std::span<const float> v);
  std::vector<float> moments(int which) const;  // 0: m, 1: v
  BufferPtr params_buffer() const { return params_; }

  // Adds the gradients of weight * Σ -log p over the pack's targets; returns that sum times weight.
  // With a loss of another kind, its own sum.
  double accumulate(const Pack& pack, float weight);
  // The same, with the seconds of each step of micro_plan() in place of the loss.
  std::vector<double> accumulate_timed(const Pack& pack, float weight);
  std::vector<float> grads() const;
  // All packs of an update and the update itself: the sum of their losses and the norm. The same
  // bits as one call after the other, with less waiting: the device is asked for the update while
  // it still works on the last pack.
  struct Stepped {
    double loss = 0;
    float norm = 0;
  };
  Stepped step(std::span<const Pack> packs, float weight, const AdamwSettings& settings);
  // One AdamW update from the gradients so far; returns their norm before clipping.
  float update(const AdamwSettings& settings);
  // log p of each target of the pack, [M]; 0 beyond used_targets.
  void evaluate(const Pack& pack, std::span<float> logp);

 private:
  void feed(const Pack& pack, float weight);
  double finish(const Pack& pack);
  void start_update(const AdamwSettings& settings);
  float norm() const;

  ModelConfig config_;
  Trainable trainable_;
  StepOptions options_;

  std::unique_ptr<DecoderPlan> micro_;
  TargetTail tail_;
  ValueId weight_ = kNone, segment_ = kNone, loss_ = kNone, grads_value_ = kNone;
  std::unique_ptr<Loss> loss_kind_;
  std::unique_ptr<Scorer> scorer_;
  std::unique_ptr<PrefixCache> prefix_;
  Plan update_;
  ValueId hyper_ = kNone, norm_ = kNone;
  std::vector<ValueId> update_states_;  // params, m, v, grads

  Backend* backend_ = nullptr;
  BufferPtr params_, grads_, m_, v_, arena_;
  std::unique_ptr<Program> micro_program_, update_program_;
};

}  // namespace wick
