// SPDX-License-Identifier: Apache-2.0
// What both products of quant_bytes.cpp have: x in bytes, codes of 4 bits as bytes of one scale,
// and sums on their way into f32.
#pragma once

#include <cmath>
#include <cstring>

#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/tile_kernels.h"

#if WICK_CPU_BF16
#include "backend/cpu/addends-inl.h"

namespace wick::cpu {
namespace {

constexpr int64_t kStep = 64;                  // of the sum in one tile
constexpr int64_t kStretch = 7;                // steps that share a scale
constexpr float kMostCode = 127.0f * 256 / 8;  // the largest factor of a code: 8 bits of fraction
constexpr float kLeastScale = 0x1p-100f;       // smaller ones count as this

inline int64_t round_up_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

// x [rows, K] as bytes: blocks of 32 rows and 64 columns, [K/64 in stretches][blocks][steps]. With
// a sign, or 128 larger.
struct Bytes {
  bool signs;
  int64_t blocks, steps, stretches;
  char* data;
  float* scales;  // [blocks][stretches][32 rows]

  Bytes(const QuantTiles& w, int64_t rows, bool signs, void* scratch)
      : signs(signs),
        blocks(tile_blocks(rows)),
        steps(round_up_div(w.steps, 2)),
        stretches(round_up_div(steps, kStretch)),
        data(static_cast<char*>(scratch)),
        scales(reinterpret_cast<float*>(data + blocks * steps * kBlockBytes)) {}
  size_t bytes() const {
    return static_cast<size_t>(blocks * (steps * kBlockBytes + stretches * 32 * 4));
  }
  int64_t length(int64_t stretch) const { return std::min(kStretch, steps - stretch * kStretch); }
  char* at(int64_t block, int64_t stretch) const {
    return data + (stretch * kStretch * blocks + block * length(stretch)) * kBlockBytes;
  }
  float* scale(int64_t block, int64_t stretch) const {
    return scales + (block * stretches + stretch) * 32;
  }
};

}  // namespace
}  // namespace wick::cpu

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

inline __m512i bytes_of(__m512i words, __m512 factor, bool high) {
  const __m256i half = high ? _mm512_extracti64x4_epi64(words, 1) : _mm512_castsi512_si256(words);
  return _mm512_cvtps_epi32(_mm512_mul_ps(widen_words(half), factor));
}

inline __m512i half_step(const uint16_t* x, int64_t cols, int64_t half) {
  return _mm512_maskz_loadu_epi16(words_below(cols - half * 32), x + half * 32);
}

// One row of x from step `step` on, `steps` that share a scale; what is not finite gives NaN.
inline void round_stretch(const uint16_t* x, int64_t cols, int64_t step, int64_t steps, bool signs,
                          char* to, float* scale) {
  // As codes of 4 bits lie in their words once they are bytes.
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_set_epi8(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0));
  const __m256i flip = signs ? _mm256_setzero_si256() : _mm256_set1_epi8(-128);
  __m512i most = _mm512_setzero_si512();
  for (int64_t half = 2 * step; half < 2 * (step + steps); ++half)
    most = _mm512_max_epu16(most,
                            _mm512_and_si512(half_step(x, cols, half), _mm512_set1_epi16(0x7fff)));
  const __m512i pair = _mm512_max_epu32(_mm512_and_si512(most, _mm512_set1_epi32(0xffff)),
                                        _mm512_srli_epi32(most, 16));
  const uint32_t bits = _mm512_reduce_max_epu32(pair) << 16;
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  const bool finite = bits < 0x7f800000u;
  largest = finite ? std::max(largest, kLeastScale) : 0.0f;
  *scale = finite ? largest / 127 : std::nanf("");
  const __m512 factor = _mm512_set1_ps(finite ? 127 / largest : 0.0f);
  for (int64_t s = step; s < step + steps; ++s, to += kBlockBytes)
    for (int64_t half = 0; half < 2; ++half) {
      const __m512i v = finite ? half_step(x, cols, 2 * s + half) : _mm512_setzero_si512();
      const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(bytes_of(v, factor, true)),
                                             _mm512_cvtepi32_epi8(bytes_of(v, factor, false)));
      _mm256_store_si256(
          reinterpret_cast<__m256i*>(to + half * 32),
          _mm256_xor_si256(_mm256_shuffle_epi8(bytes, _mm512_castsi512_si256(order)), flip));
    }
}

