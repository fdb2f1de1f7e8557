// SPDX-License-Identifier: Apache-2.0
// Quantised weights on the device: the codes of quant/rows.h, each row's 16-byte aligned, and the
// scales apart, so that both are read in wide pieces.
//
//   codes   [N][quant_code_bytes(K)]     a multiple of 16 bytes per row
//   scales  [N][quant_groups(K)] bf16    after the codes
#pragma once

#include "backend/cuda/device.cuh"

namespace wick::cuda {

struct Codes {
  const uint8_t* codes;
  const Bf16* scales;
  int64_t code_ld, groups;
  int bits, group_shift;  // elements of a group: 1 << group_shift

  __device__ float scale(int64_t row, int64_t col) const {
    return to_f32(scales[row * groups + (col >> group_shift)]);
  }
  __device__ float at(int64_t row, int64_t col) const {
    const uint8_t* r = codes + row * code_ld;
    if (bits == 8) return static_cast<float>(static_cast<int8_t>(r[col])) * scale(row, col);
    const uint8_t both = r[col / 32 * 16 + col % 16];
    const int code = col % 32 < 16 ? both & 15 : both >> 4;
    return static_cast<float>(code - 8) * scale(row, col);
  }
};

inline bool is_device_codes(const Operand& o) {
  return o.form == WeightForm::kTiles && dtype_is_quantized(o.dtype);
}

inline Codes codes(const Operand& o) {
  Codes c{};
  c.codes = static_cast<const uint8_t*>(o.data);
  c.code_ld = static_cast<int64_t>(quant_code_bytes(o.dtype, o.cols));
  c.groups = quant_groups(o.dtype, o.cols);
  c.scales = reinterpret_cast<const Bf16*>(c.codes + o.rows * c.code_ld);
  c.bits = quant_bits(o.dtype);
  c.group_shift = quant_group(o.dtype) == 32 ? 5 : quant_group(o.dtype) == 64 ? 6 : 7;
  return c;
}

}  // namespace wick::cuda
