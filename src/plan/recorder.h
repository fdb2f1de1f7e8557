// SPDX-License-Identifier: Apache-2.0
// Recorder: what model files call. Each function checks shapes and appends a step to the plan;
// nothing is computed. Op paragraphs are in plan/op.h; functions return the op's main output.
#pragma once

#include <string>

#include "plan/plan.h"

namespace wick {

class Recorder {
 public:
  // With `training` ops also record what their backward reads (workspace outputs). `activations` is
  // the type that embed makes; every other op passes its input's type on.
  Recorder(Plan& plan, bool training, DType activations = DType::kF32)
      : plan_(plan), training_(training), activations_(activations) {}

  Plan& plan() { return plan_; }
  bool training() const { return training_; }
  // From here on linears of quantised weights are LinearAttr::narrow.
  void narrow_linears() { narrow_ = true; }

  ValueId weight(std::string name, Shape shape, DType dtype);
  ValueId state(std::string name, Shape shape, DType dtype);
  ValueId feed(std::string name, Shape shape, DType dtype);
  ValueId temp(std::string name, Shape shape, DType dtype);

  // Views. A view of a view is a view of its root.
  ValueId rows(ValueId v, int64_t begin, int64_t end, std::string name = {});
  ValueId cols(ValueId v, int64_t begin, int64_t end, std::string name = {});
  ValueId flat(ValueId v, int64_t offset, Shape shape, std::string name);

  const Shape& shape(ValueId v) const { return plan_.value(v).shape; }

  // The row `untrained` of the table gets no gradient; -1: all do.
  ValueId embed(ValueId table, ValueId ids, int64_t untrained = -1);
  ValueId linear(ValueId x, ValueId w, ValueId bias = kNone, float scale = 1.0f);
  // The same with y in f32, for what is read outside the plan (logits).
  ValueId linear_f32(ValueId x, ValueId w);
  // y += scale * x wᵀ, in place. Requires: nobody has read y yet.
  void linear_into(ValueId y, ValueId x, ValueId w, float scale);
  ValueId rms_norm(ValueId x, ValueId w, float eps);
  struct SumAndNorm {
    ValueId sum, normed;
  };
  SumAndNorm add_rms_norm(ValueId a, ValueId b, ValueId w, float eps);
  // Without training nobody asks for the statistics.
  ValueId layer_norm(ValueId x, ValueId w, ValueId b, float eps);
  ValueId softmax(ValueId x);
  ValueId rope(ValueId x, ValueId table, ValueId positions, int64_t head_dim);
  ValueId attention(ValueId q, ValueId k, ValueId v, ValueId begin, ValueId end,
                    const AttentionAttr& attr);
  ValueId gated_act(ValueId x, Act act);
  ValueId add(ValueId a, ValueId b);
  ValueId scale(ValueId x, float factor);
  ValueId bias(ValueId x, ValueId b);
  ValueId dropout(ValueId x, ValueId keys, float p, uint64_t site);
  ValueId gather_rows(ValueId x, ValueId rows);
  // When training, ∂logp/∂x is made in the forward pass, since the logits are at hand there.
  ValueId head(ValueId x, ValueId w, ValueId targets, const HeadAttr& attr = {});
  ValueId segment_sum(ValueId x, ValueId weight, ValueId segment, int64_t segments);

  ValueId column_scale(ValueId x, ValueId m, ValueId norm);
  struct Preference {
    ValueId loss, reward;  // [P], [2P]
  };
  Preference preference_loss(ValueId logp, ValueId reference, ValueId tokens,
                             const PreferenceAttr& attr);
  ValueId kl_head(ValueId x, ValueId w, ValueId teacher_x, ValueId teacher_w, ValueId targets,
                  const KlAttr& attr);

  ValueId column_norm(ValueId base, ValueId wa, ValueId a, ValueId b, float scale);
  // One norm of all, or with `groups` one per set.
  ValueId grad_norm(ValueId grads, ParamGroups groups = {});
  // The optimizers; `states` are those of the op's paragraph between params and g, in its order.
  void optimizer(Op op, ValueId hyper, ValueId norm, ValueId params, std::vector<ValueId> states,
                 ValueId grads, ParamGroups attr);
  void adamw(ValueId hyper, ValueId norm, ValueId params, ValueId m, ValueId v, ValueId grads,
             ParamGroups attr);
  ValueId sample(ValueId logits, ValueId place = kNone, ValueId log = kNone, ValueId how = kNone);
  void copy(ValueId x, ValueId rows, ValueId y);

  // Marks the steps recorded between the two calls as one block for recompute.
  void begin_block(bool recompute);
  void end_block();

  void append(Step step) { plan_.steps.push_back(std::move(step)); }

 private:
  ValueId root(std::string name, Shape shape, DType dtype, Kind kind);
  ValueId view(ValueId v, int64_t offset, int64_t ld, Shape shape, std::string name);
  ValueId like(ValueId v, const char* suffix);
  ValueId linear_as(DType dtype, Narrow coarsest, ValueId x, ValueId w, ValueId bias, float scale);
  std::string derived(ValueId v, const char* suffix) const;

  Plan& plan_;
  bool training_, narrow_ = false;
  DType activations_;
};

// Appends the reverse pass of everything recorded so far. `params` and `grads` are two flat f32
// states of the same size: the gradient of a view of `params` accumulates into the same view of
// `grads`. Nothing is recorded below the first value that depends on `params`, and no gradient of
// what does not. Blocks marked for recompute have their forward recorded again.
void backward(Recorder& recorder, ValueId loss, ValueId params, ValueId grads);

// Named rewrites of the forward steps; run before backward() so that a fused op brings its own
// reverse rule. Each returns how often it applied.
int fuse_linear_bias(Plan& plan);   // linear, bias -> linear with bias
int fuse_add_rms_norm(Plan& plan);  // add, rms_norm of the sum -> add_rms_norm
void fuse(Plan& plan);

}  // namespace wick
