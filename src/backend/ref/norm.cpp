// SPDX-License-Identifier: Apache-2.0
// rms_norm, add_rms_norm.
#include <cmath>

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

WICK_REF_KERNEL(rms_norm_fwd);
WICK_REF_KERNEL(rms_norm_bwd);
WICK_REF_KERNEL(add_rms_norm_fwd);
WICK_REF_KERNEL(add_rms_norm_bwd);

}  // namespace wick::ref
