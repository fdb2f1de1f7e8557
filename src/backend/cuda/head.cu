// SPDX-License-Identifier: Apache-2.0
// head: log-probability of each row's target, and its gradients. Bound by multiply-adds: two
// products of M x V x D forward (one without dlogp_dx), up to three backward.
//
// Logits exist for one block of kRows rows and kWords words at a time, so that they live in the
// second cache, between the two products that share those words' weights. A running maximum and
// sum per row, as in attention, make one pass over the vocabulary enough: a block's exponentials
// replace its logits, their product with the weights is added to `sums`, and what was summed under
// a smaller maximum is rescaled. The target is left out of both sums and joins in f32 at the end:
// else 1 - p would drown in the rounding of p where a row is learned well.
//
// Where the card can, the words after the first block skip all that: their logits leave the product
// as exponentials under the first block's maximum (head_exp.h).
//
// Ignored rows are multiplied along: how many there are is known on the device only.
#include <algorithm>
#include <initializer_list>
#include <vector>

#include "backend/accepts.h"
#include "backend/cuda/head_exp.h"
#include "backend/cuda/head_stretch.cuh"
#include "backend/cuda/product.h"
#include "backend/cuda/weights.cuh"

namespace wick::cuda {
namespace {

constexpr int64_t kRows = 2048;
constexpr int64_t kWords = kThreads * kPacks * kEach;  // 132 tiles of 128

constexpr int64_t kAlignment = 256;

Operand rows_from(Operand o, int64_t first, int64_t count) {
  const size_t skipped = static_cast<size_t>(first) * device_row_bytes(o.dtype, o.ld);
  if (o.data != nullptr) o.data = o.as<char>() + skipped;
  o.rows = count;
  return o;
}

// Scratch, and the products over it. Without `base` only sizes.
struct Work {
  Operand logits;   // [rows, words] f32
  Operand sums;     // [M, D] f32: Σ of weighted weights
  Operand sums_h;   // [M, R] f32: the same of b
  Operand weights;  // [words, D] in x's type, where w rests in another
  float *most, *others, *chosen;
  float* parts;  // of head_exponentials
  void* product;
  size_t bytes = 0;  // before the products' own

  Work(const Operand& x, const Operand& w, int64_t rank, void* base) {
    const int64_t m = x.rows, d = x.cols, words = std::min(w.rows, kWords);
    auto take = [&](int64_t count) {
      auto* p = base == nullptr ? nullptr : static_cast<char*>(base) + bytes;
      bytes += static_cast<size_t>(divide_up(count * 4, kAlignment) * kAlignment);
      return reinterpret_cast<float*>(p);
    };
    auto matrix = [&](int64_t rows, int64_t cols, DType dtype = DType::kF32) {
      const int64_t ld = divide_up(cols, kWide) * kWide, floats = dtype == DType::kF32 ? 1 : 2;
      return Operand{.data = take(divide_up(rows * ld, floats)),
                     .rows = rows,
                     .cols = cols,
                     .ld = ld,
                     .dtype = dtype};
    };
    logits = matrix(std::min(m, kRows), words);
    sums = matrix(m, d);
    if (rank > 0) sums_h = matrix(m, rank);
    if (w.dtype != x.dtype) weights = matrix(words, d, x.dtype);
    most = take(m);
    others = take(m);
    chosen = take(m);
    parts = take(logits.rows * kHeadExpParts);
    product = take(0);
  }

