// SPDX-License-Identifier: Apache-2.0
// The product's inner kernel and blocking. Bound by multiply-adds: a tile of 14 x 32 (AVX-512) does
// 28 per 16 loads. Reaches 78 to 88 % of one core's peak for 512 rows and K, N of 256 to 4864
// (Emerald Rapids, AVX-512, 2026-11), on AVX2 85 to 92 % (Zen 3, 2026-11).
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include <hwy/cache_control.h>

#include "backend/cpu/act-inl.h"
#include "backend/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

// Of K in one sum. Panels of B come from the second cache at such a depth; blocks that stay in the
// first one lose more by touching C more often (one core of Zen 3: 98 GFLOP/s at 896, 93 at 256).
constexpr int64_t kBlockDepth = 1024;
// Of A that passes by a few panels of B: all rows, or half of a second cache of 512 KiB.
constexpr bool kLargeCache = HWY_TARGET == HWY_AVX3;
constexpr int64_t kNearElements = kLargeCache ? kBlockDepth * 2048 : 64 << 10;
// Of a product for each thread, at least: fewer where a task's panels share what is near of A.
constexpr int64_t kTasks = kLargeCache ? 16 : 8;
// Elements brought near with each step of K: a line, or just what the next tile reads of A.
template <int Rows>
constexpr int64_t kAheadStep = kLargeCache ? 16 : Rows;
constexpr int64_t kStepsAhead = 16;            // of K that a panel is brought near before its use
constexpr int64_t kPackDepth = 1536;           // of K packed at a time
constexpr int64_t kPackRows = 2048;            // of M packed at a time
constexpr int64_t kPackElements = 1 << 20;     // of B packed at a time
constexpr int64_t kColumnUnit = 8 * kMaxCols;  // of N packed at a time: tasks that come out even
constexpr int64_t kWideRows = 512;             // of M at a time, where a bf16 C is summed in f32

// Blocks of equal depth: the order of a sum over K, so a function of K alone.
int64_t block_depth(int64_t k) {
  int64_t blocks = (k + kBlockDepth - 1) / kBlockDepth;
  return round_up((k + blocks - 1) / blocks, 4);
}

// The size of a part when n is cut into equal ones of at most `most`, whole multiples of `unit`.
int64_t equal_parts(int64_t n, int64_t most, int64_t unit) {
  const int64_t parts = (n + most - 1) / most;
  return std::min(n, round_up((n + parts - 1) / parts, unit));
}

// How many panels of B a task takes: four at most, and so that the threads end together.
int64_t balanced_panels(int64_t panels, int64_t threads, int64_t together) {
  const int64_t most = std::clamp<int64_t>(panels / (kTasks * threads), 1, 4);
  int64_t best = together, least = INT64_MAX;
  for (int64_t t = round_up(most, together); t > 0; t -= together) {
    const int64_t tasks = (panels + t - 1) / t, time = (tasks + threads - 1) / threads * t;
    if (time < least) best = t, least = time;
  }
  return best;
}

struct Plan2d {
  int64_t block, depth, rows, cols;  // of K in a sum; of K, M, N packed at a time
  int64_t mr;
};

Plan2d plan_gemm(int64_t m, int64_t n, int64_t k, int64_t unit = kMaxCols) {
  Plan2d p;
  p.block = block_depth(k);
  p.depth = std::min(k, std::max<int64_t>(1, kPackDepth / p.block) * p.block);
  p.mr = panel_rows(m);
  p.rows = equal_parts(m, kPackRows, p.mr);
  unit = std::max(unit, kLargeCache ? kMaxCols : kColumnUnit);
  p.cols = equal_parts(n, std::max(unit, kPackElements / p.depth / unit * unit), unit);
  return p;
}

