// SPDX-License-Identifier: Apache-2.0
// rms_norm, add_rms_norm, layer_norm, softmax: what looks at a whole row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/ref/scalar.h"

namespace wick::ref {
namespace {

// Row t, group g of x starts at column `first`.
template <class S, class X>
Sum<S> row_rstd(const X& x, int64_t t, int64_t first, int64_t d_count, float eps) {
  Sum<S> sum = 0;
  for (int64_t d = 0; d < d_count; ++d) {
    Sum<S> v = x(t, first + d);
    sum += v * v;
  }
  return Sum<S>(1) / std::sqrt(sum / Sum<S>(d_count) + Sum<S>(eps));
}

}  // namespace

template <class S>
void rms_norm_fwd(const StepArgs& args) {
  In<S> x(args.in[0]), w(args.in[1]);  // [T, G*D], [D]
  Out<S> y(args, 0), rstd(args, 1);    // [T, G*D], [T, G]
  int64_t d_count = w.cols;
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t g = 0; g < x.cols / d_count; ++g) {
      int64_t first = g * d_count;
      Sum<S> r = row_rstd<S>(x, t, first, d_count, attr_of<NormAttr>(args).eps);
      for (int64_t d = 0; d < d_count; ++d) y.put(t, first + d, x(t, first + d) * r * w[d]);
      if (rstd) rstd.put(t, g, r);
    }
  }
}

template <class S>
void rms_norm_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]), x(args.in[1]), w(args.in[2]), rstd(args.in[3]);
  Out<S> dx(args, 0), dw(args, 1);
  int64_t d_count = w.cols, groups = x.cols / d_count;
  if (dx) {
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t g = 0; g < groups; ++g) {
        int64_t first = g * d_count;
        Sum<S> r = rstd(t, g), mean = 0;
        for (int64_t d = 0; d < d_count; ++d) mean += dy(t, first + d) * w[d] * x(t, first + d);
        mean /= Sum<S>(d_count);
        for (int64_t d = 0; d < d_count; ++d) {
          int64_t c = first + d;
          dx.put(t, c, r * (dy(t, c) * w[d] - x(t, c) * r * r * mean));
        }
      }
    }
  }
  if (dw) {
    for (int64_t d = 0; d < d_count; ++d) {
      Sum<S> sum = 0;
      for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t g = 0; g < groups; ++g) {
          int64_t c = g * d_count + d;
          sum += dy(t, c) * x(t, c) * rstd(t, g);
        }
      }
      dw.put(d, sum);
    }
  }
}

template <class S>
void add_rms_norm_fwd(const StepArgs& args) {
  In<S> a(args.in[0]), b(args.in[1]), w(args.in[2]);  // [T, D], [T, D], [D]
  Out<S> sum(args, 0), y(args, 1), rstd(args, 2);     // [T, D], [T, D], [T, 1]
  auto total = [&](int64_t t, int64_t d) { return a(t, d) + b(t, d); };
  for (int64_t t = 0; t < a.rows; ++t) {
    Sum<S> r = row_rstd<S>(total, t, 0, a.cols, attr_of<NormAttr>(args).eps);
    for (int64_t d = 0; d < a.cols; ++d) {
      sum.put(t, d, total(t, d));
      y.put(t, d, total(t, d) * r * w[d]);
    }
    if (rstd) rstd.put(t, 0, r);
  }
}

template <class S>
void add_rms_norm_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]), dsum(args.in[1]), sum(args.in[2]), w(args.in[3]), rstd(args.in[4]);
  Out<S> d_both(args, 0), dw(args, 1);
  for (int64_t t = 0; t < sum.rows; ++t) {
    Sum<S> r = rstd(t, 0), mean = 0;
    for (int64_t d = 0; d < sum.cols; ++d) mean += dy(t, d) * w[d] * sum(t, d);
    mean /= Sum<S>(sum.cols);
    for (int64_t d = 0; d < sum.cols; ++d) {
      Sum<S> passed = dsum ? dsum(t, d) : Sum<S>(0);
      d_both.put(t, d, passed + r * (dy(t, d) * w[d] - sum(t, d) * r * r * mean));
    }
  }
  if (dw) {
    for (int64_t d = 0; d < sum.cols; ++d) {
      Sum<S> total = 0;
      for (int64_t t = 0; t < sum.rows; ++t) total += dy(t, d) * sum(t, d) * rstd(t, 0);
      dw.put(d, total);
    }
  }
}

