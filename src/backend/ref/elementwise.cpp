// SPDX-License-Identifier: Apache-2.0
// gated_act, add, scale, bias, dropout.
#include <cmath>

#include "backend/ref/scalar.h"
#include "base/rng.h"

namespace wick::ref {
namespace {

template <class X>
struct ActAndSlope {
  X value, slope;
};

template <class X>
ActAndSlope<X> activate(Act act, X x) {
  switch (act) {
    case Act::kSilu: {
      X sigmoid = X(1) / (X(1) + std::exp(-x));
      return {x * sigmoid, sigmoid * (X(1) + x * (X(1) - sigmoid))};
    }
    case Act::kGeluTanh: {
      X c(0.7978845608028654), b(0.044715);  // sqrt(2 / pi)
      X tanh = std::tanh(c * (x + b * x * x * x));
      X inner_slope = c * (X(1) + X(3) * b * x * x);
      return {X(0.5) * x * (X(1) + tanh),
              X(0.5) * (X(1) + tanh) + X(0.5) * x * (X(1) - tanh * tanh) * inner_slope};
    }
  }
  return {};
}

}  // namespace

template <class S>
void gated_act_fwd(const StepArgs& args) {
  In<S> x(args.in[0]);  // [T, 2F]
  Out<S> y(args, 0);    // [T, F]
  Act act = attr_of<GatedActAttr>(args).act;
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t f = 0; f < y.cols; ++f) {
      y.put(t, f, activate(act, x(t, f)).value * x(t, y.cols + f));
    }
  }
}

template <class S>
void gated_act_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]), x(args.in[1]);
  Out<S> dx(args, 0);
  Act act = attr_of<GatedActAttr>(args).act;
  for (int64_t t = 0; t < dy.rows; ++t) {
    for (int64_t f = 0; f < dy.cols; ++f) {
      auto [value, slope] = activate(act, x(t, f));
      dx.put(t, f, dy(t, f) * slope * x(t, dy.cols + f));
      dx.put(t, dy.cols + f, dy(t, f) * value);
    }
  }
}

template <class S>
void add_fwd(const StepArgs& args) {
  In<S> a(args.in[0]), b(args.in[1]);
  Out<S> y(args, 0);
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t d = 0; d < y.cols; ++d) y.put(t, d, a(t, d) + b(t, d));
  }
}

// Both directions.
template <class S>
void scale_fwd(const StepArgs& args) {
  In<S> x(args.in[0]);
  Out<S> y(args, 0);
  Sum<S> factor = attr_of<ScaleAttr>(args).factor;
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t d = 0; d < y.cols; ++d) y.put(t, d, factor * x(t, d));
  }
}

template <class S>
void bias_fwd(const StepArgs& args) {
  In<S> x(args.in[0]), b(args.in[1]);  // [T, D], [D]
  Out<S> y(args, 0);
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t d = 0; d < y.cols; ++d) y.put(t, d, x(t, d) + b[d]);
  }
}

template <class S>
void bias_bwd(const StepArgs& args) {
  In<S> dy(args.in[0]);
  Out<S> db(args, 0);
  for (int64_t d = 0; d < db.cols; ++d) {
    Sum<S> sum = 0;
    for (int64_t t = 0; t < dy.rows; ++t) sum += dy(t, d);
    db.put(d, sum);
  }
}

// Both directions: a kept element passes its gradient with the same factor.
template <class S>
void dropout_fwd(const StepArgs& args) {
  In<S> x(args.in[0]);
  Ints keys(args.in[1]);  // [T, 2]
  Out<S> y(args, 0);
  const auto& a = attr_of<DropoutAttr>(args);
  for (int64_t t = 0; t < y.rows; ++t) {
    auto low = static_cast<uint32_t>(keys[2 * t]), high = static_cast<uint32_t>(keys[2 * t + 1]);
    uint64_t key = static_cast<uint64_t>(high) << 32 | low;
    for (int64_t d = 0; d < y.cols; ++d) {
      uint32_t word = philox(key, static_cast<uint64_t>(d / 4), a.site)[static_cast<size_t>(d % 4)];
      bool keep = uniform_float(word) >= a.p;
      y.put(t, d, keep ? x(t, d) / (Sum<S>(1) - Sum<S>(a.p)) : Sum<S>(0));
    }
  }
}

WICK_REF_KERNEL(gated_act_fwd);
WICK_REF_KERNEL(gated_act_bwd);
WICK_REF_KERNEL(add_fwd);
WICK_REF_KERNEL(scale_fwd);
WICK_REF_KERNEL(bias_fwd);
WICK_REF_KERNEL(bias_bwd);
WICK_REF_KERNEL(dropout_fwd);

}  // namespace wick::ref
