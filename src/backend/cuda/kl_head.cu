// SPDX-License-Identifier: Apache-2.0
// kl_head: how far the student's distribution is from the teacher's, and its gradient. Bound by
// multiply-adds: each model's logits are made twice, a block of rows and words at a time, first for
// the two log-sum-exps and then for what they give. The second pass sums q log(q / p) - q + p,
// which is never negative, so that nothing cancels; and p - q is one number before it is multiplied
// with the weights.
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
  Operand sums;              // [rows, D] f32
  float* stats;              // [4, rows]: maximum and sum of each
  void* product;
  size_t bytes = 0;  // before the products' own

  Work(int64_t m, int64_t v, int64_t d, void* base) {
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
    sums = matrix(rows, d);
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

constexpr Product logits_product(float scale) { return {.trans = Trans::kNT, .alpha = scale}; }
constexpr Product through_weights(float scale, bool add) {
  return {.trans = Trans::kNN, .alpha = scale, .accumulate = add};
}

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

// Adds a stretch of words to kl; p - q replaces the student's logits, as T.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    kl_compare_kernel(Rows<float> student, Rows<const float> teacher, int words, bool first,
                      const float* stats, const int32_t* targets, float* kl, bool keep) {
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
  if (threadIdx.x == 0) kl[row] = ignored ? 0.0f : (first ? sum : kl[row] + sum);
}

float scale_of(const StepArgs& args) { return 1.0f / attr<KlAttr>(*args.step).temperature; }

void kl_head_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &tx = args.in[2], &tw = args.in[3],
                &targets = args.in[4], &kl = args.out[0];
  const Operand slope = operand_at(args.out, 1);
  const int64_t m = x.rows, v = w.rows;
  if (m == 0) return;
  const Queue& q = queue(args);
  const Work work(m, v, x.cols, args.scratch);
  const float scale = scale_of(args);
  for (int64_t r0 = 0; r0 < m; r0 += kRows) {
    const int64_t count = std::min(kRows, m - r0);
    const auto blocks = static_cast<unsigned>(count);
    auto both_logits = [&](int64_t v0, int64_t words) {
      product(q, logits_product(scale), rows_from(x, r0, count), rows_from(w, v0, words),
              Work::block(work.student, count, words), work.product);
      product(q, logits_product(scale), rows_from(tx, r0, count), rows_from(tw, v0, words),
              Work::block(work.teacher, count, words), work.product);
    };
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      both_logits(v0, words);
      kl_sums_kernel<<<blocks, kThreads, 0, q.stream>>>(rows<const float>(work.student),
                                                        static_cast<int>(words), v0 == 0,
                                                        work.stats, work.stats + kRows);
      kl_sums_kernel<<<blocks, kThreads, 0, q.stream>>>(
          rows<const float>(work.teacher), static_cast<int>(words), v0 == 0, work.stats + 2 * kRows,
          work.stats + 3 * kRows);
    }
    for (int64_t v0 = 0; v0 < v; v0 += kWords) {
      const int64_t words = std::min(kWords, v - v0);
      both_logits(v0, words);
      with_activation(x.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        kl_compare_kernel<T><<<blocks, kThreads, 0, q.stream>>>(
            rows<float>(work.student), rows<const float>(work.teacher), static_cast<int>(words),
            v0 == 0, work.stats, targets.as<const int32_t>() + r0, kl.as<float>() + r0,
            static_cast<bool>(slope));
      });
      if (slope)
        product(q, through_weights(scale, v0 > 0), work.factors(count, words, x.dtype),
                rows_from(w, v0, words), rows_from(work.sums, 0, count), work.product);
    }
    if (!slope) continue;
    const Operand to = rows_from(slope, r0, count);
    with_activation(slope.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      with_bool(wide_aligned(to), [&](auto aligned) {
        each_wide(q, count, to.cols,
                  Narrow<T, aligned()>{rows<const float>(work.sums), rows<T>(to)});
      });
    });
  }
}
size_t kl_head_fwd_scratch(const StepArgs& args, int sms) {
  const Operand &x = args.in[0], &w = args.in[1], &tx = args.in[2], &tw = args.in[3];
  if (x.rows == 0 || w.rows == 0) return 0;
  const Work work(x.rows, w.rows, x.cols, nullptr);
  const float scale = scale_of(args);
  const bool to_x = static_cast<bool>(operand_at(args.out, 1));
  size_t most = 0;
  auto needs = [&](const Product& p, const Operand& a, const Operand& b, const Operand& y) {
    most = std::max(most, product_scratch(p, a, b, y, sms));
  };
  for (int64_t count : {std::min(x.rows, kRows), (x.rows - 1) % kRows + 1})
    for (int64_t words : {std::min(w.rows, kWords), (w.rows - 1) % kWords + 1}) {
      needs(logits_product(scale), rows_from(x, 0, count), rows_from(w, 0, words),
            Work::block(work.student, count, words));
      needs(logits_product(scale), rows_from(tx, 0, count), rows_from(tw, 0, words),
            Work::block(work.teacher, count, words));
      for (bool add : {false, true})
        if (to_x)
          needs(through_weights(scale, add), work.factors(count, words, x.dtype),
                rows_from(w, 0, words), rows_from(work.sums, 0, count));
    }
  return work.bytes + most;
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

void kl_head_bwd(const StepArgs& args) {
  const Operand &dkl = args.in[0], &slope = args.in[1], &dx = args.out[0];
  with_activation(dx.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(slope, dx), [&](auto aligned) {
      each_wide(queue(args), dx.rows, dx.cols,
                ScaleRows<T, aligned()>{rows<const T>(slope), dkl.as<const float>(), rows<T>(dx)});
    });
  });
}

}  // namespace

// `threads` of a scratch function is the device's number of multiprocessors.
Candidates kl_head_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kKlHead, Dir::kForward, "kl_head_fwd", kl_head_fwd,
       accepts<0b101, 0b1010, 0b10, 0b1010, true>, kl_head_fwd_scratch},
      {Op::kKlHead, Dir::kBackward, "kl_head_bwd", kl_head_bwd, accepts<0b10, 0, 0b1>, nullptr},
  };
  return kTable;
}

}  // namespace wick::cuda