// Elements of scratch: bounds that never fall as m, n or k grow, so that scratch for the largest
// product of a kernel serves its smaller ones.
int64_t a_elements(int64_t m, int64_t k) {
  return round_up((std::min(m, kPackRows) + kMaxRows) * std::min(k, kPackDepth), 16);
}
int64_t b_elements(int64_t n, int64_t k) {
  const int64_t depth = std::min(k, kPackDepth);
  return std::max(packed_cols(std::min(n, kSkinnyCols)) * k,
                  std::min(packed_cols(n) * depth, kPackElements + kMaxCols * depth));
}

// Of C in f32, where C is bf16 and its sums are made in more than one block of K.
int64_t wide_elements(int64_t m, int64_t n, int64_t k, DType c) {
  return c == DType::kF32 || k <= block_depth(k) ? 0 : round_up(std::min(m, kWideRows) * n, 16);
}

// A whole tile of C.
template <int Rows, int Vectors>
HWY_INLINE void whole_tile(const Tile& t) {
  const float* HWY_RESTRICT a = t.a;
  const float* HWY_RESTRICT b = t.b;
  const float* ahead = t.ahead != nullptr ? t.ahead : a;
  VF sum[Rows][Vectors];
  if (t.finish == Finish::kContinue) {
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      WICK_UNROLL
      for (int j = 0; j < Vectors; ++j) sum[i][j] = load(t.c + i * t.ldc + j * kLanes);
    }
  } else {
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      if (t.finish == Finish::kAdd) {
        hwy::Prefetch(t.c + i * t.ldc);
        hwy::Prefetch(t.c + i * t.ldc + Vectors * kLanes - 1);
      }
      WICK_UNROLL
      for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::Zero(df);
    }
  }
  for (int64_t k = 0; k < t.depth; ++k) {
    VF bv[Vectors];
    WICK_UNROLL
    for (int j = 0; j < Vectors; ++j) bv[j] = load(b + j * kLanes);
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const VF av = set(a[i]);
      WICK_UNROLL
      for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::MulAdd(av, bv[j], sum[i][j]);
    }
    hwy::Prefetch(ahead);
    ahead += kAheadStep<Rows>;
#if HWY_TARGET == HWY_AVX3
    // Neither panel fits the first cache.
    WICK_UNROLL
    for (int j = 0; j < Vectors; ++j) hwy::Prefetch(b + kStepsAhead * t.b_step + j * kLanes);
    hwy::Prefetch(a + kStepsAhead * t.a_step);
#endif
    a += t.a_step;
    b += t.b_step;
  }
  const VF alpha = set(t.alpha);
  VF bias[Vectors];
  WICK_UNROLL
  for (int j = 0; j < Vectors; ++j)
    bias[j] = t.bias != nullptr ? load(t.bias + j * kLanes) : hn::Zero(df);
  float* c = t.c;
  if (t.finish == Finish::kAdd) {
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i, c += t.ldc) {
      WICK_UNROLL
      for (int j = 0; j < Vectors; ++j) {
        const VF old = load(c + j * kLanes);
        store(hn::Add(old, hn::MulAdd(sum[i][j], alpha, bias[j])), c + j * kLanes);
      }
    }
  } else {
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i, c += t.ldc) {
      WICK_UNROLL
      for (int j = 0; j < Vectors; ++j)
        store(hn::MulAdd(sum[i][j], alpha, bias[j]), c + j * kLanes);
    }
  }
}

template <typename From, typename To>
HWY_NOINLINE void copy_part(const From* from, int64_t from_ld, To* to, int64_t to_ld, int64_t rows,
                            int64_t cols) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; j += kLanes)
      store_part(load_part(from + i * from_ld + j, cols - j), to + i * to_ld + j, cols - j);
}