// 32 rows of x.
inline void round_block(const Operand& x, int64_t block, const Bytes& to) {
  for (int64_t stretch = 0; stretch < to.stretches; ++stretch) {
    const int64_t step = stretch * kStretch, steps = to.length(stretch);
    char* out = to.at(block, stretch);
    float* scale = to.scale(block, stretch);
    for (int64_t i = 0; i < 32; ++i, out += 64) {
      const int64_t row = block * 32 + i;
      if (row < x.rows) {
        round_stretch(x.as<const uint16_t>() + row * x.ld, x.cols, step, steps, to.signs, out,
                      scale + i);
        continue;
      }
      for (int64_t s = 0; s < steps; ++s)
        _mm512_store_si512(out + s * kBlockBytes, _mm512_setzero_si512());
      scale[i] = 0;
    }
  }
}

// A stretch of a panel of w as right operands of bytes. A code of 4 bits times its row's factor,
// fixed point with 8 bits of fraction, is rounded to a byte: the same row of w lies in a whole
// dword.
struct Made {
  alignas(64) char tiles[kStretch * kBlockBytes];
  alignas(64) float scales[32];                      // by row of w
  alignas(64) int32_t starts[2][16];                 // the same
  alignas(64) int16_t factors[2 * kStretch][2][32];  // of half a step, twice for each row
  const QuantTiles* w;
  int64_t panel, first, steps;
  int64_t piece, pieces;

  void begin(const QuantTiles& codes, int64_t of_panel, int64_t first_step, int64_t of_steps) {
    w = &codes;
    panel = of_panel;
    first = first_step;
    steps = of_steps;
    piece = 0;
    pieces = steps * 4;
    make_factors();
  }
  void none() { piece = pieces = 0; }

  __m512 group_scale(int64_t half, int64_t tile) const {
    if (half >= w->steps) return _mm512_setzero_ps();
    return widen_words(
        _mm256_load_si256(reinterpret_cast<const __m256i*>(w->scales(panel, half) + tile * 32)));
  }
  void make_factors() {
    for (int64_t tile = 0; tile < 2; ++tile) {
      __m512 most = _mm512_set1_ps(kLeastScale);
      for (int64_t h = 0; h < 2 * steps; ++h)
        most = _mm512_max_ps(_mm512_abs_ps(group_scale(2 * first + h, tile)), most);
      const __m512 unit = _mm512_div_ps(_mm512_set1_ps(kMostCode), most);
      for (int64_t h = 0; h < 2 * steps; ++h) {
        const __m512i factor =
            _mm512_cvtps_epi32(_mm512_mul_ps(group_scale(2 * first + h, tile), unit));
        _mm512_store_si512(factors[h][tile],
                           _mm512_or_si512(_mm512_and_si512(factor, _mm512_set1_epi32(0xffff)),
                                           _mm512_slli_epi32(factor, 16)));
      }
      _mm512_store_ps(scales + tile * 16, _mm512_mul_ps(most, _mm512_set1_ps(256 / kMostCode)));
    }
  }

