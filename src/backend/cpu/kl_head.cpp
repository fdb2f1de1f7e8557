// SPDX-License-Identifier: Apache-2.0
// kl_head: how far the student's distribution is from the teacher's, and its gradient. Bound by
// multiply-adds: each model's logits are made twice, a stretch of rows and of the vocabulary at a
// time, first for the two log-sum-exps and then for what they give. The second pass sums
// q log(q / p) - q + p, which is never negative, so that nothing cancels; and p - q is one number
// before it is multiplied with the weights. For the
// gradients of weights backward makes the logits a third time.
#include "backend/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/kl_head.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/head_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kRows = 512;    // at a time
constexpr int64_t kWords = 1024;  // of the vocabulary at a time
constexpr float kNoScore = -3.0e38f;

// A model's logits are a sum of products: x wᵀ, and h bᵀ where there is an adapter on the head.
struct Factors {
  Operand of, w;
  float* x = nullptr;  // the rows that count
};

// One of the two models: its factors, logits and sums.
struct Side {
  Factors factors[2];
  int count = 1;
  float *logits, *most, *total;
};

// The operands of both directions. Without `base` only sizes.
struct Work {
  Side student, teacher;
  int32_t* rows;
  float *sums[2], *kl;  // of the student's factors
  void* product;
  float scale;
  size_t bytes = 0;
  Work(const StepArgs& args, size_t x_at, const Operand& h, const Operand& b, void* base)
      : scale(1.0f / attr<KlAttr>(*args.step).temperature) {
    const Operand& x = args.in[x_at];
    const int64_t m = x.rows, v = args.in[x_at + 1].rows;
    const int64_t r = std::min(m, kRows), words = std::min(v, kWords);
    auto take = [&](size_t n) {
      char* p = static_cast<char*>(base) + bytes;
      bytes += (n + 63) / 64 * 64;
      return p;
    };
    auto floats = [&](int64_t n) {
      return reinterpret_cast<float*>(take(static_cast<size_t>(n) * sizeof(float)));
    };
    student.factors[0] = {x, args.in[x_at + 1]};
    student.factors[1] = {h, b};
    if (h) student.count = 2;
    teacher.factors[0] = {args.in[x_at + 2], args.in[x_at + 3]};
    rows = reinterpret_cast<int32_t*>(floats(m));
    size_t most = 0;
    for (Side* side : {&student, &teacher}) {
      for (int i = 0; i < side->count; ++i) {
        const int64_t width = side->factors[i].of.cols;
        side->factors[i].x = floats(r * width);
        most = std::max({most, gemm_scratch(r, words, width), gemm_scratch(r, width, words),
                         gemm_scratch(words, width, r)});
      }
      side->logits = floats(r * words);
      side->most = floats(r);
      side->total = floats(r);
    }
    for (int i = 0; i < 2; ++i) sums[i] = i < student.count ? floats(r * width(i)) : nullptr;
    kl = floats(r);
    product = take(most);
  }
  int64_t width(int i) const { return student.factors[i].of.cols; }
  int64_t words() const { return student.factors[0].w.rows; }

  void gather(ThreadPool& pool, const int32_t* which, int64_t count) const {
    for (const Side* side : {&student, &teacher})
      for (int i = 0; i < side->count; ++i)
        gather_x(pool, side->factors[i].of, which, count, side->factors[i].x);
  }
  void make_logits(ThreadPool& pool, int64_t count, int64_t v0, int64_t some) const {
    for (const Side* side : {&student, &teacher})
      for (int i = 0; i < side->count; ++i) {
        const Factors& f = side->factors[i];
        gemm(pool, count, some, f.of.cols, {f.x, f.of.cols}, words_of(f.w, v0, true),
             {side->logits, some, scale, i > 0}, product);
      }
  }
};

