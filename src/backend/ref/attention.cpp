// SPDX-License-Identifier: Apache-2.0
// rope, attention.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/ref/scalar.h"

namespace wick::ref {
namespace {

// `sign` is 1 forward and -1 backward: the transpose of a rotation turns the other way.
template <class S>
void rotate(const StepArgs& args, Sum<S> sign) {
  In<S> x(args.in[0]), table(args.in[1]);  // [T, H*E], [P, E]
  Ints positions(args.in[2]);
  Out<S> y(args, 0);
  int64_t head_dim = attr_of<RopeAttr>(args).head_dim, half = head_dim / 2;
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t h = 0; h < x.cols / head_dim; ++h) {
      for (int64_t e = 0; e < half; ++e) {
        int64_t cu = h * head_dim + e, cv = cu + half;
        Sum<S> cosine = table(positions[t], e), sine = sign * table(positions[t], half + e);
        y.put(t, cu, x(t, cu) * cosine - x(t, cv) * sine);
        y.put(t, cv, x(t, cv) * cosine + x(t, cu) * sine);
      }
    }
  }
}

struct Range {
  int64_t begin, end;
};

// The keys that row t looks at.
Range visible(const Ints& begin, const Ints& end, int64_t window, int64_t t) {
  int64_t first = begin[t];
  if (window > 0) first = std::max<int64_t>(first, end[t] - window);
  return {first, std::max<int64_t>(first, end[t])};
}

template <class S>
Sum<S> dot(const In<S>& a, int64_t row_a, int64_t col_a, const In<S>& b, int64_t row_b,
           int64_t col_b, int64_t count) {
  Sum<S> sum = 0;
  for (int64_t e = 0; e < count; ++e) sum += a(row_a, col_a + e) * b(row_b, col_b + e);
  return sum;
}

}  // namespace

template <class S>
void rope_fwd(const StepArgs& args) {
  rotate<S>(args, 1);
}

template <class S>
void rope_bwd(const StepArgs& args) {
  rotate<S>(args, -1);
}

template <class S>
void attention_fwd(const StepArgs& args) {
  In<S> q(args.in[0]), k(args.in[1]), v(args.in[2]);  // [T, H*E], [S, K*E], [S, K*E]
  Ints begin(args.in[3]), end(args.in[4]);
  Out<S> y(args, 0), lse(args, 1);  // [T, H*E], [T, H]
  const auto& a = attr_of<AttentionAttr>(args);
  int64_t head_dim = a.head_dim, heads_per_kv = a.heads / a.kv_heads;
  std::vector<Sum<S>> score;
  for (int64_t t = 0; t < q.rows; ++t) {
    Range range = visible(begin, end, a.window, t);
    for (int64_t h = 0; h < a.heads; ++h) {
      int64_t col = h * head_dim, kv_col = h / heads_per_kv * head_dim;
      score.clear();
      double largest = -std::numeric_limits<double>::infinity();
      for (int64_t j = range.begin; j < range.end; ++j) {
        score.push_back(Sum<S>(a.scale) * dot(q, t, col, k, j, kv_col, head_dim));
        largest = std::max(largest, real_part(score.back()));
      }
      Sum<S> total = 0;
      for (Sum<S>& s : score) {
        s = std::exp(s - Sum<S>(largest));
        total += s;
      }
      for (int64_t e = 0; e < head_dim; ++e) {
        Sum<S> sum = 0;
        for (int64_t j = range.begin; j < range.end; ++j) {
          sum += score[static_cast<size_t>(j - range.begin)] / total * v(j, kv_col + e);
        }
        y.put(t, col + e, sum);
      }
      if (lse) lse.put(t, h, score.empty() ? Sum<S>(largest) : Sum<S>(largest) + std::log(total));
    }
  }
}

template <class S>
void attention_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]), q(args.in[1]), k(args.in[2]), v(args.in[3]), y(args.in[4]), lse(args.in[5]);
  Ints begin(args.in[6]), end(args.in[7]);
  Out<S> dq(args, 0), dk(args, 1), dv(args, 2);
  const auto& a = attr_of<AttentionAttr>(args);
  int64_t head_dim = a.head_dim, heads_per_kv = a.heads / a.kv_heads;
  auto matrix = [](int64_t rows, int64_t cols) {
    return std::vector<Sum<S>>(static_cast<size_t>(rows * cols));
  };
  auto q_sum = matrix(q.rows, q.cols), k_sum = matrix(k.rows, k.cols),
       v_sum = matrix(v.rows, v.cols);
  auto at = [](int64_t r, int64_t cols, int64_t c) { return static_cast<size_t>(r * cols + c); };
  for (int64_t t = 0; t < q.rows; ++t) {
    Range range = visible(begin, end, a.window, t);
    for (int64_t h = 0; h < a.heads; ++h) {
      int64_t col = h * head_dim, kv_col = h / heads_per_kv * head_dim;
      Sum<S> mean = dot(dy, t, col, y, t, col, head_dim);  // Σ_j p_j dp_j
      for (int64_t j = range.begin; j < range.end; ++j) {
        Sum<S> scale = a.scale;
        Sum<S> p = std::exp(scale * dot(q, t, col, k, j, kv_col, head_dim) - lse(t, h));
        Sum<S> ds = scale * p * (dot(dy, t, col, v, j, kv_col, head_dim) - mean);
        for (int64_t e = 0; e < head_dim; ++e) {
          q_sum[at(t, q.cols, col + e)] += ds * k(j, kv_col + e);
          k_sum[at(j, k.cols, kv_col + e)] += ds * q(t, col + e);
          v_sum[at(j, v.cols, kv_col + e)] += p * dy(t, col + e);
        }
      }
    }
  }
  auto put = [&](const Out<S>& out, const std::vector<Sum<S>>& sum) {
    if (!out) return;
    for (int64_t r = 0; r < out.rows; ++r) {
      for (int64_t c = 0; c < out.cols; ++c) out.put(r, c, sum[at(r, out.cols, c)]);
    }
  };
  put(dq, q_sum);
  put(dk, k_sum);
  put(dv, v_sum);
}

WICK_REF_KERNEL(rope_fwd);
WICK_REF_KERNEL(rope_bwd);
WICK_REF_KERNEL(attention_fwd);
WICK_REF_KERNEL(attention_bwd);

}  // namespace wick::ref
