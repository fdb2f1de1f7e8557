// SPDX-License-Identifier: Apache-2.0
// The matrix product of the cpu back end: packed panels, one register-blocked inner kernel.
//
//   C[M, N] = alpha * A[M, K] B[K, N] (+ bias[N]) (+ C)      sums in f32, rounded once
//
// A's panels hold `mr` rows as [K][mr], B's hold `nr` columns as [K][nr]. The sum over K runs in
// order inside blocks whose length depends on K alone, and the blocks' sums are added in order: an
// element of C has the same bits whatever M, N, its place, or the number of threads.
// Declared here for each target, defined in gemm.cpp and gemm_pack.cpp.

#if defined(WICK_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WICK_CPU_GEMM_INL_H_
#undef WICK_CPU_GEMM_INL_H_
#else
#define WICK_CPU_GEMM_INL_H_
#endif

#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {

// Registers: kMaxRows x 2 sums, two vectors of B, one element of A in all lanes.
#if HWY_TARGET == HWY_AVX3
constexpr int64_t kMaxRows = 14;
#elif HWY_TARGET == HWY_NEON
constexpr int64_t kMaxRows = 12;
#else
constexpr int64_t kMaxRows = 6;
#endif
constexpr int64_t kMaxCols = 2 * kLanes;
constexpr int64_t kSkinnyCols = 4 * kLanes;  // of N, and fewer: B is one panel of that width

// Panels of equal height for M rows, so that 16 rows are 8 + 8 and not 14 + 2.
HWY_INLINE int64_t panel_rows(int64_t m) {
  int64_t panels = (m + kMaxRows - 1) / kMaxRows;
  return (m + panels - 1) / panels;
}
// The width of the panel at column `n` of N: one vector where one is enough.
HWY_INLINE int64_t panel_cols(int64_t n, int64_t cols) {
  return cols - n <= kLanes ? kLanes : kMaxCols;
}
HWY_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct MatA {
  const void* data;
  int64_t ld;
  bool transposed = false;    // element (m, k) lies at data[k * ld + m]
  DType dtype = DType::kF32;  // or bf16
};
struct MatB {
  const void* data;
  int64_t ld;
  bool transposed = false;    // element (k, n) lies at data[n * ld + k]
  DType dtype = DType::kF32;  // or a half, or quantised: then rows of ld elements
};
struct MatC {
  void* data;
  int64_t ld;
  float alpha = 1.0f;
  bool accumulate = false;
  DType dtype = DType::kF32;  // or bf16, but not for multiply_panels
  Operand bias = {};          // absent, or one row of N elements
  // Where C's columns are gates and then as many others: silu(gate) * other, [M, N / 2] in f32, is
  // stored here and C nowhere. Requires: makes_gate().
  Operand gated = {};
};

// Rows [m, m + rows) and steps [k, k + depth) of A as one panel of height `mr` >= rows.
void pack_a(const MatA& a, int64_t m, int64_t rows, int64_t mr, int64_t k, int64_t depth,
            float* to);
// Columns [n, n + cols) and steps [k, k + depth) of B as one panel of width kLanes or kMaxCols,
// or up to kSkinnyCols.
void pack_b(const MatB& b, int64_t n, int64_t cols, int64_t nr, int64_t k, int64_t depth,
            float* to);

enum class Finish : int {
  kWrite,     // c = alpha * sum (+ bias)
  kAdd,       // c += alpha * sum (+ bias)
  kContinue,  // the sum starts from c, so that where the sum over K is cut leaves no trace
};
struct Tile {
  const float *a, *b;             // panels, at the first step
  int64_t depth, a_step, b_step;  // of K, and from one step to the next
  float* c = nullptr;
  int64_t ldc, rows, cols;  // the part of the tile that exists
  float alpha = 1.0f;
  Finish finish = Finish::kWrite;
  const float* bias = nullptr;   // of the tile's columns
  bf16* rounded = nullptr;       // where the tile lies instead of c, with the same ldc
  const float* ahead = nullptr;  // what a later tile reads: brought near, 64 bytes a step
};
using TileFn = void (*)(const Tile&);
// Requires: 1 <= mr <= kMaxRows, nr is kLanes or kMaxCols.
TileFn tile_fn(int64_t mr, int64_t nr);

// A product on one thread, for kernels that have their own blocking. Operands are packed by
// pack_rows or pack_cols, or read where they lie: element (m, k) of A at data[k * ld + m] and (k,
// n) of B at data[k * ld + n]. Whole tiles are read and written: an operand in place, and C, must
// have packed_rows(m) rows and packed_cols(n) columns of memory.
struct Panels {
  const float* data;
  int64_t ld = 0;  // 0: packed
};
HWY_INLINE int64_t packed_rows(int64_t m) { return round_up(m, panel_rows(m)); }
HWY_INLINE int64_t packed_cols(int64_t n) { return round_up(n, kLanes); }
void pack_rows(const MatA& a, int64_t m, int64_t depth, float* to);  // packed_rows(m) * depth
void pack_cols(const MatB& b, int64_t n, int64_t depth, float* to);  // packed_cols(n) * depth
// What of a product is wanted, where the rest would add zeros or is not looked at.
struct Range {
  int64_t from, to;
};
struct Wanted {
  const Range* rows = nullptr;   // by panel of kMaxCols columns: of the rows; whole tiles are made
  const Range* steps = nullptr;  // by panel of rows: of the sum
};
void multiply_panels(int64_t m, int64_t n, int64_t depth, const Panels& a, const Panels& b,
                     const MatC& c, Finish finish, const Wanted& wanted = {});

// Whether a product of so many columns and steps can make gated_act of them, both in f32.
bool makes_gate(int64_t n, int64_t k);

size_t gemm_scratch(int64_t m, int64_t n, int64_t k, DType c = DType::kF32);
void gemm(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const MatA& a, const MatB& b,
          const MatC& c, void* scratch);

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
