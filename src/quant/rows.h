// SPDX-License-Identifier: Apache-2.0
// Quantised rows: w[c] = scale[c / group] * q[c], q of 8 or 4 bits, scale in bf16.
//
// A row of K elements is row_bytes(dtype, K) bytes: codes, then scales.
//   8 bits   q in [-127, 127] (-128 is read too), one byte each, two's complement
//   4 bits   q in [-8, 7] as q + 8; of each block of 32 elements byte i holds element i in its low
//            half and element 16 + i in its high half
//   scales   one per group of 32, 64 or 128 elements; the last group may be shorter
// Codes past K, up to a whole block, are q = 0. A scale may be negative, so that the largest
// element of a group of 4-bit codes can always have the code with the largest magnitude. Scales are
// bf16 because codes are made for the rounded scale, so that its short mantissa costs nothing, and
// because it has the range of f32: no group is too small or too large for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace wick {

// 8 bits: the largest magnitude becomes 127. 4 bits: of a few ranges, the one with the least
// squared error, its scale by least squares. A group below 1e-30 in magnitude becomes zero. Numbers
// that an earlier call has made stay as they are. Requires: x finite, dtype quantised.
void quantize_row(DType dtype, const float* x, int64_t cols, std::byte* row);
void dequantize_row(DType dtype, const std::byte* row, int64_t cols, float* x);

// One element: its code, and the scale of its group.
int quant_code(DType dtype, const std::byte* row, int64_t col);
float quant_scale(DType dtype, const std::byte* row, int64_t cols, int64_t group);

struct QuantError {
  double relative = 0;  // root mean square of the error over that of the values
  double largest = 0;   // magnitude of the largest error
};
QuantError quant_error(std::span<const float> values, std::span<const float> restored);

}  // namespace wick
