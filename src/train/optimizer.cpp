// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "plan/param_groups.h"

namespace wick {

namespace {

struct Named {
  const char* name;
  Op op;
  double weight_decay, beta1, beta2, momentum;  // its own values; < 0: it has none
};

constexpr Named kOptimizers[] = {
    {"adam", Op::kAdamw, 0, 0.9, 0.999, -1},           {"adamw", Op::kAdamw, 0.01, 0.9, 0.999, -1},
    {"adamw_8bit", Op::kAdamw8, 0.01, 0.9, 0.999, -1}, {"sgd", Op::kSgd, 0, -1, -1, 0},
    {"lion", Op::kLion, 0.01, 0.9, 0.99, -1},          {"muon", Op::kMuon, 0.01, -1, -1, 0.95},
    {"adafactor", Op::kAdafactor, 0, -1, -1, -1},
};

const Named& named(const std::string& name) {
  for (const Named& o : kOptimizers)
    if (name == o.name) return o;
  const std::string near = nearest_name(name, optimizer_names());
  std::string all;
  for (const std::string& each : optimizer_names()) all += (all.empty() ? "" : ", ") + each;
  fail(ErrorCode::kInvalidArgument, "--optimizer is \"", name, "\", wanted one of ", all,
       near.empty() ? "" : cat("; did you mean ", near, "?"));
}

Hyper adam_row(double rate, double beta1, double beta2, double eps, double decay, double clip,
               int64_t step, bool corrected) {
  // From the betas as the kernel reads them.
  auto left = [&](double beta) {
    const double power =
        std::pow(static_cast<double>(static_cast<float>(beta)), static_cast<double>(step));
    return corrected ? static_cast<float>(1.0 - power) : 1.0f;
  };
  return {static_cast<float>(rate),
          static_cast<float>(beta1),
          static_cast<float>(beta2),
          static_cast<float>(eps),
          static_cast<float>(decay),
          static_cast<float>(clip),
          left(beta1),
          left(beta2)};
}

}  // namespace

Hyper AdamwSettings::hyper() const {
  auto wide = [](float x) { return static_cast<double>(x); };
  return adam_row(wide(learning_rate), wide(beta1), wide(beta2), wide(eps), wide(weight_decay),
                  wide(clip), step, bias_correction);
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Named& o : kOptimizers) names.emplace_back(o.name);
  return names;
}

Op optimizer_op(const std::string& name) { return named(name).op; }

bool optimizer_sees_matrices(Op op) { return op == Op::kMuon || op == Op::kAdafactor; }

std::vector<OptimizerState> optimizer_states(Op op, const ParamGroups& groups) {
  const int64_t params = groups.groups.empty() ? 0 : groups.groups.back().end;
  switch (op) {
    case Op::kAdamw:
      return {{"m", DType::kF32, {params}}, {"v", DType::kF32, {params}}};
    case Op::kSgd:
    case Op::kLion:
    case Op::kMuon:
      return {{"m", DType::kF32, {params}}};
    case Op::kAdafactor: {
      int64_t count = 0;
      for (const ParamGroup& g : groups.groups) count += factor_count(g);
      return {{"factors", DType::kF32, {count}}};
    }
    case Op::kAdamw8:
      return {{"m8", DType::kU8, {params}},
              {"v8", DType::kU8, {params}},
              {"scales", DType::kF32, {2, code_blocks(groups)}}};
    default:
      fail(ErrorCode::kInternal, op_name(op), " is no optimizer");
  }
}