template <int Rows, int Vectors>
void tile(const Tile& t) {
  constexpr int64_t kCols = Vectors * kLanes;
  if (HWY_LIKELY(t.rows == Rows && t.cols == kCols && t.rounded == nullptr))
    return whole_tile<Rows, Vectors>(t);
  // At an edge of C, or where C is bf16: a whole tile beside it, of which a part is copied.
  alignas(64) float beside[Rows * kCols], bias[kCols] = {};
  Tile whole = t;
  whole.c = beside;
  whole.ldc = kCols;
  if (t.finish != Finish::kWrite) {
    if (t.rounded != nullptr)
      copy_part(t.rounded, t.ldc, beside, kCols, t.rows, t.cols);
    else
      copy_part(t.c, t.ldc, beside, kCols, t.rows, t.cols);
  }
  if (t.bias != nullptr) {
    copy_part(t.bias, 0, bias, 0, 1, t.cols);
    whole.bias = bias;
  }
  whole_tile<Rows, Vectors>(whole);
  if (t.rounded != nullptr)
    copy_part(beside, kCols, t.rounded, t.ldc, t.rows, t.cols);
  else
    copy_part(beside, kCols, t.c, t.ldc, t.rows, t.cols);
}

template <int Rows>
TileFn tile_of(int64_t mr, int64_t vectors) {
  if (mr == Rows) return vectors == 1 ? tile<Rows, 1> : tile<Rows, 2>;
  if constexpr (Rows > 1)
    return tile_of<Rows - 1>(mr, vectors);
  else
    return nullptr;
}

// Few columns: packing A would cost more than the sums. Rows of A are read where they lie, or
// widened a block at a time; one sum per row and vector, in the same blocks of K as everywhere.
template <int Vectors>
constexpr int kSkinnyRows = Vectors == 1 ? 8 : (Vectors == 2 || kMaxRows > 6 ? 4 : 6 - Vectors);

template <typename T>
HWY_INLINE void add_part(VF v, bool add, T* to, int64_t cols) {
  store_part(add ? hn::Add(load_part(to, cols), v) : v, to, cols);
}

template <int Vectors>
void skinny_rows(int64_t m0, int64_t m1, int64_t n, int64_t k, const MatA& a, const float* packed_b,
                 const float* bias, const MatC& c) {
  constexpr int kRows = kSkinnyRows<Vectors>;
  const int64_t block = block_depth(k);
  alignas(64) float wide[kRows * kBlockDepth];
  for (int64_t m = m0; m < m1; m += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, m1 - m);
    for (int64_t k0 = 0; k0 < k; k0 += block) {
      const int64_t k1 = std::min(k, k0 + block);
      const bool in_place = a.dtype == DType::kF32;
      const int64_t first = m * a.ld + k0, ld = in_place ? a.ld : kBlockDepth;
      if (!in_place)
        copy_part(static_cast<const bf16*>(a.data) + first, a.ld, wide, ld, rows, k1 - k0);
      const float* from = in_place ? static_cast<const float*>(a.data) + first : wide;
      const float* at[kRows];
      WICK_UNROLL
      for (int i = 0; i < kRows; ++i) at[i] = from + std::min<int64_t>(i, rows - 1) * ld;
      VF sum[kRows][Vectors];
      WICK_UNROLL
      for (int i = 0; i < kRows; ++i) {
        WICK_UNROLL
        for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::Zero(df);
      }

      const float* b = packed_b + k0 * Vectors * kLanes;
      for (int64_t kk = k0; kk < k1; ++kk, b += Vectors * kLanes) {
        VF bv[Vectors];
        WICK_UNROLL
        for (int j = 0; j < Vectors; ++j) bv[j] = load(b + j * kLanes);
        WICK_UNROLL
        for (int i = 0; i < kRows; ++i) {
          const VF av = set(at[i][kk - k0]);
          WICK_UNROLL
          for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::MulAdd(av, bv[j], sum[i][j]);
        }
      }
      const bool add = k0 > 0 || c.accumulate;
      WICK_UNROLL
      for (int i = 0; i < kRows; ++i) {
        if (i >= rows) break;
        WICK_UNROLL
        for (int j = 0; j < Vectors; ++j) {
          const int64_t cols = n - j * kLanes, to = (m + i) * c.ld + j * kLanes;
          const VF b0 =
              k0 == 0 && bias != nullptr ? load_part(bias + j * kLanes, cols) : hn::Zero(df);
          const VF v = hn::MulAdd(sum[i][j], set(c.alpha), b0);
          if (c.dtype == DType::kF32)
            add_part(v, add, static_cast<float*>(c.data) + to, cols);
          else
            add_part(v, add, static_cast<bf16*>(c.data) + to, cols);
        }
      }
    }
  }
}

