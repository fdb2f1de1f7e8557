// SPDX-License-Identifier: Apache-2.0
// rms_norm and add_rms_norm: bound by bytes; each row is read twice, the second time from the first
// cache. Gains' gradients sum over rows in order, a task owning one stripe of columns.
#include "backend/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
float square_sum(const T* x, int64_t n) {
  VF a = hn::Zero(df), b = hn::Zero(df);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    VF u = load(x + i), v = load(x + i + kLanes);
    a = hn::MulAdd(u, u, a);
    b = hn::MulAdd(v, v, b);
  }
  for (; i < n; i += kLanes) {
    VF u = load_part(x + i, n - i);
    a = hn::MulAdd(u, u, a);
  }
  return sum_lanes(hn::Add(a, b));
}

template <typename T>
float normalise(const T* x, const float* w, int64_t n, float eps, T* y) {
  float rstd = 1.0f / std::sqrt(square_sum(x, n) / static_cast<float>(n) + eps);
  VF r = set(rstd);
  for (int64_t i = 0; i < n; i += kLanes)
    store_part(hn::Mul(hn::Mul(load_part(x + i, n - i), r), load_part(w + i, n - i)), y + i, n - i);
  return rstd;
}

void rms_norm_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &y = args.out[0];
  const Operand rstd = args.out.size() > 1 ? args.out[1] : Operand{};
  const NormAttr& a = attr<NormAttr>(*args.step);
  const int64_t d = x.cols / a.groups;
  const float* gains = widened(w, args.scratch);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, x.rows, x.cols * 8, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t)
        for (int64_t g = 0; g < a.groups; ++g) {
          float r = normalise(row<T>(x, t) + g * d, gains, d, a.eps, row<T>(y, t) + g * d);
          if (rstd) row<float>(rstd, t)[g] = r;
        }
    });
  });
}

// The norm is of the sum as it is kept, rounded where activations are bf16: what backward reads.
void add_rms_norm_fwd(const StepArgs& args) {
  const Operand &a = args.in[0], &b = args.in[1], &w = args.in[2];
  const Operand &sum = args.out[0], &y = args.out[1];
  const Operand rstd = args.out.size() > 2 ? args.out[2] : Operand{};
  const float eps = attr<NormAttr>(*args.step).eps;
  const int64_t d = a.cols;
  const float* gains = widened(w, args.scratch);
  with_activation(a.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, a.rows, d * 16, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t) {
        T* s = row<T>(sum, t);
        for (int64_t i = 0; i < d; i += kLanes)
          store_part(
              hn::Add(load_part(row<T>(a, t) + i, d - i), load_part(row<T>(b, t) + i, d - i)),
              s + i, d - i);
        float r = normalise(s, gains, d, eps, row<T>(y, t));
        if (rstd) row<float>(rstd, t)[0] = r;
      }
    });
  });
}

// dx = rstd * (dy*w - x * rstd² * mean(dy*w*x)) + base, base being dx itself, another row or none.
template <typename T>
void normalise_bwd(const T* dy, const T* x, const float* w, float rstd, int64_t n, const T* base,
                   T* dx) {
  VF dot = hn::Zero(df);
  for (int64_t i = 0; i < n; i += kLanes) {
    VF g = hn::Mul(load_part(dy + i, n - i), load_part(w + i, n - i));
    dot = hn::MulAdd(g, load_part(x + i, n - i), dot);
  }
  VF r = set(rstd), c = set(sum_lanes(dot) / static_cast<float>(n) * rstd * rstd);
  for (int64_t i = 0; i < n; i += kLanes) {
    VF g = hn::Mul(load_part(dy + i, n - i), load_part(w + i, n - i));
    VF v = hn::Mul(r, hn::NegMulAdd(load_part(x + i, n - i), c, g));
    if (base != nullptr) v = hn::Add(load_part(base + i, n - i), v);
    store_part(v, dx + i, n - i);
  }
}

// dw[d] (+)= Σ_{t,g} dy * x * rstd.
template <typename T>
void gain_bwd(ThreadPool& pool, const Operand& dy, const Operand& x, const Operand& rstd,
              int64_t groups, const Operand& dw, bool add) {
  const int64_t d = x.cols / groups;
  pool.parallel((d + kLanes - 1) / kLanes, [&](int64_t i) HWY_ATTR {
    const int64_t c = i * kLanes, n = d - c;
    float* to = dw.as<float>() + c;
    VF sum = add ? load_part(to, n) : hn::Zero(df);
    for (int64_t t = 0; t < x.rows; ++t)
      for (int64_t g = 0; g < groups; ++g) {
        VF xr = hn::Mul(load_part(row<T>(x, t) + g * d + c, n), set(row<float>(rstd, t)[g]));
        sum = hn::MulAdd(load_part(row<T>(dy, t) + g * d + c, n), xr, sum);
      }
    store_part(sum, to, n);
  });
}

void rms_norm_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &w = args.in[2], &rstd = args.in[3];
  const Operand& dx = args.out[0];
  const int64_t groups = attr<NormAttr>(*args.step).groups, d = x.cols / groups;
  const float* gains = widened(w, args.scratch);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const bool add = args.accumulates(0);
    if (dx)
      parallel_rows(*args.pool, x.rows, x.cols * 12, [&](int64_t t0, int64_t t1) HWY_ATTR {
        for (int64_t t = t0; t < t1; ++t)
          for (int64_t g = 0; g < groups; ++g) {
            T* to = row<T>(dx, t) + g * d;
            normalise_bwd<T>(row<T>(dy, t) + g * d, row<T>(x, t) + g * d, gains,
                             row<float>(rstd, t)[g], d, add ? to : nullptr, to);
          }
      });
    if (args.out.size() > 1 && args.out[1])
      gain_bwd<T>(*args.pool, dy, x, rstd, groups, args.out[1], args.accumulates(1));
  });
}

void add_rms_norm_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &dsum = args.in[1], &sum = args.in[2], &w = args.in[3],
                &rstd = args.in[4], &out = args.out[0];
  const int64_t d = sum.cols;
  const float* gains = widened(w, args.scratch);
  with_activation(sum.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (out)
      parallel_rows(*args.pool, sum.rows, d * 16, [&](int64_t t0, int64_t t1) HWY_ATTR {
        for (int64_t t = t0; t < t1; ++t)
          normalise_bwd<T>(row<T>(dy, t), row<T>(sum, t), gains, row<float>(rstd, t)[0], d,
                           dsum ? row<T>(dsum, t) : nullptr, row<T>(out, t));
      });
    if (args.out.size() > 1 && args.out[1])
      gain_bwd<T>(*args.pool, dy, sum, rstd, 1, args.out[1], args.accumulates(1));
  });
}

}  // namespace

Candidates norm_table() {
  static constexpr Candidate kTable[] = {
      {Op::kRmsNorm, Dir::kForward, "rms_norm_fwd", rms_norm_fwd, accepts<0b1, 0b10, 0b1>,
       widened_scratch<1>},
      {Op::kRmsNorm, Dir::kBackward, "rms_norm_bwd", rms_norm_bwd, accepts<0b11, 0b100, 0b1>,
       widened_scratch<2>},
      {Op::kAddRmsNorm, Dir::kForward, "add_rms_norm_fwd", add_rms_norm_fwd,
       accepts<0b11, 0b100, 0b11>, widened_scratch<2>},
      {Op::kAddRmsNorm, Dir::kBackward, "add_rms_norm_bwd", add_rms_norm_bwd,
       accepts<0b111, 0b1000, 0b1>, widened_scratch<3>},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(norm_candidates, norm_table)
}  // namespace wick::cpu
#endif
