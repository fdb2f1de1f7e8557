// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/check.h"
#include "ops/guarded.h"
#include "ops/modes.h"

namespace wick::ops {
namespace {

struct Column {
  const char* title;
  DType operands;  // of the weight, or of every float operand
  bool only_weights;
};
constexpr Column kColumns[] = {{"f32", DType::kF32, false},
                               {"bf16 weights", DType::kBF16, true},
                               {"f16 weights", DType::kF16, true},
                               {"bf16", DType::kBF16, false},
                               {"f16", DType::kF16, false}};

bool is_weight(const Case& c, const std::string& name) {
  return name == "w" || name == "table" ||
         (name == "b" && c.op != Op::kAdd && c.op != Op::kAddRmsNorm);
}

// What stays f32 in every compute type: statistics, losses, tables of angles, the optimizer.
bool is_always_f32(const Case& c, const std::string& name) {
  switch (c.op) {
    case Op::kSegmentSum:
    case Op::kGradNorm:
    case Op::kAdamw:
      return true;
    case Op::kRope:
      return name == "table";
    case Op::kLinear:
    case Op::kBias:
      if (name == "dw" || name == "db") return true;
      break;
    case Op::kRmsNorm:
    case Op::kAddRmsNorm:
      if (name == "rstd" || name == "dw") return true;
      break;
    case Op::kAttention:
      return name == "lse";
    case Op::kHead:
      return name == "logp" || name == "dlogp" || name == "lse" || name == "dw";
    case Op::kEmbed:
      return name == "dtable";
    case Op::kGatedAct:
    case Op::kAdd:
    case Op::kScale:
    case Op::kDropout:
    case Op::kGatherRows:
    case Op::kCopy:
      break;
  }
  return false;
}

// Whether a column says something about a direction of the op beyond the f32 one.
bool applies(const Case& c, Dir dir, const Column& column) {
  if (column.operands == DType::kF32) return true;
  const auto& names = dir == Dir::kForward ? c.fwd_in : c.bwd_in;
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    if (name.empty() || c.arg(name).dtype == DType::kI32 || is_always_f32(c, name)) return false;
    return !column.only_weights || is_weight(c, name);
  });
}

bool is_supported(const Backend& backend, Case c, Dir dir, const Column& column) {
  for (Arg& arg : c.args) {
    if (arg.dtype == DType::kI32 || is_always_f32(c, arg.name)) continue;
    arg.dtype = is_weight(c, arg.name) || !column.only_weights ? column.operands : DType::kF32;
  }
  try {
    backend.select(one_step_plan(c, dir));
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) throw;
    return false;
  }
}

}  // namespace

void print_support(const std::vector<Case>& cases, const std::vector<Device>& devices) {
  std::string last;
  for (const Device& device : devices) {
    // What is supported does not depend on the instruction set.
    std::string name = device.name.substr(0, device.name.find('/'));
    if (name == last) continue;
    last = name;
    auto backend = device.open(1);
    std::printf("\n### %s\n\n| op |", name.c_str());
    for (const Column& column : kColumns) std::printf(" %s |", column.title);
    std::printf("\n|---|");
    for (size_t i = 0; i < std::size(kColumns); ++i) std::printf("---|");
    std::printf("\n");
    for (int op = 0; op < kOpCount; ++op) {
      auto c = std::find_if(cases.begin(), cases.end(),
                            [&](const Case& x) { return static_cast<int>(x.op) == op; });
      if (c == cases.end()) continue;
      for (Dir dir : {Dir::kForward, Dir::kBackward}) {
        if (!c->runs(dir)) continue;
        std::printf("| %s_%s |", op_name(c->op), dir == Dir::kForward ? "fwd" : "bwd");
        for (const Column& column : kColumns) {
          const char* mark = "";
          if (applies(*c, dir, column))
            mark = is_supported(*backend, *c, dir, column) ? "yes" : "–";
          std::printf(" %s |", mark);
        }
        std::printf("\n");
      }
    }
  }
}

void bench_cases(const std::vector<Case>& cases, const std::vector<Device>& devices) {
  using Clock = std::chrono::steady_clock;
  for (const Device& device : devices) {
    auto backend = device.open(0);
    for (const Case& c : cases) {
      if (!c.flag("bench")) continue;
      for (Dir dir : {Dir::kForward, Dir::kBackward}) {
        if (!c.runs(dir)) continue;
        GuardedStep step(*backend, c, dir);
        step.run();
        std::vector<double> ms;
        double total = 0;
        while (ms.size() < 5 || (total < 200 && ms.size() < 1000)) {
          auto start = Clock::now();
          step.run();
          ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
          total += ms.back();
        }
        std::nth_element(ms.begin(), ms.begin() + static_cast<ptrdiff_t>(ms.size() / 2), ms.end());
        double median = ms[ms.size() / 2];
        Plan plan = one_step_plan(c, dir);
        std::printf("%-4s %s_%s  %.4f ms  %.1f GFLOP/s  %s\n", device.name.c_str(), op_name(c.op),
                    dir == Dir::kForward ? "fwd" : "bwd", median, plan_flops(plan) / median / 1e6,
                    c.text.c_str());
      }
    }
  }
}

}  // namespace wick::ops
