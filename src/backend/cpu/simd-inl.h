// SPDX-License-Identifier: Apache-2.0
// Per-target vocabulary of the kernels: vectors of f32, loads that widen and stores that round,
// none of which touches memory past an operand, exp and friends, row-wise parallel loops.

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

#include "backend/cpu/unroll.h"
#include "backend/kernels.h"
#include "base/half.h"
#include "base/threads.h"

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

using DBits = hn::Rebind<uint16_t, DF>;
constexpr DBits dbits;
// To nearest even as to_bf16() does; Highway's own conversion only cuts off.
HWY_INLINE hn::Vec<DBits> bf16_bits(VF v) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<hwy::bfloat16_t, DF> dh;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const VF kept = hn::IfThenElse(hn::IsNaN(v), hn::BitCast(df, quiet), hn::BitCast(df, rounded));
  return hn::BitCast(dbits, hn::DemoteTo(dh, kept));
}
HWY_INLINE void store(VF v, bf16* p) {
  hn::StoreU(bf16_bits(v), dbits, reinterpret_cast<uint16_t*>(p));
}

// The first min(n, kLanes) elements, zero in the other lanes.
template <typename T>
HWY_INLINE VF load_part(const T* p, int64_t n) {
  if (HWY_LIKELY(n >= kLanes)) return load(p);
#if !HWY_MEM_OPS_MIGHT_FAULT
  if constexpr (std::is_same_v<T, float>) {
    return hn::MaskedLoad(hn::FirstN(df, static_cast<size_t>(n)), df, p);
  } else {
    const hn::Rebind<typename HwyOf<T>::type, DF> dh;
    const auto bits = hn::MaskedLoad(hn::FirstN(dbits, static_cast<size_t>(n)), dbits,
                                     reinterpret_cast<const uint16_t*>(p));
    return hn::PromoteTo(df, hn::BitCast(dh, bits));
  }
#else
  alignas(64) T part[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load(part);
#endif
}

template <typename T>
HWY_INLINE void store_part(VF v, T* p, int64_t n) {
  if (HWY_LIKELY(n >= kLanes)) return store(v, p);
#if !HWY_MEM_OPS_MIGHT_FAULT
  const size_t count = static_cast<size_t>(n);
  if constexpr (std::is_same_v<T, float>)
    hn::BlendedStore(v, hn::FirstN(df, count), df, p);
  else
    hn::BlendedStore(bf16_bits(v), hn::FirstN(dbits, count), dbits, reinterpret_cast<uint16_t*>(p));
#else
  alignas(64) T part[kLanes];
  store(v, part);
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

// 1 / (1 + e), with e = e^-x.
HWY_INLINE VF sigmoid_v(VF x, VF* e) {
  *e = exp_v(hn::Neg(x));
  return hn::Div(set(1.0f), hn::Add(set(1.0f), *e));
}
// To 16 bits or more, where the result is rounded to bf16; some number, not NaN, for NaN.
HWY_INLINE VF sigmoid_for_bf16(VF x, VF* e) {
  *e = exp_small(hn::Min(hn::Neg(x), set(88.0f)));
  const VF d = hn::Add(set(1.0f), *e);
  const VF r = hn::ApproximateReciprocal(d);
  return hn::Mul(r, hn::NegMulAdd(d, r, set(2.0f)));
}

// f(begin, end) over stretches of rows, each about `kGrainBytes` of work at `row_bytes` a row.
template <typename F>
void parallel_rows(ThreadPool& pool, int64_t rows, int64_t row_bytes, const F& f) {
  constexpr int64_t kGrainBytes = 64 << 10;
  int64_t grain = std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, row_bytes));
  int64_t tasks = (rows + grain - 1) / grain;
  pool.parallel(tasks, [&](int64_t i) { f(i * grain, std::min(rows, (i + 1) * grain)); });
}

// Row t of a matrix of T.
template <typename T>
HWY_INLINE T* row(const Operand& o, int64_t t) {
  return o.as<T>() + t * o.ld;
}
// An element of a matrix of any type.
inline char* at(const Operand& o, int64_t t, int64_t column = 0) {
  return o.as<char>() + static_cast<size_t>(t * o.ld + column) * dtype_bytes(o.dtype);
}
inline void zero_row(const Operand& o, int64_t t) {
  std::memset(at(o, t), 0, static_cast<size_t>(o.cols) * dtype_bytes(o.dtype));
}

// Calls f with a null pointer of the activations' element type.
template <typename F>
HWY_INLINE void with_activation(DType dtype, const F& f) {
  if (dtype == DType::kBF16)
    f(static_cast<bf16*>(nullptr));
  else
    f(static_cast<float*>(nullptr));
}

// Calls f with a null pointer of a weight's element type.
template <typename F>
HWY_INLINE void with_type(DType dtype, const F& f) {
  if (dtype == DType::kBF16)
    f(static_cast<const bf16*>(nullptr));
  else if (dtype == DType::kF16)
    f(static_cast<const f16*>(nullptr));
  else
    f(static_cast<const float*>(nullptr));
}

// n elements as floats.
inline void widen(const void* from, DType dtype, int64_t n, float* to) {
  with_type(dtype, [&](auto* type) HWY_ATTR {
    auto* p = static_cast<decltype(type)>(from);
    for (int64_t i = 0; i < n; i += kLanes) store_part(load_part(p + i, n - i), to + i, n - i);
  });
}
// n floats as elements of an activation.
inline void narrow(const float* from, int64_t n, void* to, DType dtype) {
  with_activation(dtype, [&](auto* type) HWY_ATTR {
    auto* p = static_cast<decltype(type)>(to);
    for (int64_t i = 0; i < n; i += kLanes) store_part(load_part(from + i, n - i), p + i, n - i);
  });
}

// One row of a weight as floats: where it lies, or widened into the step's scratch, so that kernels
// have one version per type of activation and none per type of weight.
inline const float* widened(const Operand& w, void* scratch) {
  if (w.dtype == DType::kF32) return w.as<const float>();
  widen(w.data, w.dtype, w.elements(), static_cast<float*>(scratch));
  return static_cast<const float*>(scratch);
}
template <int Input>
size_t widened_scratch(const StepArgs& args, int) {
  const Operand& w = args.in[Input];
  return w.dtype == DType::kF32 ? 0 : static_cast<size_t>(w.elements()) * sizeof(float);
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
