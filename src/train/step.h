// SPDX-License-Identifier: Apache-2.0
// TrainStep: one model's training step as programs: micro (forward and backward of one pack, adding
// to the gradients), update (norm, clipping, the optimizer, gradients cleared) and evaluate
// (forward only). The three share weights, parameters and one arena.
//
// Constructing it records the plans and touches no weight, so that a forecast costs nothing;
// compile() reads the weights and allocates.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "train/loss.h"
#include "train/optimizer.h"
#include "train/prefix_cache.h"
#include "train/run_step.h"
#include "train/scorer.h"

namespace wick {

// What is trained: an adapter's numbers, or whole weights of the model.
struct Trainable {
  const Adapter* adapter = nullptr;
  std::vector<const Adapter*> lanes;  // several adapters, each for its own rows, in place of one
  ParamLayout layout;                 // the adapter's, all lanes' one after the other, the weights'
  std::vector<WeightSpec> specs;      // of the weights; empty for an adapter
  // One group for each entry of the layout, in its order, with its factors and its set; empty: all
  // of one set with factors of 1.
  ParamGroups groups;

  int64_t lane_count() const { return lanes.empty() ? 1 : static_cast<int64_t>(lanes.size()); }
  ParamSource source() const {
    return {adapter, adapter || !lanes.empty() ? nullptr : &layout, lanes};
  }
};
// Groups of the layout's tensors as the optimizer wants them: matrices apart where it looks at
// them, else neighbours with the same factors and set joined.
ParamGroups update_groups(const Trainable& trainable, Op optimizer);
Trainable train_adapter(const Adapter& adapter);
// Lane k's numbers are set k of the optimizer.
Trainable train_adapters(std::span<const Adapter* const> lanes);
// All weights; with num_layers > 0 the last N blocks only, as in mlx-lm.
Trainable train_weights(const ModelConfig& config, int64_t num_layers);
// The first block with a trained number, or something trained below all of them: 0.
int64_t first_trained_block(const Trainable& trainable, const ModelConfig& config);
// The weights' numbers in the layout's order.
std::vector<float> initial_weights(const Trainable& trainable, const ModelWeights& weights);

struct StepOptions {
  PackLimits limits;  // of one lane
  // Token slots of the fullest pack that is trained on (largest_pack), where packs to be scored may
  // be fuller; 0: those of the limits. Of one adapter and the likelihood; others train on any pack.
  int64_t largest_pack = 0;
  int64_t positions = 0;         // above every position in the data
  int64_t recompute_blocks = 0;  // the first N of the trained blocks; -1: all of them
  // The blocks below the first trained one are a program of their own whose rows can be kept.
  bool split_prefix = false;
  int64_t kept_tokens = 0;   // of which the device keeps those rows
  int64_t stream_slots = 0;  // of a smaller size (add_sizes): the slots of the whole
  bool skips_rows = true;    // DecoderPlanOptions'
  float skip_below = 0;      // HeadAttr's
  Op optimizer = Op::kAdamw;
  LossMaker loss = {};  // null: the likelihood of the targets
};

struct StepForecast {
  int64_t weights = 0, params = 0, grads = 0, moments = 0, feeds = 0, arena = 0;
  int64_t total() const { return weights + params + grads + moments + feeds + arena; }
};

class TrainStep : public RunStep {
 public:
  // Keeps copies; `weights` is only asked for element types here.
  TrainStep(const ModelConfig& config, const ModelWeights& weights, Trainable trainable,
            const StepOptions& options);

  // Smaller token budgets, ascending, for packs that would leave most of the limits empty: each is
  // a program of its own over the same arena, parameters and gradients. Before compile().
  void add_sizes(const ModelWeights& weights, std::span<const int64_t> tokens);
  void clear_sizes() { smaller_.clear(); }
  std::vector<int64_t> sizes() const;  // that were added, and are used

  StepForecast forecast(const Backend& backend) const;
  // Steps of all programs that compile() makes.
  int64_t program_steps() const;
  // Of one micro-batch, forward and backward.
  double micro_flops() const override { return plan_flops(micro_->plan()); }
  const Plan& micro_plan() const { return micro_->plan(); }
  // Of the program that this pack is run by.
  const Plan& micro_plan(const Pack& pack) const { return fitting(pack).micro_plan(); }
  const Plan& update_plan() const { return update_; }
  const Plan& score_plan() const { return scorer_->plan(); }
  const Trainable& trainable() const { return trainable_; }
  Op optimizer() const { return options_.optimizer; }
  const PackLimits& limits() const override { return options_.limits; }
  // What of them micro_plan() has.
  const PackLimits& micro_limits() const { return micro_limits_; }
  int64_t param_count() const override { return trainable_.layout.size(); }
  double pack_flops(const Pack& pack) const override;
  Loss* loss_kind() const override { return loss_kind_.get(); }

  void compile(Backend& backend, ModelWeights& weights);
  // The program below the first trained block, if it was split off; null otherwise.
  PrefixCache* prefix() { return prefix_.get(); }
  const PrefixCache* prefix() const { return prefix_.get(); }
  // Bytes that the shared arena really has, after compile().
  int64_t arena_bytes() const { return static_cast<int64_t>(arena_->bytes()); }

