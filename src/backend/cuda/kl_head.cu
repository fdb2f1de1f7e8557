// SPDX-License-Identifier: Apache-2.0
// kl_head: how far the student's distribution is from the teacher's, and its gradient. Bound by
// multiply-adds: each model's logits are made twice, a block of rows and words at a time, first for
// the two log-sum-exps and then for what they give. The second pass sums q log(q / p) - q + p,
// which is never negative, so that nothing cancels; and p - q is one number before it is multiplied
// with the weights. For the gradients of weights backward makes the logits a third time.
#include <algorithm>

#include "backend/accepts.h"
#include "backend/cuda/product.h"
#include "backend/cuda/wide.cuh"

namespace wick::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kRows = 1024, kWords = 16384;
constexpr int64_t kAlignment = 256;

Operand rows_from(Operand o, int64_t first, int64_t count) {
  if (o.data != nullptr)
    o.data = o.as<char>() + static_cast<size_t>(first) * device_row_bytes(o.dtype, o.ld);
  o.rows = count;
  return o;
}

struct Work {
  Operand student, teacher;  // [rows, words] f32: logits
  Operand sums[2];           // [rows, D] f32, and [rows, R] where there is a second pair
  float* stats;              // [4, rows]: maximum and sum of each
  void* product;
  size_t bytes = 0;  // before the products' own

  Work(int64_t m, int64_t v, int64_t d, int64_t rank, void* base) {
    auto take = [&](int64_t count) {
      auto* p = base == nullptr ? nullptr : static_cast<char*>(base) + bytes;
      bytes += static_cast<size_t>(divide_up(count * 4, kAlignment) * kAlignment);
      return reinterpret_cast<float*>(p);
    };
    auto matrix = [&](int64_t rows, int64_t cols) {
      const int64_t ld = divide_up(cols, kWide) * kWide;
      return Operand{.data = take(rows * ld), .rows = rows, .cols = cols, .ld = ld};
    };
    const int64_t rows = std::min(m, kRows), words = std::min(v, kWords);
    student = matrix(rows, words);
    teacher = matrix(rows, words);
    sums[0] = matrix(rows, d);
    if (rank > 0) sums[1] = matrix(rows, rank);
    stats = take(4 * kRows);
    product = take(0);
  }
  static Operand block(Operand logits, int64_t rows, int64_t words) {
    logits.rows = rows;
    logits.cols = words;
    return logits;
  }
  // p - q in the place of the student's logits: their first half where the type is a half.
  Operand factors(int64_t rows, int64_t words, DType type) const {
    Operand o = block(student, rows, words);
    o.dtype = type;
    o.ld *= static_cast<int64_t>(4 / dtype_bytes(type));
    return o;
  }
};

constexpr Product logits_product(float scale, bool add = false) {
  return {.trans = Trans::kNT, .alpha = scale, .accumulate = add};
}
constexpr Product through_weights(float scale, bool add) {
  return {.trans = Trans::kNN, .alpha = scale, .accumulate = add};
}

constexpr Product onto_weights(float scale, bool add) {
  return {.trans = Trans::kTN, .alpha = scale, .accumulate = add};
}

// What logits are made of, from input x_at on; the pair is that of an adapter on the head.
struct Factors {
  Operand x, w, tx, tw, h, b;
  float scale;
  Factors(const StepArgs& args, size_t x_at, size_t h_at)
      : x(args.in[x_at]),
        w(args.in[x_at + 1]),
        tx(args.in[x_at + 2]),
        tw(args.in[x_at + 3]),
        h(args.in[h_at]),
        b(args.in[h_at + 1]),
        scale(1.0f / attr<KlAttr>(*args.step).temperature) {}
  Work work(void* base) const { return Work(x.rows, w.rows, x.cols, h.cols, base); }

  // f(product, rows, words, logits) for the products of one block's logits.
  template <typename F>
  void for_logits(const Work& work, int64_t r0, int64_t count, int64_t v0, int64_t words,
                  F&& f) const {
    auto make = [&](const Operand& a, const Operand& weights, const Operand& to, bool add) {
      f(logits_product(scale, add), rows_from(a, r0, count), rows_from(weights, v0, words),
        Work::block(to, count, words));
    };
    make(x, w, work.student, false);
    if (h) make(h, b, work.student, true);
    make(tx, tw, work.teacher, false);
  }
  void make_logits(const Queue& q, const Work& work, int64_t r0, int64_t count, int64_t v0,
                   int64_t words) const {
    for_logits(work, r0, count, v0, words,
               [&](const Product& p, const Operand& a, const Operand& weights, const Operand& to) {
                 product(q, p, a, weights, to, work.product);
               });
  }
  // The most that a product of any block needs: logits, and with `slopes` or `weights` those of the
  // pairs whose entry is there.
  size_t products_scratch(const Work& work, const Operand (&slopes)[2], const Operand (&weights)[2],
                          int sms) const {
    size_t most = 0;
    auto needs = [&](const Product& p, const Operand& a, const Operand& b, const Operand& y) {
      most = std::max(most, product_scratch(p, a, b, y, sms));
    };
    const Operand xs[] = {x, h}, ws[] = {w, b};
    for (int64_t count : {std::min(x.rows, kRows), (x.rows - 1) % kRows + 1})
      for (int64_t words : {std::min(w.rows, kWords), (w.rows - 1) % kWords + 1}) {
        for_logits(work, 0, count, 0, words, needs);
        const Operand factors = work.factors(count, words, x.dtype);
        for (int i : {0, 1})
          for (bool add : {false, true}) {
            if (slopes[i])
              needs(through_weights(scale, add), factors, rows_from(ws[i], 0, words),
                    rows_from(work.sums[i], 0, count));
            if (weights[i])
              needs(onto_weights(scale, add), factors, rows_from(xs[i], 0, count),
                    rows_from(weights[i], 0, words));
          }
      }
    return most;
  }
};

