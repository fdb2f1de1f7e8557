// SPDX-License-Identifier: Apache-2.0
// What head and kl_head share: the rows that count, stretches of the vocabulary, and gradients that
// forward has left but for a factor per row.

#if defined(WICK_CPU_HEAD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WICK_CPU_HEAD_ROWS_INL_H_
#undef WICK_CPU_HEAD_ROWS_INL_H_
#else
#define WICK_CPU_HEAD_ROWS_INL_H_
#endif

#include "backend/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {

// The rows with a target, and how many they are.
inline int64_t kept_rows(const Operand& targets, int32_t* rows) {
  int64_t kept = 0;
  for (int64_t m = 0; m < targets.elements(); ++m)
    if (targets.as<const int32_t>()[m] >= 0) rows[kept++] = static_cast<int32_t>(m);
  return kept;
}

inline void gather_x(ThreadPool& pool, const Operand& x, const int32_t* rows, int64_t count,
                     float* to) {
  parallel_rows(pool, count, x.cols * 8, [&](int64_t r0, int64_t r1) {
    for (int64_t r = r0; r < r1; ++r) widen(at(x, rows[r]), x.dtype, x.cols, to + r * x.cols);
  });
}

// The words from v0 on.
inline MatB words_of(const Operand& w, int64_t v0, bool transposed) {
  return {w.as<char>() + static_cast<size_t>(v0) * row_bytes(w.dtype, w.ld), w.ld, transposed,
          w.dtype};
}

inline void zero_rows(ThreadPool& pool, const Operand& to) {
  parallel_rows(pool, to.rows, to.cols * 4, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) zero_row(to, r);
  });
}

// The largest of a row of logits.
inline float row_max(const float* logits, int64_t words) {
  constexpr float kNoScore = -3.0e38f;
  VF top = set(kNoScore);
  for (int64_t j = 0; j < words; j += kLanes) {
    const int64_t n = words - j;
    VF v = load_part(logits + j, n);
    if (n < kLanes) v = hn::IfThenElse(hn::FirstN(df, static_cast<size_t>(n)), v, set(kNoScore));
    top = hn::Max(top, v);
  }
  return max_lanes(top);
}

// to[i] = factor(i) * from[i]
template <typename F>
void scale_rows(ThreadPool& pool, const Operand& from, const Operand& to, const F& factor) {
  with_activation(to.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(pool, to.rows, to.cols * 8, [&](int64_t a, int64_t b) HWY_ATTR {
      for (int64_t i = a; i < b; ++i) {
        const VF g = set(factor(i));
        for (int64_t c = 0; c < to.cols; c += kLanes)
          store_part(hn::Mul(g, load_part(row<T>(from, i) + c, to.cols - c)), row<T>(to, i) + c,
                     to.cols - c);
      }
    });
  });
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
