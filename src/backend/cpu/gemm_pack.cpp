// SPDX-License-Identifier: Apache-2.0
// Panels of the product's operands. About 0.3 cycles an element, repaid over the other matrix's
// extent.
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm_pack.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include <hwy/cache_control.h>

#include "backend/cpu/gemm-inl.h"
#include "backend/cpu/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

// 4 consecutive elements of each of kLanes rows, turned: out[i] holds element i of every row.
template <typename T>
HWY_INLINE void load_turned(const T* const* rows, int64_t at, VF* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) out[i] = load(rows[0] + at + i);
#else
  const hn::CappedTag<float, 4> d4;
  VF v[4];
  for (int j = 0; j < 4; ++j) {
    if constexpr (kLanes == 4) {
      v[j] = load_as(df, rows[j] + at);
    } else if constexpr (kLanes == 8) {
      v[j] = hn::Combine(df, load_as(d4, rows[4 + j] + at), load_as(d4, rows[j] + at));
    } else {
#if HWY_TARGET == HWY_AVX3
      const hn::CappedTag<float, 8> d8;
      v[j] = hn::Combine(
          df, hn::Combine(d8, load_as(d4, rows[12 + j] + at), load_as(d4, rows[8 + j] + at)),
          hn::Combine(d8, load_as(d4, rows[4 + j] + at), load_as(d4, rows[j] + at)));
#endif
    }
  }
  const hn::RepartitionToWide<DF> dw;
  VF low01 = hn::InterleaveLower(df, v[0], v[1]), high01 = hn::InterleaveUpper(df, v[0], v[1]);
  VF low23 = hn::InterleaveLower(df, v[2], v[3]), high23 = hn::InterleaveUpper(df, v[2], v[3]);
  auto wide = [dw](VF x) HWY_ATTR { return hn::BitCast(dw, x); };
  out[0] = hn::BitCast(df, hn::InterleaveLower(dw, wide(low01), wide(low23)));
  out[1] = hn::BitCast(df, hn::InterleaveUpper(dw, wide(low01), wide(low23)));
  out[2] = hn::BitCast(df, hn::InterleaveLower(dw, wide(high01), wide(high23)));
  out[3] = hn::BitCast(df, hn::InterleaveUpper(dw, wide(high01), wide(high23)));
#endif
}

// The same of 8 elements. Those of bf16 are turned by pairs, which are the halves of a word.
template <typename T>
HWY_INLINE void load_turned_8(const T* const* rows, int64_t at, VF* HWY_RESTRICT out) {
  if constexpr (std::is_same_v<T, bf16> && HWY_TARGET != HWY_SCALAR) {
    const float* pairs[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) pairs[r] = reinterpret_cast<const float*>(rows[r] + at);
    VF v[4];
    load_turned(pairs, 0, v);
    const hn::RebindToUnsigned<DF> du;
    for (int i = 0; i < 4; ++i) {
      const auto pair = hn::BitCast(du, v[i]);
      out[2 * i] = hn::BitCast(df, hn::ShiftLeft<16>(pair));
      out[2 * i + 1] = hn::BitCast(df, hn::And(pair, hn::Set(du, 0xffff0000u)));
    }
  } else {
    load_turned(rows, at, out);
    load_turned(rows, at + 4, out + 4);
  }
}

// Turns `count` rows of `depth` elements into to[k * width + row], `width` >= count lanes wide.
// Lanes past `count` repeat the last row: they only feed sums that are never stored.
template <typename T>
void turn(const T* from, int64_t ld, int64_t count, int64_t width, int64_t depth,
          float* HWY_RESTRICT to) {
  for (int64_t r0 = 0; r0 < width; r0 += kLanes) {
    const T* rows[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) rows[r] = from + std::min(r0 + r, count - 1) * ld;
    int64_t lanes = std::min(width - r0, kLanes);
    // A full store may run into the next step's lanes, which are written after; not past the end,
    // nor into lanes of a group written before.
    int64_t whole = lanes == kLanes ? depth : (r0 == 0 ? depth - (kLanes / width + 1) : 0);
    VF v[8];
    int64_t k = 0;
    auto put = [&](VF step) HWY_ATTR {
      float* at = to + k * width + r0;
      k < whole ? store(step, at) : store_part(step, at, lanes);
      ++k;
    };
    for (; k + 8 <= whole; k += 8) {
      // Weights come from memory: a line of each of the rows after these is brought near.
      if (sizeof(T) == 2 && k % 32 == 0)
        for (int64_t r = 0; r < kLanes; ++r) hwy::Prefetch(rows[r] + kLanes * ld + k);
      load_turned_8(rows, k, v);
      WICK_UNROLL
      for (int i = 0; i < 8; ++i) store(v[i], to + (k + i) * width + r0);
    }
    while (k + 4 <= depth) {
      load_turned(rows, k, v);
      for (int i = 0; i < 4; ++i) put(v[i]);
    }
    for (; k < depth; ++k)
      for (int64_t r = 0; r < lanes; ++r) to[k * width + r0 + r] = to_float(rows[r][k]);
  }
}

