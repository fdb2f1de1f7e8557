// SPDX-License-Identifier: Apache-2.0
// The C++ type of a dtype's elements, and its numbers as doubles.
#pragma once

#include "base/check.h"
#include "base/dtype.h"
#include "base/half.h"

namespace wick {

// f(T{}) with T the element type: float, bf16, f16, double, int32_t, int64_t or uint8_t.
// Throws: kInternal for a quantised type, whose elements have no bytes of their own.
template <typename F>
auto with_element(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kBF16:
      return f(bf16{});
    case DType::kF16:
      return f(f16{});
    case DType::kF64:
      return f(double{});
    case DType::kI32:
      return f(int32_t{});
    case DType::kI64:
      return f(int64_t{});
    case DType::kU8:
      return f(uint8_t{});
    case DType::kQ8G32:
    case DType::kQ8G64:
    case DType::kQ8G128:
    case DType::kQ4G32:
    case DType::kQ4G64:
    case DType::kQ4G128:
      break;
  }
  fail(ErrorCode::kInternal, dtype_name(dtype), " has no elements of its own; it comes by rows");
}

template <typename T>
double to_double(T x) {
  return static_cast<double>(x);
}
inline double to_double(bf16 x) { return static_cast<double>(to_float(x)); }
inline double to_double(f16 x) { return static_cast<double>(to_float(x)); }

// Rounded to nearest even, by way of f32 for the halves.
template <typename T>
T from_double(double x) {
  return static_cast<T>(x);
}
template <>
inline bf16 from_double<bf16>(double x) {
  return to_bf16(static_cast<float>(x));
}
template <>
inline f16 from_double<f16>(double x) {
  return to_f16(static_cast<float>(x));
}

}  // namespace wick