  Operand block(int64_t rows, int64_t words) const {
    Operand o = logits;
    o.rows = rows;
    o.cols = words;
    return o;
  }
  // What softmax or gradient left of a block: its first half where the type is a half.
  Operand factors(int64_t rows, int64_t words, DType type) const {
    Operand o = block(rows, words);
    o.dtype = type;
    o.ld *= static_cast<int64_t>(4 / dtype_bytes(type));
    return o;
  }
};

constexpr Product kLogits{.trans = Trans::kNT};
constexpr Product kMoreLogits{.trans = Trans::kNT, .accumulate = true};
constexpr Product through_weights(bool add) { return {.trans = Trans::kNN, .accumulate = add}; }
constexpr Product onto_weights(bool add) { return {.trans = Trans::kTN, .accumulate = add}; }

// f(first row, rows, first word, words) for every block, all rows of some words before the next.
// Of blocks but the first, so many words.
template <typename F>
void for_blocks(int64_t m, int64_t v, int64_t later_words, F&& f) {
  for (int64_t v0 = 0, words = kWords; v0 < v; v0 += words, words = later_words)
    for (int64_t r0 = 0; r0 < m; r0 += kRows)
      f(r0, std::min(kRows, m - r0), v0, std::min(words, v - v0));
}

// The most that one of the products of any block needs.
size_t products_scratch(const Work& work, const Operand& x, const Operand& w, const Operand& cast,
                        const Operand& sums, bool to_x, const Operand& dw, int sms) {
  size_t most = 0;
  auto needs = [&](const Product& p, const Operand& a, const Operand& b, const Operand& y) {
    most = std::max(most, product_scratch(p, a, b, y, sms));
  };
  auto sizes = [](int64_t n, int64_t chunk) {
    return std::vector<int64_t>{std::min(n, chunk), (n - 1) % chunk + 1};
  };
  if (x.rows == 0 || w.rows == 0) return 0;
  for (int64_t rows : sizes(x.rows, kRows))
    for (int64_t words : sizes(w.rows, kWords)) {
      const Operand part = rows_from(cast ? cast : w, 0, words);
      const Operand some = rows_from(x, 0, rows);
      const Operand factors = work.factors(rows, words, x.dtype);
      needs(kLogits, some, part, work.block(rows, words));
      needs(kMoreLogits, some, part, work.block(rows, words));
      for (bool add : {false, true}) {
        if (to_x) needs(through_weights(add), factors, part, rows_from(sums, 0, rows));
        if (dw) needs(onto_weights(add), factors, some, rows_from(dw, 0, words));
      }
    }
  return most;
}

template <typename Weights, typename T, bool kAligned>
struct Cast {
  Weights from;
  int64_t first;
  Rows<T> to;
  __device__ void operator()(int64_t r, int c, int left) const {
    float v[kWide];
    read_weights<kAligned>(from, first + r, c, left, v);
    Wide<T> cast;
#pragma unroll
    for (int i = 0; i < kWide; ++i) cast.set(i, v[i]);
    store_wide<kAligned>(to[r] + c, left, cast);
  }
};

// Rows of w as products take them. Those of another type are cast into scratch for the first block
// of rows of x and serve the others too.
Operand words_of(const Queue& queue, const Work& work, const Operand& w, int64_t first,
                 int64_t words, bool cast) {
  if (!work.weights) return rows_from(w, first, words);
  const Operand made = rows_from(work.weights, 0, words);
  if (!cast) return made;
  with_weights(w, [&](auto weights, bool weights_aligned) {
    with_activation(made.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      with_bool(weights_aligned && wide_aligned(made), [&](auto aligned) {
        each_wide(queue, words, made.cols,
                  Cast<decltype(weights), T, aligned()>{weights, first, rows<T>(made)});
      });
    });
  });
  return made;
}

template <typename T>
__device__ inline float exponential(float x) {
  if constexpr (std::is_same_v<T, float>)
    return expf(x);
  else
    return __expf(x);
}

struct Softmax {
  Rows<float> logits;
  int words, first_word;
  const int32_t* targets;  // of the block's rows, as all below
  float *most, *others, *chosen;
  Rows<float> sums;  // absent: exponentials are not kept
  int cols;          // of sums
  Rows<float> sums_h;
  int cols_h;  // 0: there are none
};

// A block of threads per row: exponentials of all words but the target, in place as T.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) head_softmax_kernel(const Softmax a) {
  __shared__ float shared[33];
  begin_kernel();
  const int row = blockIdx.x, target = a.targets[row] - a.first_word;
  if (a.targets[row] < 0) return;
  const bool has_target = target >= 0 && target < a.words, first = a.first_word == 0;
  const float at_target = has_target ? a.logits[row][target] : 0.0f;
  const float old = first ? -INFINITY : a.most[row];
  Stretch z(a.logits[row], a.words, target);
  float most = has_target ? fmaxf(old, at_target) : old;
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) most = fmaxf(most, z.at[i].at[j]);
  most = block_max(most, shared);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      z.at[i].at[j] = exponential<T>(z.at[i].at[j] - most);
      sum += z.at[i].at[j];
    }
  sum = block_sum(sum, shared);
  const float shrink = first ? 0.0f : exponential<T>(old - most);
  if (a.sums) {
    z.store_as(reinterpret_cast<T*>(a.logits[row]), a.words);
    if (!first && shrink != 1.0f) {
      for (int c = threadIdx.x; c < a.cols; c += kThreads) a.sums[row][c] *= shrink;
      for (int c = threadIdx.x; c < a.cols_h; c += kThreads) a.sums_h[row][c] *= shrink;
    }
  }
  if (threadIdx.x > 0) return;
  a.most[row] = most;
  a.others[row] = first ? sum : fmaf(a.others[row], shrink, sum);
  if (has_target) a.chosen[row] = at_target;
}

