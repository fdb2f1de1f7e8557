// SPDX-License-Identifier: Apache-2.0
// The activation of gated_act, for its own kernels and for the product that makes it at once: the
// same bits.

#if defined(WICK_CPU_ACT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WICK_CPU_ACT_INL_H_
#undef WICK_CPU_ACT_INL_H_
#else
#define WICK_CPU_ACT_INL_H_
#endif

#include "backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {

// act(x) = x * s(x) with s = sigmoid(x), or sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x³), which
// is gelu's tanh form; `slope` is act'(x).
template <Act A, typename T>
HWY_INLINE VF act(VF x, VF* slope) {
  const VF one = set(1.0f);
  // s(z) and 1 - s(z), which e s gives without cancelling: gelu's slope multiplies it by x³.
  VF rest;
  auto sigmoid = [&rest](VF z) HWY_ATTR {
    VF e, s;
    if constexpr (std::is_same_v<T, float>)
      s = sigmoid_v(z, &e);
    else
      s = sigmoid_for_bf16(z, &e);
    rest = hn::IfThenElse(hn::Gt(e, set(1.0f)), hn::Sub(set(1.0f), s), hn::Mul(e, s));
    return s;
  };
  VF s, ds;
  if constexpr (A == Act::kSilu) {
    s = sigmoid(x);
    ds = hn::Mul(s, rest);
  } else {
    const VF twice_c = set(1.5957691216f);
    VF x2 = hn::Mul(x, x);
    s = sigmoid(hn::Mul(hn::Mul(twice_c, x), hn::MulAdd(x2, set(0.044715f), one)));
    VF du = hn::Mul(twice_c, hn::MulAdd(x2, set(3 * 0.044715f), one));
    ds = hn::Mul(hn::Mul(s, rest), du);
  }
  if (slope != nullptr) *slope = hn::MulAdd(x, ds, s);
  return hn::Mul(x, s);
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
