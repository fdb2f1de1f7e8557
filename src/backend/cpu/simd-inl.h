// SPDX-License-Identifier: Apache-2.0
// Per-target vocabulary of the kernels: vectors of f32, loads that widen and never touch memory
// past an operand, exp and friends, row-wise parallel loops.

#if defined(WICK_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WICK_CPU_SIMD_INL_H_
#undef WICK_CPU_SIMD_INL_H_
#else
#define WICK_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "backend/kernels.h"
#include "base/half.h"
#include "base/threads.h"

// Before a loop of constant length over an array of vectors: unrolled early enough for the array to
// live in registers.
#undef WICK_UNROLL
#if defined(__clang__)
#define WICK_UNROLL _Pragma("unroll")
#else
#define WICK_UNROLL _Pragma("GCC unroll 32")
#endif

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr DF df;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));

template <typename T>
struct HwyOf;
template <>
struct HwyOf<bf16> {
  using type = hwy::bfloat16_t;
};
template <>
struct HwyOf<f16> {
  using type = hwy::float16_t;
};

template <class D, typename T>
HWY_INLINE hn::Vec<D> load_as(D d, const T* p) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, p);
  } else {
    using H = typename HwyOf<T>::type;
    const hn::Rebind<H, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const H*>(p)));
  }
}

template <typename T>
HWY_INLINE VF load(const T* p) {
  return load_as(df, p);
}
HWY_INLINE void store(VF v, float* p) { hn::StoreU(v, df, p); }
HWY_INLINE VF set(float x) { return hn::Set(df, x); }

// The first min(n, kLanes) elements, zero in the other lanes.
template <typename T>
HWY_INLINE VF load_part(const T* p, int64_t n) {
  if (HWY_LIKELY(n >= kLanes)) return load(p);
#if !HWY_MEM_OPS_MIGHT_FAULT
  if constexpr (std::is_same_v<T, float>)
    return hn::MaskedLoad(hn::FirstN(df, static_cast<size_t>(n)), df, p);
#endif
  alignas(64) T part[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load(part);
}

HWY_INLINE void store_part(VF v, float* p, int64_t n) {
  if (HWY_LIKELY(n >= kLanes)) return store(v, p);
#if !HWY_MEM_OPS_MIGHT_FAULT
  hn::BlendedStore(v, hn::FirstN(df, static_cast<size_t>(n)), df, p);
#else
  alignas(64) float part[kLanes];
  hn::Store(v, df, part);
  for (int64_t i = 0; i < n; ++i) p[i] = part[i];
#endif
}

HWY_INLINE float sum_lanes(VF v) { return hn::GetLane(hn::SumOfLanes(df, v)); }
HWY_INLINE float max_lanes(VF v) { return hn::GetLane(hn::MaxOfLanes(df, v)); }

// e^x to about 1 ulp; 0 below -87.3, infinity above 88.7, NaN stays NaN.
HWY_INLINE VF exp_v(VF x) {
  const hn::RebindToSigned<DF> di;
  VF low = set(-87.3365f), high = set(88.8f);
  VF clamped = hn::IfThenElse(hn::Lt(x, low), low, hn::IfThenElse(hn::Gt(x, high), high, x));
  VF k = hn::Round(hn::Mul(clamped, set(1.44269504f)));
  VF r = hn::NegMulAdd(k, set(0.693145752f), clamped);
  r = hn::NegMulAdd(k, set(1.42860677e-6f), r);
  VF p = set(1.98756915e-4f);
  p = hn::MulAdd(p, r, set(1.39819994e-3f));
  p = hn::MulAdd(p, r, set(8.33345205e-3f));
  p = hn::MulAdd(p, r, set(4.16657956e-2f));
  p = hn::MulAdd(p, r, set(1.66666657e-1f));
  p = hn::MulAdd(p, r, set(0.5f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), set(1.0f));
  // 2^k in two factors, because k may be 128.
  auto ki = hn::ConvertTo(di, k);
  auto half = hn::ShiftRight<1>(ki);
  auto rest = hn::Sub(ki, half);
  auto bias = hn::Set(di, 127);
  VF a = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(half, bias)));
  VF b = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(rest, bias)));
  VF y = hn::Mul(hn::Mul(p, a), b);
  return hn::IfThenZeroElse(hn::Lt(x, low), y);
}

// e^x as exp_v for x <= 88, in fewer steps; 0 below -86.5.
HWY_INLINE VF exp_small(VF x) {
  const hn::RebindToSigned<DF> di;
  const VF low = set(-86.5f);
  const VF clamped = hn::Max(low, x);
  const VF k = hn::Round(hn::Mul(clamped, set(1.44269504f)));
  VF r = hn::NegMulAdd(k, set(0.693145752f), clamped);
  r = hn::NegMulAdd(k, set(1.42860677e-6f), r);
  VF p = set(1.98756915e-4f);
  p = hn::MulAdd(p, r, set(1.39819994e-3f));
  p = hn::MulAdd(p, r, set(8.33345205e-3f));
  p = hn::MulAdd(p, r, set(4.16657956e-2f));
  p = hn::MulAdd(p, r, set(1.66666657e-1f));
  p = hn::MulAdd(p, r, set(0.5f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), set(1.0f));
  // The exponent of p, which lies between 0.7 and 1.42, moved by k.
  const auto moved = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::ConvertTo(di, k)));
  return hn::IfThenZeroElse(hn::Lt(x, low), hn::BitCast(df, moved));
}

HWY_INLINE VF sigmoid_v(VF x) { return hn::Div(set(1.0f), hn::Add(set(1.0f), exp_v(hn::Neg(x)))); }

// f(begin, end) over stretches of rows, each about `kGrainBytes` of work at `row_bytes` a row.
template <typename F>
void parallel_rows(ThreadPool& pool, int64_t rows, int64_t row_bytes, const F& f) {
  constexpr int64_t kGrainBytes = 64 << 10;
  int64_t grain = std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, row_bytes));
  int64_t tasks = (rows + grain - 1) / grain;
  pool.parallel(tasks, [&](int64_t i) { f(i * grain, std::min(rows, (i + 1) * grain)); });
}

// Calls f with a null pointer of the operand's element type.
template <typename F>
HWY_INLINE void with_type(DType dtype, const F& f) {
  if (dtype == DType::kBF16)
    f(static_cast<const bf16*>(nullptr));
  else if (dtype == DType::kF16)
    f(static_cast<const f16*>(nullptr));
  else
    f(static_cast<const float*>(nullptr));
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
