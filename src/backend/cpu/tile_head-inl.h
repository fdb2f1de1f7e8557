// SPDX-License-Identifier: Apache-2.0
// What tile_head.cpp, which alone includes this file, does with vectors: the scratch of a stretch
// of rows, its logits' maxima, exponentials and gradients, and the rows that leave.
#pragma once

#include <limits>

#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/short_tiles.h"
#include "backend/cpu/tile_kernels.h"
#include "base/half.h"

#if WICK_CPU_BF16
#include "backend/cpu/product-inl.h"

namespace wick::cpu {
namespace {

constexpr int64_t kWords = 1024;    // of the vocabulary in a chunk
constexpr int64_t kFewWords = 256;  // where chunks may be left out
constexpr float kSlack = 8.0f;
constexpr int64_t kSums = 1024;  // elements of one block of sums

// Rows and codes become tiles of bf16, chunk by chunk.
bool needs_tiles(const Operand& w) {
  return w.form == WeightForm::kRows || dtype_is_quantized(w.dtype);
}

struct Work {
  int64_t parts;                      // of x and of the second product's left operand
  int32_t* kept;                      // the rows that count
  char *x, *left;                     // those of a stretch, and packed
  float* logits;                      // [panels of the chunk][blocks of rows]
  float *reference, *total, *chosen;  // by row
  char* weights = nullptr;            // left operand of the second product
  float* sums = nullptr;              // its result, [panels of D][blocks of rows]
  char* tiles = nullptr;              // a chunk of w, where w lies in rows
  char* gradient = nullptr;           // bf16 [rows, words of the chunk], for dw
  void* product = nullptr;            // scratch of dw's product
  size_t bytes;

  Work(int64_t m, DType x_type, const Operand& w, bool sum, bool dw, int threads, void* base)
      : parts(parts_of(x_type)) {
    const int64_t d = w.cols, rows = std::min(m, kMostRows), words = std::min(w.rows, kWords);
    const int64_t blocks = tile_blocks(rows), panels = tile_blocks(words);
    Pieces pieces(base);
    auto floats = [&](int64_t n) {
      return static_cast<float*>(pieces.take(static_cast<size_t>(n) * sizeof(float)));
    };
    auto bytes_of = [&](size_t n) { return static_cast<char*>(pieces.take(n)); };
    kept = reinterpret_cast<int32_t*>(floats(m));
    x = bytes_of(static_cast<size_t>(rows * d) * dtype_bytes(x_type));
    left = bytes_of(Streamed::bytes_of(rows, d, parts));
    logits = floats(panels * blocks * kSums);
    reference = floats(blocks * 32);
    total = floats(blocks * 32);
    chosen = floats(blocks * 32);
    if (sum) {
      weights = bytes_of(Streamed::bytes_of(rows, words, parts));
      sums = floats(tile_blocks(d) * blocks * kSums);
    }
    if (needs_tiles(w) && parts == 1) tiles = bytes_of(tiles_bytes(words, d));
    if (dw) {
      gradient = bytes_of(static_cast<size_t>(rows * words) * 2);
      product = bytes_of(columns_scratch(rows, words, d, threads));
    }
    bytes = pieces.bytes();
  }
};

}  // namespace
}  // namespace wick::cpu

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// e^x for x <= 80; 0 below about -87; NaN stays NaN.
inline __m512 exp_f32(__m512 x) {
  const __m512 y =
      _mm512_mul_ps(_mm512_max_ps(_mm512_set1_ps(-200.0f), x), _mm512_set1_ps(1.44269504f));
  const __m512 k = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(y, k);
  __m512 p = _mm512_set1_ps(1.33335581e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61812910e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, k);
}