void resolve_optimizer(TrainOptions& o) {
  const Named& own = named(o.optimizer);
  auto refuse = [](const std::string& what) { fail(ErrorCode::kInvalidArgument, what); };
  auto in_range = [&](const std::string& name, double x, double low, double high) {
    if (!(x >= low && x <= high)) refuse(cat(name, " is ", x, ", wanted ", low, " to ", high));
  };
  auto take = [&](const char* name, double& value, double its, double high) {
    if (value >= 0 && its < 0)
      refuse(cat("--", name, ": ", o.optimizer, " has none; leave it out"));
    if (value < 0) value = its;
    if (value > high && high < 1)
      refuse(cat("--", name, " is ", value, ", wanted at least 0 and less than 1"));
    if (value >= 0) in_range(cat("--", name), value, 0.0, high);
  };
  if (o.optimizer == "adam" && o.weight_decay > 0)
    refuse("--optimizer adam has no weight decay; use adamw with --weight-decay");
  take("weight-decay", o.weight_decay, own.weight_decay, 10.0);
  take("beta1", o.beta1, own.beta1, 0.999999);
  take("beta2", o.beta2, own.beta2, 0.9999999);
  take("momentum", o.momentum, own.momentum, 0.999999);
  const bool adam = own.op == Op::kAdamw || own.op == Op::kAdamw8;
  // Where a gradient is zero, and that of LoRA's A is at first, 0 / 0 would be the update.
  if (adam) in_range("--eps", o.eps, 1e-30, 10.0);
  if (!o.bias_correction && !adam)
    refuse(cat("--no-bias-correction: ", o.optimizer, " has none; leave it out"));
  if (o.nesterov < 0) o.nesterov = own.op == Op::kMuon;
  if (o.nesterov && own.momentum < 0)
    refuse(cat("--nesterov: ", o.optimizer, " has no momentum; use sgd or muon"));
  if (own.op == Op::kSgd && o.nesterov && (o.momentum <= 0 || o.dampening != 0))
    refuse("--nesterov of sgd needs a momentum above 0 and no dampening");
  in_range("--dampening", o.dampening, 0.0, 1.0);
  // Keys of settings files, without flags.
  const std::string adafactor = "optimizer_config.adafactor.";
  in_range(adafactor + "clip_threshold", o.clip_threshold, 1e-6, 1e9);
  in_range(adafactor + "decay_rate", o.decay_rate, -10.0, 0.0);
  // The first is added to a square that is 0 where a gradient is.
  in_range(adafactor + "eps[0]", o.adafactor_eps1, 1e-37, 10.0);
  in_range(adafactor + "eps[1]", o.adafactor_eps2, 0.0, 10.0);
  if (o.ns_steps < 1 || o.ns_steps > kMostMuonSteps)
    refuse(cat("--ns-steps is ", o.ns_steps, ", wanted 1 to ", kMostMuonSteps));
}

Hyper optimizer_hyper(const TrainOptions& o, double rate, int64_t step) {
  auto f = [](double x) { return static_cast<float>(x); };
  const auto t = static_cast<double>(step);
  const float decay = f(o.weight_decay), clip = f(o.grad_clip);
  switch (optimizer_op(o.optimizer)) {
    case Op::kSgd:
      return {f(rate), f(o.momentum), f(o.dampening),          f(o.nesterov),
              decay,   clip,          step == 1 ? 0.0f : 1.0f, 0};
    case Op::kLion:
      return {f(rate), f(o.beta1), f(o.beta2), 0, decay, clip, 0, 0};
    case Op::kMuon:
      return {
          f(rate), f(o.momentum), f(o.nesterov), f(static_cast<double>(o.ns_steps)), decay, clip, 0,
          0};
    case Op::kAdafactor:
      if (o.relative_step)
        rate = std::min(o.relative_step_warmup ? 1e-6 * t : 1e-2, 1.0 / std::sqrt(t));
      return {f(rate),
              f(1.0 - std::pow(t, o.decay_rate)),
              f(o.adafactor_eps1),
              f(o.adafactor_eps2),
              decay,
              clip,
              f(o.clip_threshold),
              o.scale_parameter ? 1.0f : 0.0f};
    default:
      return adam_row(rate, o.beta1, o.beta2, o.eps, o.weight_decay, o.grad_clip, step,
                      o.bias_correction);
  }
}

}  // namespace wick
