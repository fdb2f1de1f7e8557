// SPDX-License-Identifier: Apache-2.0
// kl_head: how far the student's distribution is from the teacher's, and its gradient. Bound by
// multiply-adds: each model's logits are made twice, a stretch of rows and of the vocabulary at a
// time, first for the two log-sum-exps and then for what they give. The second pass sums
// q log(q / p) - q + p, which is never negative, so that nothing cancels; and p - q is one number
// before it is multiplied with the weights.
#include "backend/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kl_head.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kRows = 512;    // at a time
constexpr int64_t kWords = 1024;  // of the vocabulary at a time
constexpr float kNoScore = -3.0e38f;

// One of the two models: its rows, weights and sums.
struct Side {
  float *x, *logits, *most, *total;
  int64_t d;
};

struct Work {
  int32_t* rows;
  Side student, teacher;
  float *sums, *kl;
  void* product;
  size_t bytes = 0;
  Work(int64_t m, int64_t v, int64_t d, int64_t e, void* base) {
    const int64_t r = std::min(m, kRows), words = std::min(v, kWords);
    auto take = [&](size_t n) {
      char* p = static_cast<char*>(base) + bytes;
      bytes += (n + 63) / 64 * 64;
      return p;
    };
    auto floats = [&](int64_t n) {
      return reinterpret_cast<float*>(take(static_cast<size_t>(n) * sizeof(float)));
    };
    auto side = [&](int64_t width) {
      return Side{floats(r * width), floats(r * words), floats(r), floats(r), width};
    };
    rows = reinterpret_cast<int32_t*>(floats(m));
    student = side(d);
    teacher = side(e);
    sums = floats(r * d);
    kl = floats(r);
    product = take(std::max(
        {gemm_scratch(r, words, d), gemm_scratch(r, words, e), gemm_scratch(r, d, words)}));
  }
};

void gather(ThreadPool& pool, const Operand& x, const int32_t* rows, int64_t count, float* to) {
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(pool, count, x.cols * 8, [&](int64_t r0, int64_t r1) HWY_ATTR {
      for (int64_t r = r0; r < r1; ++r)
        for (int64_t c = 0; c < x.cols; c += kLanes)
          store_part(load_part(row<T>(x, rows[r]) + c, x.cols - c), to + r * x.cols + c,
                     x.cols - c);
    });
  });
}

void make_logits(ThreadPool& pool, const Side& side, const Operand& w, int64_t rows, int64_t v0,
                 int64_t words, float scale, void* scratch) {
  const MatB part{w.as<char>() + static_cast<size_t>(v0) * row_bytes(w.dtype, w.ld), w.ld, true,
                  w.dtype};
  gemm(pool, rows, words, side.d, {side.x, side.d}, part, {side.logits, words, scale}, scratch);
}

// The running maximum and the sum of exponentials of row r.
void add_row(const Side& side, int64_t r, int64_t words) {
  const float* logits = side.logits + r * words;
  VF top = set(kNoScore);
  for (int64_t j = 0; j < words; j += kLanes) {
    const int64_t n = words - j;
    VF v = load_part(logits + j, n);
    if (n < kLanes) v = hn::IfThenElse(hn::FirstN(df, static_cast<size_t>(n)), v, set(kNoScore));
    top = hn::Max(top, v);
  }
  const float old = side.most[r], most = std::max(old, max_lanes(top));
  VF sum = hn::Zero(df);
  for (int64_t j = 0; j < words; j += kLanes) {
    const int64_t n = words - j;
    VF p = exp_small(hn::Sub(load_part(logits + j, n), set(most)));
    if (n < kLanes) p = hn::IfThenElseZero(hn::FirstN(df, static_cast<size_t>(n)), p);
    sum = hn::Add(sum, p);
  }
  side.total[r] = std::fma(side.total[r], hn::GetLane(exp_small(set(old - most))), sum_lanes(sum));
  side.most[r] = most;
}

// Adds the words' share to kl; with `keep` the student's logits become p - q.
void compare_row(const Work& work, int64_t r, int64_t words, bool keep) {
  float* student = work.student.logits + r * words;
  const float* teacher = work.teacher.logits + r * words;
  // After the first pass `total` holds the logarithm of the sum.
  const VF student_most = set(work.student.most[r]), student_log = set(work.student.total[r]);
  const VF teacher_most = set(work.teacher.most[r]), teacher_log = set(work.teacher.total[r]);
  VF sum = hn::Zero(df);
  for (int64_t j = 0; j < words; j += kLanes) {
    const int64_t n = words - j;
    const VF a = hn::Sub(hn::Sub(load_part(student + j, n), student_most), student_log);
    const VF b = hn::Sub(hn::Sub(load_part(teacher + j, n), teacher_most), teacher_log);
    const VF p = exp_small(a), q = exp_small(b), difference = hn::Sub(p, q);
    VF term = hn::MulAdd(q, hn::Sub(b, a), difference);
    if (n < kLanes) term = hn::IfThenElseZero(hn::FirstN(df, static_cast<size_t>(n)), term);
    sum = hn::Add(sum, term);
    if (keep) store_part(difference, student + j, n);
  }
  work.kl[r] += sum_lanes(sum);
}

