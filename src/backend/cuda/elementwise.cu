// SPDX-License-Identifier: Apache-2.0
// gated_act, rope, add, scale, bias, dropout: bound by bytes, one pass over each operand.
#include "backend/accepts.h"
#include "backend/cuda/columns.cuh"
#include "backend/cuda/gate.cuh"
#include "backend/cuda/gated_sums.h"
#include "backend/cuda/random.cuh"

namespace wick::cuda {
namespace {

template <Act A, typename T, bool kAligned>
struct GatedFwd {
  Rows<const T> x;
  Rows<T> y;
  int f;
  __device__ void operator()(int64_t t, int c, int left) const {
    Wide<T> gate = load_wide<kAligned>(x[t] + c, left);
    const Wide<T> up = load_wide<kAligned>(x[t] + f + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i) gate.set(i, act<A, T>(gate[i]).value * up[i]);
    store_wide<kAligned>(y[t] + c, left, gate);
  }
};

template <Act A, typename T, bool kAligned>
struct GatedBwd {
  Rows<const T> dy, x;
  Rows<T> dx;
  int f;
  __device__ void operator()(int64_t t, int c, int left) const {
    Wide<T> gate = load_wide<kAligned>(x[t] + c, left);
    Wide<T> up = load_wide<kAligned>(x[t] + f + c, left);
    const Wide<T> g = load_wide<kAligned>(dy[t] + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const ValueAndSlope a = act<A, T>(gate[i]);
      gate.set(i, g[i] * up[i] * a.slope);
      up.set(i, g[i] * a.value);
    }
    store_wide<kAligned>(dx[t] + c, left, gate);
    store_wide<kAligned>(dx[t] + f + c, left, up);
  }
};

// f(act, T, aligned) by types.
template <typename F>
void with_gate(const StepArgs& args, DType dtype, bool aligned, F&& f) {
  const bool silu = attr<GatedActAttr>(*args.step).act == Act::kSilu;
  with_activation(dtype, [&](auto* type) {
    with_bool(aligned, [&](auto is_aligned) {
      if (silu)
        f(std::integral_constant<Act, Act::kSilu>{}, type, is_aligned);
      else
        f(std::integral_constant<Act, Act::kGeluTanh>{}, type, is_aligned);
    });
  });
}

void gated_act_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  with_gate(args, x.dtype, y.cols % kWide == 0 && wide_aligned(x, y),
            [&](auto act, auto* type, auto aligned) {
              using T = std::remove_pointer_t<decltype(type)>;
              each_wide(queue(args), y.rows, y.cols,
                        GatedFwd<act(), T, aligned()>{rows<const T>(x), rows<T>(y),
                                                      static_cast<int>(y.cols)});
            });
}
void gated_act_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &dx = args.out[0];
  with_gate(args, x.dtype, dy.cols % kWide == 0 && wide_aligned(dy, x, dx),
            [&](auto act, auto* type, auto aligned) {
              using T = std::remove_pointer_t<decltype(type)>;
              each_wide(queue(args), dy.rows, dy.cols,
                        GatedBwd<act(), T, aligned()>{rows<const T>(dy), rows<const T>(x),
                                                      rows<T>(dx), static_cast<int>(dy.cols)});
            });
}

// Where the adapters around it are made with it.
size_t gated_act_fwd_scratch(const StepArgs& args, int sms) {
  const Operand& y = args.out[0];
  return gated_forward_scratch(y.rows, y.cols, y.dtype, sms);
}
size_t gated_act_bwd_scratch(const StepArgs& args, int sms) {
  const Operand& dy = args.in[0];
  return gated_reverse_scratch(dy.rows, dy.cols, dy.dtype, sms);
}

