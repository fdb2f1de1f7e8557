// SPDX-License-Identifier: Apache-2.0
// grad_norm and the optimizers of one element at a time: bound by bytes. Also the loop that
// measures this machine's peak, which is bound by multiply-adds alone.
#include "backend/cpu/optimizer.h"

#include "backend/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

// Elements whose squares are summed in f32; the chunks' sums are added in order in f64.
constexpr int64_t kNormChunk = 4096;

int64_t norm_chunks(int64_t count) { return (count + kNormChunk - 1) / kNormChunk; }

void grad_norm_fwd(const StepArgs& args) {
  const Operand& g = args.in[0];
  const std::vector<SetRange> ranges = set_ranges(attr<ParamGroups>(*args.step), g.elements());
  double* sums = static_cast<double*>(args.scratch);
  float* y = args.out[0].as<float>();
  const int64_t sets = args.out[0].elements();
  for (int64_t set = 0; set < sets; ++set) {
    double total = 0;
    for (const SetRange& range : ranges) {
      if (range.set != set) continue;
      const int64_t chunks = norm_chunks(range.end - range.begin);
      args.pool->parallel(chunks, [&](int64_t c) HWY_ATTR {
        const int64_t begin = range.begin + c * kNormChunk;
        const int64_t end = std::min(range.end, begin + kNormChunk);
        VF sum = hn::Zero(df);
        for (int64_t i = begin; i < end; i += kLanes) {
          VF v = load_part(g.as<const float>() + i, end - i);
          sum = hn::MulAdd(v, v, sum);
        }
        sums[c] = static_cast<double>(sum_lanes(sum));
      });
      for (int64_t c = 0; c < chunks; ++c) total += sums[c];
    }
    y[set] = static_cast<float>(std::sqrt(total));
  }
}
size_t grad_norm_scratch(const StepArgs& args, int) {
  return static_cast<size_t>(norm_chunks(args.in[0].elements())) * sizeof(double);
}

// Calls rule(i, n) for the vectors of each group; `make(h)` is the rule of one group. An element's
// bits depend on its group alone, so whole groups or chunks of them may be a thread's.
template <typename Make>
void each_param(const StepArgs& args, const Make& make) {
  constexpr int64_t kChunk = 8192;
  const auto& groups = attr<ParamGroups>(*args.step).groups;
  auto over = [&](const ParamGroup& group, int64_t begin, int64_t end) HWY_ATTR {
    const auto rule = make(GroupHyper(args, group));
    for (int64_t i = begin; i < end; i += kLanes) rule(i, end - i);
  };
  constexpr size_t kFew = 16;
  if (groups.size() > kFew) {
    args.pool->parallel(static_cast<int64_t>(groups.size()), [&](int64_t i) HWY_ATTR {
      const ParamGroup& group = groups[static_cast<size_t>(i)];
      over(group, group.begin, group.end);
    });
    return;
  }
  for (const ParamGroup& group : groups) {
    const int64_t chunks = (group.end - group.begin + kChunk - 1) / kChunk;
    args.pool->parallel(chunks, [&](int64_t c) HWY_ATTR {
      const int64_t begin = group.begin + c * kChunk;
      over(group, begin, std::min(group.end, begin + kChunk));
    });
  }
}

void adamw_fwd(const StepArgs& args) {
  float *params = args.out[0].as<float>(), *ms = args.out[1].as<float>(),
        *vs = args.out[2].as<float>(), *gs = args.out[3].as<float>();
  each_param(args, [=](const GroupHyper& h) {
    return [=](int64_t i, int64_t n) HWY_ATTR {
      const float beta1 = h[1], beta2 = h[2];
      const VF b1 = set(beta1), b2 = set(beta2), keep = set(1.0f - h.rate * h.decay);
      const VF step = set(h.rate / h[6]), root = set(1.0f / std::sqrt(h[7]));
      VF g = hn::Mul(load_part(gs + i, n), set(h.shrink));
      VF m = load_part(ms + i, n), v = load_part(vs + i, n), p = load_part(params + i, n);
      m = hn::MulAdd(b1, m, hn::Mul(set(1.0f - beta1), g));
      v = hn::MulAdd(b2, v, hn::Mul(set(1.0f - beta2), hn::Mul(g, g)));
      VF down = hn::MulAdd(hn::Sqrt(v), root, set(h[3]));
      p = hn::Sub(hn::Mul(p, keep), hn::Div(hn::Mul(step, m), down));
      store_part(p, params + i, n);
      store_part(m, ms + i, n);
      store_part(v, vs + i, n);
      store_part(hn::Zero(df), gs + i, n);
    };
  });
}

