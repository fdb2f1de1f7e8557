// SPDX-License-Identifier: Apache-2.0
#include "train/distill.h"

#include <algorithm>

#include "backend/ahead.h"
#include "base/check.h"
#include "train/step.h"

namespace wick {

ValueId DistillLoss::record(DecoderPlan& plan, const TargetTail& tail, const PackLimits& each,
                            int64_t positions) {
  const PackLimits limits{options_.lanes * each.tokens, options_.lanes * each.targets};
  const ReferenceModel& model = options_.teacher;
  DecoderPlanOptions o;
  o.tokens = limits.tokens;
  o.positions = positions;
  o.source = model.source;
  teacher_ = std::make_unique<DecoderPlan>(*model.config, *model.weights, o);
  const Shape x{limits.targets, model.config->hidden};
  const DType type = model.weights->compute();
  Recorder& t = teacher_->recorder();
  teacher_rows_ = t.feed("rows", {limits.tokens}, DType::kI32);
  teacher_x_ = t.state("teacher_x", x, type);
  t.copy(teacher_->hidden(), teacher_rows_, teacher_x_);
  fuse(teacher_->plan());
  check(teacher_->plan());

  Recorder& r = plan.recorder();
  plan_ = &plan.plan();
  x_ = r.state("teacher_x", x, type);
  const Value& words = teacher_->plan().value(teacher_->head_weight());
  head_ = r.weight("teacher_head", words.shape, words.dtype);
  ValueId student_head = plan.head_weight();
  if (type == DType::kBF16) {
    const Value own = plan_->value(student_head);
    if (own.kind == Kind::kWeight) {  // else it is trained, and in rows
      student_head = r.weight("student_head", own.shape, own.dtype);
      copy_head(student_head, own.name, *options_.config, *options_.weights);
    }
    // A teacher's head that is not its embedding is in rows already: its plan has no product of it.
    if (model.config->tied) copy_head(head_, words.name, *model.config, *model.weights);
  }
  const float alpha = options_.alpha, temperature = options_.temperature;
  const Shape targets{limits.targets};
  weight_ = r.feed("weight", targets, DType::kF32);
  segment_ = r.feed("segment", targets, DType::kI32);
  const KlHeads heads{tail.x, student_head, x_, head_, tail.targets};
  ValueId cost = r.scale(plan.kl_head(heads, {temperature}), alpha * temperature * temperature);
  if (alpha < 1) cost = r.add(cost, r.scale(tail.logp, alpha - 1.0f));
  return r.segment_sum(cost, weight_, segment_, options_.lanes);
}

void DistillLoss::copy_head(ValueId value, const std::string& name, const ModelConfig& config,
                            const ModelWeights& weights) {
  for (const WeightSpec& spec : weight_specs(config))
    if (spec.name == name) return copies_.push_back({value, spec, &weights});
  WICK_CHECK(false, name, " is no weight of the model");
}

MemoryForecast DistillLoss::forecast(const Backend& backend) const {
  MemoryForecast f = forecast_memory(teacher_->plan(), backend);
  for (const HeadCopy& copy : copies_)
    f.weights += backend.weight_bytes(plan_->value(copy.value), WeightForm::kRows);
  return f;
}

void DistillLoss::compile(Backend& backend, Bindings& bindings) {
  auto bind = [](Bindings& to, ValueId id) -> BufferPtr& { return to[static_cast<size_t>(id)]; };
  Bindings teacher = teacher_->bind(backend, *options_.teacher.weights);
  if (const std::vector<float>* params = options_.teacher.params; params && !params->empty()) {
    const auto count = static_cast<int64_t>(params->size());
    BufferPtr buffer = backend.allocate(DType::kF32, count);
    backend.upload(*buffer, DType::kF32, 0, count, params->data());
    bind(teacher, teacher_->params()) = buffer;
  }
  const Value& x = teacher_->plan().value(teacher_x_);
  bind(teacher, teacher_x_) = backend.allocate(x.dtype, x.shape.elements());
  bind(bindings, x_) = bind(teacher, teacher_x_);
  bind(bindings, head_) = bind(teacher, teacher_->head_weight());
  for (const HeadCopy& copy : copies_)
    bind(bindings, copy.value) = backend.prepare(plan_->value(copy.value), WeightForm::kRows,
                                                 copy.weights->read(copy.spec).data());
  teacher_program_ = backend.compile(teacher_->plan(), teacher);
}

void DistillLoss::feed(Program& program, const Pack& pack, std::span<const float> lanes) {
  const DecoderContext& c = teacher_->context();
  auto feed = [](Program& to, ValueId id, const auto& data) {
    to.feed(id, data.data(), data.size() * sizeof(data[0]));
  };
  const size_t targets = pack.targets.size(), each = targets / lanes.size();
  std::vector<int32_t> rows(pack.ids.size(), -1), segments(targets, -1);
  std::vector<float> weights(targets, 0.0f);
  for (size_t m = 0; m < targets; ++m) {
    if (pack.targets[m] < 0) continue;
    rows[static_cast<size_t>(pack.rows[m])] = static_cast<int32_t>(m);
    weights[m] = lanes[m / each];
    segments[m] = static_cast<int32_t>(m / each);
  }
  feed(*teacher_program_, c.ids, pack.ids);
  feed(*teacher_program_, c.positions, pack.positions);
  feed(*teacher_program_, c.begin, pack.begin);
  feed(*teacher_program_, c.end, pack.end);
  feed(*teacher_program_, teacher_rows_, rows);
  teacher_program_->run();

  feed(program, weight_, weights);
  feed(program, segment_, segments);
}

// The teacher's run was before the pack's: this reports its faults and takes no time.
std::vector<float> DistillLoss::results(const Program&) {
  wait_oldest(*teacher_program_);
  return {};
}

EvalReport DistillLoss::evaluate(RunStep& step, std::span<const Pack> packs,
                                 const StopAsked& stop) {
  return evaluate_likelihood(step, packs, stop);
}

}  // namespace wick
