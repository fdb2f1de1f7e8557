// SPDX-License-Identifier: Apache-2.0
// head, segment_sum: from hidden rows to a loss.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/ref/scalar.h"

namespace wick::ref {
namespace {

template <class S>
struct Factors {
  In<S> x, w;
};
// x wᵀ and, where it is there, h bᵀ: from inputs x_at, x_at + 1 and h_at, h_at + 1.
template <class S>
std::vector<Factors<S>> factors(const StepArgs& args, size_t x_at, size_t h_at) {
  std::vector<Factors<S>> all{{In<S>(args.in[x_at]), In<S>(args.in[x_at + 1])}};
  if (h_at < args.in.size() && args.in[h_at])
    all.push_back({In<S>(args.in[h_at]), In<S>(args.in[h_at + 1])});
  return all;
}

// logits[v] = Σ x[m] · w[v]
template <class S>
std::vector<Sum<S>> row_logits(const std::vector<Factors<S>>& all, int64_t m) {
  std::vector<Sum<S>> logits(static_cast<size_t>(all[0].w.rows));
  for (const auto& [x, w] : all)
    for (int64_t v = 0; v < w.rows; ++v) {
      for (int64_t d = 0; d < w.cols; ++d) logits[static_cast<size_t>(v)] += x(m, d) * w(v, d);
    }
  return logits;
}

// ∂logp/∂logits = onehot(target) - p, in place of the logits.
template <class X>
void to_gradient(std::vector<X>& logits, X lse, int32_t target, double skip_below) {
  for (X& z : logits) {
    z = -std::exp(z - lse);
    if (-real_part(z) < skip_below) z = 0;
  }
  logits[static_cast<size_t>(target)] += X(1);
}

// Σ_v g[v] * w[v, d]
template <class S>
Sum<S> through_weights(const std::vector<Sum<S>>& g, const In<S>& w, int64_t d) {
  Sum<S> sum = 0;
  for (int64_t v = 0; v < w.rows; ++v) sum += g[static_cast<size_t>(v)] * w(v, d);
  return sum;
}

}  // namespace

template <class S>
void head_fwd(const StepArgs& args) {
  const auto all = factors<S>(args, 0, 3);  // [M, D], [V, D] and [M, R], [V, R]
  Ints targets(args.in[2]);
  Out<S> logp(args, 0), lse(args, 1);  // [M], [M]
  std::vector<Out<S>> slopes;          // dlogp_dx [M, D], dlogp_dh [M, R]
  for (size_t i = 0; i < all.size(); ++i) slopes.emplace_back(args, static_cast<int>(2 + i));
  const double skip_below = static_cast<double>(attr<HeadAttr>(*args.step).skip_below);
  for (int64_t m = 0; m < targets.count; ++m) {
    if (targets[m] < 0) {
      logp.put(m, 0);
      if (lse) lse.put(m, 0);
      for (const Out<S>& slope : slopes)
        for (int64_t d = 0; slope && d < slope.cols; ++d) slope.put(m, d, 0);
      continue;
    }
    std::vector<Sum<S>> logits = row_logits(all, m);
    double largest = -std::numeric_limits<double>::infinity();
    for (Sum<S> z : logits) largest = std::max(largest, real_part(z));
    Sum<S> total = 0;
    for (Sum<S> z : logits) total += std::exp(z - Sum<S>(largest));
    Sum<S> row_lse = Sum<S>(largest) + std::log(total);
    logp.put(m, logits[static_cast<size_t>(targets[m])] - row_lse);
    if (lse) lse.put(m, row_lse);
    to_gradient(logits, row_lse, targets[m], skip_below);
    for (size_t i = 0; i < all.size(); ++i)
      for (int64_t d = 0; slopes[i] && d < slopes[i].cols; ++d)
        slopes[i].put(m, d, through_weights<S>(logits, all[i].w, d));
  }
}

template <class S>
void head_bwd(const StepArgs& args) {
  In<S> dlogp(args.in[0]), lse(args.in[4]);  // [M], [M]
  const auto all = factors<S>(args, 1, 6);
  Ints targets(args.in[3]);
  const double skip_below = static_cast<double>(attr<HeadAttr>(*args.step).skip_below);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [x, w] = all[i];
    In<S> slope(args.in[i == 0 ? 5 : 8]);
    const int at = static_cast<int>(2 * i);
    Out<S> dx(args, at), dw(args, at + 1);  // [M, D], [V, D]
    std::vector<Sum<S>> dw_sum(static_cast<size_t>(dw ? dw.rows * dw.cols : 0));
    for (int64_t m = 0; m < targets.count; ++m) {
      if (targets[m] < 0) {
        for (int64_t d = 0; dx && d < dx.cols; ++d) dx.put(m, d, 0);
        continue;
      }
      std::vector<Sum<S>> g;
      if (dw || !slope) {
        g = row_logits(all, m);
        to_gradient(g, lse[m], targets[m], skip_below);
      }
      for (int64_t d = 0; dx && d < dx.cols; ++d) {
        dx.put(m, d, dlogp[m] * (slope ? slope(m, d) : through_weights<S>(g, w, d)));
      }
      for (int64_t v = 0; dw && v < dw.rows; ++v) {
        Sum<S> dlogit = dlogp[m] * g[static_cast<size_t>(v)];
        for (int64_t d = 0; d < x.cols; ++d) {
          dw_sum[static_cast<size_t>(v * dw.cols + d)] += dlogit * x(m, d);
        }
      }
    }
    for (int64_t v = 0; dw && v < dw.rows; ++v) {
      for (int64_t d = 0; d < dw.cols; ++d) {
        dw.put(v, d, dw_sum[static_cast<size_t>(v * dw.cols + d)]);
      }
    }
  }
}

template <class S>
void segment_sum_fwd(const StepArgs& args) {
  In<S> x(args.in[0]), weight(args.in[1]);  // [M], [M]
  Ints segment(args.in[2]);
  Out<S> y(args, 0);  // [S]
  std::vector<Sum<S>> sum(static_cast<size_t>(y.cols));
  for (int64_t m = 0; m < x.cols; ++m) {
    if (segment[m] >= 0) sum[static_cast<size_t>(segment[m])] += weight[m] * x[m];
  }
  for (int64_t s = 0; s < y.cols; ++s) y.put(s, sum[static_cast<size_t>(s)]);
}

template <class S>
void segment_sum_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]), weight(args.in[1]);
  Ints segment(args.in[2]);
  Out<S> dx(args, 0);
  for (int64_t m = 0; m < dx.cols; ++m) {
    if (segment[m] < 0) {
      dx.put(m, 0);
    } else {
      dx.put(m, weight[m] * (dy ? dy[segment[m]] : Sum<S>(1)));
    }
  }
}

WICK_REF_KERNEL(head_fwd);
WICK_REF_KERNEL(head_bwd);
WICK_REF_KERNEL(segment_sum_fwd);
WICK_REF_KERNEL(segment_sum_bwd);

}  // namespace wick::ref
