// SPDX-License-Identifier: Apache-2.0
// grad_norm and adamw: bound by bytes. Also the loop that measures this machine's peak, which is
// bound by multiply-adds alone.
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

int64_t norm_chunks(const Operand& g) { return (g.elements() + kNormChunk - 1) / kNormChunk; }

void grad_norm_fwd(const StepArgs& args) {
  const Operand& g = args.in[0];
  const int64_t n = g.elements(), chunks = norm_chunks(g);
  double* sums = static_cast<double*>(args.scratch);
  args.pool->parallel(chunks, [&](int64_t c) HWY_ATTR {
    const int64_t end = std::min(n, (c + 1) * kNormChunk);
    VF sum = hn::Zero(df);
    for (int64_t i = c * kNormChunk; i < end; i += kLanes) {
      VF v = load_part(g.as<const float>() + i, end - i);
      sum = hn::MulAdd(v, v, sum);
    }
    sums[c] = static_cast<double>(sum_lanes(sum));
  });
  double total = 0;
  for (int64_t c = 0; c < chunks; ++c) total += sums[c];
  args.out[0].as<float>()[0] = static_cast<float>(std::sqrt(total));
}
size_t grad_norm_scratch(const StepArgs& args, int) {
  return static_cast<size_t>(norm_chunks(args.in[0])) * sizeof(double);
}

void adamw_fwd(const StepArgs& args) {
  const float* hyper = args.in[0].as<const float>();
  const float norm = args.in[1].as<const float>()[0];
  const float lr = hyper[0], beta1 = hyper[1], beta2 = hyper[2], eps = hyper[3], decay = hyper[4],
              clip = hyper[5], correction1 = hyper[6], correction2 = hyper[7];
  const float shrink = clip > 0 && norm > clip ? clip / norm : 1.0f;
  float *params = args.out[0].as<float>(), *ms = args.out[1].as<float>(),
        *vs = args.out[2].as<float>(), *gs = args.out[3].as<float>();
  constexpr int64_t kChunk = 8192;
  for (const ParamGroup& group : attr<ParamGroups>(*args.step).groups) {
    const float rate = lr * group.lr_scale;
    const int64_t chunks = (group.end - group.begin + kChunk - 1) / kChunk;
    args.pool->parallel(chunks, [&](int64_t c) HWY_ATTR {
      const int64_t begin = group.begin + c * kChunk, end = std::min(group.end, begin + kChunk);
      const VF b1 = set(beta1), b2 = set(beta2),
               keep = set(1.0f - rate * decay * group.decay_scale);
      const VF step = set(rate / correction1), root = set(1.0f / std::sqrt(correction2));
      for (int64_t i = begin; i < end; i += kLanes) {
        const int64_t n = end - i;
        VF g = hn::Mul(load_part(gs + i, n), set(shrink));
        VF m = load_part(ms + i, n), v = load_part(vs + i, n), p = load_part(params + i, n);
        m = hn::MulAdd(b1, m, hn::Mul(set(1.0f - beta1), g));
        v = hn::MulAdd(b2, v, hn::Mul(set(1.0f - beta2), hn::Mul(g, g)));
        VF down = hn::MulAdd(hn::Sqrt(v), root, set(eps));
        p = hn::Sub(hn::Mul(p, keep), hn::Div(hn::Mul(step, m), down));
        store_part(p, params + i, n);
        store_part(m, ms + i, n);
        store_part(v, vs + i, n);
        store_part(hn::Zero(df), gs + i, n);
      }
    });
  }
}

}  // namespace

Candidates optimizer_table() {
  static constexpr Candidate kTable[] = {
      {Op::kGradNorm, Dir::kForward, "grad_norm_fwd", grad_norm_fwd, nullptr, grad_norm_scratch},
      {Op::kAdamw, Dir::kForward, "adamw_fwd", adamw_fwd, nullptr, nullptr},
  };
  return kTable;
}

double peak_rounds(int64_t rounds) {
  constexpr int kSums = 12;
  VF sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = set(static_cast<float>(i));
  VF a = set(0.5f), b = set(0.25f);
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kSums; ++i) sum[i] = hn::MulAdd(sum[i], a, b);
  VF total = sum[0];
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
  constexpr Fn kTable[kRungCount] = {HWY_CHOOSE_AVX3(peak_rounds), HWY_CHOOSE_AVX3(peak_rounds),
                                     HWY_CHOOSE_AVX3(peak_rounds), HWY_CHOOSE_AVX2(peak_rounds),
                                     HWY_CHOOSE_SSE4(peak_rounds), HWY_CHOOSE_NEON(peak_rounds),
                                     HWY_CHOOSE_FALLBACK(peak_rounds)};
  return kTable[static_cast<int>(rung)](rounds);
}

}  // namespace wick::cpu
#endif
