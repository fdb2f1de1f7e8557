// SPDX-License-Identifier: Apache-2.0
// gated_act, rope, add, scale, dropout: bound by bytes, one pass over each operand.
#include "backend/accepts.h"
#include "backend/cpu/rungs.h"
#include "base/rng.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/act-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

template <Act A, typename T>
void gated_rows(const Operand& x, const Operand& y, int64_t t0, int64_t t1) {
  const int64_t f = y.cols;
  for (int64_t t = t0; t < t1; ++t)
    for (int64_t i = 0; i < f; i += kLanes) {
      VF gate = load_part(row<T>(x, t) + i, f - i), up = load_part(row<T>(x, t) + f + i, f - i);
      store_part(hn::Mul(act<A, T>(gate, nullptr), up), row<T>(y, t) + i, f - i);
    }
}

template <Act A, typename T>
void gated_rows_bwd(const Operand& dy, const Operand& x, const Operand& dx, int64_t t0,
                    int64_t t1) {
  const int64_t f = dy.cols;
  for (int64_t t = t0; t < t1; ++t)
    for (int64_t i = 0; i < f; i += kLanes) {
      const int64_t n = f - i;
      VF gate = load_part(row<T>(x, t) + i, n), up = load_part(row<T>(x, t) + f + i, n);
      VF g = load_part(row<T>(dy, t) + i, n), slope;
      VF a = act<A, T>(gate, &slope);
      store_part(hn::Mul(hn::Mul(g, up), slope), row<T>(dx, t) + i, n);
      store_part(hn::Mul(g, a), row<T>(dx, t) + f + i, n);
    }
}

void gated_act_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  const bool silu = attr<GatedActAttr>(*args.step).act == Act::kSilu;
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto fn = silu ? gated_rows<Act::kSilu, T> : gated_rows<Act::kGeluTanh, T>;
    parallel_rows(*args.pool, y.rows, y.cols * 16,
                  [&](int64_t t0, int64_t t1) { fn(x, y, t0, t1); });
  });
}
void gated_act_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &dx = args.out[0];
  const bool silu = attr<GatedActAttr>(*args.step).act == Act::kSilu;
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto fn = silu ? gated_rows_bwd<Act::kSilu, T> : gated_rows_bwd<Act::kGeluTanh, T>;
    parallel_rows(*args.pool, dy.rows, dy.cols * 24,
                  [&](int64_t t0, int64_t t1) { fn(dy, x, dx, t0, t1); });
  });
}

// The reverse of a rotation is the rotation by the negative angle.
void rotate(const StepArgs& args, float direction) {
  const Operand &x = args.in[0], &table = args.in[1], &positions = args.in[2], &y = args.out[0];
  const int64_t e = attr<RopeAttr>(*args.step).head_dim, half = e / 2, heads = x.cols / e;
  const bool add = args.accumulates(0);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, x.rows, x.cols * 8, [&](int64_t t0, int64_t t1) HWY_ATTR {
      const VF sign = set(direction);
      for (int64_t t = t0; t < t1; ++t) {
        const float* angles = row<float>(table, positions.as<const int32_t>()[t]);
        for (int64_t h = 0; h < heads; ++h) {
          const T* from = row<T>(x, t) + h * e;
          T* to = row<T>(y, t) + h * e;
          for (int64_t i = 0; i < half; i += kLanes) {
            const int64_t n = half - i;
            VF c = load_part(angles + i, n), s = hn::Mul(sign, load_part(angles + half + i, n));
            VF u = load_part(from + i, n), v = load_part(from + half + i, n);
            VF a = hn::NegMulAdd(v, s, hn::Mul(u, c)), b = hn::MulAdd(u, s, hn::Mul(v, c));
            if (add) {
              a = hn::Add(load_part(to + i, n), a);
              b = hn::Add(load_part(to + half + i, n), b);
            }
            store_part(a, to + i, n);
            store_part(b, to + half + i, n);
          }
        }
      }
    });
  });
}
void rope_fwd(const StepArgs& args) { rotate(args, 1.0f); }
void rope_bwd(const StepArgs& args) { rotate(args, -1.0f); }

void add_fwd(const StepArgs& args) {
  const Operand &a = args.in[0], &b = args.in[1], &y = args.out[0];
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, y.rows, y.cols * 12, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t)
        for (int64_t i = 0; i < y.cols; i += kLanes) {
          const int64_t n = y.cols - i;
          store_part(hn::Add(load_part(row<T>(a, t) + i, n), load_part(row<T>(b, t) + i, n)),
                     row<T>(y, t) + i, n);
        }
    });
  });
}

// Forward and backward alike.
void scale_any(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  const float factor = attr<ScaleAttr>(*args.step).factor;
  const bool add = args.accumulates(0);
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, y.rows, y.cols * 8, [&](int64_t t0, int64_t t1) HWY_ATTR {
      const VF f = set(factor);
      for (int64_t t = t0; t < t1; ++t)
        for (int64_t i = 0; i < y.cols; i += kLanes) {
          const int64_t n = y.cols - i;
          T* to = row<T>(y, t) + i;
          VF v = hn::Mul(load_part(row<T>(x, t) + i, n), f);
          store_part(add ? hn::Add(load_part(to, n), v) : v, to, n);
        }
    });
  });
}

