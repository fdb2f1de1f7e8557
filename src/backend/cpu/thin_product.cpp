// SPDX-License-Identifier: Apache-2.0
// Products whose sum is half a step at most, as B of an adapter has it: y is all there is to read
// and write, so it is walked row by row, four at a time, and w stays in the first cache. Bound by
// bytes. In blocks of tiles, whose lines of y lie far apart, 2048 x 8 by 2048 takes 2.4 times as
// long.
#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/tile_kernels.h"
#include "base/threads.h"

#if WICK_CPU_BF16
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/short_sum-inl.h"

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

constexpr int64_t kRowsAtOnce = 4;
constexpr int64_t kTaskElements = 32 << 10;  // of y

// 32 columns of a row from their sums; as finish_rows(), to the bit.
inline void finish_row(const Finish& f, int64_t row, int64_t col, __m512 v0, __m512 v1) {
  const int64_t cols = f.y.cols - col;
  const __m512 scale = _mm512_set1_ps(f.scale);
  v0 = _mm512_fmadd_ps(v0, scale, f.bias ? _mm512_loadu_ps(f.bias + col) : _mm512_setzero_ps());
  v1 =
      _mm512_fmadd_ps(v1, scale, f.bias ? _mm512_loadu_ps(f.bias + col + 16) : _mm512_setzero_ps());
  if (f.y.dtype == DType::kF32)
    return store_floats(f, f.y.as<float>() + row * f.y.ld + col, cols, v0, v1);
  uint16_t* to = words_at(f.y, row, col);
  const __mmask32 mask = words_below(cols);
  const bool whole = cols >= 32;
  if (f.add) {
    const Words old = whole ? widen(_mm512_loadu_si512(to)) : load_wide(to, mask);
    v0 = _mm512_add_ps(old.low, v0);
    v1 = _mm512_add_ps(old.high, v1);
  }
  if (whole)
    _mm512_storeu_si512(to, round_pairs(v0, v1));
  else
    _mm512_mask_storeu_epi16(to, mask, round_pairs(v0, v1));
}

template <int R>
void multiply_rows_of(const Operand& x, const char* w, const Finish& f, int64_t row) {
  const ShortRows<R> rows(x, row, 0);
  for (int64_t col = 0; col < f.y.cols; col += 32, w += kBlockBytes) {
    ShortSums<R> sums;
    sums.add_block(rows, w);
    WICK_UNROLL
    for (int r = 0; r < R; ++r) finish_row(f, row + r, col, sums.at[r][0], sums.at[r][1]);
  }
}

void multiply_stretch(const Operand& x, const char* w, const Finish& f, int64_t row, int64_t end) {
  for (; row + kRowsAtOnce <= end; row += kRowsAtOnce) multiply_rows_of<kRowsAtOnce>(x, w, f, row);
  for (; row < end; ++row) multiply_rows_of<1>(x, w, f, row);
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {

void multiply_thin(ThreadPool& pool, const Operand& x, const char* w, const Finish& finish) {
  const int64_t rows =
      std::max<int64_t>(1, kTaskElements / finish.y.cols / kRowsAtOnce) * kRowsAtOnce;
  pool.parallel((x.rows + rows - 1) / rows, [&](int64_t i) {
    multiply_stretch(x, w, finish, i * rows, std::min(x.rows, (i + 1) * rows));
  });
}

}  // namespace wick::cpu
#endif