// A block of threads per row adds a stretch of words to the maximum and the sum.
__global__ void __launch_bounds__(kThreads)
    kl_sums_kernel(Rows<const float> logits, int words, bool first, float* most, float* total) {
  __shared__ float shared[33];
  const int row = blockIdx.x;
  const float* z = logits[row];
  const float old = first ? -INFINITY : most[row];
  float top = old;
  for (int j = threadIdx.x; j < words; j += kThreads) top = fmaxf(top, z[j]);
  top = block_max(top, shared);
  float sum = 0;
  for (int j = threadIdx.x; j < words; j += kThreads) sum += expf(z[j] - top);
  sum = block_sum(sum, shared);
  if (threadIdx.x > 0) return;
  total[row] = first ? sum : fmaf(total[row], expf(old - top), sum);
  most[row] = top;
}

// Adds a stretch of words to kl; p - q replaces the student's logits, as T. The first stretch
// leaves both sums in `lse`, if it is there.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    kl_compare_kernel(Rows<float> student, Rows<const float> teacher, int words, bool first,
                      const float* stats, const int32_t* targets, float* kl, Rows<float> lse,
                      bool keep) {
  __shared__ float shared[33];
  const int row = blockIdx.x;
  const float student_most = stats[row], student_log = logf(stats[kRows + row]);
  const float teacher_most = stats[2 * kRows + row], teacher_log = logf(stats[3 * kRows + row]);
  float* z = student[row];
  const float* t = teacher[row];
  const bool ignored = targets[row] < 0;
  float sum = 0;
  // Halves are written below what is still to be read: all threads read before one writes.
  for (int j0 = 0; j0 < words; j0 += kThreads) {
    const int j = j0 + static_cast<int>(threadIdx.x);
    float difference = 0;
    if (j < words) {
      const float a = (z[j] - student_most) - student_log, b = (t[j] - teacher_most) - teacher_log;
      const float p = expf(a), q = expf(b);
      difference = p - q;
      sum += fmaf(q, b - a, difference);
    }
    __syncthreads();
    if (keep && j < words) reinterpret_cast<T*>(z)[j] = from_f32<T>(ignored ? 0.0f : difference);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x > 0) return;
  kl[row] = ignored ? 0.0f : (first ? sum : kl[row] + sum);
  if (!first || !lse) return;
  lse[row][0] = ignored ? 0.0f : student_most + student_log;
  lse[row][1] = ignored ? 0.0f : teacher_most + teacher_log;
}

void kl_head_fwd(const StepArgs& args) {
  const Operand &targets = args.in[4], &kl = args.out[0], &lse = args.out[2];
  const Operand slopes[] = {args.out[1], args.out[3]};
  const Factors of(args, 0, 5);
  const int64_t m = of.x.rows, v = of.w.rows;
  if (m == 0) return;
  const Queue& q = queue(args);
  const Work work = of.work(args.scratch);
  const Operand weights[] = {of.w, of.b};
  for (int64_t r0 = 0; r0 < m; r0 += kRows) {
    const int64_t count = std::min(kRows, m - r0);
    const auto blocks = static_cast<unsigned>(count);
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      of.make_logits(q, work, r0, count, v0, words);
      kl_sums_kernel<<<blocks, kThreads, 0, q.stream>>>(rows<const float>(work.student),
                                                        static_cast<int>(words), v0 == 0,
                                                        work.stats, work.stats + kRows);
      kl_sums_kernel<<<blocks, kThreads, 0, q.stream>>>(
          rows<const float>(work.teacher), static_cast<int>(words), v0 == 0, work.stats + 2 * kRows,
          work.stats + 3 * kRows);
    }
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      of.make_logits(q, work, r0, count, v0, words);
      with_activation(of.x.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        kl_compare_kernel<T><<<blocks, kThreads, 0, q.stream>>>(
            rows<float>(work.student), rows<const float>(work.teacher), static_cast<int>(words),
            v0 == 0, work.stats, targets.as<const int32_t>() + r0, kl.as<float>() + r0,
            rows<float>(rows_from(lse, r0, count)), slopes[0] || slopes[1]);
      });
      for (int i : {0, 1})
        if (slopes[i])
          product(q, through_weights(of.scale, v0 > 0), work.factors(count, words, of.x.dtype),
                  rows_from(weights[i], v0, words), rows_from(work.sums[i], 0, count),
                  work.product);
    }
    for (int i : {0, 1}) {
      if (!slopes[i]) continue;
      const Operand to = rows_from(slopes[i], r0, count);
      with_activation(to.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        with_bool(wide_aligned(to), [&](auto aligned) {
          each_wide(q, count, to.cols,
                    Narrow<T, aligned()>{rows<const float>(work.sums[i]), rows<T>(to)});
        });
      });
    }
  }
}
size_t kl_head_fwd_scratch(const StepArgs& args, int sms) {
  const Factors of(args, 0, 5);
  if (of.x.rows == 0 || of.w.rows == 0) return 0;
  const Work work = of.work(nullptr);
  return work.bytes + of.products_scratch(work, {args.out[1], args.out[3]}, {}, sms);
}