// Row r of the walk is head r % heads of token r / heads, its columns are those of a half.
template <typename T, bool kAligned>
struct Rotate {
  Rows<const T> x;
  Rows<const float> table;
  const int32_t* positions;
  Rows<T> y;
  uint32_t heads;
  int half;
  float direction;  // the reverse of a rotation is the rotation by the negative angle
  bool add;
  __device__ void operator()(int64_t r, int c, int left) const {
    const uint32_t t = static_cast<uint32_t>(r) / heads, h = static_cast<uint32_t>(r) - t * heads;
    const int64_t first = static_cast<int64_t>(h) * 2 * half + c;
    const float* angles = table[positions[t]] + c;
    const T* from = x[t] + first;
    T* to = y[t] + first;
    Wide<T> u = load_wide<kAligned>(from, left), v = load_wide<kAligned>(from + half, left);
    const Wide<float> cosine = load_wide<kAligned>(angles, left);
    const Wide<float> sine = load_wide<kAligned>(angles + half, left);
    Wide<T> old_u, old_v;
    if (add) {
      old_u = load_wide<kAligned>(to, left);
      old_v = load_wide<kAligned>(to + half, left);
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float s = direction * sine[i];
      float a = u[i] * cosine[i] - v[i] * s, b = v[i] * cosine[i] + u[i] * s;
      if (add) {
        a += old_u[i];
        b += old_v[i];
      }
      u.set(i, a);
      v.set(i, b);
    }
    store_wide<kAligned>(to, left, u);
    store_wide<kAligned>(to + half, left, v);
  }
};

void rotate(const StepArgs& args, float direction) {
  const Operand &x = args.in[0], &table = args.in[1], &positions = args.in[2], &y = args.out[0];
  const int64_t e = attr<RopeAttr>(*args.step).head_dim, half = e / 2, heads = x.cols / e;
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(half % kWide == 0 && wide_aligned(x, table, y), [&](auto aligned) {
      each_wide(queue(args), x.rows * heads, half,
                Rotate<T, aligned()>{rows<const T>(x), rows<const float>(table),
                                     positions.as<const int32_t>(), rows<T>(y),
                                     static_cast<uint32_t>(heads), static_cast<int>(half),
                                     direction, args.accumulates(0)});
    });
  });
}
void rope_fwd(const StepArgs& args) { rotate(args, 1.0f); }
void rope_bwd(const StepArgs& args) { rotate(args, -1.0f); }

template <typename T, bool kAligned>
struct Add {
  Rows<const T> a, b;
  Rows<T> y;
  __device__ void operator()(int64_t t, int c, int left) const {
    Wide<T> v = load_wide<kAligned>(a[t] + c, left);
    const Wide<T> w = load_wide<kAligned>(b[t] + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i) v.set(i, v[i] + w[i]);
    store_wide<kAligned>(y[t] + c, left, v);
  }
};

void add_fwd(const StepArgs& args) {
  const Operand &a = args.in[0], &b = args.in[1], &y = args.out[0];
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(a, b, y), [&](auto aligned) {
      each_wide(queue(args), y.rows, y.cols,
                Add<T, aligned()>{rows<const T>(a), rows<const T>(b), rows<T>(y)});
    });
  });
}

template <typename T, bool kAligned>
struct Scale {
  Rows<const T> x;
  Rows<T> y;
  float factor;
  bool add;
  __device__ void operator()(int64_t t, int c, int left) const {
    Wide<T> v = load_wide<kAligned>(x[t] + c, left), old;
    if (add) old = load_wide<kAligned>(y[t] + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i) v.set(i, add ? fmaf(v[i], factor, old[i]) : v[i] * factor);
    store_wide<kAligned>(y[t] + c, left, v);
  }
};

// Forward and backward alike.
void scale_any(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  const float factor = attr<ScaleAttr>(*args.step).factor;
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(x, y), [&](auto aligned) {
      each_wide(queue(args), y.rows, y.cols,
                Scale<T, aligned()>{rows<const T>(x), rows<T>(y), factor, args.accumulates(0)});
    });
  });
}

template <typename T, typename B, bool kAligned>
struct Bias {
  Rows<const T> x;
  const B* b;
  Rows<T> y;
  __device__ void operator()(int64_t t, int c, int left) const {
    Wide<T> v = load_wide<kAligned>(x[t] + c, left);
    const Wide<B> w = load_wide<kAligned>(b + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i) v.set(i, v[i] + w[i]);
    store_wide<kAligned>(y[t] + c, left, v);
  }
};

void bias_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &b = args.in[1], &y = args.out[0];
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_float(b.dtype, [&](auto* added) {
      using B = std::remove_pointer_t<decltype(added)>;
      with_bool(wide_aligned(x, b, y), [&](auto aligned) {
        each_wide(queue(args), y.rows, y.cols,
                  Bias<T, B, aligned()>{rows<const T>(x), b.as<const B>(), rows<T>(y)});
      });
    });
  });
}

