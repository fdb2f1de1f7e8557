// SPDX-License-Identifier: Apache-2.0
// gated_act with silu, and softmax, in bf16 on the rungs whose vectors round to it: half the
// instructions of elementwise.cpp and norm.cpp, which have the meaning. Bound by bytes.
#include <algorithm>
#include <cmath>

#include "backend/accepts.h"
#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/rungs.h"

#if WICK_CPU_BF16
#include "base/half.h"
#include "base/threads.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/silu-inl.h"

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

void silu_rows(const Operand& x, const Operand& y, int64_t t0, int64_t t1) {
  const int64_t f = y.cols;
  for (int64_t t = t0; t < t1; ++t) {
    const uint16_t *gate = x.as<const uint16_t>() + t * x.ld, *up = gate + f;
    uint16_t* to = y.as<uint16_t>() + t * y.ld;
    for (int64_t i = 0; i < f; i += 32) {
      const __mmask32 mask = words_below(f - i);
      const Words g = load_wide(gate + i, mask), u = load_wide(up + i, mask);
      _mm512_mask_storeu_epi16(to + i, mask, gated(g, u));
    }
  }
}

void silu_rows_bwd(const Operand& dy, const Operand& x, const Operand& dx, int64_t t0, int64_t t1) {
  const int64_t f = dy.cols;
  for (int64_t t = t0; t < t1; ++t) {
    const uint16_t* gate = x.as<const uint16_t>() + t * x.ld;
    const uint16_t* from = dy.as<const uint16_t>() + t * dy.ld;
    uint16_t* to = dx.as<uint16_t>() + t * dx.ld;
    for (int64_t i = 0; i < f; i += 32) {
      const __mmask32 mask = words_below(f - i);
      const Words g = load_wide(gate + i, mask), u = load_wide(gate + f + i, mask),
                  d = load_wide(from + i, mask);
      __m512i dg, du;
      gated_bwd(g, u, d, &dg, &du);
      _mm512_mask_storeu_epi16(to + i, mask, dg);
      _mm512_mask_storeu_epi16(to + f + i, mask, du);
    }
  }
}

// Of longer rows the exponentials of what lies beyond are taken twice.
constexpr int64_t kKept = 4096;

// 32 words, and what adds nothing to a row past its end.
inline Words load_or_lowest(const uint16_t* p, __mmask32 mask) {
  return widen(_mm512_mask_loadu_epi16(_mm512_set1_epi16(static_cast<short>(0xff80)), mask, p));
}
inline __m512 exp_below(__m512 x, __m512 top) {
  const __m512 y = _mm512_mul_ps(_mm512_sub_ps(x, top), _mm512_set1_ps(1.44269504f));
  return power_of_two(_mm512_max_ps(_mm512_set1_ps(-150.0f), y));
}

inline Words exps_below(const uint16_t* p, __mmask32 mask, __m512 top) {
  const Words w = load_or_lowest(p, mask);
  return {exp_below(w.low, top), exp_below(w.high, top)};
}

void softmax_rows(const Operand& x, const Operand& y, int64_t t0, int64_t t1) {
  alignas(64) float kept[kKept];
  const int64_t d = y.cols;
  for (int64_t t = t0; t < t1; ++t) {
    const uint16_t* from = x.as<const uint16_t>() + t * x.ld;
    uint16_t* to = y.as<uint16_t>() + t * y.ld;
    __m512 top0 = _mm512_set1_ps(-INFINITY), top1 = top0;
    for (int64_t i = 0; i < d; i += 32) {
      const Words w = load_or_lowest(from + i, words_below(d - i));
      top0 = _mm512_max_ps(top0, w.low);
      top1 = _mm512_max_ps(top1, w.high);
    }
    const __m512 top = _mm512_set1_ps(_mm512_reduce_max_ps(_mm512_max_ps(top0, top1)));
    __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0;
    for (int64_t i = 0; i < d; i += 32) {
      const Words e = exps_below(from + i, words_below(d - i), top);
      sum0 = _mm512_add_ps(sum0, e.low);
      sum1 = _mm512_add_ps(sum1, e.high);
      if (i >= kKept) continue;
      _mm512_store_ps(kept + i, e.low);
      _mm512_store_ps(kept + i + 16, e.high);
    }
    const __m512 scale = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(_mm512_add_ps(sum0, sum1)));
    for (int64_t i = 0; i < d; i += 32) {
      const Words e = i < kKept ? Words{_mm512_load_ps(kept + i), _mm512_load_ps(kept + i + 16)}
                                : exps_below(from + i, words_below(d - i), top);
      _mm512_mask_storeu_epi16(
          to + i, words_below(d - i),
          round_pairs(_mm512_mul_ps(e.low, scale), _mm512_mul_ps(e.high, scale)));
    }
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {
namespace {

constexpr int64_t kRows = 4;              // of one task
constexpr int64_t kTaskWords = 16 << 10;  // the same, of softmax

bool is_silu(const StepArgs& args) { return attr<GatedActAttr>(*args.step).act == Act::kSilu; }

bool accepts_fwd(const StepArgs& args) {
  return is_silu(args) && args.in[0].dtype == DType::kBF16 && args.out[0].dtype == DType::kBF16;
}
void gated_act_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  args.pool->parallel((y.rows + kRows - 1) / kRows, [&](int64_t i) {
    silu_rows(x, y, i * kRows, std::min(y.rows, (i + 1) * kRows));
  });
}

bool accepts_bwd(const StepArgs& args) {
  return is_silu(args) && args.in[0].dtype == DType::kBF16 && args.in[1].dtype == DType::kBF16 &&
         args.out[0].dtype == DType::kBF16;
}
void gated_act_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &dx = args.out[0];
  args.pool->parallel((dy.rows + kRows - 1) / kRows, [&](int64_t i) {
    silu_rows_bwd(dy, x, dx, i * kRows, std::min(dy.rows, (i + 1) * kRows));
  });
}

bool accepts_softmax(const StepArgs& args) {
  return args.in[0].dtype == DType::kBF16 && args.out[0].dtype == DType::kBF16;
}
void softmax_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  const int64_t rows = std::max<int64_t>(1, kTaskWords / std::max<int64_t>(1, y.cols));
  args.pool->parallel((y.rows + rows - 1) / rows, [&](int64_t i) {
    softmax_rows(x, y, i * rows, std::min(y.rows, (i + 1) * rows));
  });
}

}  // namespace

Candidates bf16_act_candidates(Rung rung) {
  static constexpr Candidate kTable[] = {
      {Op::kSoftmax, Dir::kForward, "softmax_fwd_bf16", softmax_fwd, accepts_softmax, nullptr},
      {Op::kGatedAct, Dir::kForward, "gated_act_fwd_bf16", gated_act_fwd, accepts_fwd, nullptr},
      {Op::kGatedAct, Dir::kBackward, "gated_act_bwd_bf16", gated_act_bwd, accepts_bwd, nullptr},
  };
  if (!rung_has_bf16(rung)) return {};
  return kTable;
}

}  // namespace wick::cpu

#else

namespace wick::cpu {
Candidates bf16_act_candidates(Rung) { return {}; }
}  // namespace wick::cpu

#endif
