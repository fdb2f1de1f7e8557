// SPDX-License-Identifier: Apache-2.0
// What is added to the sums of one panel of columns before they are finished.
#pragma once

#include <array>

#include "backend/cpu/product-inl.h"
#include "backend/cpu/short_sum-inl.h"

#if WICK_CPU_BF16
WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

class PanelAddends {
 public:
  // Packs the weights of all that is added to columns [col, col + 32) of rows [row, end) of y.
  // They are few: a thread does it for itself, for every panel that it takes.
  void take(const Finish& f, int64_t col, int64_t row, int64_t end) {
    count_ = 0;
    if (f.addends.empty()) return;
    char* to = tiles_;
    for (const Addend& a : f.addends) {
      const int64_t first = a.row - f.above, panel = col - a.col;
      if (panel < 0 || panel >= a.w.rows || first >= end || first + a.x.rows <= row) continue;
      pack(a.w, panel, to);
      parts_[count_++] = {&a, first, to};
      to += tile_blocks(a.w.cols) * kBlockBytes;
    }
  }

  // To rows [first, last) of a block of sums that begins at `row` of y.
  void add(float* c, int64_t row, int64_t first, int64_t last) const {
    for (size_t i = 0; i < count_; ++i) {
      const Part& p = parts_[i];
      const int64_t begin = std::max(first, p.row - row);
      const int64_t end = std::min(last, p.row + p.of->x.rows - row);
      int64_t r = begin;
      for (; r + kAtOnce <= end && r % 16 + kAtOnce <= 16; r += kAtOnce)
        add_rows<kAtOnce>(p, row + r - p.row, sums_of(c, r));
      for (; r < end; ++r) add_rows<1>(p, row + r - p.row, sums_of(c, r));
    }
  }

 private:
  struct Part {
    const Addend* of;
    int64_t row;  // of y, where it begins
    const char* tiles;
  };

  static void pack(const Operand& w, int64_t first, char* to) {
    auto from = [&](auto* rows) {
      pack_fast(rows + first * w.ld, w.ld, w.rows - first, w.cols, 0, reinterpret_cast<bf16*>(to));
    };
    if (w.dtype == DType::kF32) from(w.as<const float>());
    if (w.dtype == DType::kBF16) from(w.as<const bf16>());
    if (w.dtype == DType::kF16) from(w.as<const f16>());
  }

  static constexpr int64_t kAtOnce = 4;
  static float* sums_of(float* c, int64_t row) { return c + row / 16 * 512 + row % 16 * 16; }

  template <int R>
  static void add_rows(const Part& p, int64_t row, float* c) {
    const Operand& x = p.of->x;
    ShortSums<R> sums;
    const char* w = p.tiles;
    for (int64_t k = 0; k < x.cols; k += 32, w += kBlockBytes)
      sums.add_block(ShortRows<R>(x, row, k), w);
    const __m512 scale = _mm512_set1_ps(p.of->scale);
    for (int r = 0; r < R; ++r, c += 16) {
      _mm512_store_ps(c, _mm512_fmadd_ps(sums.at[r][0], scale, _mm512_load_ps(c)));
      _mm512_store_ps(c + 256, _mm512_fmadd_ps(sums.at[r][1], scale, _mm512_load_ps(c + 256)));
    }
  }

  std::array<Part, kMostAddends> parts_;
  size_t count_ = 0;
  alignas(64) char tiles_[kMostAddends * 2 * kBlockBytes];
};

// All rows of a panel, where they are few.
inline void finish_few(float* c, PanelAddends& addends, const Finish& f, int64_t panel) {
  addends.take(f, panel * 32, 0, f.y.rows);
  addends.add(c, 0, 0, f.y.rows);
  finish_rows(c, f, 0, panel * 32, 0, f.y.rows);
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END
#endif
