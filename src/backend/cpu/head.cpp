// SPDX-License-Identifier: Apache-2.0
// head: log-probability of each row's target, and its gradients. Bound by multiply-adds: two
// products of rows x V x D forward (one without dlogp_dx), two or three backward. Reaches 55 to
// 75 % of one core's peak (Emerald Rapids, AVX-512, 2026-11).
//
// Logits exist for one stretch of rows and of the vocabulary at a time; a running maximum and sum
// per row, as in attention, make w pass through the caches once per stretch of rows. Ignored rows
// are left out before anything is multiplied; with skip_below, so are blocks of the vocabulary that
// no row gives a share to.
#include <atomic>
#include <bit>

#include "backend/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/head.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/head_rows-inl.h"
#include "backend/cpu/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kRows = 1024;   // of x at a time
constexpr int64_t kWords = 1024;  // of the vocabulary at a time
constexpr float kNoScore = -3.0e38f;

// Scratch: which rows count, their x and h, one block of logits, a sum per row and column (those of
// h behind those of x), and what the products need.
struct Work {
  int32_t* rows;
  float *x, *h, *logits, *sums, *most, *total, *chosen;
  void* product;
  size_t bytes;
  Work(int64_t m, int64_t v, int64_t d, int64_t rank, void* base) {
    const int64_t r = std::min(m, kRows), words = std::min(v, kWords);
    char* start = static_cast<char*>(base);
    size_t at = 0;
    auto take = [&](size_t n) {
      char* p = start + at;
      at += (n + 63) / 64 * 64;
      return p;
    };
    auto floats = [&](int64_t n) {
      return reinterpret_cast<float*>(take(static_cast<size_t>(n) * sizeof(float)));
    };
    rows = reinterpret_cast<int32_t*>(floats(m));
    x = floats(r * d);
    h = floats(r * rank);
    logits = floats(r * words);
    sums = floats(r * (d + rank));
    most = floats(r);
    total = floats(r);
    chosen = floats(r);
    size_t most_bytes = 0;
    for (int64_t width : {d, rank})
      if (width > 0)
        most_bytes = std::max({most_bytes, gemm_scratch(r, words, width),
                               gemm_scratch(r, width, words), gemm_scratch(words, width, r)});
    product = take(most_bytes);
    bytes = at;
  }
};

// One row of logits: the running maximum and sum, the target's logit; with `sums`, also the
// logits' exponentials in place and what was summed so far rescaled.
void softmax_row(float* logits, int64_t words, float* most, float* total, float* sums, int64_t d) {
  const float old_most = *most, new_most = std::max(old_most, row_max(logits, words));
  VF sum = hn::Zero(df);
  for (int64_t j = 0; j < words; j += kLanes) {
    const int64_t n = words - j;
    VF p = exp_small(hn::Sub(load_part(logits + j, n), set(new_most)));
    if (n < kLanes) p = hn::IfThenElseZero(hn::FirstN(df, static_cast<size_t>(n)), p);
    sum = hn::Add(sum, p);
    if (sums != nullptr) store_part(p, logits + j, n);
  }
  const float factor = hn::GetLane(exp_small(set(old_most - new_most)));
  if (sums != nullptr && factor != 1.0f && old_most != kNoScore)
    for (int64_t i = 0; i < d; i += kLanes)
      store_part(hn::Mul(load_part(sums + i, d - i), set(factor)), sums + i, d - i);
  *total = std::fma(*total, factor, sum_lanes(sum));
  *most = new_most;
}

constexpr int64_t kSkipped = 32;  // words in a block that is multiplied or not
static_assert(kWords / kSkipped == 32, "a bit for each block of a stretch");