template <typename T, bool kAligned>
struct RowTerm {
  Rows<const T> dy;
  __device__ void operator()(int64_t t, int c, int left, float (&sum)[kWide]) const {
    const Wide<T> v = load_wide<kAligned>(dy[t] + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i) sum[i] += v[i];
  }
};

void bias_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &db = args.out[0];
  with_activation(dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(dy), [&](auto aligned) {
      column_sums(queue(args), dy.rows, dy.cols, RowTerm<T, aligned()>{rows<const T>(dy)},
                  db.as<float>(), args.accumulates(0), args.scratch);
    });
  });
}
size_t bias_bwd_scratch(const StepArgs& args, int) {
  return column_sums_scratch(args.in[0].rows, args.in[0].cols);
}

template <typename T, bool kAligned>
struct Dropout {
  Rows<const T> x;
  const int32_t* keys;
  Rows<T> y;
  uint64_t site;
  float p, factor;  // 1 / (1 - p)
  bool add;
  // uniform_float(word) >= p
  __device__ float kept(uint32_t word, float x) const {
    return static_cast<float>(word >> 8) * (1.0f / 16777216.0f) >= p ? x * factor : 0.0f;
  }
  __device__ void operator()(int64_t t, int c, int left) const {
    Wide<T> v = load_wide<kAligned>(x[t] + c, left), old;
    if (add) old = load_wide<kAligned>(y[t] + c, left);
    const uint2 key{static_cast<uint32_t>(keys[2 * t]), static_cast<uint32_t>(keys[2 * t + 1])};
#pragma unroll
    for (int q = 0; q < kWide; q += 4) {
      const uint4 words = random_words(key, static_cast<uint32_t>((c + q) / 4), site);
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float passed = kept(word[i], v[q + i]);
        v.set(q + i, add ? old[q + i] + passed : passed);
      }
    }
    store_wide<kAligned>(y[t] + c, left, v);
  }
};

// Forward and backward alike: the mask is a function of key, site and column.
void dropout_any(const StepArgs& args) {
  const Operand &x = args.in[0], &keys = args.in[1], &y = args.out[0];
  const DropoutAttr& a = attr<DropoutAttr>(*args.step);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(x, y), [&](auto aligned) {
      each_wide(queue(args), x.rows, x.cols,
                Dropout<T, aligned()>{rows<const T>(x), keys.as<const int32_t>(), rows<T>(y),
                                      a.site, a.p, 1.0f / (1.0f - a.p), args.accumulates(0)});
    });
  });
}

}  // namespace

Candidates elementwise_candidates(Arch) {
  constexpr auto kOne = accepts<0b1, 0, 0b1>, kTwo = accepts<0b11, 0, 0b1>;
  static constexpr Candidate kTable[] = {
      {Op::kGatedAct, Dir::kForward, "gated_act_fwd", gated_act_fwd, kOne, gated_act_fwd_scratch},
      {Op::kGatedAct, Dir::kBackward, "gated_act_bwd", gated_act_bwd, kTwo, gated_act_bwd_scratch},
      {Op::kRope, Dir::kForward, "rope_fwd", rope_fwd, kOne, nullptr},
      {Op::kRope, Dir::kBackward, "rope_bwd", rope_bwd, kOne, nullptr},
      {Op::kAdd, Dir::kForward, "add_fwd", add_fwd, kTwo, nullptr},
      {Op::kScale, Dir::kForward, "scale_fwd", scale_any, kOne, nullptr},
      {Op::kScale, Dir::kBackward, "scale_bwd", scale_any, kOne, nullptr},
      {Op::kBias, Dir::kForward, "bias_fwd", bias_fwd, accepts<0b1, 0b10, 0b1>, nullptr},
      {Op::kBias, Dir::kBackward, "bias_bwd", bias_bwd, accepts<0b1, 0, 0>, bias_bwd_scratch},
      {Op::kDropout, Dir::kForward, "dropout_fwd", dropout_any, kOne, nullptr},
      {Op::kDropout, Dir::kBackward, "dropout_bwd", dropout_any, kOne, nullptr},
  };
  return kTable;
}

}  // namespace wick::cuda