template <class S>
void layer_norm_fwd(const StepArgs& args) {
  In<S> x(args.in[0]), w(args.in[1]), b(args.in[2]);  // [T, D], [D], [D]
  Out<S> y(args, 0), stats(args, 1);                  // [T, D], [T, 2]
  const Sum<S> count(static_cast<double>(x.cols));
  for (int64_t t = 0; t < x.rows; ++t) {
    Sum<S> mean = 0, variance = 0;
    for (int64_t d = 0; d < x.cols; ++d) mean += x(t, d) / count;
    for (int64_t d = 0; d < x.cols; ++d) variance += (x(t, d) - mean) * (x(t, d) - mean) / count;
    Sum<S> r = Sum<S>(1) / std::sqrt(variance + Sum<S>(attr_of<NormAttr>(args).eps));
    for (int64_t d = 0; d < x.cols; ++d)
      y.put(t, d, (x(t, d) - mean) * r * w[d] + (b ? b[d] : Sum<S>(0)));
    if (stats) {
      stats.put(t, 0, mean);
      stats.put(t, 1, r);
    }
  }
}

template <class S>
void layer_norm_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]), x(args.in[1]), w(args.in[2]), stats(args.in[3]);
  Out<S> dx(args, 0), dw(args, 1), db(args, 2);
  const Sum<S> count(static_cast<double>(x.cols));
  auto normed = [&](int64_t t, int64_t d) { return (x(t, d) - stats(t, 0)) * stats(t, 1); };
  if (dx) {
    for (int64_t t = 0; t < x.rows; ++t) {
      Sum<S> g_mean = 0, gn_mean = 0;
      for (int64_t d = 0; d < x.cols; ++d) {
        g_mean += dy(t, d) * w[d] / count;
        gn_mean += dy(t, d) * w[d] * normed(t, d) / count;
      }
      for (int64_t d = 0; d < x.cols; ++d)
        dx.put(t, d, stats(t, 1) * (dy(t, d) * w[d] - g_mean - normed(t, d) * gn_mean));
    }
  }
  for (int64_t d = 0; d < x.cols; ++d) {
    Sum<S> w_sum = 0, b_sum = 0;
    for (int64_t t = 0; t < x.rows; ++t) {
      w_sum += dy(t, d) * normed(t, d);
      b_sum += dy(t, d);
    }
    if (dw) dw.put(d, w_sum);
    if (db) db.put(d, b_sum);
  }
}

template <class S>
void softmax_fwd(const StepArgs& args) {
  In<S> x(args.in[0]);
  Out<S> y(args, 0);
  for (int64_t t = 0; t < x.rows; ++t) {
    double most = -std::numeric_limits<double>::infinity();
    for (int64_t d = 0; d < x.cols; ++d) most = std::max(most, real_part(x(t, d)));
    Sum<S> sum = 0;
    for (int64_t d = 0; d < x.cols; ++d) sum += std::exp(x(t, d) - Sum<S>(most));
    for (int64_t d = 0; d < x.cols; ++d) y.put(t, d, std::exp(x(t, d) - Sum<S>(most)) / sum);
  }
}

template <class S>
void softmax_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]), y(args.in[1]);
  Out<S> dx(args, 0);
  for (int64_t t = 0; t < y.rows; ++t) {
    Sum<S> dot = 0;
    for (int64_t d = 0; d < y.cols; ++d) dot += dy(t, d) * y(t, d);
    for (int64_t d = 0; d < y.cols; ++d) dx.put(t, d, y(t, d) * (dy(t, d) - dot));
  }
}

WICK_REF_KERNEL(rms_norm_fwd);
WICK_REF_KERNEL(rms_norm_bwd);
WICK_REF_KERNEL(add_rms_norm_fwd);
WICK_REF_KERNEL(add_rms_norm_bwd);
WICK_REF_KERNEL(layer_norm_fwd);
WICK_REF_KERNEL(layer_norm_bwd);
WICK_REF_KERNEL(softmax_fwd);
WICK_REF_KERNEL(softmax_bwd);

}  // namespace wick::ref
