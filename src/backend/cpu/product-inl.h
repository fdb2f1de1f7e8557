// SPDX-License-Identifier: Apache-2.0
// What product.cpp does with vectors: turning and packing blocks; finishing them is in
// finish-inl.h.
#pragma once

#include <algorithm>

#include "backend/cpu/finish-inl.h"

#if WICK_CPU_BF16
WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// 16 rows of 16 dwords at `from`, `stride` bytes apart, turned. A lane of 128 bits of the output
// comes from four rows, so gathering lanes while loading leaves 4 x 4 turns inside lanes.
inline void turn_dwords(const char* from, int64_t stride, __m512i out[16]) {
  for (int i = 0; i < 4; ++i) {
    __m512i v[4];
    for (int j = 0; j < 4; ++j) {
      const char* at = from + j * stride + i * 16;
      auto lane = [&](int l) { return reinterpret_cast<const __m128i*>(at + 4 * l * stride); };
      v[j] = _mm512_castsi128_si512(_mm_loadu_si128(lane(0)));
      v[j] = _mm512_inserti32x4(v[j], _mm_loadu_si128(lane(1)), 1);
      v[j] = _mm512_inserti32x4(v[j], _mm_loadu_si128(lane(2)), 2);
      v[j] = _mm512_inserti32x4(v[j], _mm_loadu_si128(lane(3)), 3);
    }
    const __m512i low01 = _mm512_unpacklo_epi32(v[0], v[1]),
                  high01 = _mm512_unpackhi_epi32(v[0], v[1]),
                  low23 = _mm512_unpacklo_epi32(v[2], v[3]),
                  high23 = _mm512_unpackhi_epi32(v[2], v[3]);
    out[i * 4 + 0] = _mm512_unpacklo_epi64(low01, low23);
    out[i * 4 + 1] = _mm512_unpackhi_epi64(low01, low23);
    out[i * 4 + 2] = _mm512_unpacklo_epi64(high01, high23);
    out[i * 4 + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
}

// One block of w in tiles as right operand of x w, where the sum runs over n. A pair of n lies
// together as 8 bytes, [n][2 k] each: those are turned as a whole, then sorted to [2 k][n].
inline void turn_block(const char* w, char* right) {
  const __m512i sorted =
      _mm512_broadcast_i32x4(_mm_set_epi8(15, 14, 11, 10, 13, 12, 9, 8, 7, 6, 3, 2, 5, 4, 1, 0));
  for (int64_t tile = 0; tile < 2; ++tile)
    for (int64_t half = 0; half < 2; ++half) {
      const char* from = w + tile * 1024 + half * 512;
      char* to = right + half * 1024 + tile * 512;
      for (int64_t i = 0; i < 4; ++i) {
        // Lane l of `even` and `odd` comes from rows 2 l and 2 l + 1.
        auto row = [&](int64_t r) {
          return reinterpret_cast<const __m128i*>(from + r * 64 + i * 16);
        };
        __m512i even = _mm512_castsi128_si512(_mm_load_si128(row(0)));
        even = _mm512_inserti32x4(even, _mm_load_si128(row(2)), 1);
        even = _mm512_inserti32x4(even, _mm_load_si128(row(4)), 2);
        even = _mm512_inserti32x4(even, _mm_load_si128(row(6)), 3);
        __m512i odd = _mm512_castsi128_si512(_mm_load_si128(row(1)));
        odd = _mm512_inserti32x4(odd, _mm_load_si128(row(3)), 1);
        odd = _mm512_inserti32x4(odd, _mm_load_si128(row(5)), 2);
        odd = _mm512_inserti32x4(odd, _mm_load_si128(row(7)), 3);
        _mm512_store_si512(to + (2 * i) * 64,
                           _mm512_shuffle_epi8(_mm512_unpacklo_epi64(even, odd), sorted));
        _mm512_store_si512(to + (2 * i + 1) * 64,
                           _mm512_shuffle_epi8(_mm512_unpackhi_epi64(even, odd), sorted));
      }
    }
}

// 32 floats as three times 32 of bf16 that add up to them, each part a block after the one before.
inline void store_parts(__m512 v0, __m512 v1, char* to) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  auto cut = [&](__m512 v) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), high));
  };
  // What is not finite has one part: itself.
  const __mmask16 odd0 = _mm512_fpclass_ps_mask(v0, 0x99), odd1 = _mm512_fpclass_ps_mask(v1, 0x99);
  const __m512 top0 = _mm512_mask_mov_ps(cut(v0), odd0, v0);
  const __m512 top1 = _mm512_mask_mov_ps(cut(v1), odd1, v1);
  v0 = _mm512_maskz_sub_ps(_knot_mask16(odd0), v0, top0);
  v1 = _mm512_maskz_sub_ps(_knot_mask16(odd1), v1, top1);
  const __m512 middle0 = cut(v0), middle1 = cut(v1);
  _mm512_store_si512(to, round_pairs(top0, top1));
  _mm512_store_si512(to + kBlockBytes, round_pairs(middle0, middle1));
  _mm512_store_si512(to + 2 * kBlockBytes,
                     round_pairs(_mm512_sub_ps(v0, middle0), _mm512_sub_ps(v1, middle1)));
}

