// SPDX-License-Identifier: Apache-2.0
// What becomes of a block of sums: y, and what a gated_act makes of it.
#pragma once

#include "backend/cpu/silu-inl.h"

#if WICK_CPU_BF16
WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

inline uint16_t* words_at(const Operand& o, int64_t row, int64_t col) {
  return o.as<uint16_t>() + row * o.ld + col;
}

// Whether 32 columns from `col` on are written as they come: whole, in bf16.
inline bool stores_words(const Finish& f, int64_t col) {
  return f.y.dtype == DType::kBF16 && f.y.cols - col >= 32 && !f.add;
}
// 32 of a row's columns, rounded; `gates` has the row's 32 gates from one panel to the next.
inline void store_words(const Finish& f, int64_t row, int64_t col, __m512i words, uint16_t* gates) {
  if (f.past_caches)
    return _mm512_stream_si512(reinterpret_cast<__m512i*>(words_at(f.y, row, col)), words);
  if (f.gate == nullptr) return _mm512_storeu_si512(words_at(f.y, row, col), words);
  const Operand& made = f.gate->made;
  if (col < made.cols) return _mm512_storeu_si512(gates, words);
  _mm512_storeu_si512(words_at(made, row, col - made.cols),
                      gated(widen(_mm512_loadu_si512(gates)), widen(words)));
}

// 32 columns of a row in f32, those below `cols`; onto what is there with f.add.
inline void store_floats(const Finish& f, float* to, int64_t cols, __m512 v0, __m512 v1) {
  const __mmask16 mask0 = lanes_below(cols), mask1 = lanes_below(cols - 16);
  if (f.add) {
    v0 = _mm512_add_ps(_mm512_maskz_loadu_ps(mask0, to), v0);
    v1 = _mm512_add_ps(_mm512_maskz_loadu_ps(mask1, to + 16), v1);
  }
  _mm512_mask_storeu_ps(to, mask0, v0);
  _mm512_mask_storeu_ps(to + 16, mask1, v1);
}

// Rows [first, last) of a block whose top left element is (row, col) of y.
// `gates`: the block's, where the finish is gated.
inline void finish_rows(const float* c, const Finish& f, int64_t row, int64_t col, int64_t first,
                        int64_t last, uint16_t* gates = nullptr) {
  const int64_t rows = std::min(last, f.y.rows - row), cols = f.y.cols - col;
  const __m512 scale = _mm512_set1_ps(f.scale);
  const __m512 bias0 = f.bias ? _mm512_loadu_ps(f.bias + col) : _mm512_setzero_ps();
  const __m512 bias1 = f.bias ? _mm512_loadu_ps(f.bias + col + 16) : _mm512_setzero_ps();
  if (f.y.dtype == DType::kF32) {
    float* to = f.y.as<float>() + (row + first) * f.y.ld + col;
    for (int64_t i = first; i < rows; ++i, to += f.y.ld) {
      const float* from = c + i / 16 * 512 + i % 16 * 16;
      store_floats(f, to, cols, _mm512_fmadd_ps(_mm512_load_ps(from), scale, bias0),
                   _mm512_fmadd_ps(_mm512_load_ps(from + 256), scale, bias1));
    }
    return;
  }
  if (stores_words(f, col)) {
    for (int64_t i = first; i < rows; ++i) {
      const float* from = c + i / 16 * 512 + i % 16 * 16;
      const __m512 v0 = _mm512_fmadd_ps(_mm512_load_ps(from), scale, bias0);
      const __m512 v1 = _mm512_fmadd_ps(_mm512_load_ps(from + 256), scale, bias1);
      store_words(f, row + i, col, round_pairs(v0, v1),
                  gates != nullptr ? gates + i * 32 : nullptr);
    }
    return;
  }
  uint16_t* to = f.y.as<uint16_t>() + (row + first) * f.y.ld + col;
  const __mmask32 mask = words_below(cols);
  for (int64_t i = first; i < rows; ++i, to += f.y.ld) {
    const float* from = c + i / 16 * 512 + i % 16 * 16;
    __m512 v0 = _mm512_fmadd_ps(_mm512_load_ps(from), scale, bias0);
    __m512 v1 = _mm512_fmadd_ps(_mm512_load_ps(from + 256), scale, bias1);
    if (f.add) {
      const __m512i old = _mm512_maskz_loadu_epi16(mask, to);
      v0 = _mm512_add_ps(widen_words(_mm512_castsi512_si256(old)), v0);
      v1 = _mm512_add_ps(widen_words(_mm512_extracti64x4_epi64(old, 1)), v1);
    }
    _mm512_mask_storeu_epi16(to, mask, round_pairs(v0, v1));
  }
}

// What was stored past the caches is there for other threads.
inline void fence_stores() { _mm_sfence(); }

// Rows that finishing a block will touch, brought near a few at a time: a store to a line that is
// far would hold up the next products.
struct Near {
  const char* at = nullptr;
  int64_t stride = 0, lines = 0, left = 0;  // of a row; rows

  void block(const Finish& f, int64_t row, int64_t col) {
    const Operand& to = f.gate != nullptr ? f.gate->made : f.y;
    const int64_t to_col = f.gate != nullptr ? col - to.cols : col;
    const auto element = static_cast<int64_t>(dtype_bytes(to.dtype));
    stride = to.ld * element;
    at = to.as<char>() + row * stride + to_col * element;
    lines = element / 2;
    left = to_col >= 0 ? std::min<int64_t>(32, to.rows - row) : 0;
  }
  void step(int64_t rows) {
    for (; rows > 0 && left > 0; --rows, --left, at += stride) {
      __builtin_prefetch(at, 1, 3);
      if (lines == 2) __builtin_prefetch(at + 64, 1, 3);
    }
  }
};

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END
#endif