// The running maximum and the sum of exponentials of row r.
void add_row(const Side& side, int64_t r, int64_t words) {
  const float* logits = side.logits + r * words;
  const float old = side.most[r], most = std::max(old, row_max(logits, words));
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
  const Operand &targets = args.in[4], &kl = args.out[0], &lse = args.out[2];
  const Operand slopes[] = {args.out[1], args.out[3]};
  const Work work(args, 0, args.in[5], args.in[6], args.scratch);
  const int64_t v = work.words();
  const bool keep = slopes[0] || slopes[1];
  ThreadPool& pool = *args.pool;
  for (int64_t i = 0; i < targets.elements(); ++i) {
    if (targets.as<const int32_t>()[i] >= 0) continue;
    kl.as<float>()[i] = 0;
    if (lse) zero_row(lse, i);
    for (const Operand& slope : slopes)
      if (slope) zero_row(slope, i);
  }
  const int64_t kept = kept_rows(targets, work.rows);
  for (int64_t r0 = 0; r0 < kept; r0 += kRows) {
    const int64_t rows = std::min(kRows, kept - r0);
    const int32_t* which = work.rows + r0;
    work.gather(pool, which, rows);
    for (const Side* side : {&work.student, &work.teacher}) {
      std::fill_n(side->most, rows, kNoScore);
      std::fill_n(side->total, rows, 0.0f);
    }
    std::fill_n(work.kl, rows, 0.0f);
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      work.make_logits(pool, rows, v0, words);
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
      work.make_logits(pool, rows, v0, words);
      parallel_rows(pool, rows, words * 16, [&](int64_t a, int64_t b) HWY_ATTR {
        for (int64_t r = a; r < b; ++r) compare_row(work, r, words, keep);
      });
      for (int i = 0; i < 2; ++i)
        if (slopes[i])
          gemm(pool, rows, work.width(i), words, {work.student.logits, words},
               words_of(work.student.factors[i].w, v0, false),
               {work.sums[i], work.width(i), work.scale, v0 > 0}, work.product);
    }
    for (int64_t r = 0; r < rows; ++r) {
      kl.as<float>()[which[r]] = work.kl[r];
      if (lse) {
        float* both = row<float>(lse, which[r]);
        both[0] = work.student.most[r] + work.student.total[r];
        both[1] = work.teacher.most[r] + work.teacher.total[r];
      }
      for (int i = 0; i < 2; ++i)
        if (slopes[i])
          narrow(work.sums[i] + r * work.width(i), work.width(i), at(slopes[i], which[r]),
                 slopes[i].dtype);
    }
  }
}
size_t kl_head_fwd_scratch(const StepArgs& args, int) {
  return Work(args, 0, args.in[5], args.in[6], nullptr).bytes;
}

// The student's logits become dkl (p - q).
void gradient_row(const Work& work, int64_t r, int64_t words, const float* lse, float dkl) {
  float* student = work.student.logits + r * words;
  const float* teacher = work.teacher.logits + r * words;
  const VF student_lse = set(lse[0]), teacher_lse = set(lse[1]), g = set(dkl);
  for (int64_t j = 0; j < words; j += kLanes) {
    const int64_t n = words - j;
    const VF p = exp_small(hn::Sub(load_part(student + j, n), student_lse));
    const VF q = exp_small(hn::Sub(load_part(teacher + j, n), teacher_lse));
    store_part(hn::Mul(g, hn::Sub(p, q)), student + j, n);
  }
}

bool makes_weights(const StepArgs& args) { return args.out[1] || args.out[3]; }

void kl_head_bwd(const StepArgs& args) {
  const float* dkl = args.in[0].as<const float>();
  ThreadPool& pool = *args.pool;
  auto factor = [&](int64_t i) { return dkl[i]; };
  if (args.out[0]) scale_rows(pool, args.in[1], args.out[0], factor);
  if (args.out[2]) scale_rows(pool, args.in[10], args.out[2], factor);
  if (!makes_weights(args)) return;
  const Operand &targets = args.in[6], &lse = args.in[7];
  const Work work(args, 2, args.in[8], args.in[9], args.scratch);
  const int64_t v = work.words(), kept = kept_rows(targets, work.rows);
  for (int at : {1, 3})
    if (const Operand& to = args.out[static_cast<size_t>(at)]; to && kept == 0)
      if (!args.accumulates(at)) zero_rows(pool, to);
  for (int64_t r0 = 0; r0 < kept; r0 += kRows) {
    const int64_t rows = std::min(kRows, kept - r0);
    const int32_t* which = work.rows + r0;
    work.gather(pool, which, rows);
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      work.make_logits(pool, rows, v0, words);
      parallel_rows(pool, rows, words * 16, [&](int64_t a, int64_t b) HWY_ATTR {
        for (int64_t r = a; r < b; ++r)
          gradient_row(work, r, words, row<float>(lse, which[r]), dkl[which[r]]);
      });
      for (int i = 0; i < work.student.count; ++i) {
        const Operand& to = args.out[static_cast<size_t>(2 * i + 1)];
        if (!to) continue;
        const int64_t width = work.width(i);
        gemm(pool, words, width, rows, {work.student.logits, words, true},
             {work.student.factors[i].x, width},
             {at(to, v0), to.ld, work.scale, args.accumulates(2 * i + 1) || r0 > 0}, work.product);
      }
    }
  }
}
size_t kl_head_bwd_scratch(const StepArgs& args, int) {
  return makes_weights(args) ? Work(args, 2, args.in[8], args.in[9], nullptr).bytes : 0;
}

}  // namespace

Candidates kl_head_table() {
  static constexpr Candidate kTable[] = {
      {Op::kKlHead, Dir::kForward, "kl_head_fwd", kl_head_fwd,
       accepts<0b0100101, 0b1001010, 0b1010, 0b1010>, kl_head_fwd_scratch},
      {Op::kKlHead, Dir::kBackward, "kl_head_bwd", kl_head_bwd,
       accepts<0b10100010110, 0b01000101000, 0b101, 0b101000>, kl_head_bwd_scratch},
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
