// SPDX-License-Identifier: Apache-2.0
#include "bench/plan_case.h"

#include "model/random_weights.h"

namespace wick {

namespace {

DType type_of(const std::string& name) { return parse_dtype(name).value_or(DType::kF32); }

}  // namespace

PlanCase::PlanCase(const BenchContext& context)
    : context_(context),
      compute_(type_of(context.machine.dtype)),
      resting_(type_of(context.machine.weight_dtype)),
      recorder_(plan_, false, compute_) {}

ValueId PlanCase::input(const std::string& name, Shape shape) {
  return recorder_.feed(name, shape, compute_);
}
ValueId PlanCase::weight(const std::string& name, Shape shape) {
  return recorder_.weight(name, shape, resting_);
}
ValueId PlanCase::gain(const std::string& name, int64_t size) {
  return recorder_.weight(name, {size}, resting_);
}
ValueId PlanCase::params(int64_t count) { return recorder_.state("params", {count}, DType::kF32); }

ValueId PlanCase::integers(const std::string& name, std::vector<int32_t> values) {
  return given(name, {static_cast<int64_t>(values.size())}, DType::kI32, values.data());
}

ValueId PlanCase::given(const std::string& name, Shape shape, DType dtype, const void* data) {
  const ValueId id = recorder_.feed(name, shape, dtype);
  const auto* from = static_cast<const std::byte*>(data);
  given_.emplace_back(id,
                      std::vector<std::byte>(
                          from, from + static_cast<size_t>(shape.elements()) * dtype_bytes(dtype)));
  return id;
}

void PlanCase::compile() {
  Backend& backend = context_.backend();
  fuse(plan_);
  check(plan_);
  const std::vector<WeightForm> forms = backend.weight_forms(plan_);
  Bindings bindings(plan_.values.size());
  auto random = [&](const Value& v) {
    std::vector<std::byte> data(static_cast<size_t>(v.shape.elements()) * dtype_bytes(v.dtype));
    fill_random(context_.options.seed, v.name, 0.5, v.dtype,
                static_cast<size_t>(v.shape.elements()), data.data());
    return data;
  };
  for (ValueId id = 0; id < static_cast<ValueId>(plan_.values.size()); ++id) {
    const Value& v = plan_.value(id);
    const size_t at = static_cast<size_t>(id);
    if (plan_.is_view(id)) continue;
    if (v.kind == Kind::kWeight) {
      bindings[at] = backend.prepare(v, forms[at], random(v).data());
    } else if (v.kind == Kind::kState) {
      bindings[at] = backend.allocate(v.dtype, v.shape.elements());
      backend.upload(*bindings[at], v.dtype, 0, v.shape.elements(), random(v).data());
    }
  }
  program_ = backend.compile(plan_, bindings);
  for (ValueId id = 0; id < static_cast<ValueId>(plan_.values.size()); ++id) {
    const Value& v = plan_.value(id);
    if (plan_.is_view(id) || v.kind != Kind::kFeed || v.dtype == DType::kI32) continue;
    const std::vector<std::byte> data = random(v);
    program_->feed(id, data.data(), data.size());
  }
  for (const auto& [id, data] : given_) program_->feed(id, data.data(), data.size());
}

}  // namespace wick