// Clears what is below `least`; a bit for each block that has something left.
uint32_t clear_small(float* p, int64_t words, float least) {
  uint32_t left = 0;
  for (int64_t j = 0; j < words; j += kSkipped) {
    VF any = hn::Zero(df);
    for (int64_t i = j; i < std::min(words, j + kSkipped); i += kLanes) {
      const int64_t n = words - i;
      VF v = load_part(p + i, n);
      v = hn::IfThenElseZero(hn::Ge(v, set(least)), v);
      store_part(v, p + i, n);
      any = hn::Max(any, v);
    }
    if (max_lanes(any) > 0) left |= uint32_t{1} << (j / kSkipped);
  }
  return left;
}

// f(first, last) for each run of set bits, in words.
template <typename F>
void for_runs(uint32_t blocks, int64_t words, const F& f) {
  while (blocks != 0) {
    const int first = std::countr_zero(blocks), length = std::countr_one(blocks >> first);
    f(first * kSkipped, std::min(words, (first + length) * kSkipped));
    if (first + length >= 32) return;
    blocks &= ~uint32_t{0} << (first + length);
  }
}

// Row m of `slope` is w[target] - sums * factor.
void finish_row(const Operand& w, int64_t target, const float* sums, float factor,
                const Operand& slope, int64_t m) {
  constexpr int64_t kPart = 256;
  alignas(64) float part[kPart];
  for (int64_t c = 0; c < w.cols; c += kPart) {
    const int64_t count = std::min(kPart, w.cols - c);
    if (dtype_is_quantized(w.dtype))
      dequantize(QuantRows(w.data, w.dtype, w.ld), target, c, count, part);
    else
      widen(at(w, target, c), w.dtype, count, part);
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t n = count - i;
      store_part(hn::NegMulAdd(load_part(sums + c + i, n), set(factor), load_part(part + i, n)),
                 part + i, n);
    }
    narrow(part, count, at(slope, m, c), slope.dtype);
  }
}

