// SPDX-License-Identifier: Apache-2.0
// rms_norm, add_rms_norm, layer_norm and softmax: bound by bytes; each row is read two or three
// times, the later ones from the first cache. Gains' gradients sum over rows in order, a task
// owning one stripe of columns.
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

template <typename T>
float row_sum(const T* x, int64_t n) {
  VF a = hn::Zero(df);
  for (int64_t i = 0; i < n; i += kLanes) a = hn::Add(a, load_part(x + i, n - i));
  return sum_lanes(a);
}

// Lanes of a row's last vector that lie past its end are 0 in v, and must be so in what is summed.
HWY_INLINE VF within(VF v, int64_t n) {
  return n >= kLanes ? v : hn::IfThenElseZero(hn::FirstN(df, static_cast<size_t>(n)), v);
}

void layer_norm_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &b = args.in[2], &y = args.out[0];
  const Operand stats = args.out.size() > 1 ? args.out[1] : Operand{};
  const float eps = attr<NormAttr>(*args.step).eps;
  const int64_t d = x.cols;
  const float* gains = widened(w, args.scratch);
  const float* shifts = b ? widened(b, static_cast<float*>(args.scratch) + d) : nullptr;
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, x.rows, d * 12, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t) {
        const T* from = row<T>(x, t);
        T* to = row<T>(y, t);
        const float mean = row_sum(from, d) / static_cast<float>(d);
        VF m = set(mean), squares = hn::Zero(df);
        for (int64_t i = 0; i < d; i += kLanes) {
          VF c = within(hn::Sub(load_part(from + i, d - i), m), d - i);
          squares = hn::MulAdd(c, c, squares);
        }
        const float rstd = 1.0f / std::sqrt(sum_lanes(squares) / static_cast<float>(d) + eps);
        VF r = set(rstd);
        for (int64_t i = 0; i < d; i += kLanes) {
          VF n = hn::Mul(hn::Sub(load_part(from + i, d - i), m), r);
          VF shift = shifts ? load_part(shifts + i, d - i) : hn::Zero(df);
          store_part(hn::MulAdd(n, load_part(gains + i, d - i), shift), to + i, d - i);
        }
        if (stats) {
          row<float>(stats, t)[0] = mean;
          row<float>(stats, t)[1] = rstd;
        }
      }
    });
  });
}

void layer_norm_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &w = args.in[2], &stats = args.in[3];
  const Operand& dx = args.out[0];
  const Operand dw = args.out.size() > 1 ? args.out[1] : Operand{};
  const Operand db = args.out.size() > 2 ? args.out[2] : Operand{};
  const int64_t d = x.cols;
  const float* gains = widened(w, args.scratch);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const bool add = args.accumulates(0);
    if (dx)
      parallel_rows(*args.pool, x.rows, d * 16, [&](int64_t t0, int64_t t1) HWY_ATTR {
        for (int64_t t = t0; t < t1; ++t) {
          const T *g = row<T>(dy, t), *from = row<T>(x, t);
          T* to = row<T>(dx, t);
          VF m = set(row<float>(stats, t)[0]), r = set(row<float>(stats, t)[1]);
          VF sum = hn::Zero(df), dot = hn::Zero(df);
          for (int64_t i = 0; i < d; i += kLanes) {
            VF gw = hn::Mul(load_part(g + i, d - i), load_part(gains + i, d - i));
            sum = hn::Add(sum, gw);
            dot = hn::MulAdd(gw, hn::Mul(hn::Sub(load_part(from + i, d - i), m), r), dot);
          }
          const float count = static_cast<float>(d);
          VF sum_mean = set(sum_lanes(sum) / count), dot_mean = set(sum_lanes(dot) / count);
          for (int64_t i = 0; i < d; i += kLanes) {
            VF gw = hn::Mul(load_part(g + i, d - i), load_part(gains + i, d - i));
            VF n = hn::Mul(hn::Sub(load_part(from + i, d - i), m), r);
            VF v = hn::Mul(r, hn::NegMulAdd(n, dot_mean, hn::Sub(gw, sum_mean)));
            if (add) v = hn::Add(load_part(to + i, d - i), v);
            store_part(v, to + i, d - i);
          }
        }
      });
    if (!dw && !db) return;
    args.pool->parallel((d + kLanes - 1) / kLanes, [&](int64_t task) HWY_ATTR {
      const int64_t c = task * kLanes, n = d - c;
      auto start = [&](const Operand& o, int i) HWY_ATTR {
        return o && args.accumulates(i) ? load_part(o.as<float>() + c, n) : hn::Zero(df);
      };
      VF w_sum = start(dw, 1), b_sum = start(db, 2);
      for (int64_t t = 0; t < x.rows; ++t) {
        VF g = load_part(row<T>(dy, t) + c, n);
        VF centred = hn::Sub(load_part(row<T>(x, t) + c, n), set(row<float>(stats, t)[0]));
        w_sum = hn::MulAdd(g, hn::Mul(centred, set(row<float>(stats, t)[1])), w_sum);
        b_sum = hn::Add(b_sum, g);
      }
      if (dw) store_part(w_sum, dw.as<float>() + c, n);
      if (db) store_part(b_sum, db.as<float>() + c, n);
    });
  });
}