// dlogp_dx = (1 - p[target]) w[target] - Σ of the others
template <typename Weights, typename T, bool kAligned>
struct Finish {
  Weights w;
  const int32_t* targets;
  const float *most, *others, *chosen;
  Rows<const float> sums;
  float *logp, *lse;  // null: another pass writes them
  Rows<T> slope;
  __device__ void operator()(int64_t m, int c, int left) const {
    const int target = targets[m];
    if (target < 0) {
      if (c == 0 && logp != nullptr) logp[m] = 0.0f;
      if (c == 0 && lse != nullptr) lse[m] = 0.0f;
      if (slope) store_wide<kAligned>(slope[m] + c, left, zero_wide<T>());
      return;
    }
    const float total = others[m] + expf(chosen[m] - most[m]), log_total = logf(total);
    if (c == 0 && logp != nullptr) logp[m] = (chosen[m] - most[m]) - log_total;
    if (c == 0 && lse != nullptr) lse[m] = most[m] + log_total;
    if (!slope) return;
    const float missed = others[m] / total, share = 1.0f / total;
    float v[kWide];
    read_weights<kAligned>(w, target, c, left, v);
    const Wide<float> sum = load_wide<kAligned>(sums[m] + c, left);
    Wide<T> to;
#pragma unroll
    for (int i = 0; i < kWide; ++i) to.set(i, missed * v[i] - share * sum[i]);
    store_wide<kAligned>(slope[m] + c, left, to);
  }
};

