// SPDX-License-Identifier: Apache-2.0
// Short sums, as an adapter's rank has them: some rows of x by one panel of w in tiles, in
// registers.
#pragma once

#include <algorithm>

#include "backend/cpu/finish-inl.h"

#if WICK_CPU_BF16
WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// A block of k of R rows, for add_block(): what is beyond the row's end is zero.
template <int R>
struct ShortRows {
  alignas(64) uint32_t pairs[R][16];
  int64_t steps;

  ShortRows(const Operand& x, int64_t row, int64_t k)
      : steps(std::min<int64_t>(16, (x.cols - k + 1) / 2)) {
    for (int r = 0; r < R; ++r)
      _mm512_store_si512(pairs[r],
                         _mm512_maskz_loadu_epi16(words_below(x.cols - k),
                                                  x.as<const uint16_t>() + (row + r) * x.ld + k));
  }
};

// Of R rows and 32 columns.
template <int R>
struct ShortSums {
  __m512 at[R][2];

  ShortSums() {
    for (auto& sum : at) sum[0] = sum[1] = _mm512_setzero_ps();
  }

  // `w`: one block in tiles.
  void add_block(const ShortRows<R>& rows, const char* w) {
    for (int64_t s = 0; s < rows.steps; ++s) {
      const auto w0 = reinterpret_cast<__m512bh>(_mm512_load_si512(w + s * 64));
      const auto w1 = reinterpret_cast<__m512bh>(_mm512_load_si512(w + 1024 + s * 64));
      WICK_UNROLL
      for (int r = 0; r < R; ++r) {
        const auto pair =
            reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(rows.pairs[r][s])));
        at[r][0] = _mm512_dpbf16_ps(at[r][0], w0, pair);
        at[r][1] = _mm512_dpbf16_ps(at[r][1], w1, pair);
      }
    }
  }
};

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END
#endif