// The same to about 1 ulp, as exp_small of simd-inl.h.
inline __m512 exp_f32_exact(__m512 x) {
  const __m512 low = _mm512_set1_ps(-86.5f), clamped = _mm512_max_ps(low, x);
  const __m512 k = _mm512_roundscale_ps(_mm512_mul_ps(clamped, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(k, _mm512_set1_ps(0.693145752f), clamped);
  r = _mm512_fnmadd_ps(k, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 p = _mm512_set1_ps(1.98756915e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.39819994e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.33345205e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.16657956e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.66666657e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  const __mmask16 zero = _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ);
  return _mm512_maskz_scalef_ps(_knot_mask16(zero), p, k);
}
template <bool Wide>
inline __m512 exp_of(__m512 x) {
  if constexpr (Wide)
    return exp_f32_exact(x);
  else
    return exp_f32(x);
}
// 32 terms of a left operand.
template <bool Wide>
inline void store_terms(__m512 v0, __m512 v1, char* to) {
  if constexpr (Wide)
    store_parts(v0, v1, to);
  else
    _mm512_store_si512(to, round_pairs(v0, v1));
}

// 16 rows of a chunk: half `half` of block `block`.
struct Half {
  const Work& work;
  const Streamed& weights;
  int64_t block, half, blocks;
  int64_t words;

  int64_t row() const { return block * 32 + half * 16; }
  const float* logits(int64_t panel) const {
    return work.logits + (panel * blocks + block) * kSums + half * 512;
  }
  char* packed(int64_t panel) const { return weights.at(block, panel) + half * 1024; }
  __mmask16 mask(int64_t panel, int64_t tile) const {
    return lanes_below(words - panel * 32 - tile * 16);
  }
};

// The largest logit of each row.
void row_maxima(const Half& h, float* most) {
  __m512 top[16];
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int i = 0; i < 16; ++i) top[i] = none;
  for (int64_t panel = 0; panel * 32 < h.words; ++panel)
    for (int64_t tile = 0; tile < 2; ++tile) {
      const float* at = h.logits(panel) + tile * 256;
      const __mmask16 mask = h.mask(panel, tile);
      for (int i = 0; i < 16; ++i)
        top[i] = _mm512_mask_max_ps(top[i], mask, top[i], _mm512_load_ps(at + i * 16));
    }
  for (int i = 0; i < 16; ++i) most[i] = _mm512_reduce_max_ps(top[i]);
}

// Adds Σ e^(logit - reference) to each row's total; with `keep`, also packs the terms.
template <bool Wide>
void sum_exponentials(const Half& h, bool keep) {
  const float* reference = h.work.reference + h.row();
  __m512 sum[16];
  for (int i = 0; i < 16; ++i) sum[i] = _mm512_setzero_ps();
  for (int64_t panel = 0; panel * 32 < h.words; ++panel) {
    const float* at = h.logits(panel);
    char* packed = keep ? h.packed(panel) : nullptr;
    const __mmask16 mask0 = h.mask(panel, 0), mask1 = h.mask(panel, 1);
    for (int i = 0; i < 16; ++i) {
      const __m512 shift = _mm512_set1_ps(reference[i]);
      const __m512 e0 = _mm512_maskz_mov_ps(
          mask0, exp_of<Wide>(_mm512_sub_ps(_mm512_load_ps(at + i * 16), shift)));
      const __m512 e1 = _mm512_maskz_mov_ps(
          mask1, exp_of<Wide>(_mm512_sub_ps(_mm512_load_ps(at + 256 + i * 16), shift)));
      sum[i] = _mm512_add_ps(sum[i], _mm512_add_ps(e0, e1));
      if (keep) store_terms<Wide>(e0, e1, packed + i * 64);
    }
  }
  for (int i = 0; i < 16; ++i) h.work.total[h.row() + i] += _mm512_reduce_add_ps(sum[i]);
}

// Clears packed terms below `share` of their row's total, and rows from `rows` on; whether any is
// left. Terms are not negative, so their bits order as they do.
bool clear_small(const Half& h, float share, int64_t rows) {
  __m512i any = _mm512_setzero_si512();
  for (int64_t i = 0; i < 16; ++i) {
    const bool counts = i < rows;
    const float least = counts ? share * h.work.total[h.row() + i] : 0;
    const __m512i bits = _mm512_set1_epi16(static_cast<int16_t>(to_bf16(least).bits));
    for (int64_t panel = 0; panel * 32 < h.words; ++panel) {
      char* at = h.packed(panel) + i * 64;
      const __m512i v = _mm512_load_si512(at);
      const __mmask32 stays = counts ? _mm512_cmpge_epu16_mask(v, bits) : 0;
      for (int64_t part = 0; part < h.work.parts; ++part, at += kBlockBytes)
        _mm512_store_si512(at, _mm512_maskz_mov_epi16(stays, _mm512_load_si512(at)));
      any = _mm512_or_si512(any, _mm512_maskz_mov_epi16(stays, v));
    }
  }
  return _mm512_test_epi32_mask(any, any) != 0;
}

// Multiplies what 16 rows have summed over w by a factor each.
void rescale_sums(const Half& h, int64_t d, const float* factor) {
  for (int64_t panel = 0; panel < tile_blocks(d); ++panel) {
    float* at = h.work.sums + (panel * h.blocks + h.block) * kSums + h.half * 512;
    for (int64_t i = 0; i < 16; ++i) {
      const __m512 f = _mm512_set1_ps(factor[i]);
      for (float* to : {at + i * 16, at + 256 + i * 16})
        _mm512_store_ps(to, _mm512_mul_ps(_mm512_load_ps(to), f));
    }
  }
}

// logits -> dlogp * (1[target] - p), as bf16 rows and as a right operand. `target` < 0 or >= words:
// in another chunk.
template <bool Wide>
void gradients(const Half& h, const float* lse, const float* dlogp, const int64_t* target,
               int64_t rows, int64_t row_words, float skip_below, bool pack) {
  const __m512 least = _mm512_set1_ps(skip_below);
  for (int64_t panel = 0; panel * 32 < h.words; ++panel) {
    const float* at = h.logits(panel);
    char* packed = pack ? h.packed(panel) : nullptr;
    const __mmask16 mask0 = h.mask(panel, 0), mask1 = h.mask(panel, 1);
    for (int64_t i = 0; i < 16; ++i) {
      const bool counts = i < rows;
      const __m512 shift = _mm512_set1_ps(counts ? lse[i] : 0),
                   g = _mm512_set1_ps(counts ? dlogp[i] : 0);
      __m512 e0 = exp_of<Wide>(_mm512_sub_ps(_mm512_load_ps(at + i * 16), shift));
      __m512 e1 = exp_of<Wide>(_mm512_sub_ps(_mm512_load_ps(at + 256 + i * 16), shift));
      e0 = _mm512_mask_mov_ps(e0, _mm512_cmp_ps_mask(e0, least, _CMP_LT_OQ), _mm512_setzero_ps());
      e1 = _mm512_mask_mov_ps(e1, _mm512_cmp_ps_mask(e1, least, _CMP_LT_OQ), _mm512_setzero_ps());
      const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
      const auto place = static_cast<int>(counts && target[i] / 32 == panel && target[i] >= 0 &&
                                                  target[i] < h.words
                                              ? target[i] % 32
                                              : -1);
      const __mmask16 hit0 = _mm512_cmpeq_epi32_mask(lane, _mm512_set1_epi32(place));
      const __mmask16 hit1 = _mm512_cmpeq_epi32_mask(lane, _mm512_set1_epi32(place - 16));
      const __m512 one = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps();
      e0 = _mm512_sub_ps(_mm512_mask_mov_ps(zero, hit0, one), e0);
      e1 = _mm512_sub_ps(_mm512_mask_mov_ps(zero, place >= 16 ? hit1 : 0, one), e1);
      e0 = _mm512_maskz_mul_ps(mask0, e0, g);
      e1 = _mm512_maskz_mul_ps(mask1, e1, g);
      if (pack) store_terms<Wide>(e0, e1, packed + i * 64);
      if (counts && h.work.gradient != nullptr)
        _mm512_mask_storeu_epi16(h.work.gradient + ((h.row() + i) * row_words + panel * 32) * 2,
                                 words_below(h.words - panel * 32), round_pairs(e0, e1));
    }
  }
}

// Where a row of the finished sums goes, bf16 or f32 as x is: base - factor * sum, with base a row
// of bf16 or nothing.
struct RowOut {
  char* to = nullptr;  // null: nowhere
  const uint16_t* base = nullptr;
  float factor = 0;
};
void store_sums(const Work& work, int64_t block, int64_t half, int64_t blocks, int64_t d,
                const RowOut* rows) {
  for (int64_t panel = 0; panel < tile_blocks(d); ++panel) {
    const float* from = work.sums + (panel * blocks + block) * kSums + half * 512;
    const __mmask32 mask = words_below(d - panel * 32);
    for (int64_t i = 0; i < 16; ++i) {
      const RowOut& row = rows[i];
      if (row.to == nullptr) continue;
      const __m512i base = row.base != nullptr
                               ? _mm512_maskz_loadu_epi16(mask, row.base + panel * 32)
                               : _mm512_setzero_si512();
      const __m512 f = _mm512_set1_ps(row.factor);
      const __m512 v0 = _mm512_fnmadd_ps(_mm512_load_ps(from + i * 16), f,
                                         widen_words(_mm512_castsi512_si256(base)));
      const __m512 v1 = _mm512_fnmadd_ps(_mm512_load_ps(from + 256 + i * 16), f,
                                         widen_words(_mm512_extracti64x4_epi64(base, 1)));
      if (work.parts == 1) {
        _mm512_mask_storeu_epi16(row.to + panel * 64, mask, round_pairs(v0, v1));
      } else {
        float* to = reinterpret_cast<float*>(row.to) + panel * 32;
        _mm512_mask_storeu_ps(to, lanes_below(d - panel * 32), v0);
        _mm512_mask_storeu_ps(to + 16, lanes_below(d - panel * 32 - 16), v1);
      }
    }
  }
}

// Row `row` of w, in tiles or not, as bf16.
void copy_weight_row(const Operand& w, int64_t row, uint16_t* to) {
  if (dtype_is_quantized(w.dtype))
    return unpack_quant_row(QuantTiles(w.data, w.dtype, w.rows, w.cols), row,
                            reinterpret_cast<bf16*>(to));
  if (w.form != WeightForm::kRows)
    return (w.form == WeightForm::kTiles ? copy_tile_row : copy_short_row)(
        w.as<const char>(), row, w.cols, DType::kBF16, to);
  for (int64_t c = 0; c < w.cols; c += 32) {
    const __mmask32 mask = words_below(w.cols - c);
    const int64_t at = row * w.ld + c;
    const __m512i v = w.dtype == DType::kF32    ? load_words(w.as<const float>() + at, mask)
                      : w.dtype == DType::kBF16 ? load_words(w.as<const bf16>() + at, mask)
                                                : load_words(w.as<const f16>() + at, mask);
    _mm512_mask_storeu_epi16(to + c, mask, v);
  }
}

// dx = dlogp * slope.
void scale_row(const float* from, float g, int64_t d, float* to) {
  for (int64_t c = 0; c < d; c += 16) {
    const __mmask16 mask = lanes_below(d - c);
    _mm512_mask_storeu_ps(to + c, mask,
                          _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, from + c), _mm512_set1_ps(g)));
  }
}
void scale_row(const uint16_t* from, float g, int64_t d, uint16_t* to) {
  const __m512 factor = _mm512_set1_ps(g);
  for (int64_t c = 0; c < d; c += 32) {
    const __mmask32 mask = words_below(d - c);
    const __m512i v = _mm512_maskz_loadu_epi16(mask, from + c);
    _mm512_mask_storeu_epi16(
        to + c, mask,
        round_pairs(_mm512_mul_ps(widen_words(_mm512_castsi512_si256(v)), factor),
                    _mm512_mul_ps(widen_words(_mm512_extracti64x4_epi64(v, 1)), factor)));
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END
#endif