void sgd_fwd(const StepArgs& args) {
  float *params = args.out[0].as<float>(), *ms = args.out[1].as<float>(),
        *gs = args.out[2].as<float>();
  each_param(args, [=](const GroupHyper& h) {
    return [=](int64_t i, int64_t n) HWY_ATTR {
      const bool later = h[6] != 0;
      const VF momentum = set(h[1]), kept = set(later ? h[1] : 0.0f);
      const VF taken = set(later ? 1.0f - h[2] : 1.0f);
      VF p = load_part(params + i, n), m = load_part(ms + i, n);
      VF d = hn::Mul(load_part(gs + i, n), set(h.shrink));
      d = hn::MulAdd(set(h.decay), p, d);
      m = hn::MulAdd(kept, m, hn::Mul(taken, d));
      const VF step = h[3] != 0 ? hn::MulAdd(momentum, m, d) : m;
      store_part(hn::NegMulAdd(set(h.rate), step, p), params + i, n);
      store_part(m, ms + i, n);
      store_part(hn::Zero(df), gs + i, n);
    };
  });
}

void lion_fwd(const StepArgs& args) {
  float *params = args.out[0].as<float>(), *ms = args.out[1].as<float>(),
        *gs = args.out[2].as<float>();
  each_param(args, [=](const GroupHyper& h) {
    return [=](int64_t i, int64_t n) HWY_ATTR {
      const VF zero = hn::Zero(df), one = set(1.0f);
      const VF g = hn::Mul(load_part(gs + i, n), set(h.shrink));
      VF p = load_part(params + i, n), m = load_part(ms + i, n);
      const VF mixed = hn::MulAdd(set(h[1]), m, hn::Mul(set(1.0f - h[1]), g));
      VF step = hn::IfThenElse(hn::Gt(mixed, zero), one, zero);
      step = hn::IfThenElse(hn::Lt(mixed, zero), hn::Neg(one), step);
      step = hn::MulAdd(set(h.decay), p, step);
      m = hn::MulAdd(set(h[2]), m, hn::Mul(set(1.0f - h[2]), g));
      store_part(hn::NegMulAdd(set(h.rate), step, p), params + i, n);
      store_part(m, ms + i, n);
      store_part(zero, gs + i, n);
    };
  });
}

}  // namespace

Candidates optimizer_table() {
  static constexpr Candidate kTable[] = {
      {Op::kGradNorm, Dir::kForward, "grad_norm_fwd", grad_norm_fwd, nullptr, grad_norm_scratch},
      {Op::kAdamw, Dir::kForward, "adamw_fwd", adamw_fwd, nullptr, nullptr},
      {Op::kSgd, Dir::kForward, "sgd_fwd", sgd_fwd, nullptr, nullptr},
      {Op::kLion, Dir::kForward, "lion_fwd", lion_fwd, nullptr, nullptr},
  };
  return kTable;
}

double peak_rounds(int64_t rounds) {
  constexpr int kSums = 12;
  VF sum[kSums];
  WICK_UNROLL
  for (int i = 0; i < kSums; ++i) sum[i] = set(static_cast<float>(i));
  VF a = set(0.5f), b = set(0.25f);
  for (int64_t r = 0; r < rounds; ++r) {
    WICK_UNROLL
    for (int i = 0; i < kSums; ++i) sum[i] = hn::MulAdd(sum[i], a, b);
  }
  VF total = sum[0];
  WICK_UNROLL
  for (int i = 1; i < kSums; ++i) total = hn::Add(total, sum[i]);
  const double operations = 2.0 * static_cast<double>(rounds * kSums * kLanes);
  return sum_lanes(total) < 0 ? 0 : operations;  // the sums are used, so they are computed
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {

WICK_CPU_BY_RUNG(optimizer_candidates, optimizer_table)

double peak_loop(Rung rung, int64_t rounds) {
  using Fn = double (*)(int64_t);
  constexpr Fn kTable[kRungCount] = {HWY_CHOOSE_AVX3(peak_rounds),    HWY_CHOOSE_AVX3(peak_rounds),
                                     HWY_CHOOSE_AVX3(peak_rounds),    HWY_CHOOSE_AVX2(peak_rounds),
                                     HWY_CHOOSE_SSE4(peak_rounds),    HWY_CHOOSE_NEON(peak_rounds),
                                     HWY_CHOOSE_FALLBACK(peak_rounds)};
  return kTable[static_cast<int>(rung)](rounds);
}

}  // namespace wick::cpu
#endif
