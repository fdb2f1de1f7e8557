// SPDX-License-Identifier: Apache-2.0
// Distillation: α τ² KL(teacher ‖ student) + (1 - α) cross-entropy, mean over the trained tokens.
// The teacher's forward is a program of its own that leaves its last hidden rows where the training
// plan reads them; kl_head makes both distributions from hidden rows, a part of the vocabulary at a
// time.
#pragma once

#include "train/preference.h"

namespace wick {

struct DistillOptions {
  ReferenceModel teacher;
  // Of the model that is trained; must outlive the loss.
  const ModelConfig* config = nullptr;
  const ModelWeights* weights = nullptr;
  float temperature = 1.0f, alpha = 1.0f;
  int64_t lanes = 1;  // runs that share the step, each with rows of its own
};

class DistillLoss final : public Loss {
 public:
  explicit DistillLoss(DistillOptions options) : options_(std::move(options)) {}

  ValueId record(DecoderPlan& plan, const TargetTail& tail, const PackLimits& limits,
                 int64_t positions) override;
  MemoryForecast forecast(const Backend& backend) const override;
  void compile(Backend& backend, Bindings& bindings) override;
  Passes passes() const override { return {0, 1, 0, 0}; }
  const Plan* beside_plan() const override { return &teacher_->plan(); }
  void feed(Program& program, const Pack& pack, std::span<const float> weights) override;
  std::vector<float> results(const Program& program) override;
  EvalReport evaluate(RunStep& step, std::span<const Pack> packs, const StopAsked& stop) override;
  // Nothing in it is of one run alone.
  Loss* lane(size_t) override { return this; }

 private:
  // Where products are made by units of bf16 the plans share a head's weights in a form that
  // kl_head does not read: it gets a copy in rows.
  struct HeadCopy {
    ValueId value;
    WeightSpec spec;
    const ModelWeights* weights;
  };
  void copy_head(ValueId value, const std::string& name, const ModelConfig& config,
                 const ModelWeights& weights);

  DistillOptions options_;
  std::unique_ptr<DecoderPlan> teacher_;
  std::unique_ptr<Program> teacher_program_;
  ValueId teacher_rows_ = kNone, teacher_x_ = kNone;  // of the teacher's plan
  const Plan* plan_ = nullptr;                        // of training, as all below
  ValueId x_ = kNone, head_ = kNone, weight_ = kNone, segment_ = kNone;
  std::vector<HeadCopy> copies_;
};

}  // namespace wick
