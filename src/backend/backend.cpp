// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"

#include <algorithm>

#include "backend/kernels.h"
#include "base/check.h"

namespace wick {
namespace {

bool only_f32_and_i32(const StepArgs& args) {
  auto plain = [](const Operand& o) {
    return !o || o.dtype == DType::kF32 || o.dtype == DType::kI32;
  };
  return std::all_of(args.in.begin(), args.in.end(), plain) &&
         std::all_of(args.out.begin(), args.out.end(), plain);
}

std::string operand_list(std::span<const Operand> operands) {
  std::string text;
  for (const Operand& o : operands) {
    if (!text.empty()) text += ", ";
    text += o ? cat(dtype_name(o.dtype), " [", o.rows, ", ", o.cols, "]",
                    o.form == WeightForm::kTiles ? " in tiles" : "")
              : std::string("none");
  }
  return text;
}

int64_t aligned(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

}  // namespace

std::vector<size_t> Selection::scratch_bytes() const {
  std::vector<size_t> bytes;
  bytes.reserve(steps.size());
  for (const Choice& choice : steps) bytes.push_back(choice.scratch);
  return bytes;
}

Operand operand_of(const Plan& plan, std::span<const WeightForm> forms, ValueId id) {
  if (id == kNone) return {};
  const Value& v = plan.value(id);
  const WeightForm form = forms[static_cast<size_t>(v.root)];
  return {
      .data = nullptr,
      .rows = v.shape.rows(),
      .cols = v.shape.cols(),
      .ld = std::max<int64_t>(v.ld != 0 ? v.ld : v.shape.cols(), 1),
      .dtype = form != WeightForm::kRows && !dtype_is_quantized(v.dtype) ? DType::kBF16 : v.dtype,
      .form = form};
}

void describe(const Plan& plan, std::span<const WeightForm> forms, const Step& step,
              std::vector<Operand>& in, std::vector<Operand>& out) {
  in.clear();
  out.clear();
  for (ValueId id : step.inputs) in.push_back(operand_of(plan, forms, id));
  for (const Output& o : step.outputs) out.push_back(operand_of(plan, forms, o.value));
}

std::vector<WeightForm> tile_forms(const Plan& plan) {
  struct Uses {
    bool products = false, others = false;
  };
  std::vector<Uses> uses(plan.values.size());
  for (const Step& step : plan.steps) {
    // A head with a second pair has no kernel on tiles.
    const size_t plain_head = step.dir == Dir::kForward ? 3 : 6;
    const bool product =
        step.op == Op::kLinear || (step.op == Op::kHead && step.inputs.size() <= plain_head);
    const size_t weight_at = step.dir == Dir::kForward ? 1 : 2;
    // Rows of activations; the reverse of head begins with its losses' gradient, which is f32.
    const size_t rows_at = step.op == Op::kHead && step.dir == Dir::kBackward ? 1 : 0;
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const ValueId id = step.inputs[i];
      if (id == kNone || plan.value(plan.root(id)).kind != Kind::kWeight) continue;
      Uses& u = uses[static_cast<size_t>(plan.root(id))];
      const bool whole = !plan.is_view(id) && plan.value(id).shape.rank() == 2;
      if (whole && product && i == weight_at &&
          plan.value(step.inputs[rows_at]).dtype == DType::kBF16)
        u.products = true;
      else if (!(whole && step.op == Op::kEmbed && i == 0))
        u.others = true;
      else if (plan.value(step.outputs[0].value).dtype == DType::kBF16)
        // A plan that has the table alone shares it with one where it is the head's weight too.
        u.products = true;
    }
  }
  std::vector<WeightForm> forms(plan.values.size(), WeightForm::kRows);
  for (size_t i = 0; i < uses.size(); ++i)
    if (uses[i].products && !uses[i].others) forms[i] = WeightForm::kTiles;
  return forms;
}

std::vector<WeightForm> Backend::weight_forms(const Plan& plan) const {
  return std::vector<WeightForm>(plan.values.size(), WeightForm::kRows);
}

int64_t Backend::weight_bytes(const Value& weight, WeightForm form) const {
  WICK_CHECK(form == WeightForm::kRows, "a form that this back end does not have");
  if (size_t size = element_bytes(weight.dtype); size > 0)
    return weight.shape.elements() * static_cast<int64_t>(size);
  return weight.shape.rows() * static_cast<int64_t>(row_bytes(weight.dtype, weight.shape.cols()));
}

BufferPtr Backend::prepare(const Value& weight, WeightForm form, const void* rows) {
  WICK_CHECK(form == WeightForm::kRows, "a form that this back end does not have");
  BufferPtr made = allocate(weight.dtype, weight.shape.elements());
  upload(*made, weight.dtype, 0, weight.shape.elements(), rows);
  return made;
}

Selection select_candidates(const Plan& plan, std::span<const Candidate> candidates, int threads,
                            const char* backend_name, std::vector<WeightForm> forms) {
  Selection selection;
  forms.resize(plan.values.size(), WeightForm::kRows);
  selection.steps.reserve(plan.steps.size());
  std::vector<Operand> in, out;
  for (const Step& step : plan.steps) {
    describe(plan, forms, step, in, out);
    StepArgs args{.step = &step, .in = in, .out = out};
    auto chosen = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return c.op == step.op && c.dir == step.dir &&
             (c.accepts != nullptr ? c.accepts(args) : only_f32_and_i32(args));
    });
    if (chosen == candidates.end()) {
      fail(ErrorCode::kUnsupported, "the ", backend_name, " back end has no ", op_name(step.op),
           step.dir == Dir::kForward ? " forward" : " backward", " kernel for inputs (",
           operand_list(in), ") and outputs (", operand_list(out),
           "); try --dtype f32 or another --device");
    }
    selection.steps.push_back(
        {.kernel = chosen->name,
         .candidate = static_cast<int>(chosen - candidates.begin()),
         .scratch = chosen->scratch != nullptr ? chosen->scratch(args, threads) : 0});
  }
  selection.forms = std::move(forms);
  return selection;
}

MemoryForecast forecast_memory(const Plan& plan, const Backend& backend) {
  MemoryForecast forecast;
  const std::vector<WeightForm> forms = backend.weight_forms(plan);
  for (ValueId id = 0; id < static_cast<ValueId>(plan.values.size()); ++id) {
    if (plan.is_view(id)) continue;
    const Value& v = plan.value(id);
    int64_t bytes = v.shape.elements() * static_cast<int64_t>(backend.element_bytes(v.dtype));
    switch (v.kind) {
      case Kind::kWeight:
        forecast.weights += backend.weight_bytes(v, forms[static_cast<size_t>(id)]);
        break;
      case Kind::kState:
        forecast.states += bytes;
        break;
      case Kind::kFeed:
        forecast.feeds += aligned(bytes);
        break;
      case Kind::kTemp:
        break;
    }
  }
  forecast.arena =
      place(plan, backend.element_sizes(), backend.select(plan).scratch_bytes()).arena_bytes;
  return forecast;
}

}  // namespace wick
