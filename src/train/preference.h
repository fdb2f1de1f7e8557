// SPDX-License-Identifier: Apache-2.0
// DPO, SimPO, ORPO and KTO. The formulas are those of plan/op.h (PreferenceAttr); means are TRL's:
// over the pairs of an update, of KTO over its answers, and ORPO's likelihood over all tokens of
// its chosen sequences.
//
// The reference's sums of log p are made once, before the first update: by the start state of what
// is trained, or by a model of their own. They are made again on resume, with the same bits, since
// a row's do not depend on its pack. KTO's divergence is estimated before each update from the
// answers of that update, each behind the prompt of another.
#pragma once

#include <optional>
#include <vector>

#include "train/loss.h"
#include "train/prefix_cache.h"

namespace wick {

// A model that is only asked. What is named here must outlive the loss.
struct ReferenceModel {
  const ModelConfig* config = nullptr;
  ModelWeights* weights = nullptr;
  ParamSource source;
  const std::vector<float>* params = nullptr;  // of the source; read when the loss is compiled
  bool own_weights = false;                    // not those of the model that is trained
};

struct PreferenceOptions {
  PreferenceAttr attr;
  int64_t pairs = 0;                        // rows of an update: the most in a pack
  int64_t max_tokens = 0;                   // of a mismatched sequence
  bool uses_reference = true;               // DPO, KTO; else their reference is 0
  std::optional<ReferenceModel> reference;  // none: the start state, asked before the first update
  uint64_t seed = 0;
  bool packing = true;
  int64_t lanes = 1;  // runs that share the step, each with rows and reports of its own
};

// Of answers, as they are counted for a report.
struct RewardSums {
  double chosen = 0, rejected = 0;
  int64_t chosen_count = 0, rejected_count = 0, pairs = 0, right = 0;

  // Of one pair or one answer: which of the two there are, and their rewards.
  void add(const bool (&has)[2], const double (&reward)[2]);
  void add(const RewardSums& other);
  PreferenceReport report(double divergence) const;
};

class PreferenceLoss final : public Loss {
 public:
  explicit PreferenceLoss(PreferenceOptions options);

  ValueId record(DecoderPlan& plan, const TargetTail& tail, const PackLimits& limits,
                 int64_t positions) override;
  MemoryForecast forecast(const Backend& backend) const override;
  void compile(Backend& backend, Bindings& bindings) override;
  void prepare(RunStep& step, const ExampleSet& train, const ExampleSet* valid,
               const StopAsked& stop) override;
  void rehearse(const ExampleSet& train, const ExampleSet* valid) override;
  int64_t count_asked(const ExampleSet& train, const ExampleSet* valid) const override;
  void ask(RunStep& step, const Pack& pack) override;
  Passes passes() const override;
  const Plan* beside_plan() const override { return reference_ ? &reference_->plan() : nullptr; }
  int64_t count(const Pack& pack) const override;
  void begin_update(RunStep& step, std::span<const Pack> packs) override;
  void feed(Program& program, const Pack& pack, std::span<const float> weights) override;
  std::vector<float> results(const Program& program) override;
  void read(std::span<const float> results, const Pack& pack, size_t lane) override;
  bool asks_before_updates() const override { return is(PreferenceAttr::Kind::kKto); }
  PreferenceReport take_update() override;
  PreferenceReport take_report() override;
  Json window() const override;
  void set_window(const Json& window) override;
  EvalReport evaluate(RunStep& step, std::span<const Pack> packs, const StopAsked& stop) override;

  Loss* lane(size_t k) override;

  // Of each row: chosen and rejected; 0 without a reference. For tests.
  const std::vector<float>& reference_sums() const { return train_sums_; }
  double divergence() const { return divergence_; }

 private:
  bool is(PreferenceAttr::Kind kind) const { return options_.attr.kind == kind; }
  void ask_reference(RunStep& step, const Pack& pack, std::span<float> logp, RowSet set);
  std::vector<float> reference_sums(RunStep& step, const ExampleSet& rows, RowSet set,
                                    const StopAsked& stop);
  // f(pack) for all rows of a set, some of them at a time.
  template <typename F>
  void for_packs(const ExampleSet& set, const F& f) const;
  double estimate_divergence(RunStep& step, const ExampleSet& set, std::span<const Pack> packs,
                             const StopAsked& stop);

  // What the plan is fed and what it gives of one lane's pack, behind those of the lanes before.
  struct Feeds;
  void fill(Feeds& feeds, size_t lane, const Pack& pack, float weight) const;
  void add_rewards(std::span<const float> reward, const Pack& pack);

  PreferenceOptions options_;
  PackLimits limits_;                  // of a lane
  std::shared_ptr<Scorer> reference_;  // of all lanes
  ValueId sum_weight_ = kNone, sum_segment_ = kNone, reference_feed_ = kNone, tokens_ = kNone,
          likelihood_weight_ = kNone, likelihood_segment_ = kNone, pair_weight_ = kNone,
          pair_segment_ = kNone, reward_ = kNone;

  const ExampleSet *train_ = nullptr, *valid_ = nullptr;
  std::vector<float> train_sums_, valid_sums_;  // [2 * rows]
  double divergence_ = 0;                       // of this update
  double likelihood_share_ = 0;                 // pairs over the tokens of chosen sequences

  RewardSums update_, window_;  // since the last update and report; the first is not in the second

  std::vector<std::unique_ptr<PreferenceLoss>> others_;  // of the lanes behind the first, which is
                                                         // this; they record nothing
};

// As "preference" in the JSON of a report, where there is one.
void add_preference(Json& report, const PreferenceReport& preference);
PreferenceReport preference_from_json(const Json& report);

}  // namespace wick