void skinny(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const MatA& a, const MatB& b,
            const MatC& c, float* packed_b, const float* bias) {
  const int64_t vectors = (n + kLanes - 1) / kLanes;
  pack_b(b, 0, n, vectors * kLanes, 0, k, packed_b);
  using Fn = decltype(&skinny_rows<1>);
  constexpr Fn kTable[] = {skinny_rows<1>, skinny_rows<2>, skinny_rows<3>, skinny_rows<4>};
  constexpr int64_t kGrain = 32;
  pool.parallel((m + kGrain - 1) / kGrain, [&](int64_t i) HWY_ATTR {
    kTable[vectors - 1](i * kGrain, std::min(m, (i + 1) * kGrain), n, k, a, packed_b, bias, c);
  });
}

}  // namespace

TileFn tile_fn(int64_t mr, int64_t nr) { return tile_of<kMaxRows>(mr, nr / kLanes); }

void multiply_panels(int64_t m, int64_t n, int64_t depth, const Panels& a, const Panels& b,
                     const MatC& c, Finish finish, const Wanted& wanted) {
  const int64_t mr = panel_rows(m);
  Tile t;
  t.ldc = c.ld;
  t.rows = mr;
  t.alpha = c.alpha;
  t.finish = finish;
  t.a_step = a.ld != 0 ? a.ld : mr;
  for (int64_t j = 0; j < n; j += kMaxCols) {
    const int64_t nr = panel_cols(j, n);
    const TileFn fn = tile_fn(mr, nr);
    const float* columns = b.data + (b.ld != 0 ? j : j * depth);
    t.b_step = b.ld != 0 ? b.ld : nr;
    t.cols = nr;
    const Range rows = wanted.rows != nullptr ? wanted.rows[j / kMaxCols] : Range{0, m};
    for (int64_t r = rows.from / mr * mr; r < rows.to; r += mr) {
      const Range steps = wanted.steps != nullptr ? wanted.steps[r / mr] : Range{0, depth};
      if (steps.from >= steps.to && finish == Finish::kContinue) continue;
      t.depth = steps.to - steps.from;
      t.a = a.data + (a.ld != 0 ? r : r * depth) + steps.from * t.a_step;
      t.b = columns + steps.from * t.b_step;
      t.c = static_cast<float*>(c.data) + r * c.ld + j;
      fn(t);
    }
  }
}

bool makes_gate(int64_t n, int64_t k) {
  return n % (2 * kMaxCols) == 0 && n > kSkinnyCols && k <= kBlockDepth;
}

size_t gemm_scratch(int64_t m, int64_t n, int64_t k, DType c) {
  if (m == 0 || n == 0 || k == 0) return 0;
  return static_cast<size_t>(a_elements(m, k) + b_elements(n, k) + round_up(n, 16) +
                             wide_elements(m, n, k, c)) *
         sizeof(float);
}