void head_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &targets = args.in[2], &logp = args.out[0];
  const Operand lse = operand_at(args.out, 1), slope = operand_at(args.out, 2);
  const Operand h = operand_at(args.in, 3), b = operand_at(args.in, 4);
  const Operand slope_h = operand_at(args.out, 3);
  const int64_t m = x.rows, d = x.cols;
  if (m == 0) return;
  const Queue& q = queue(args);
  const Work work(x, w, h.cols, args.scratch);
  const auto* target_of = targets.as<const int32_t>();
  // Blocks of more words than kWords fit those alone.
  const bool by_exponentials = !h && !work.weights && w.rows % kWide == 0 &&
                               head_exponentials_serve(q, x, w, (m - 1) % kRows + 1);
  const int64_t later = by_exponentials ? head_exp_words(m, w.rows, kRows, kWords, q.sms) : kWords;
  for_blocks(m, w.rows, later, [&](int64_t r0, int64_t rows, int64_t v0, int64_t words) {
    const Operand part = words_of(q, work, w, v0, words, r0 == 0);
    const Operand logits = work.block(rows, words);
    const Operand sums = rows_from(work.sums, r0, rows);
    const Operand some = rows_from(x, r0, rows), factors = work.factors(rows, words, x.dtype);
    const bool done = !h && v0 > 0 &&
                      head_exponentials(q, {.x = some,
                                            .w = part,
                                            .factors = factors,
                                            .first_word = v0,
                                            .targets = target_of + r0,
                                            .most = work.most + r0,
                                            .others = work.others + r0,
                                            .chosen = work.chosen + r0,
                                            .parts = work.parts});
    if (!done) {
      product(q, kLogits, some, part, logits, work.product);
      if (h)
        product(q, kMoreLogits, rows_from(h, r0, rows), rows_from(b, v0, words), logits,
                work.product);
      const Softmax a{
          .logits = cuda::rows<float>(logits),
          .words = static_cast<int>(words),
          .first_word = static_cast<int>(v0),
          .targets = target_of + r0,
          .most = work.most + r0,
          .others = work.others + r0,
          .chosen = work.chosen + r0,
          .sums = cuda::rows<float>(slope ? sums : Operand{}),
          .cols = static_cast<int>(d),
          .sums_h = cuda::rows<float>(slope_h ? rows_from(work.sums_h, r0, rows) : Operand{}),
          .cols_h = slope_h ? static_cast<int>(h.cols) : 0};
      with_activation(x.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        launch(q, head_softmax_kernel<T>, static_cast<unsigned>(rows), kThreads, 0, a);
      });
    }
    if (slope) product(q, through_weights(v0 > 0), factors, part, sums, work.product);
    if (slope_h)
      product(q, through_weights(v0 > 0), factors, rows_from(b, v0, words),
              rows_from(work.sums_h, r0, rows), work.product);
  });
  auto finish = [&](const Operand& of, const Operand& sums, const Operand& to, float* logp_to,
                    float* lse_to) {
    with_weights(of, [&](auto weights, bool weights_aligned) {
      with_activation(x.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        with_bool(weights_aligned && wide_aligned(to), [&](auto aligned) {
          each_wide(q, m, to ? to.cols : 1,
                    Finish<decltype(weights), T, aligned()>{
                        weights, target_of, work.most, work.others, work.chosen,
                        cuda::rows<const float>(sums), logp_to, lse_to, cuda::rows<T>(to)});
        });
      });
    });
  };
  finish(w, work.sums, slope, logp.as<float>(), lse.as<float>());
  if (slope_h) finish(b, work.sums_h, slope_h, nullptr, nullptr);
}
size_t head_fwd_scratch(const StepArgs& args, int sms) {
  const Operand &x = args.in[0], &w = args.in[1];
  const Operand h = operand_at(args.in, 3);
  const Work work(x, w, h.cols, nullptr);
  const bool to_x = static_cast<bool>(operand_at(args.out, 2));
  size_t products = products_scratch(work, x, w, work.weights, work.sums, to_x, {}, sms);
  if (h)
    products = std::max(products, products_scratch(work, h, args.in[4], {}, work.sums_h,
                                                   static_cast<bool>(args.out[3]), {}, sms));
  return work.bytes + products;
}

// logits -> dlogp * (1[target] - p), in place as T: the gradient of the logits.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    head_gradient_kernel(Rows<float> logits, int words, int first_word, const int32_t* targets,
                         const float* lse, const float* dlogp) {
  const int row = blockIdx.x, target = targets[row];
  const int hit = target - first_word - Stretch::first();
  const float shift = lse[row], scale = dlogp[row];
  Stretch z(logits[row], words, -1);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float p = exponential<T>(z.at[i].at[j] - shift);
      const float one = i * Stretch::kStep + j == hit ? 1.0f : 0.0f;
      z.at[i].at[j] = target < 0 ? 0.0f : scale * (one - p);
    }
  z.store_as(reinterpret_cast<T*>(logits[row]), words);
}

// dx = dlogp * dlogp_dx
template <typename T, bool kAligned>
struct ScaleRows {
  Rows<const T> slope;
  const float* dlogp;
  const int32_t* targets;
  Rows<T> dx;
  __device__ void operator()(int64_t m, int c, int left) const {
    const float g = targets[m] < 0 ? 0.0f : dlogp[m];
    Wide<T> v = load_wide<kAligned>(slope[m] + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i) v.set(i, g * v[i]);
    store_wide<kAligned>(dx[m] + c, left, v);
  }
};