// A panel of `width` >= count lanes from `count` rows (turned) or columns of a matrix.
template <typename T>
void pack_as(const T* from, int64_t ld, bool turned, int64_t count, int64_t width, int64_t depth,
             float* HWY_RESTRICT to) {
  if (turned) return turn(from, ld, count, width, depth, to);
  if (count == width && width == kMaxCols) {
    // Rows lie far apart: a line of each is brought near a few rows ahead.
    constexpr int64_t kRowsAhead = 12;
    for (int64_t i = 0; i < depth; ++i, from += ld, to += kMaxCols) {
      hwy::Prefetch(from + kRowsAhead * ld);
      const VF low = load(from), high = load(from + kLanes);
      store(low, to);
      store(high, to + kLanes);
    }
    return;
  }
  for (int64_t i = 0; i < depth; ++i, from += ld, to += width)
    for (int64_t j = 0; j < width; j += kLanes)
      store_part(j < count ? load_part(from + j, count - j) : hn::Zero(df), to + j, width - j);
}

// The same from codes, which become floats a few columns at a time.
void pack_codes(const MatB& b, int64_t n, int64_t cols, int64_t nr, int64_t k, int64_t depth,
                float* HWY_RESTRICT to) {
  const QuantRows w(b.data, b.dtype, b.ld);
  if (!b.transposed) {
    for (int64_t i = 0; i < depth; ++i, to += nr) {
      dequantize(w, k + i, n, cols, to);
      std::fill(to + cols, to + nr, 0.0f);
    }
    return;
  }
  constexpr int64_t kColumns = 2 * kQuantBlock;
  alignas(64) float part[std::max(kMaxCols, kSkinnyCols) * kColumns];
  for (int64_t c = 0; c < depth; c += kColumns) {
    const int64_t count = std::min(kColumns, depth - c);
    for (int64_t r = 0; r < cols; ++r) dequantize(w, n + r, k + c, count, part + r * kColumns);
    turn(part, kColumns, cols, nr, count, to + c * nr);
  }
}

}  // namespace

void pack_a(const MatA& a, int64_t m, int64_t rows, int64_t mr, int64_t k, int64_t depth,
            float* to) {
  with_activation(a.dtype, [&](auto* type) HWY_ATTR {
    auto* from = static_cast<const std::remove_pointer_t<decltype(type)>*>(a.data);
    from += a.transposed ? k * a.ld + m : m * a.ld + k;
    pack_as(from, a.ld, !a.transposed, rows, mr, depth, to);
  });
}

void pack_b(const MatB& b, int64_t n, int64_t cols, int64_t nr, int64_t k, int64_t depth,
            float* to) {
  if (dtype_is_quantized(b.dtype)) return pack_codes(b, n, cols, nr, k, depth, to);
  with_type(b.dtype, [&](auto* type) HWY_ATTR {
    auto* from = static_cast<decltype(type)>(b.data);
    from += b.transposed ? n * b.ld + k : k * b.ld + n;
    pack_as(from, b.ld, b.transposed, cols, nr, depth, to);
  });
}

void pack_rows(const MatA& a, int64_t m, int64_t depth, float* to) {
  const int64_t mr = panel_rows(m);
  for (int64_t r = 0; r < m; r += mr)
    pack_a(a, r, std::min(mr, m - r), mr, 0, depth, to + r * depth);
}

void pack_cols(const MatB& b, int64_t n, int64_t depth, float* to) {
  for (int64_t j = 0; j < n; j += kMaxCols) {
    const int64_t nr = panel_cols(j, n);
    pack_b(b, j, std::min(nr, n - j), nr, 0, depth, to + j * depth);
  }
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