namespace {

// A bf16 C whose sums are made in several blocks of K: in f32 beside it, rounded at the end.
void gemm_by_way_of_f32(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const MatA& a,
                        const MatB& b, const MatC& c, void* scratch) {
  float *wide = static_cast<float*>(scratch), *rest = wide + wide_elements(m, n, k, c.dtype);
  for (int64_t m0 = 0; m0 < m; m0 += kWideRows) {
    const int64_t rows = std::min(kWideRows, m - m0);
    MatA part = a;
    part.data = static_cast<const char*>(a.data) +
                static_cast<size_t>(m0 * (a.transposed ? 1 : a.ld)) * dtype_bytes(a.dtype);
    gemm(pool, rows, n, k, part, b, {wide, n, c.alpha, false, DType::kF32, c.bias}, rest);
    parallel_rows(pool, rows, n * 8, [&](int64_t r0, int64_t r1) HWY_ATTR {
      for (int64_t r = r0; r < r1; ++r) {
        bf16* to = static_cast<bf16*>(c.data) + (m0 + r) * c.ld;
        for (int64_t j = 0; j < n; j += kLanes)
          add_part(load_part(wide + r * n + j, n - j), c.accumulate, to + j, n - j);
      }
    });
  }
}

// silu(gate) * other of two tiles that lie one after the other.
void gate_tile(const float* tiles, int64_t mr, int64_t rows, float* y, int64_t ld) {
  for (int64_t i = 0; i < rows; ++i, tiles += kMaxCols, y += ld)
    for (int64_t j = 0; j < kMaxCols; j += kLanes)
      store(hn::Mul(act<Act::kSilu, float>(load(tiles + j), nullptr),
                    load(tiles + mr * kMaxCols + j)),
            y + j);
}

}  // namespace