// Of longer rows in bf16 the exponentials of what lies beyond are taken twice.
constexpr int64_t kKept = 4096;

void softmax_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  const int64_t d = x.cols;
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, x.rows, d * 16, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t) {
        const T* from = row<T>(x, t);
        T* to = row<T>(y, t);
        // Lanes past the end count as the row's first element, which is in it anyway.
        VF top = load_part(from, 1);
        top = set(hn::GetLane(top));
        const VF first = top;
        for (int64_t i = 0; i < d; i += kLanes) {
          VF v = load_part(from + i, d - i);
          if (d - i < kLanes)
            v = hn::IfThenElse(hn::FirstN(df, static_cast<size_t>(d - i)), v, first);
          top = hn::Max(top, v);
        }
        top = set(max_lanes(top));
        auto exp_at = [&](int64_t i)
                          HWY_ATTR { return exp_small(hn::Sub(load_part(from + i, d - i), top)); };
        // In f32 the exponentials wait where the result goes, in bf16 beside it.
        constexpr bool kInPlace = std::is_same_v<T, float>;
        alignas(64) float beside[kInPlace ? kLanes : kKept];
        float* kept = beside;
        if constexpr (kInPlace) kept = to;
        const int64_t count = kInPlace ? d : std::min(d, kKept);
        VF sum = hn::Zero(df);
        for (int64_t i = 0; i < count; i += kLanes) {
          const VF e = exp_at(i);
          sum = hn::Add(sum, within(e, d - i));
          store_part(e, kept + i, kInPlace ? d - i : kLanes);
        }
        for (int64_t i = count; i < d; i += kLanes) sum = hn::Add(sum, within(exp_at(i), d - i));
        const VF scale = set(1.0f / sum_lanes(sum));
        for (int64_t i = 0; i < count; i += kLanes)
          store_part(hn::Mul(load_part(kept + i, kInPlace ? d - i : kLanes), scale), to + i, d - i);
        for (int64_t i = count; i < d; i += kLanes)
          store_part(hn::Mul(exp_at(i), scale), to + i, d - i);
      }
    });
  });
}

void softmax_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &y = args.in[1], &dx = args.out[0];
  if (!dx) return;
  const int64_t d = y.cols;
  const bool add = args.accumulates(0);
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, y.rows, d * 12, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t) {
        const T *g = row<T>(dy, t), *p = row<T>(y, t);
        T* to = row<T>(dx, t);
        VF dot = hn::Zero(df);
        for (int64_t i = 0; i < d; i += kLanes)
          dot = hn::MulAdd(load_part(g + i, d - i), load_part(p + i, d - i), dot);
        dot = set(sum_lanes(dot));
        for (int64_t i = 0; i < d; i += kLanes) {
          VF v = hn::Mul(load_part(p + i, d - i), hn::Sub(load_part(g + i, d - i), dot));
          if (add) v = hn::Add(load_part(to + i, d - i), v);
          store_part(v, to + i, d - i);
        }
      }
    });
  });
}

size_t layer_norm_scratch(const StepArgs& args, int) {
  const bool narrow = !is_f32(args.in[1]) || !is_f32(args.in[2]);
  return narrow ? 2 * static_cast<size_t>(args.in[0].cols) * sizeof(float) : 0;
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
      {Op::kLayerNorm, Dir::kForward, "layer_norm_fwd", layer_norm_fwd, accepts<0b1, 0b110, 0b1>,
       layer_norm_scratch},
      {Op::kLayerNorm, Dir::kBackward, "layer_norm_bwd", layer_norm_bwd, accepts<0b11, 0b100, 0b1>,
       widened_scratch<2>},
      {Op::kSoftmax, Dir::kForward, "softmax_fwd", softmax_fwd, accepts<0b1, 0, 0b1>, nullptr},
      {Op::kSoftmax, Dir::kBackward, "softmax_bwd", softmax_bwd, accepts<0b11, 0, 0b1>, nullptr},
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
