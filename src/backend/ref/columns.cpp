// SPDX-License-Identifier: Apache-2.0
// column_scale, column_norm.
#include <cmath>

#include "backend/ref/scalar.h"

namespace wick::ref {

template <class S>
void column_scale_fwd(const StepArgs& args) {
  In<S> x(args.in[0]), m(args.in[1]), norm(args.in[2]);  // [T, N], [N], [N]
  Out<S> y(args, 0);
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t n = 0; n < y.cols; ++n) y.put(t, n, x(t, n) * m[n] / norm[n]);
  }
}

template <class S>
void column_scale_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]), x(args.in[1]), m(args.in[2]), norm(args.in[3]);
  if (Out<S> dx(args, 0); dx) {
    for (int64_t t = 0; t < dy.rows; ++t) {
      for (int64_t n = 0; n < dy.cols; ++n) dx.put(t, n, dy(t, n) * m[n] / norm[n]);
    }
  }
  if (Out<S> dm(args, 1); dm) {
    for (int64_t n = 0; n < dy.cols; ++n) {
      Sum<S> sum = 0;
      for (int64_t t = 0; t < dy.rows; ++t) sum += dy(t, n) * x(t, n);
      dm.put(n, sum / norm[n]);
    }
  }
}

template <class S>
void column_norm_fwd(const StepArgs& args) {
  In<S> base(args.in[0]), wa(args.in[1]), a(args.in[2]), b(args.in[3]);
  Out<S> y(args, 0);
  const Sum<S> s = attr_of<ColumnNormAttr>(args).scale;
  auto product = [&](int64_t r, int64_t q) {
    Sum<S> sum = 0;
    for (int64_t k = 0; k < a.cols; ++k) sum += a(r, k) * a(q, k);
    return sum;
  };
  std::vector<Sum<S>> gram;  // a aᵀ
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t q = 0; q < a.rows; ++q) gram.push_back(product(r, q));
  }
  for (int64_t n = 0; n < y.cols; ++n) {
    Sum<S> cross = 0, square = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      cross += b(n, r) * wa(r, n);
      for (int64_t q = 0; q < a.rows; ++q)
        square += b(n, r) * b(n, q) * gram[static_cast<size_t>(r * a.rows + q)];
    }
    y.put(n, std::sqrt(base[n] + Sum<S>(2) * s * cross + s * s * square));
  }
}

WICK_REF_KERNEL(column_scale_fwd);
WICK_REF_KERNEL(column_scale_bwd);
WICK_REF_KERNEL(column_norm_fwd);

}  // namespace wick::ref