void gemm(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const MatA& a, const MatB& b,
          const MatC& c, void* scratch) {
  if (m == 0 || n == 0 || k == 0) return;
  if (wide_elements(m, n, k, c.dtype) != 0)
    return gemm_by_way_of_f32(pool, m, n, k, a, b, c, scratch);
  // Panels of a gate and of what it multiplies take turns.
  const int64_t together = c.gated ? 2 : 1;
  auto column = [&](int64_t j) {
    const int64_t panel = j / kMaxCols;
    return c.gated ? panel / 2 * kMaxCols + panel % 2 * (n / 2) : j;
  };
  const Plan2d p = plan_gemm(m, n, k, together * kMaxCols);
  float* packed_a = static_cast<float*>(scratch);
  float* packed_b = packed_a + a_elements(m, k);
  float* bias = nullptr;
  if (c.bias) {
    bias = packed_b + b_elements(n, k);
    widen(c.bias.data, c.bias.dtype, n, bias);
  }
  if (n <= kSkinnyCols && !a.transposed) return skinny(pool, m, n, k, a, b, c, packed_b, bias);
  for (int64_t k0 = 0; k0 < k; k0 += p.depth) {
    const int64_t depth = std::min(p.depth, k - k0);
    for (int64_t m0 = 0; m0 < m; m0 += p.rows) {
      const int64_t rows = std::min(p.rows, m - m0);
      const int64_t a_panels = (rows + p.mr - 1) / p.mr;
      for (int64_t n0 = 0; n0 < n; n0 += p.cols) {
        const int64_t cols = std::min(p.cols, n - n0);
        const int64_t b_panels = (cols + kMaxCols - 1) / kMaxCols;
        const int64_t a_tasks = n0 == 0 ? a_panels : 0;
        auto pack_panel = [&](int64_t jb) {
          const int64_t j = jb * kMaxCols, nr = panel_cols(j, cols);
          pack_b(b, column(n0 + j), std::min(nr, cols - j), nr, k0, depth, packed_b + j * depth);
        };
        // Where every thread has panels of B to itself it packs them when it needs them, so that
        // they come from its own cache, and takes all rows of A past them. Otherwise they are
        // packed first and the tiles are shared out, about 112 x 256 each.
        int64_t ta = a_panels;
        int64_t tb = balanced_panels(b_panels, pool.threads(), together);
        auto count = [&] { return (a_panels + ta - 1) / ta * ((b_panels + tb - 1) / tb); };
        const bool own_panels = count() >= 3 * pool.threads() || pool.threads() == 1;
        if (!own_panels) {
          ta = std::min<int64_t>(8, a_panels), tb = std::min<int64_t>(8, b_panels);
          while (count() < 4 * pool.threads() && ta * tb > 1)
            (ta > tb ? ta : tb) = (std::max(ta, tb) + 1) / 2;
        }
        tb = round_up(tb, together);
        pool.parallel(a_tasks + (own_panels ? 0 : b_panels), [&](int64_t i) HWY_ATTR {
          if (i >= a_tasks) return pack_panel(i - a_tasks);
          const int64_t r = i * p.mr;
          pack_a(a, m0 + r, std::min(p.mr, rows - r), p.mr, k0, depth, packed_a + r * depth);
        });
        // Block kb of K: one panel of B past panels [ia0, ia1) of A.
        auto multiply_column = [&](int64_t kb, int64_t jb, int64_t ia0, int64_t ia1,
                                   bool leads) HWY_ATTR {
          const bool first = k0 + kb == 0;
          const int64_t j = jb * kMaxCols, nr = panel_cols(j, cols);
          const TileFn whole = tile_fn(p.mr, nr);
          Tile t;
          t.b = packed_b + j * depth + kb * nr;
          t.depth = std::min(p.block, depth - kb);
          t.a_step = p.mr;
          t.b_step = nr;
          t.ldc = c.ld;
          t.cols = std::min(nr, cols - j);
          t.alpha = c.alpha;
          t.finish = first && !c.accumulate ? Finish::kWrite : Finish::kAdd;
          t.bias = first && bias != nullptr ? bias + column(n0 + j) : nullptr;
          alignas(64) float tiles[2 * kMaxRows * kMaxCols];
          for (int64_t ia = ia0; ia < ia1; ++ia) {
            const int64_t r = ia * p.mr;
            t.a = packed_a + r * depth + kb * p.mr;
            t.rows = std::min(p.mr, rows - r);
            const int64_t to = (m0 + r) * c.ld + n0 + j;
            if (c.dtype == DType::kF32)
              t.c = static_cast<float*>(c.data) + to;
            else
              t.rounded = static_cast<bf16*>(c.data) + to;
            // The first column of tiles brings A's panels; where those stay near, each later one
            // brings the next column's B.
            if (kLargeCache && !leads)
              t.ahead = t.b + kMaxCols * depth + (ia - ia0) % 2 * kLanes * t.depth;
            else
              t.ahead = t.a + p.mr * depth;
            // The last panel's rows may be fewer: no more than those are multiplied.
            const TileFn fn = t.rows == p.mr ? whole : tile_fn(t.rows, nr);
            if (c.gated) {
              Tile g = t;
              g.c = tiles;
              g.ldc = kMaxCols;
              fn(g);
              g.c += p.mr * kMaxCols;
              g.b += kMaxCols * depth;
              if (bias != nullptr) g.bias += n / 2;
              fn(g);
              gate_tile(tiles, p.mr, t.rows,
                        c.gated.as<float>() + (m0 + r) * c.gated.ld + (n0 + j) / 2, c.gated.ld);
              continue;
            }
            fn(t);
          }
        };
        const int64_t tiles_down = (a_panels + ta - 1) / ta;
        pool.parallel(count(), [&](int64_t i) HWY_ATTR {
          const int64_t ia0 = i % tiles_down * ta, ia1 = std::min(ia0 + ta, a_panels);
          const int64_t jb0 = i / tiles_down * tb, jb1 = std::min(jb0 + tb, b_panels);
          if (own_panels)
            for (int64_t jb = jb0; jb < jb1; ++jb) pack_panel(jb);
          const int64_t most = std::max<int64_t>(1, kNearElements / (p.mr * p.block));
          const int64_t near = equal_parts(ia1 - ia0, most, 1);
          for (int64_t kb = 0; kb < depth; kb += p.block)
            for (int64_t ia = ia0; ia < ia1; ia += near)
              for (int64_t jb = jb0; jb < jb1; jb += together)
                multiply_column(kb, jb, ia, std::min(ia1, ia + near), jb == jb0);
        });
      }
    }
  }
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
