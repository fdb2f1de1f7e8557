// SPDX-License-Identifier: Apache-2.0
// Words of bf16 in vectors, and gated_act with silu of them, for the op's own kernels and for the
// products that make it at once: the same bits.
#pragma once

#include <algorithm>

#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/product.h"

#if WICK_CPU_BF16
WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

inline __mmask32 words_below(int64_t n) {
  return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1;
}
inline __mmask16 lanes_below(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}

inline __m512i round_pairs(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

inline __m512 widen_words(__m256i h) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

struct Words {
  __m512 low, high;
};
inline Words widen(__m512i v) {
  return {widen_words(_mm512_castsi512_si256(v)), widen_words(_mm512_extracti64x4_epi64(v, 1))};
}
inline Words load_wide(const uint16_t* p, __mmask32 mask) {
  return widen(_mm512_maskz_loadu_epi16(mask, p));
}

// 2^y to 13 bits, for y between -150 and 100. NaN stays NaN.
inline __m512 power_of_two(__m512 y) {
  const __m512 k = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(y, k);
  __m512 p = _mm512_set1_ps(9.61812910e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, k);
}

// sigmoid(x), and 1 minus it, to 13 bits. NaN stays NaN.
inline __m512 sigmoid(__m512 x, __m512* rest) {
  // 2^-(x log2 e), between 2^-100 and 2^100: beyond, bf16 sees no difference.
  __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f));
  y = _mm512_min_ps(_mm512_set1_ps(100.0f), _mm512_max_ps(_mm512_set1_ps(-100.0f), y));
  const __m512 e = power_of_two(y), d = _mm512_add_ps(e, _mm512_set1_ps(1.0f));
  const __m512 s = _mm512_rcp14_ps(d);
  *rest = _mm512_mul_ps(e, s);
  return s;
}

// silu' = s (1 + x (1 - s)).
inline void silu_bwd(__m512 g, __m512 u, __m512 dy, __m512* dg, __m512* du) {
  __m512 rest;
  const __m512 s = sigmoid(g, &rest);
  const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(g, rest), s, s);
  *dg = _mm512_mul_ps(_mm512_mul_ps(dy, u), slope);
  *du = _mm512_mul_ps(dy, _mm512_mul_ps(g, s));
}

// silu(gate) * up.
inline __m512i gated(const Words& g, const Words& u) {
  __m512 rest;
  return round_pairs(_mm512_mul_ps(_mm512_mul_ps(g.low, sigmoid(g.low, &rest)), u.low),
                     _mm512_mul_ps(_mm512_mul_ps(g.high, sigmoid(g.high, &rest)), u.high));
}
inline void gated_bwd(const Words& g, const Words& u, const Words& dy, __m512i* dg, __m512i* du) {
  Words a, b;
  silu_bwd(g.low, u.low, dy.low, &a.low, &b.low);
  silu_bwd(g.high, u.high, dy.high, &a.high, &b.high);
  *dg = round_pairs(a.low, a.high);
  *du = round_pairs(b.low, b.high);
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END
#endif