  // 16 rows and 32 columns.
  void make_piece() {
    const int64_t half = piece / 2, tile = piece % 2, column = 2 * first + half;
    char* to = tiles + half / 2 * kBlockBytes + tile * 1024 + half % 2 * 512;
    ++piece;
    if (column >= w->steps) {
      std::memset(to, 0, 512);
      return;
    }
    const char* from = w->block(panel, column) + tile * (w->block_bytes / 2);
    for (int64_t line = 0; line < 256; line += 64)
      _mm_prefetch(from + 2 * steps * w->block_bytes + line, _MM_HINT_T1);
    const __m512i factor = _mm512_load_si512(factors[half][tile]);
    // Codes lie 8 too high; half a step rounds.
    const __m512i start = _mm512_sub_epi16(_mm512_set1_epi16(128), _mm512_slli_epi16(factor, 3));
    const __m512i upper = _mm512_set1_epi16(static_cast<int16_t>(0xff00));
    WICK_UNROLL
    for (int64_t v = 0; v < 4; ++v, to += 128) {
      const __m512i words = _mm512_load_si512(from + v * 64);
      __m512i r[4];
      WICK_UNROLL
      for (int i = 0; i < 4; ++i)
        r[i] = _mm512_add_epi16(
            _mm512_mullo_epi16(_mm512_and_si512(_mm512_srli_epi32(words, 4u * unsigned(i)),
                                                _mm512_set1_epi32(0x000f000f)),
                               factor),
            start);
      // (r >> 8) | (other & upper)
      _mm512_store_si512(to,
                         _mm512_ternarylogic_epi32(_mm512_srli_epi16(r[0], 8), upper, r[2], 0xf8));
      _mm512_store_si512(to + 64,
                         _mm512_ternarylogic_epi32(_mm512_srli_epi16(r[1], 8), upper, r[3], 0xf8));
    }
  }
  // What sums start from where x is 128 larger: -128 times each column's sum. Once all is made.
  void make_starts() {
    for (int64_t tile = 0; tile < 2; ++tile) {
      __m512i sum = _mm512_setzero_si512();
      for (int64_t s = 0; s < steps; ++s)
        for (int64_t line = 0; line < 1024; line += 64)
          sum =
              _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128),
                                  _mm512_load_si512(tiles + s * kBlockBytes + tile * 1024 + line));
      _mm512_store_si512(starts[tile], _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
  }
  // As many pieces as belong to `done` of `all` equal parts.
  void make(int64_t done, int64_t all) {
    while (piece * all < pieces * done) make_piece();
  }
};

// The sums of a stretch on their way into f32, and with the last one into y.
struct Drain {
  alignas(64) int32_t sums[kBlockElements];  // as Block::c has them
  alignas(64) float w_scales[32];
  float* total = nullptr;  // the same in f32
  const float* x_scales = nullptr;
  const Finish* finish = nullptr;  // with the last stretch
  uint16_t* gates = nullptr;
  const PanelAddends* addends = nullptr;
  int64_t row = 0, col = 0;  // of y
  bool first = false;        // of a block's stretches
  int64_t at = 32;           // rows that are done

  struct Pair {
    __m512 v0, v1;
  };
  Pair summed(int64_t i, __m512 scale0, __m512 scale1) const {
    const int64_t offset = i / 16 * 512 + i % 16 * 16;
    const __m512 x = _mm512_set1_ps(x_scales[i]);
    const __m512 v0 = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + offset)), scale0);
    const __m512 v1 =
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + offset + 256)), scale1);
    const __m512 old0 = first ? _mm512_setzero_ps() : _mm512_load_ps(total + offset);
    const __m512 old1 = first ? _mm512_setzero_ps() : _mm512_load_ps(total + offset + 256);
    return {_mm512_fmadd_ps(v0, x, old0), _mm512_fmadd_ps(v1, x, old1)};
  }
  void rows(int64_t count) {
    if (at == 32) return;
    const __m512 scale0 = _mm512_load_ps(w_scales), scale1 = _mm512_load_ps(w_scales + 16);
    const int64_t end = std::min<int64_t>(32, at + count);
    if (finish != nullptr && finish->addends.empty() && stores_words(*finish, col)) {
      const __m512 scale = _mm512_set1_ps(finish->scale);
      const float* bias = finish->bias;
      const __m512 bias0 = bias ? _mm512_loadu_ps(bias + col) : _mm512_setzero_ps();
      const __m512 bias1 = bias ? _mm512_loadu_ps(bias + col + 16) : _mm512_setzero_ps();
      const int64_t last = std::min(end, finish->y.rows - row);
      for (int64_t i = at; i < last; ++i) {
        const Pair v = summed(i, scale0, scale1);
        store_words(
            *finish, row + i, col,
            round_pairs(_mm512_fmadd_ps(v.v0, scale, bias0), _mm512_fmadd_ps(v.v1, scale, bias1)),
            gates + i * 32);
      }
    } else {
      for (int64_t i = at; i < end; ++i) {
        const Pair v = summed(i, scale0, scale1);
        _mm512_store_ps(total + i / 16 * 512 + i % 16 * 16, v.v0);
        _mm512_store_ps(total + i / 16 * 512 + i % 16 * 16 + 256, v.v1);
      }
      if (finish != nullptr) {
        addends->add(total, row, at, end);
        finish_rows(total, *finish, row, col, at, end, gates);
      }
    }
    at = end;
  }
};

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END
#endif
