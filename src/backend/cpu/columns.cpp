// SPDX-License-Identifier: Apache-2.0
// column_scale, column_norm: DoRA's magnitudes.
#include "backend/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/columns.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

// y[t,n] (+)= x[t,n] * m[n] / norm[n]; the factors are made once, in `scratch`.
void scale_columns(const StepArgs& args, const Operand& x, const Operand& m, const Operand& norm) {
  const Operand& y = args.out[0];
  const bool add = args.accumulates(0);
  auto* factors = static_cast<float*>(args.scratch);
  for (int64_t n = 0; n < y.cols; ++n)
    factors[n] = m.as<const float>()[n] / norm.as<const float>()[n];
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, y.rows, y.cols * 8, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t)
        for (int64_t i = 0; i < y.cols; i += kLanes) {
          const int64_t n = y.cols - i;
          T* to = row<T>(y, t) + i;
          const VF v = hn::Mul(load_part(row<T>(x, t) + i, n), load_part(factors + i, n));
          store_part(add ? hn::Add(load_part(to, n), v) : v, to, n);
        }
    });
  });
}

void column_scale_fwd(const StepArgs& args) {
  scale_columns(args, args.in[0], args.in[1], args.in[2]);
}
size_t column_scale_scratch(const StepArgs& args, int) {
  return static_cast<size_t>(args.in[0].cols) * sizeof(float);
}

// dm in row order; a task owns one stripe of columns.
void column_scale_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &norm = args.in[3];
  if (args.out[0]) scale_columns(args, dy, args.in[2], norm);
  if (args.out.size() < 2 || !args.out[1]) return;
  float* dm = args.out[1].as<float>();
  const bool add = args.accumulates(1);
  constexpr int64_t kStripe = 4 * kLanes;
  with_activation(dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    args.pool->parallel((dy.cols + kStripe - 1) / kStripe, [&](int64_t i) HWY_ATTR {
      for (int64_t c = i * kStripe; c < std::min(dy.cols, (i + 1) * kStripe); c += kLanes) {
        const int64_t n = dy.cols - c;
        VF sum = hn::Zero(df);
        for (int64_t t = 0; t < dy.rows; ++t)
          sum = hn::MulAdd(load_part(row<T>(dy, t) + c, n), load_part(row<T>(x, t) + c, n), sum);
        // Lanes beyond the last column would divide by zero, and are not stored.
        sum = hn::Div(sum, load_part(norm.as<const float>() + c, n));
        store_part(add ? hn::Add(load_part(dm + c, n), sum) : sum, dm + c, n);
      }
    });
  });
}

// The sums over r and q of an n in a fixed order, so that threads share the columns as they like.
void column_norm_fwd(const StepArgs& args) {
  const Operand &base = args.in[0], &wa = args.in[1], &a = args.in[2], &b = args.in[3];
  const float s = attr<ColumnNormAttr>(*args.step).scale;
  float* y = args.out[0].as<float>();
  auto* gram = static_cast<float*>(args.scratch);
  const int64_t rank = a.rows;
  args.pool->parallel(rank, [&](int64_t r) HWY_ATTR {
    for (int64_t q = 0; q < rank; ++q) {
      VF sum = hn::Zero(df);
      for (int64_t k = 0; k < a.cols; k += kLanes)
        sum = hn::MulAdd(load_part(row<float>(a, r) + k, a.cols - k),
                         load_part(row<float>(a, q) + k, a.cols - k), sum);
      gram[r * rank + q] = sum_lanes(sum);
    }
  });
  with_activation(wa.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(
        *args.pool, base.elements(), rank * (rank + 8), [&](int64_t n0, int64_t n1) HWY_ATTR {
          for (int64_t n = n0; n < n1; ++n) {
            const float* bs = row<float>(b, n);
            VF squares = hn::Zero(df);
            for (int64_t c = 0; c < rank; c += kLanes) {
              VF sum = hn::Zero(df);
              for (int64_t q = 0; q < rank; ++q)
                sum = hn::MulAdd(set(bs[q]), load_part(gram + q * rank + c, rank - c), sum);
              squares = hn::MulAdd(sum, load_part(bs + c, rank - c), squares);
            }
            float cross = 0;
            for (int64_t r = 0; r < rank; ++r) cross += bs[r] * to_float(row<T>(wa, r)[n]);
            const float square =
                base.as<const float>()[n] + 2 * s * cross + s * s * sum_lanes(squares);
            y[n] = std::sqrt(std::max(square, 0.0f));
          }
        });
  });
}
size_t column_norm_scratch(const StepArgs& args, int) {
  return static_cast<size_t>(args.in[2].rows * args.in[2].rows) * sizeof(float);
}

}  // namespace

Candidates column_table() {
  static constexpr Candidate kTable[] = {
      {Op::kColumnScale, Dir::kForward, "column_scale_fwd", column_scale_fwd, accepts<0b1, 0, 0b1>,
       column_scale_scratch},
      {Op::kColumnScale, Dir::kBackward, "column_scale_bwd", column_scale_bwd,
       accepts<0b11, 0, 0b1>, column_scale_scratch},
      {Op::kColumnNorm, Dir::kForward, "column_norm_fwd", column_norm_fwd, accepts<0b10, 0, 0>,
       column_norm_scratch},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(column_candidates, column_table)
}  // namespace wick::cpu
#endif
