// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"

#include <algorithm>

#include "backend/kernels.h"
#include "base/check.h"

namespace wick {
namespace {

Operand operand_of(const Plan& plan, ValueId id) {
  if (id == kNone) return {};
  const Value& v = plan.value(id);
  return {.data = nullptr,
          .rows = v.shape.rows(),
          .cols = v.shape.cols(),
          .ld = std::max<int64_t>(v.ld != 0 ? v.ld : v.shape.cols(), 1),
          .dtype = v.dtype};
}

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
    text += o ? cat(dtype_name(o.dtype), " [", o.rows, ", ", o.cols, "]") : std::string("none");
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

void describe(const Plan& plan, const Step& step, std::vector<Operand>& in,
              std::vector<Operand>& out) {
  in.clear();
  out.clear();
  for (ValueId id : step.inputs) in.push_back(operand_of(plan, id));
  for (const Output& o : step.outputs) out.push_back(operand_of(plan, o.value));
}

Selection select_candidates(const Plan& plan, std::span<const Candidate> candidates, int threads,
                            const char* backend_name) {
  Selection selection;
  selection.steps.reserve(plan.steps.size());
  std::vector<Operand> in, out;
  for (const Step& step : plan.steps) {
    describe(plan, step, in, out);
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
  return selection;
}

MemoryForecast forecast_memory(const Plan& plan, const Backend& backend) {
  MemoryForecast forecast;
  for (ValueId id = 0; id < static_cast<ValueId>(plan.values.size()); ++id) {
    if (plan.is_view(id)) continue;
    const Value& v = plan.value(id);
    int64_t bytes = v.shape.elements() * static_cast<int64_t>(backend.element_bytes(v.dtype));
    switch (v.kind) {
      case Kind::kWeight:
        forecast.weights += bytes;
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