void head_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &targets = args.in[2], &logp = args.out[0];
  const Operand lse = args.out.size() > 1 ? args.out[1] : Operand{};
  const Operand slope = args.out.size() > 2 ? args.out[2] : Operand{};
  const Operand h = args.in.size() > 3 ? args.in[3] : Operand{};
  const Operand second = h ? args.in[4] : Operand{}, slope_h = h ? args.out[3] : Operand{};
  const int64_t m = x.rows, d = x.cols, v = w.rows, rank = h.cols, wide = d + rank;
  const Work work(m, v, d, rank, args.scratch);
  const float skip_below = attr<HeadAttr>(*args.step).skip_below;
  ThreadPool& pool = *args.pool;
  for (int64_t i = 0; i < m; ++i)
    if (targets.as<const int32_t>()[i] < 0) {
      logp.as<float>()[i] = 0;
      if (lse) lse.as<float>()[i] = 0;
      if (slope) zero_row(slope, i);
      if (slope_h) zero_row(slope_h, i);
    }
  const int64_t kept = kept_rows(targets, work.rows);
  for (int64_t r0 = 0; r0 < kept; r0 += kRows) {
    const int64_t rows = std::min(kRows, kept - r0);
    const int32_t* which = work.rows + r0;
    gather_x(pool, x, which, rows, work.x);
    if (h) gather_x(pool, h, which, rows, work.h);
    std::fill_n(work.most, rows, kNoScore);
    std::fill_n(work.total, rows, 0.0f);
    if (slope && skip_below > 0) std::fill_n(work.sums, rows * wide, 0.0f);
    // The share of some words in the sums.
    auto add_words = [&](int64_t first, int64_t count, const float* p, int64_t ld, bool add) {
      gemm(pool, rows, d, count, {p, ld}, words_of(w, first, false), {work.sums, wide, 1.0f, add},
           work.product);
      if (h)
        gemm(pool, rows, rank, count, {p, ld}, words_of(second, first, false),
             {work.sums + d, wide, 1.0f, add}, work.product);
    };
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      gemm(pool, rows, words, d, {work.x, d}, words_of(w, v0, true), {work.logits, words},
           work.product);
      if (h)
        gemm(pool, rows, words, rank, {work.h, rank}, words_of(second, v0, true),
             {work.logits, words, 1.0f, true}, work.product);
      std::atomic<uint32_t> kept_blocks{0};
      parallel_rows(pool, rows, words * 16, [&](int64_t a, int64_t b) HWY_ATTR {
        for (int64_t r = a; r < b; ++r) {
          float* logits = work.logits + r * words;
          const int64_t target = targets.as<const int32_t>()[which[r]] - v0;
          if (target >= 0 && target < words) work.chosen[r] = logits[target];
          softmax_row(logits, words, work.most + r, work.total + r,
                      slope ? work.sums + r * wide : nullptr, wide);
          if (slope && skip_below > 0)
            kept_blocks.fetch_or(clear_small(logits, words, skip_below * work.total[r]),
                                 std::memory_order_relaxed);
        }
      });
      if (slope && skip_below > 0)
        for_runs(kept_blocks.load(), words, [&](int64_t first, int64_t last) {
          add_words(v0 + first, last - first, work.logits + first, words, true);
        });
      else if (slope)
        add_words(v0, words, work.logits, words, v0 > 0);
    }
    parallel_rows(pool, rows, slope ? d * 12 : 64, [&](int64_t a, int64_t b) HWY_ATTR {
      for (int64_t r = a; r < b; ++r) {
        const int32_t i = which[r];
        const float all = work.most[r] + std::log(work.total[r]);
        logp.as<float>()[i] = work.chosen[r] - all;
        if (lse) lse.as<float>()[i] = all;
        const float* sums = work.sums + r * wide;
        const int32_t target = targets.as<const int32_t>()[i];
        if (slope) finish_row(w, target, sums, 1.0f / work.total[r], slope, i);
        if (slope_h) finish_row(second, target, sums + d, 1.0f / work.total[r], slope_h, i);
      }
    });
  }
}
size_t head_fwd_scratch(const StepArgs& args, int) {
  const int64_t rank = args.in.size() > 3 ? args.in[3].cols : 0;
  return Work(args.in[0].rows, args.in[1].rows, args.in[0].cols, rank, nullptr).bytes;
}

// logits -> dlogp * (1[target] - p), the gradient of the logits.
void gradient_row(float* logits, int64_t words, float lse, float dlogp, int64_t target,
                  float skip_below) {
  const VF g = set(-dlogp), shift = set(lse);
  for (int64_t j = 0; j < words; j += kLanes) {
    const int64_t n = words - j;
    VF p = exp_small(hn::Sub(load_part(logits + j, n), shift));
    p = hn::IfThenZeroElse(hn::Lt(p, set(skip_below)), p);
    store_part(hn::Mul(g, p), logits + j, n);
  }
  if (target >= 0 && target < words) logits[target] += dlogp;
}

