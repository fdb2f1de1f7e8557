// SPDX-License-Identifier: Apache-2.0
// Quantised weights on the device: the rows of quant/rows.h, codes and then scales, each row padded
// to 16 bytes so that codes are read in wide pieces. Some rows of a matrix are a matrix again.
#pragma once

#include "backend/cuda/device.cuh"

namespace wick::cuda {

struct Codes {
  const uint8_t* data;
  int64_t row_bytes, scales_at;  // bytes from a row to the next, and from its codes to its scales
  int bits, group_shift;         // elements of a group: 1 << group_shift

  __device__ const uint8_t* row(int64_t r) const { return data + r * row_bytes; }
  __device__ float scale(int64_t r, int64_t col) const {
    return to_f32(reinterpret_cast<const Bf16*>(row(r) + scales_at)[col >> group_shift]);
  }
};

inline bool has_codes(const Operand& o) { return dtype_is_quantized(o.dtype); }

inline Codes codes(const Operand& o) {
  return {o.as<const uint8_t>(), static_cast<int64_t>(device_row_bytes(o.dtype, o.cols)),
          static_cast<int64_t>(quant_code_bytes(o.dtype, o.cols)), quant_bits(o.dtype),
          quant_group(o.dtype) == 32   ? 5
          : quant_group(o.dtype) == 64 ? 6
                                       : 7};
}

}  // namespace wick::cuda
