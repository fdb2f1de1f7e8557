// SPDX-License-Identifier: Apache-2.0
// head, segment_sum: from hidden rows to a loss.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/ref/scalar.h"

namespace wick::ref {
namespace {

// logits[v] = x[m] · w[v]
template <class S>
std::vector<Sum<S>> row_logits(const In<S>& x, int64_t m, const In<S>& w) {
  std::vector<Sum<S>> logits(static_cast<size_t>(w.rows));
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
  In<S> x(args.in[0]), w(args.in[1]);  // [M, D], [V, D]
  Ints targets(args.in[2]);
  Out<S> logp(args, 0), lse(args, 1), dlogp_dx(args, 2);  // [M], [M], [M, D]
  const double skip_below = static_cast<double>(attr<HeadAttr>(*args.step).skip_below);
  for (int64_t m = 0; m < x.rows; ++m) {
    if (targets[m] < 0) {
      logp.put(m, 0);
      if (lse) lse.put(m, 0);
      for (int64_t d = 0; dlogp_dx && d < x.cols; ++d) dlogp_dx.put(m, d, 0);
      continue;
    }
    std::vector<Sum<S>> logits = row_logits(x, m, w);
    double largest = -std::numeric_limits<double>::infinity();
    for (Sum<S> z : logits) largest = std::max(largest, real_part(z));
    Sum<S> total = 0;
    for (Sum<S> z : logits) total += std::exp(z - Sum<S>(largest));
    Sum<S> row_lse = Sum<S>(largest) + std::log(total);
    logp.put(m, logits[static_cast<size_t>(targets[m])] - row_lse);
    if (lse) lse.put(m, row_lse);
    if (dlogp_dx) {
      to_gradient(logits, row_lse, targets[m], skip_below);
      for (int64_t d = 0; d < x.cols; ++d) dlogp_dx.put(m, d, through_weights<S>(logits, w, d));
    }
  }
}

template <class S>
void head_bwd(const StepArgs& args) {
  In<S> dlogp(args.in[0]), x(args.in[1]), w(args.in[2]);  // [M], [M, D], [V, D]
  Ints targets(args.in[3]);
  In<S> lse(args.in[4]), dlogp_dx(args.in[5]);  // [M], [M, D]
  Out<S> dx(args, 0), dw(args, 1);              // [M, D], [V, D]
  const double skip_below = static_cast<double>(attr<HeadAttr>(*args.step).skip_below);
  std::vector<Sum<S>> dw_sum(static_cast<size_t>(dw ? dw.rows * dw.cols : 0));
  for (int64_t m = 0; m < x.rows; ++m) {
    if (targets[m] < 0) {
      for (int64_t d = 0; dx && d < x.cols; ++d) dx.put(m, d, 0);
      continue;
    }
    std::vector<Sum<S>> g;
    if (dw || !dlogp_dx) {
      g = row_logits(x, m, w);
      to_gradient(g, lse[m], targets[m], skip_below);
    }
    for (int64_t d = 0; dx && d < x.cols; ++d) {
      dx.put(m, d, dlogp[m] * (dlogp_dx ? dlogp_dx(m, d) : through_weights<S>(g, w, d)));
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