inline void pack_left_parts(const Operand& x, int64_t row, int64_t rows, const Streamed& to,
                            int64_t block) {
  for (int64_t s = 0; s < to.steps; ++s) {
    char* out = to.at(block, s);
    const int64_t cols = x.cols - s * 32;
    const __mmask16 mask0 = lanes_below(cols), mask1 = lanes_below(cols - 16);
    const float* from = x.as<const float>() + row * x.ld + s * 32;
    for (int64_t i = 0; i < rows; ++i, from += x.ld)
      store_parts(_mm512_maskz_loadu_ps(mask0, from), _mm512_maskz_loadu_ps(mask1, from + 16),
                  out + i * 64);
    for (int64_t part = 0; part < kF32Parts; ++part)
      for (int64_t i = rows; i < 32; ++i)
        _mm512_store_si512(out + part * kBlockBytes + i * 64, _mm512_setzero_si512());
  }
}

// 32 rows of the left operand.
inline void pack_left_block(const Operand& x, int64_t row, int64_t rows, int64_t steps,
                            const Streamed& to, int64_t block) {
  if (x.dtype == DType::kF32) return pack_left_parts(x, row, rows, to, block);
  for (int64_t s = 0; s < steps; ++s) {
    char* out = to.at(block, s);
    const __mmask32 mask = words_below(x.cols - s * 32);
    const uint16_t* from = x.as<uint16_t>() + row * x.ld + s * 32;
    for (int64_t i = 0; i < rows; ++i)
      _mm512_store_si512(out + i * 64, _mm512_maskz_loadu_epi16(mask, from + i * x.ld));
    for (int64_t i = rows; i < 32; ++i) _mm512_store_si512(out + i * 64, _mm512_setzero_si512());
  }
}

// Up to 16 rows as a left operand of that many rows.
inline void pack_few(const Operand& x, int64_t steps, char* to) {
  for (int64_t s = 0; s < steps; ++s) {
    const __mmask32 mask = words_below(x.cols - s * 32);
    const uint16_t* from = x.as<uint16_t>() + s * 32;
    for (int64_t i = 0; i < x.rows; ++i, to += 64)
      _mm512_store_si512(to, _mm512_maskz_loadu_epi16(mask, from + i * x.ld));
  }
}

// 32 elements as bf16, those outside `mask` zero.
inline __m512i load_words(const bf16* p, __mmask32 mask) {
  return _mm512_maskz_loadu_epi16(mask, p);
}
inline __m512i load_words(const float* p, __mmask32 mask) {
  const auto low = static_cast<__mmask16>(mask), high = static_cast<__mmask16>(mask >> 16);
  return round_pairs(_mm512_maskz_loadu_ps(low, p), _mm512_maskz_loadu_ps(high, p + 16));
}
inline __m512i load_words(const f16* p, __mmask32 mask) {
  const __m512i h = _mm512_maskz_loadu_epi16(mask, p);
  return round_pairs(_mm512_cvtph_ps(_mm512_castsi512_si256(h)),
                     _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)));
}

// 32 rows of w in tiles.
template <typename T>
inline void pack_fast(const T* rows, int64_t ld, int64_t n, int64_t k, int64_t block_row,
                      bf16* to) {
  const int64_t first = block_row * kTileBlock;
  alignas(64) char beside[16 * 64];
  char* out = reinterpret_cast<char*>(to + tile_index(first, 0, k));
  for (int64_t c = 0; c < k; c += 32)
    for (int64_t half = 0; half < 2; ++half, out += 1024) {
      const __mmask32 mask = words_below(k - c);
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t row = first + half * 16 + i;
        _mm512_store_si512(beside + i * 64, row < n ? load_words(rows + row * ld + c, mask)
                                                    : _mm512_setzero_si512());
      }
      __m512i t[16];
      turn_dwords(beside, 64, t);
      for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(out + i * 64, t[i]);
    }
}

