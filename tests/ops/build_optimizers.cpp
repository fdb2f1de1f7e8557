// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/builder.h"
#include "plan/param_groups.h"

namespace wick::ops {

// P parameters in `groups` vectors, or `groups` matrices of R x C and C x R in turn and one vector
// of P; sets take them in turn. Every second group has its own rate and no decay.
ParamGroups Builder::param_groups() {
  const int64_t p = size("P", 0), groups = size("groups", 1), r = size("R", 0), c = size("C", 0);
  ParamGroups made;
  made.sets = static_cast<int32_t>(size("sets", 1));
  int64_t end = 0;
  auto add = [&](int64_t count, int64_t rows) {
    const auto i = static_cast<int64_t>(made.groups.size());
    made.groups.push_back({end, end + count, i % 2 == 0 ? 1.0f : 16.0f, i % 2 == 0 ? 1.0f : 0.0f,
                           static_cast<int32_t>(i % made.sets), rows});
    end += count;
  };
  for (int64_t i = 0; i < groups; ++i) {
    if (r > 0)
      add(r * c, i % 2 == 0 ? r : c);
    else
      add(p * (i + 1) / groups - p * i / groups, 0);
  }
  if (r > 0 && p > 0) add(p, 0);
  return made;
}

void Builder::grad_norm() {
  const int64_t p = size("P"), sets = size("sets", 1);
  ParamGroups groups;
  if (sets > 1) groups = param_groups();
  input("g", {p}, false);
  output("y", {sets}, p);
  c_.attr = groups;
  c_.fwd_in = {"g"};
  c_.fwd_out = {"y"};
}

void Builder::optimizer(const ParamGroups& groups, std::vector<double> hyper) {
  const float clip = number("clip", 0.0f);
  hyper[5] = static_cast<double>(clip);
  Arg& rows = value("hyper", {groups.sets, 8});
  Arg norm{.name = "norm", .shape = {groups.sets}};
  for (int32_t s = 0; s < groups.sets; ++s) {
    hyper[0] *= s + 1;
    for (double h : hyper) rows.data.push_back(rounded(h, DType::kF32));
    norm.data.push_back(rounded(1.7 + s, DType::kF32));
  }
  c_.args.push_back(norm);
  c_.attr = groups;
  c_.fwd_in = {"hyper", "norm"};
  const int64_t p = groups.groups.back().end;
  for (const char* name : {"params", "g"}) {
    Arg& a = output(name, {p}, 4);
    a.mode = OutMode::kUpdate;
    fill(a, 0.1);
  }
  c_.fwd_out = {"params"};
}

namespace {

// An f32 state of an optimizer.
constexpr double kStateScale = 0.1;

}  // namespace

void Builder::adamw() {
  const ParamGroups groups = param_groups();
  const bool corrected = size("corrected", 1) != 0;
  optimizer(groups, {1e-2, 0.9, 0.999, 1e-8, 0.1, 0, corrected ? 1 - std::pow(0.9, 3) : 1.0,
                     corrected ? 1 - std::pow(0.999, 3) : 1.0});
  for (const char* name : {"m", "v"}) {
    Arg& a = output(name, c_.arg("params").shape, 4);
    a.mode = OutMode::kUpdate;
    fill(a, kStateScale);
  }
  for (double& x : c_.arg("v").data) x = rounded(x * x, DType::kF32);
  c_.fwd_out = {"params", "m", "v", "g"};
}

void Builder::sgd() {
  optimizer(param_groups(), {1e-2, 0.9, static_cast<double>(number("dampening", 0.0f)),
                             static_cast<double>(size("nesterov", 0)), 0.1, 0,
                             static_cast<double>(size("later", 1)), 0});
  Arg& m = output("m", c_.arg("params").shape, 4);
  m.mode = OutMode::kUpdate;
  fill(m, kStateScale);
  c_.fwd_out = {"params", "m", "g"};
}

void Builder::lion() {
  optimizer(param_groups(), {1e-2, 0.9, 0.99, 0, 0.1, 0, 0, 0});
  Arg& m = output("m", c_.arg("params").shape, 4);
  m.mode = OutMode::kUpdate;
  fill(m, kStateScale);
  c_.fwd_out = {"params", "m", "g"};
}

void Builder::muon() {
  const ParamGroups groups = param_groups();
  optimizer(groups, {1e-2, 0.95, static_cast<double>(size("nesterov", 1)), 5, 0.1, 0, 0, 0});
  Arg& m = output("m", c_.arg("params").shape, 4);
  m.mode = OutMode::kUpdate;
  fill(m, kStateScale);
  // Each of the steps may double what rounding left in the small singular values.
  for (const ParamGroup& g : groups.groups)
    c_.arg("params").reduction = std::max(c_.arg("params").reduction, 64 * (g.end - g.begin));
  c_.fwd_out = {"params", "m", "g"};
}

void Builder::adafactor() {
  const ParamGroups groups = param_groups();
  optimizer(groups, {1e-2, 0.7, 1e-30, 1e-3, 0.1, 0, static_cast<double>(number("threshold", 1.0f)),
                     static_cast<double>(size("scaled", 0))});
  int64_t count = 0, largest = 0;
  for (const ParamGroup& g : groups.groups) {
    count += factor_count(g);
    largest = std::max(largest, g.end - g.begin);
  }
  Arg& factors = output("factors", {count}, largest);
  factors.mode = OutMode::kUpdate;
  fill(factors, kStateScale);
  for (double& x : factors.data) x = rounded(x * x + 1e-4, DType::kF32);
  c_.arg("params").reduction = largest;
  c_.fwd_out = {"params", "factors", "g"};
}

void Builder::adamw8() {
  const ParamGroups groups = param_groups();
  optimizer(groups, {1e-2, 0.9, 0.999, 1e-8, 0.1, 0, 1 - std::pow(0.9, 3), 1 - std::pow(0.999, 3)});
  const int64_t p = groups.groups.back().end, blocks = code_blocks(groups);
  for (const char* name : {"m", "v"}) {
    Arg codes{.name = name, .shape = {p}, .dtype = DType::kU8, .mode = OutMode::kUpdate};
    for (int64_t i = 0; i < p; ++i) {
      int64_t code = below(256);
      if (name[0] == 'm' && code == 128) code = 127;  // -128 is no code
      codes.ints.push_back(static_cast<int32_t>(code));
    }
    c_.args.push_back(codes);
  }
  Arg& scales = output("scales", {2, blocks}, 4);
  scales.mode = OutMode::kUpdate;
  fill(scales, kStateScale);
  for (double& x : scales.data) x = rounded(std::abs(x) + 1e-3, DType::kF32);
  c_.fwd_out = {"params", "m", "v", "scales", "g"};
}

}  // namespace wick::ops
