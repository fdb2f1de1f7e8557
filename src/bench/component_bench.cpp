// SPDX-License-Identifier: Apache-2.0
// The parts of one layer, forward and backward, as they run inside a training step: the steps of
// the second of two layers, timed one by one. The first layer has no gradient below it.
#include <map>

#include "bench/profile.h"
#include "bench/train_case.h"

namespace wick {

namespace {

constexpr int64_t kLayer = 1;

enum Part { kNoPart, kEmbedding, kNorms, kProjections, kRope, kAttention, kMlp };

// The layer in a value's name, or -1.
int64_t layer_in(const std::string& name) {
  constexpr std::string_view kMark = "model.layers.";
  const size_t at = name.find(kMark);
  return at == std::string::npos ? -1 : std::atoll(name.c_str() + at + kMark.size());
}

// By its weights, else by what it is derived from, else that of the step before.
int64_t layer_of(const Plan& plan, const Step& step, int64_t before) {
  int64_t found = -1;
  auto look = [&](ValueId id) {
    if (id == kNone) return;
    const int64_t layer = layer_in(plan.value(id).name);
    const Kind kind = plan.value(plan.root(id)).kind;
    if (layer >= 0 && (found < 0 || kind == Kind::kWeight || kind == Kind::kState)) found = layer;
  };
  for (const Output& o : step.outputs) look(o.value);
  for (ValueId id : step.inputs) look(id);
  return found >= 0 ? found : before;
}

Part part_of(const Plan& plan, const Step& step) {
  switch (step.op) {
    case Op::kEmbed:
      return kEmbedding;
    case Op::kRmsNorm:
    case Op::kAddRmsNorm:
    case Op::kAdd:
      return kNorms;
    case Op::kRope:
      return kRope;
    case Op::kAttention:
      return kAttention;
    case Op::kGatedAct:
      return kMlp;
    default:
      break;
  }
  for (ValueId id : step.inputs)
    if (id != kNone && plan.value(id).name.find(".mlp.") != std::string::npos) return kMlp;
  return step.op == Op::kHead || step.op == Op::kSegmentSum || step.op == Op::kGatherRows
             ? kNoPart
             : kProjections;
}

}  // namespace

void bench_components(const BenchContext& c) {
  const BenchOptions& o = c.options;
  c.check_length("--seq", o.seq);
  ModelConfig cut = c.config();
  if (cut.layers <= kLayer)
    fail(ErrorCode::kInvalidArgument, "components: the model has ", cut.layers,
         " layer, wanted at least 2");
  cut.layers = kLayer + 1;
  cut.windows.resize(static_cast<size_t>(cut.layers));
  TrainCase train(c.backend(), cut, c.weights(), {1, o.seq, o.rank, o.targets, o.seed});
  train.compile();
  const Plan& plan = train.step().micro_plan();
  StepSeconds runs;
  const std::vector<Pack> packs = train.next_packs();
  Effort effort = o.effort;
  effort.seconds = std::min(effort.seconds, 1.0);
  const size_t timed = measure(effort, [&] {
                         runs.push_back(train.step().accumulate_timed(packs.front(), 1e-3f));
                       }).size();
  runs.erase(runs.begin(), runs.end() - static_cast<int64_t>(timed));  // the warm-up
  if (runs.front().empty()) return;  // a device that cannot time its steps

  struct Sum {
    std::vector<double> ms;
    double gflop = 0;
  };
  std::map<std::pair<Part, Dir>, Sum> sums;
  for (std::vector<double>& run : runs) {
    int64_t layer = -1;
    std::map<std::pair<Part, Dir>, double> one;
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const Step& step = plan.steps[s];
      const Part part = part_of(plan, step);
      layer = layer_of(plan, step, layer);
      if (part == kNoPart || (part != kEmbedding && layer != kLayer)) continue;
      one[{part, step.dir}] += 1e3 * run[s];
      if (&run == &runs.front()) sums[{part, step.dir}].gflop += step_flops(plan, step) * 1e-9;
    }
    for (const auto& [key, ms] : one) sums[key].ms.push_back(ms);
  }
  auto emit = [&](const std::string& what, std::initializer_list<Part> parts, Dir dir) {
    Sum total;
    for (Part part : parts) {
      auto found = sums.find({part, dir});
      if (found == sums.end()) continue;
      total.gflop += found->second.gflop;
      total.ms.resize(std::max(total.ms.size(), found->second.ms.size()));
      for (size_t i = 0; i < found->second.ms.size(); ++i) total.ms[i] += found->second.ms[i];
    }
    // Nothing, or made together with another part.
    if (total.ms.empty() || summarize(total.ms).median == 0) return;
    BenchResult r;
    r.bench = "components";
    r.what = cat(what, dir == Dir::kForward ? " forward" : " backward");
    r.batch = 1;
    r.seq = o.seq;
    r.rank = o.rank;
    r.targets = joined(o.targets);
    r.ms = summarize(total.ms);
    r.gflop = total.gflop;
    c.emit(std::move(r), static_cast<double>(o.seq));
  };
  for (Dir dir : {Dir::kForward, Dir::kBackward}) {
    emit("embedding", {kEmbedding}, dir);
    emit("rope", {kRope}, dir);
    emit("attention op", {kAttention}, dir);
    emit("attention block", {kProjections, kRope, kAttention}, dir);
    emit("mlp", {kMlp}, dir);
    emit("norms and residuals", {kNorms}, dir);
    emit("whole layer", {kNorms, kProjections, kRope, kAttention, kMlp}, dir);
  }
}

}  // namespace wick
