// SPDX-License-Identifier: Apache-2.0
// The one table of tolerances: how far a back end may be from ref<double> in the same operands,
// relative to the largest of the element, the mean magnitude of its value, and kCancelledScale.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/dtype.h"

namespace wick::ops {

// `reduction` is the number of terms summed into one element. Rounding errors of a sum grow like a
// random walk; the constants leave a few steps of room for functions (exp, rsqrt).
//
// Operands are rounded before both sides see them, so a half adds the rounding of the result: at
// most half a unit in its last place. `half_terms` allows the terms of the sum to be rounded to
// bf16 too. A term is then off by 0.41 * 2^-8 of itself (root mean square over its mantissa), the
// sum by a random walk of that, its own magnitude being a random walk of the terms: 0.5 * 2^-8
// whatever the length, and six times that as the largest of many elements; 2 where what they are
// made from is rounded too. Where only units of bf16 round terms (probabilities,
// their gradients, weights that rest in f32), devices without them are held to `half_terms` 0.
//
// Where an element's own terms are at hand (`own_terms`: those of linear, attention and both heads'
// gradients), nothing is taken for an average: rounded_terms.
//
// x in 8 bits with a scale for 256 numbers, beside codes of 4 bits on a common scale for as many
// columns (LinearAttr::narrow): a term is off by 1.8 * 2^-8 of x (half a step is 1/254 of the
// largest, which is three times the root mean square) and 1.2 * 2^-8 of w, together four to five
// times what rounding to bf16 costs.
constexpr int kByteTerms = 5;

// Beside codes of 8 bits, on AVX2: x in 15 bits of fixed point with a scale for 32 numbers. Half a
// step is 2^-16 of the largest, which is at most three times the root mean square, so a term is off
// by 2.6e-5 of x, and six times that covers the largest of many elements.
constexpr double kFixedTerms = 0x1p-12;

inline double tolerance(DType dtype, int64_t reduction, int half_terms = 0) {
  constexpr double kF32 = 0x1p-24, kF16 = 0x1p-11, kBF16 = 0x1p-8;
  double sum = kF32 * (16 + 8 * std::sqrt(static_cast<double>(reduction)));
  sum += 3 * half_terms * kBF16;
  switch (dtype) {
    case DType::kF32:
      return sum;
    case DType::kF16:
      return sum + 1.01 * kF16;
    case DType::kBF16:
      return sum + 1.01 * kBF16;
    case DType::kU8:  // codes: the next one, where the number lies between two
      return 1.0 / 32;
    case DType::kF64:
    case DType::kI32:
    case DType::kI64:
    case DType::kQ8G32:
    case DType::kQ8G64:
    case DType::kQ8G128:
    case DType::kQ4G32:
    case DType::kQ4G64:
    case DType::kQ4G128:
      break;
  }
  return 0;
}

// What an element may be off by where its n terms are rounded to bf16, per unit of the root of the
// sum of their squares, ‖t‖. A term is off by 2^-8 of itself at most, so that all together they are
// off by 2^-8 Σ|t| at most, which is 2^-8 √n ‖t‖. Longer sums even out: an error is spread evenly
// over its range, hence no wider than a normal one of 2^-8 |t| / √3, and their sum no wider than
// one of 2^-8 ‖t‖ / √3. Three times 2^-8 ‖t‖ is 5.2 of that; with the mantissas as they come (a
// term is off by 0.42 * 2^-8 of itself, root mean square) it is 7, which one element in 10^11
// passes.
//
// This bound knows nothing of an op's mean: a short sum may have terms many times as large as most,
// and then they are rounded by as much more, whether or not they cancel.
inline double rounded_terms(int64_t n) {
  return 0x1p-8 * std::min(3.0, std::sqrt(static_cast<double>(n)));
}

// Operands are of order one, so an element whose terms cancel to almost nothing still carries the
// rounding of its terms: the smallest magnitude that errors are measured against, per unit of
// tolerance.
constexpr double kCancelledScale = 0.125;

// Reverse rules against complex step, relative to the largest derivative of the operand.
constexpr double kGradTolerance = 1e-10;

}  // namespace wick::ops
