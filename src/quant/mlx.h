// SPDX-License-Identifier: Apache-2.0
// mlx's affine groups: w = scale * u + bias, u of 8 or 4 bits in [0, 2^bits). In a file a matrix is
// three tensors, NAME.weight of 32-bit words with the first code in the lowest bits, NAME.scales
// and NAME.biases of one float per group. Rows are whole groups.
//
// Our rows are the case bias = -scale * 2^(bits - 1), which is exact in every float type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace wick {

// One row of each tensor, as the bytes of a file. Requires: cols is a multiple of group, bits is 8
// or 4, scale_type is f32, bf16 or f16.
struct MlxRow {
  const std::byte* words = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  DType scale_type = DType::kBF16;
};

constexpr int64_t mlx_row_words(int bits, int64_t cols) { return cols * bits / 32; }

void mlx_dequantize_row(int bits, int64_t group, const MlxRow& from, int64_t cols, float* x);

// Whether our rows can hold it to the bit: every bias centred and every scale a bf16. If so, writes
// the row.
bool mlx_to_row(DType dtype, const MlxRow& from, int64_t cols, std::byte* row);

// Our row as mlx has it, scales and biases in bf16.
void row_to_mlx(DType dtype, const std::byte* row, int64_t cols, std::byte* words,
                std::byte* scales, std::byte* biases);

}  // namespace wick