// Rows t and t + 1 of 16 columns side by side: dword j holds both elements of column j.
inline __m512i row_pair(const Operand& x, int64_t t, int64_t col, __mmask16 mask) {
  const uint16_t* at = x.as<uint16_t>() + t * x.ld + col;
  const __m512i even = t < x.rows ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at))
                                  : _mm512_setzero_si512();
  if (t + 1 >= x.rows) return even;
  const __m512i odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at + x.ld));
  return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
}

// 32 rows and columns of x as right operand whose sum runs down the rows.
inline void pack_down_block(const Operand& x, int64_t row, int64_t col, char* out) {
  for (int64_t half = 0; half < 2; ++half)
    for (int64_t pair = 0; pair < 16; ++pair, out += 64)
      _mm512_store_si512(
          out, row_pair(x, row + pair * 2, col + half * 16, lanes_below(x.cols - col - half * 16)));
}
inline void pack_right_column_block(const Operand& x, int64_t col, int64_t steps, char* out) {
  for (int64_t s = 0; s < steps; ++s) pack_down_block(x, s * 32, col, out + s * kBlockBytes);
}
// The same where the sum runs along the rows.
inline void pack_across_block(const Operand& x, int64_t row, int64_t col, char* out) {
  const __mmask32 mask = words_below(x.cols - col);
  const bool whole = row + 32 <= x.rows && col + 32 <= x.cols;
  const uint16_t* from = x.as<const uint16_t>() + row * x.ld + col;
  alignas(64) char beside[16 * 64];
  for (int64_t half = 0; half < 2; ++half, from += 16 * x.ld) {
    __m512i t[16];
    if (!whole)
      for (int64_t i = 0; i < 16; ++i)
        _mm512_store_si512(beside + i * 64, row + half * 16 + i < x.rows
                                                ? _mm512_maskz_loadu_epi16(mask, from + i * x.ld)
                                                : _mm512_setzero_si512());
    turn_dwords(whole ? reinterpret_cast<const char*>(from) : beside, whole ? x.ld * 2 : 64, t);
    for (int64_t i = 0; i < 16; ++i, out += 64) _mm512_store_si512(out, t[i]);
  }
}

// The same as left operand.
inline void pack_left_column_block(const Operand& x, int64_t col, int64_t cols, const Streamed& to,
                                   int64_t block) {
  alignas(64) char pairs[16 * 64];
  for (int64_t s = 0; s < to.steps; ++s) {
    char* out = to.at(block, s);
    for (int64_t half = 0; half < 2; ++half, out += 1024) {
      for (int64_t pair = 0; pair < 16; ++pair)
        _mm512_store_si512(pairs + pair * 64, row_pair(x, s * 32 + pair * 2, col + half * 16,
                                                       lanes_below(cols - half * 16)));
      __m512i t[16];
      turn_dwords(pairs, 64, t);
      for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(out + i * 64, t[i]);
    }
  }
}

// 32 elements of a row of w in tiles, as pairs of k.
inline __m512i tile_row_pairs(const char* block, int64_t row) {
  const __m512i at =
      _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                         _mm512_set1_epi32(16));
  return _mm512_i32gather_epi32(at, block + row / 16 * 1024 + row % 16 * 4, 4);
}

// Row `row` of w [*, k] in tiles as k elements of bf16 or f32.
inline void copy_tile_row(const char* w, int64_t row, int64_t k, DType dtype, void* to) {
  const char* block = w + row / 32 * tile_blocks(k) * kBlockBytes;
  for (int64_t c = 0; c < k; c += 32, block += kBlockBytes) {
    const __m512i v = tile_row_pairs(block, row % 32);
    if (dtype == DType::kBF16) {
      _mm512_mask_storeu_epi16(static_cast<uint16_t*>(to) + c, words_below(k - c), v);
    } else {
      float* out = static_cast<float*>(to) + c;
      _mm512_mask_storeu_ps(out, lanes_below(k - c), widen_words(_mm512_castsi512_si256(v)));
      _mm512_mask_storeu_ps(out + 16, lanes_below(k - c - 16),
                            widen_words(_mm512_extracti64x4_epi64(v, 1)));
    }
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END
#endif
