// SPDX-License-Identifier: Apache-2.0
// gated_act with silu in bf16 on the rungs whose vectors round to it: half the instructions of
// elementwise.cpp, which has the meaning. Bound by bytes.
#include <algorithm>

#include "backend/accepts.h"
#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/rungs.h"

#if WICK_CPU_BF16
#include "base/half.h"
#include "base/threads.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/product-inl.h"

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

struct Words {
  __m512 low, high;
};
inline Words load_wide(const uint16_t* p, __mmask32 mask) {
  const __m512i v = _mm512_maskz_loadu_epi16(mask, p);
  return {widen_words(_mm512_castsi512_si256(v)), widen_words(_mm512_extracti64x4_epi64(v, 1))};
}

// sigmoid(x), and 1 minus it, to 13 bits. NaN stays NaN.
inline __m512 sigmoid(__m512 x, __m512* rest) {
  // 2^-(x log2 e), between 2^-100 and 2^100: beyond, bf16 sees no difference.
  __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f));
  y = _mm512_min_ps(_mm512_set1_ps(100.0f), _mm512_max_ps(_mm512_set1_ps(-100.0f), y));
  const __m512 k = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(y, k);
  __m512 p = _mm512_set1_ps(9.61812910e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  const __m512 e = _mm512_scalef_ps(p, k), d = _mm512_add_ps(e, _mm512_set1_ps(1.0f));
  const __m512 s = _mm512_rcp14_ps(d);
  *rest = _mm512_mul_ps(e, s);
  return s;
}

void silu_rows(const Operand& x, const Operand& y, int64_t t0, int64_t t1) {
  const int64_t f = y.cols;
  for (int64_t t = t0; t < t1; ++t) {
    const uint16_t *gate = x.as<const uint16_t>() + t * x.ld, *up = gate + f;
    uint16_t* to = y.as<uint16_t>() + t * y.ld;
    for (int64_t i = 0; i < f; i += 32) {
      const __mmask32 mask = words_below(f - i);
      const Words g = load_wide(gate + i, mask), u = load_wide(up + i, mask);
      __m512 rest;
      const __m512 low = _mm512_mul_ps(_mm512_mul_ps(g.low, sigmoid(g.low, &rest)), u.low);
      const __m512 high = _mm512_mul_ps(_mm512_mul_ps(g.high, sigmoid(g.high, &rest)), u.high);
      _mm512_mask_storeu_epi16(to + i, mask, round_pairs(low, high));
    }
  }
}

// silu' = s (1 + x (1 - s)).
inline void silu_bwd(__m512 g, __m512 u, __m512 dy, __m512* dg, __m512* du) {
  __m512 rest;
  const __m512 s = sigmoid(g, &rest);
  const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(g, rest), s, s);
  *dg = _mm512_mul_ps(_mm512_mul_ps(dy, u), slope);
  *du = _mm512_mul_ps(dy, _mm512_mul_ps(g, s));
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
      Words dg, du;
      silu_bwd(g.low, u.low, d.low, &dg.low, &du.low);
      silu_bwd(g.high, u.high, d.high, &dg.high, &du.high);
      _mm512_mask_storeu_epi16(to + i, mask, round_pairs(dg.low, dg.high));
      _mm512_mask_storeu_epi16(to + f + i, mask, round_pairs(du.low, du.high));
    }
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {
namespace {

constexpr int64_t kRows = 4;  // of one task

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

}  // namespace

Candidates bf16_act_candidates(Rung rung) {
  static constexpr Candidate kTable[] = {
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