void kl_head_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &tx = args.in[2], &tw = args.in[3],
                &targets = args.in[4], &kl = args.out[0];
  const Operand slope = args.out.size() > 1 ? args.out[1] : Operand{};
  const int64_t m = x.rows, d = x.cols, v = w.rows;
  const Work work(m, v, d, tx.cols, args.scratch);
  const float scale = 1.0f / attr<KlAttr>(*args.step).temperature;
  ThreadPool& pool = *args.pool;
  int64_t kept = 0;
  for (int64_t i = 0; i < m; ++i) {
    if (targets.as<const int32_t>()[i] >= 0) {
      work.rows[kept++] = static_cast<int32_t>(i);
      continue;
    }
    kl.as<float>()[i] = 0;
    if (slope) zero_row(slope, i);
  }
  for (int64_t r0 = 0; r0 < kept; r0 += kRows) {
    const int64_t rows = std::min(kRows, kept - r0);
    const int32_t* which = work.rows + r0;
    gather(pool, x, which, rows, work.student.x);
    gather(pool, tx, which, rows, work.teacher.x);
    for (const Side* side : {&work.student, &work.teacher}) {
      std::fill_n(side->most, rows, kNoScore);
      std::fill_n(side->total, rows, 0.0f);
    }
    std::fill_n(work.kl, rows, 0.0f);
    auto both_logits = [&](int64_t v0, int64_t words) {
      make_logits(pool, work.student, w, rows, v0, words, scale, work.product);
      make_logits(pool, work.teacher, tw, rows, v0, words, scale, work.product);
    };
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      both_logits(v0, words);
      parallel_rows(pool, rows, words * 16, [&](int64_t a, int64_t b) HWY_ATTR {
        for (int64_t r = a; r < b; ++r) {
          add_row(work.student, r, words);
          add_row(work.teacher, r, words);
        }
      });
    }
    for (const Side* side : {&work.student, &work.teacher})
      for (int64_t r = 0; r < rows; ++r) side->total[r] = std::log(side->total[r]);
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      both_logits(v0, words);
      parallel_rows(pool, rows, words * 16, [&](int64_t a, int64_t b) HWY_ATTR {
        for (int64_t r = a; r < b; ++r) compare_row(work, r, words, static_cast<bool>(slope));
      });
      if (slope) {
        const MatB part{w.as<char>() + static_cast<size_t>(v0) * row_bytes(w.dtype, w.ld), w.ld,
                        false, w.dtype};
        gemm(pool, rows, d, words, {work.student.logits, words}, part,
             {work.sums, d, scale, v0 > 0}, work.product);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      kl.as<float>()[which[r]] = work.kl[r];
      if (slope)
        with_activation(slope.dtype, [&](auto* type) {
          using T = std::remove_pointer_t<decltype(type)>;
          for (int64_t c = 0; c < d; c += kLanes)
            store_part(load_part(work.sums + r * d + c, d - c), row<T>(slope, which[r]) + c, d - c);
        });
    }
  }
}
size_t kl_head_fwd_scratch(const StepArgs& args, int) {
  return Work(args.in[0].rows, args.in[1].rows, args.in[0].cols, args.in[2].cols, nullptr).bytes;
}

void kl_head_bwd(const StepArgs& args) {
  const Operand &dkl = args.in[0], &slope = args.in[1], &dx = args.out[0];
  with_activation(dx.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, dx.rows, dx.cols * 8, [&](int64_t a, int64_t b) HWY_ATTR {
      for (int64_t i = a; i < b; ++i) {
        const VF g = set(dkl.as<const float>()[i]);
        for (int64_t c = 0; c < dx.cols; c += kLanes)
          store_part(hn::Mul(g, load_part(row<T>(slope, i) + c, dx.cols - c)), row<T>(dx, i) + c,
                     dx.cols - c);
      }
    });
  });
}

}  // namespace

Candidates kl_head_table() {
  static constexpr Candidate kTable[] = {
      {Op::kKlHead, Dir::kForward, "kl_head_fwd", kl_head_fwd, accepts<0b101, 0b1010, 0b10, 0b1010>,
       kl_head_fwd_scratch},
      {Op::kKlHead, Dir::kBackward, "kl_head_bwd", kl_head_bwd, accepts<0b10, 0, 0b1>, nullptr},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(kl_head_candidates, kl_head_table)
}  // namespace wick::cpu
#endif
