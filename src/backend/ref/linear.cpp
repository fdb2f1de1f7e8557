// SPDX-License-Identifier: Apache-2.0
// linear.
#include "backend/ref/scalar.h"

namespace wick::ref {

template <class S>
void linear_fwd(const StepArgs& args) {
  In<S> x(args.in[0]), w(args.in[1]), bias(args.in[2]);  // [T, K], [N, K], [N]
  Out<S> y(args, 0);                                     // [T, N]
  Sum<S> scale = attr_of<LinearAttr>(args).scale;
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t n = 0; n < y.cols; ++n) {
      Sum<S> sum = 0;
      for (int64_t k = 0; k < x.cols; ++k) sum += x(t, k) * w(n, k);
      y.put(t, n, scale * sum + (bias ? bias[n] : Sum<S>(0)));
    }
  }
}

template <class S>
void linear_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]), x(args.in[1]), w(args.in[2]);  // [T, N], [T, K], [N, K]
  Out<S> dx(args, 0), dw(args, 1), dbias(args, 2);     // [T, K], [N, K], [N]
  Sum<S> scale = attr_of<LinearAttr>(args).scale;
  if (dx) {
    for (int64_t t = 0; t < dx.rows; ++t) {
      for (int64_t k = 0; k < dx.cols; ++k) {
        Sum<S> sum = 0;
        for (int64_t n = 0; n < dy.cols; ++n) sum += dy(t, n) * w(n, k);
        dx.put(t, k, scale * sum);
      }
    }
  }
  if (dw) {
    for (int64_t n = 0; n < dw.rows; ++n) {
      for (int64_t k = 0; k < dw.cols; ++k) {
        Sum<S> sum = 0;
        for (int64_t t = 0; t < dy.rows; ++t) sum += dy(t, n) * x(t, k);
        dw.put(n, k, scale * sum);
      }
    }
  }
  if (dbias) {
    for (int64_t n = 0; n < dbias.cols; ++n) {
      Sum<S> sum = 0;
      for (int64_t t = 0; t < dy.rows; ++t) sum += dy(t, n);
      dbias.put(n, sum);
    }
  }
}

WICK_REF_KERNEL(linear_fwd);
WICK_REF_KERNEL(linear_bwd);

}  // namespace wick::ref