void head_bwd(const StepArgs& args) {
  const Operand &dlogp = args.in[0], &x = args.in[1], &w = args.in[2], &targets = args.in[3],
                &lse = args.in[4];
  const Operand slope = args.in.size() > 5 ? args.in[5] : Operand{};
  const Operand& dx = args.out[0];
  const Operand dw = args.out.size() > 1 ? args.out[1] : Operand{};
  const int64_t d = w.cols, v = w.rows;
  ThreadPool& pool = *args.pool;
  const int32_t* target_of = targets.as<const int32_t>();
  auto factor = [&](int64_t i) { return target_of[i] < 0 ? 0.0f : dlogp.as<const float>()[i]; };
  if (dx && slope) scale_rows(pool, slope, dx, factor);
  const Operand h = args.in.size() > 6 ? args.in[6] : Operand{};
  const Operand second = h ? args.in[7] : Operand{}, db = h ? args.out[3] : Operand{};
  if (h && args.out[2]) scale_rows(pool, args.in[8], args.out[2], factor);
  const int64_t rank = h.cols;
  const bool make_dx = dx && !slope;
  if (!make_dx && !dw && !db) return;
  const Work work(targets.elements(), v, d, rank, args.scratch);
  const int64_t kept = kept_rows(targets, work.rows);
  if (make_dx) zero_rows(pool, dx);
  if (dw && kept == 0 && !args.accumulates(1)) zero_rows(pool, dw);
  if (db && kept == 0 && !args.accumulates(3)) zero_rows(pool, db);
  for (int64_t r0 = 0; r0 < kept; r0 += kRows) {
    const int64_t rows = std::min(kRows, kept - r0);
    const int32_t* which = work.rows + r0;
    gather_x(pool, x, which, rows, work.x);
    if (h) gather_x(pool, h, which, rows, work.h);
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      gemm(pool, rows, words, d, {work.x, d}, words_of(w, v0, true), {work.logits, words},
           work.product);
      if (h)
        gemm(pool, rows, words, rank, {work.h, rank}, words_of(second, v0, true),
             {work.logits, words, 1.0f, true}, work.product);
      parallel_rows(pool, rows, words * 16, [&](int64_t a, int64_t b) HWY_ATTR {
        for (int64_t r = a; r < b; ++r) {
          const int32_t i = which[r];
          gradient_row(work.logits + r * words, words, lse.as<const float>()[i],
                       dlogp.as<const float>()[i], target_of[i] - v0,
                       attr<HeadAttr>(*args.step).skip_below);
        }
      });
      if (make_dx)
        gemm(pool, rows, d, words, {work.logits, words}, words_of(w, v0, false),
             {work.sums, d, 1.0f, v0 > 0}, work.product);
      if (dw)
        gemm(pool, words, d, rows, {work.logits, words, true}, {work.x, d},
             {at(dw, v0), dw.ld, 1.0f, args.accumulates(1) || r0 > 0}, work.product);
      if (db)
        gemm(pool, words, rank, rows, {work.logits, words, true}, {work.h, rank},
             {at(db, v0), db.ld, 1.0f, args.accumulates(3) || r0 > 0}, work.product);
    }
    if (make_dx)
      for (int64_t r = 0; r < rows; ++r) narrow(work.sums + r * d, d, at(dx, which[r]), dx.dtype);
  }
}
// Whether logits are made again; else dx is a product of what forward left, and w is not read.
bool reads_words(const StepArgs& args) {
  const bool has_slope = args.in.size() > 5 && args.in[5];
  return !has_slope || (args.out.size() > 1 && args.out[1]) || (args.out.size() > 3 && args.out[3]);
}
bool accepts_bwd(const StepArgs& args) {
  if (args.in.size() > 6 && args.in[6] && args.out[2] && !args.in[8]) return false;
  if (reads_words(args)) return accepts<0b101100010, 0b100, 0b101, 0b100>(args);
  std::vector<Operand> in(args.in.begin(), args.in.end());
  in[2] = {};
  return accepts<0b101100010, 0, 0b101>({.step = args.step, .in = in, .out = args.out});
}
size_t head_bwd_scratch(const StepArgs& args, int) {
  if (!reads_words(args)) return 0;
  const Operand& w = args.in[2];
  const int64_t rank = args.in.size() > 6 ? args.in[6].cols : 0;
  return Work(args.in[3].elements(), w.rows, w.cols, rank, nullptr).bytes;
}

}  // namespace

Candidates head_table() {
  static constexpr Candidate kTable[] = {
      {Op::kHead, Dir::kForward, "head_fwd", head_fwd, accepts<0b1001, 0b10, 0b1100, 0b10>,
       head_fwd_scratch},
      {Op::kHead, Dir::kBackward, "head_bwd", head_bwd, accepts_bwd, head_bwd_scratch},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(head_candidates, head_table)
}  // namespace wick::cpu
#endif
