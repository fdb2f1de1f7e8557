// SPDX-License-Identifier: Apache-2.0
// bf16 and f16 as storage types: conversion only, round to nearest even, no arithmetic.
#pragma once

#include <bit>
#include <cstdint>

namespace wick {

struct bf16 {
  uint16_t bits = 0;
};
struct f16 {
  uint16_t bits = 0;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16 h) { return std::bit_cast<float>(static_cast<uint32_t>(h.bits) << 16); }

inline float to_float(f16 h) {
  uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000u) << 16;
  uint32_t rest = static_cast<uint32_t>(h.bits & 0x7fffu) << 13;
  uint32_t exponent = rest & 0x0f800000u;
  rest += (127u - 15u) << 23;
  if (exponent == 0x0f800000u) {
    rest += (128u - 16u) << 23;  // infinity or NaN
  } else if (exponent == 0) {
    // Subnormal: the value is (mantissa / 2^10) * 2^-14, which one subtraction renormalises.
    rest += 1u << 23;
    rest = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) - std::bit_cast<float>(113u << 23));
  }
  return std::bit_cast<float>(sign | rest);
}

inline bf16 to_bf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<uint16_t>((u >> 16) | 0x40u)};
  return bf16{static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline f16 to_f16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return f16{static_cast<uint16_t>(sign | 0x7e00u)};
  if (u >= 0x477ff000u) return f16{static_cast<uint16_t>(sign | 0x7c00u)};  // rounds past 65504
  if (u < 0x38800000u) {
    // Below the smallest normal: adding 0.5 lines the mantissa up and rounds it to even.
    float aligned = std::bit_cast<float>(u) + 0.5f;
    return f16{static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u))};
  }
  u += 0xc8000fffu + ((u >> 13) & 1u);  // rebias by 15 - 127, round to nearest even
  return f16{static_cast<uint16_t>(sign | (u >> 13))};
}

template <typename T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}
template <>
inline f16 from_float<f16>(float x) {
  return to_f16(x);
}

}  // namespace wick