  // Requires compile() for all below. Vectors are as long as the layout.
  void set_params(std::span<const float> params) override;
  std::vector<float> params() const override;
  const std::vector<OptimizerState>& states() const override { return states_; }
  void set_state(size_t which, std::span<const std::byte> bytes) override;
  std::vector<std::byte> state(size_t which) const override;
  // A part, from its first element on: what a lane has of them.
  void set_params(int64_t first, std::span<const float> params);
  void get_params(int64_t first, std::span<float> params) const;
  void set_state(size_t which, int64_t first, std::span<const std::byte> bytes);
  void get_state(size_t which, int64_t first, std::span<std::byte> bytes) const;
  BufferPtr params_buffer() const { return params_; }
  // Of the compiled step's buffers on a host: what no run has written yet.
  int64_t untouched_bytes() const;

  // Adds the gradients of weight * Σ -log p over the pack's targets; returns that sum times weight.
  // With a loss of another kind, its own sum.
  double accumulate(const Pack& pack, float weight);
  // The same, with the seconds of each step of micro_plan() in place of the loss.
  std::vector<double> accumulate_timed(const Pack& pack, float weight);
  std::vector<float> grads() const;
  // The same bits as one call after the other, with less waiting: the device is given a pack while
  // it works on the one before, and the update behind the last. A row of hyper for each set.
  void start(std::span<const Pack> packs, float weight, std::span<const Hyper> hyper) override {
    start_lanes(packs, {&weight, 1}, hyper);
  }
  Stepped finish() override;
  void abandon() noexcept override;
  // The same for each lane, over joined packs (join_packs), with a weight for each. The loss hears
  // of each lane by itself, when that lane finishes.
  struct Update {
    std::span<const Pack> packs;
    std::vector<std::vector<float>> seen;  // of each pack that was waited for: Loss::results()
    std::vector<Stepped> lanes;
    bool done = false;
  };
  void start_lanes(std::span<const Pack> packs, std::span<const float> weights,
                   std::span<const Hyper> hyper);
  Update finish_lanes();
  void tell_loss(const Update& update, size_t lane);
  bool runs_ahead() const override { return backend_->runs_ahead(); }
  using RunStep::step;
  Stepped step(std::span<const Pack> packs, float weight, const AdamwSettings& settings) {
    const Hyper row = settings.hyper();
    return step(packs, weight, {&row, 1});
  }
  // One update from the gradients so far; returns their norm before clipping, of the first set.
  float update(std::span<const Hyper> hyper);
  float update(const AdamwSettings& settings) {
    const Hyper row = settings.hyper();
    return update({&row, 1});
  }
  // Of the last update, by set.
  std::vector<float> norms() const;
  // log p of each target of the pack, [M]; 0 beyond used_targets.
  void evaluate(const Pack& pack, std::span<float> logp) override {
    score(pack, logp, RowSet::kHeldOut);
  }
  void score(const Pack& pack, std::span<float> logp, RowSet set) override;

 private:
  // Whether a pack may lie in a plan of fewer slots: a loss has one tail, and the packs of lanes
  // lie in one program.
  bool takes_sizes() const;
  const TrainStep& fitting(const Pack& pack) const;
  TrainStep& fitting(const Pack& pack) {
    return const_cast<TrainStep&>(std::as_const(*this).fitting(pack));
  }
  void compile_micro(Backend& backend, ModelWeights& weights);
  // Gives the pack to its program.
  void start_pack(const Pack& pack, std::span<const float> weights);
  void feed(const Pack& pack, std::span<const float> weights);
  void record_update();
  void start_update(std::span<const Hyper> hyper);

  Update& begin(std::span<const Pack> packs);
  // Waits for the oldest pack that was not waited for.
  void collect_pack();
  void collect_update(Update& update);

  ModelConfig config_;
  Trainable trainable_;
  StepOptions options_;
  PackLimits micro_limits_;

  std::unique_ptr<DecoderPlan> micro_;
  TargetTail tail_;
  ValueId weight_ = kNone, segment_ = kNone, loss_ = kNone, grads_value_ = kNone;
  std::unique_ptr<Loss> loss_kind_;
  std::unique_ptr<Scorer> scorer_;
  std::unique_ptr<PrefixCache> prefix_;
  PrefixCache* stream_from_ = nullptr;  // of a smaller size: that of the whole
  Plan update_;
  ValueId hyper_ = kNone, norm_ = kNone, update_params_ = kNone, update_grads_ = kNone;
  std::vector<OptimizerState> states_;
  std::vector<ValueId> state_values_;
  int32_t sets_ = 1;

  Backend* backend_ = nullptr;
  BufferPtr params_, grads_, arena_;
  std::vector<BufferPtr> state_buffers_;
  std::unique_ptr<Program> micro_program_, update_program_;
  std::deque<Update> started_;
  size_t unread_ = 0;  // runs of micro_program_ whose results nobody has read
  std::vector<std::unique_ptr<TrainStep>> smaller_;  // of add_sizes; only their micro plan is run
};

}  // namespace wick
