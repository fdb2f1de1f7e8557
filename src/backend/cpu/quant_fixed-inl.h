// SPDX-License-Identifier: Apache-2.0
// What both products of quant_fixed.h do: rows of x as integers, and finished sums. Included after
// everything that must not be compiled for AVX2.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/quant_fixed.h"
#include "backend/cpu/unroll.h"
#include "base/half.h"

WICK_AVX2_BEGIN
namespace wick::cpu {
namespace {

constexpr int64_t kBlock = 32;

// The most that a number of x becomes.
constexpr float kMostByte = 127.0f, kMostWord = 32767.0f;

// Block b of a row as floats, zero past its end.
inline void load_block(const Operand& x, int64_t row, int64_t b, float* to) {
  const int64_t first = b * kBlock, n = std::clamp<int64_t>(x.cols - first, 0, kBlock);
  if (x.dtype == DType::kF32) {
    std::memcpy(to, x.as<const float>() + row * x.ld + first, static_cast<size_t>(n) * 4);
  } else {
    const bf16* from = x.as<const bf16>() + row * x.ld + first;
    for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
  }
  std::fill(to + n, to + kBlock, 0.0f);
}

// 32 floats as integers of `most` at most; the scale that takes them back. What is not finite makes
// the scale NaN.
inline float fix_block(const float* x, float most, __m256i out[4]) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 v[4], top = _mm256_setzero_ps(), sum = top;
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    top = _mm256_max_ps(top, _mm256_andnot_ps(sign, v[i]));
    sum = _mm256_add_ps(sum, _mm256_sub_ps(v[i], v[i]));
  }
  alignas(32) float lanes[8], odd[8];
  _mm256_store_ps(lanes, top);
  _mm256_store_ps(odd, sum);
  float largest = 0x1p-100f, bad = 0;
  for (int i = 0; i < 8; ++i) {
    largest = std::max(largest, lanes[i]);
    bad += odd[i];
  }
  const __m256 factor = _mm256_set1_ps(bad == 0 ? most / largest : 0.0f);
  for (int i = 0; i < 4; ++i) out[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor));
  return bad == 0 ? largest / most : std::nanf("");
}

// In order, as words or bytes.
inline __m256i words_of(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0b11011000);
}
inline __m256i bytes_of(const __m256i v[4]) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi16(words_of(v[0], v[1]), words_of(v[2], v[3])),
                                  0b11011000);
}

inline float bias_at(const Operand& bias, int64_t n) {
  if (!bias) return 0;
  if (bias.dtype == DType::kF32) return bias.as<const float>()[n];
  if (bias.dtype == DType::kBF16) return to_float(bias.as<const bf16>()[n]);
  return to_float(bias.as<const f16>()[n]);
}

// Outputs [n, n + count) of a row.
inline void finish_row(const FixedFinish& f, int64_t row, int64_t n, int64_t count,
                       const float* sums) {
  if (f.y.dtype == DType::kF32 && !f.bias && !f.add) {
    float* to = f.y.as<float>() + row * f.y.ld + n;
    for (int64_t i = 0; i < count; ++i) to[i] = sums[i] * f.scale;
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float v = std::fma(sums[i], f.scale, bias_at(f.bias, n + i));
    const int64_t at = row * f.y.ld + n + i;
    if (f.y.dtype == DType::kF32)
      f.y.as<float>()[at] = f.add ? f.y.as<float>()[at] + v : v;
    else
      f.y.as<bf16>()[at] = to_bf16(f.add ? to_float(f.y.as<bf16>()[at]) + v : v);
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_AVX2_END