// Random words for columns [0, kWords) from counter `counter` on: philox() of base/rng.h, one
// counter per 64-bit lane. A word lies in the lower half of its lane; what is left in the upper
// half is never looked at.
#if HWY_TARGET == HWY_SCALAR
constexpr int64_t kWords = 4;
void random_words(uint64_t key, uint64_t counter, uint64_t site, uint32_t* to) {
  const auto bits = philox(key, counter, site);
  std::copy(bits.begin(), bits.end(), to);
}
#else
constexpr int64_t kWords = 2 * kLanes;
void random_words(uint64_t key, uint64_t counter, uint64_t site, uint32_t* to) {
  const hn::Repartition<uint64_t, DF> d;
  const hn::Repartition<uint32_t, DF> half;
  using V = hn::Vec<decltype(d)>;
  auto times = [&](V x, uint32_t factor)
                   HWY_ATTR { return hn::MulEven(hn::BitCast(half, x), hn::Set(half, factor)); };
  V c0 = hn::Iota(d, counter), c1 = hn::ShiftRight<32>(c0);
  V c2 = hn::Set(d, site), c3 = hn::Set(d, site >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const V p0 = times(c0, 0xD2511F53u), p1 = times(c2, 0xCD9E8D57u);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, uint64_t{k0}));
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, uint64_t{k1}));
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const V low = hn::Set(d, uint64_t{0xFFFFFFFFu});
  const V first = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
  const V second = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
  hn::StoreInterleaved2(first, second, d, reinterpret_cast<uint64_t*>(to));
}
#endif

// Forward and backward alike: the mask is a function of key, site and column.
void dropout_any(const StepArgs& args) {
  const Operand &x = args.in[0], &keys = args.in[1], &y = args.out[0];
  const DropoutAttr& a = attr<DropoutAttr>(*args.step);
  // uniform_float(word) >= p, on its 24 bits.
  const int32_t dropped = static_cast<int32_t>(std::ceil(static_cast<double>(a.p) * 16777216.0));
  const float factor = 1.0f / (1.0f - a.p);
  const bool add = args.accumulates(0);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, x.rows, x.cols * 32, [&](int64_t t0, int64_t t1) HWY_ATTR {
      const hn::RebindToSigned<DF> di;
      const hn::RebindToUnsigned<DF> du;
      alignas(64) uint32_t words[kWords];
      for (int64_t t = t0; t < t1; ++t) {
        const int32_t* halves = row<int32_t>(keys, t);
        const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(halves[1])) << 32 |
                             static_cast<uint32_t>(halves[0]);
        for (int64_t d = 0; d < x.cols; d += kWords) {
          random_words(key, static_cast<uint64_t>(d / 4), a.site, words);
          for (int64_t i = 0; i < kWords && d + i < x.cols; i += kLanes) {
            const int64_t n = x.cols - d - i;
            const auto bits = hn::BitCast(di, hn::ShiftRight<8>(hn::Load(du, words + i)));
            const auto drop = hn::RebindMask(df, hn::Lt(bits, hn::Set(di, dropped)));
            VF v = hn::Mul(load_part(row<T>(x, t) + d + i, n), set(factor));
            v = hn::IfThenZeroElse(drop, v);
            T* to = row<T>(y, t) + d + i;
            store_part(add ? hn::Add(load_part(to, n), v) : v, to, n);
          }
        }
      }
    });
  });
}

}  // namespace

Candidates elementwise_table() {
  constexpr auto kOne = accepts<0b1, 0, 0b1>, kTwo = accepts<0b11, 0, 0b1>;
  static constexpr Candidate kTable[] = {
      {Op::kGatedAct, Dir::kForward, "gated_act_fwd", gated_act_fwd, kOne, nullptr},
      {Op::kGatedAct, Dir::kBackward, "gated_act_bwd", gated_act_bwd, kTwo, nullptr},
      {Op::kRope, Dir::kForward, "rope_fwd", rope_fwd, kOne, nullptr},
      {Op::kRope, Dir::kBackward, "rope_bwd", rope_bwd, kOne, nullptr},
      {Op::kAdd, Dir::kForward, "add_fwd", add_fwd, kTwo, nullptr},
      {Op::kScale, Dir::kForward, "scale_fwd", scale_any, kOne, nullptr},
      {Op::kScale, Dir::kBackward, "scale_bwd", scale_any, kOne, nullptr},
      {Op::kDropout, Dir::kForward, "dropout_fwd", dropout_any, kOne, nullptr},
      {Op::kDropout, Dir::kBackward, "dropout_bwd", dropout_any, kOne, nullptr},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(elementwise_candidates, elementwise_table)
}  // namespace wick::cpu
#endif