void head_bwd(const StepArgs& args) {
  const Operand &dlogp = args.in[0], &x = args.in[1], &w = args.in[2], &targets = args.in[3],
                &lse = args.in[4];
  const Operand slope = operand_at(args.in, 5), &dx = args.out[0], dw = operand_at(args.out, 1);
  const auto* target_of = targets.as<const int32_t>();
  const int64_t m = targets.elements();
  const Queue& q = queue(args);
  const Operand h = operand_at(args.in, 6), b = operand_at(args.in, 7);
  const Operand dh = operand_at(args.out, 2), db = operand_at(args.out, 3);
  auto scale_rows = [&](const Operand& from, const Operand& to) {
    with_activation(to.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      with_bool(wide_aligned(from, to), [&](auto aligned) {
        each_wide(q, m, to.cols,
                  ScaleRows<T, aligned()>{rows<const T>(from), dlogp.as<const float>(), target_of,
                                          rows<T>(to)});
      });
    });
  };
  if (dx && slope) scale_rows(slope, dx);
  if (dh) scale_rows(operand_at(args.in, 8), dh);
  const bool make_dx = dx && !slope;
  if (!make_dx && !dw && !db) return;
  if (dw && m == 0 && !args.accumulates(1)) clear_rows(q, dw);
  if (db && m == 0 && !args.accumulates(3)) clear_rows(q, db);
  const Work work(x, w, h.cols, args.scratch);
  for_blocks(m, w.rows, kWords, [&](int64_t r0, int64_t count, int64_t v0, int64_t words) {
    const Operand part = words_of(q, work, w, v0, words, r0 == 0);
    const Operand some = rows_from(x, r0, count);
    const Operand logits = work.block(count, words);
    const Operand factors = work.factors(count, words, x.dtype);
    product(q, kLogits, some, part, logits, work.product);
    if (h)
      product(q, kMoreLogits, rows_from(h, r0, count), rows_from(b, v0, words), logits,
              work.product);
    with_activation(x.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      head_gradient_kernel<T><<<static_cast<unsigned>(count), kThreads, 0, q.stream>>>(
          rows<float>(logits), static_cast<int>(words), static_cast<int>(v0), target_of + r0,
          lse.as<const float>() + r0, dlogp.as<const float>() + r0);
    });
    if (make_dx)
      product(q, through_weights(v0 > 0), factors, part, rows_from(work.sums, r0, count),
              work.product);
    if (dw)
      product(q, onto_weights(args.accumulates(1) || r0 > 0), factors, some,
              rows_from(dw, v0, words), work.product);
    if (db)
      product(q, onto_weights(args.accumulates(3) || r0 > 0), factors, rows_from(h, r0, count),
              rows_from(db, v0, words), work.product);
  });
  if (!make_dx) return;
  with_activation(dx.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(dx), [&](auto aligned) {
      each_wide(q, m, dx.cols, Narrow<T, aligned()>{rows<const float>(work.sums), rows<T>(dx)});
    });
  });
}

// Whether logits are made again; else dx is a product of what forward left, and w is not read.
bool reads_words(const StepArgs& args) {
  return !operand_at(args.in, 5) || operand_at(args.out, 1) || operand_at(args.out, 3);
}
bool accepts_bwd(const StepArgs& args) {
  if (operand_at(args.out, 2) && !operand_at(args.in, 8)) return false;
  if (reads_words(args)) return accepts<0b101100010, 0b100, 0b101, 0b100, true>(args);
  std::vector<Operand> in(args.in.begin(), args.in.end());
  in[2] = {};
  return accepts<0b101100010, 0, 0b101>({.step = args.step, .in = in, .out = args.out});
}
size_t head_bwd_scratch(const StepArgs& args, int sms) {
  if (!reads_words(args)) return 0;
  const Operand &x = args.in[1], &w = args.in[2];
  const bool to_x = args.out[0] && !operand_at(args.in, 5);
  const Operand h = operand_at(args.in, 6);
  const Work work(x, w, h.cols, nullptr);
  size_t products =
      products_scratch(work, x, w, work.weights, work.sums, to_x, operand_at(args.out, 1), sms);
  if (h)
    products = std::max(products, products_scratch(work, h, args.in[7], {}, work.sums_h, false,
                                                   operand_at(args.out, 3), sms));
  return work.bytes + products;
}

}  // namespace

// `threads` of a scratch function is the device's number of multiprocessors.
Candidates head_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kHead, Dir::kForward, "head_fwd", head_fwd, accepts<0b1001, 0b10, 0b1100, 0b10, true>,
       head_fwd_scratch},
      {Op::kHead, Dir::kBackward, "head_bwd", head_bwd, accepts_bwd, head_bwd_scratch},
  };
  return kTable;
}

}  // namespace wick::cuda