// The student's logits become dkl (p - q), as T.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    kl_gradient_kernel(Rows<float> student, Rows<const float> teacher, int words,
                       Rows<const float> lse, const int32_t* targets, const float* dkl) {
  const int row = blockIdx.x;
  const float student_lse = lse[row][0], teacher_lse = lse[row][1];
  const float g = targets[row] < 0 ? 0.0f : dkl[row];
  float* z = student[row];
  const float* t = teacher[row];
  // As above: all threads read before one writes.
  for (int j0 = 0; j0 < words; j0 += kThreads) {
    const int j = j0 + static_cast<int>(threadIdx.x);
    float difference = 0;
    if (j < words && g != 0.0f) difference = expf(z[j] - student_lse) - expf(t[j] - teacher_lse);
    __syncthreads();
    if (j < words) reinterpret_cast<T*>(z)[j] = from_f32<T>(g * difference);
  }
}

// dx = dkl * dkl_dx
template <typename T, bool kAligned>
struct ScaleRows {
  Rows<const T> slope;
  const float* dkl;
  Rows<T> dx;
  __device__ void operator()(int64_t m, int c, int left) const {
    Wide<T> v = load_wide<kAligned>(slope[m] + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i) v.set(i, dkl[m] * v[i]);
    store_wide<kAligned>(dx[m] + c, left, v);
  }
};

bool makes_weights(const StepArgs& args) { return args.out[1] || args.out[3]; }

void kl_head_bwd(const StepArgs& args) {
  const auto* dkl = args.in[0].as<const float>();
  const Queue& q = queue(args);
  auto scale_rows = [&](const Operand& from, const Operand& to) {
    with_activation(to.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      with_bool(wide_aligned(from, to), [&](auto aligned) {
        each_wide(q, to.rows, to.cols,
                  ScaleRows<T, aligned()>{rows<const T>(from), dkl, rows<T>(to)});
      });
    });
  };
  if (args.out[0]) scale_rows(args.in[1], args.out[0]);
  if (args.out[2]) scale_rows(args.in[10], args.out[2]);
  if (!makes_weights(args)) return;
  const Factors of(args, 2, 8);
  const Operand &targets = args.in[6], &lse = args.in[7];
  const Operand xs[] = {of.x, of.h}, to[] = {args.out[1], args.out[3]};
  const int64_t m = of.x.rows, v = of.w.rows;
  for (int i : {0, 1})
    if (to[i] && m == 0 && !args.accumulates(2 * i + 1)) clear_rows(q, to[i]);
  const Work work = of.work(args.scratch);
  for (int64_t r0 = 0; r0 < m; r0 += kRows) {
    const int64_t count = std::min(kRows, m - r0);
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      of.make_logits(q, work, r0, count, v0, words);
      with_activation(of.x.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        kl_gradient_kernel<T><<<static_cast<unsigned>(count), kThreads, 0, q.stream>>>(
            rows<float>(work.student), rows<const float>(work.teacher), static_cast<int>(words),
            rows<const float>(rows_from(lse, r0, count)), targets.as<const int32_t>() + r0,
            dkl + r0);
      });
      for (int i : {0, 1})
        if (to[i])
          product(q, onto_weights(of.scale, args.accumulates(2 * i + 1) || r0 > 0),
                  work.factors(count, words, of.x.dtype), rows_from(xs[i], r0, count),
                  rows_from(to[i], v0, words), work.product);
    }
  }
}
size_t kl_head_bwd_scratch(const StepArgs& args, int sms) {
  if (!makes_weights(args)) return 0;
  const Factors of(args, 2, 8);
  if (of.x.rows == 0 || of.w.rows == 0) return 0;
  const Work work = of.work(nullptr);
  return work.bytes + of.products_scratch(work, {}, {args.out[1], args.out[3]}, sms);
}

}  // namespace

// `threads` of a scratch function is the device's number of multiprocessors.
Candidates kl_head_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kKlHead, Dir::kForward, "kl_head_fwd", kl_head_fwd,
       accepts<0b0100101, 0b1001010, 0b1010, 0b1010, true>, kl_head_fwd_scratch},
      {Op::kKlHead, Dir::kBackward, "kl_head_bwd", kl_head_bwd,
       accepts<0b10100010110, 0b01000101000, 0b101, 0b101000, true>, kl_head_bwd_scratch},
  };
  return kTable;
}

}  // namespace wick::cuda
