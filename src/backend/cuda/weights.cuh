// SPDX-License-Identifier: Apache-2.0
// Rows of a frozen matrix read as f32, whatever it rests in: f32, a half, or codes.
#pragma once

#include "backend/cuda/codes.cuh"
#include "backend/cuda/wide.cuh"

namespace wick::cuda {

// Columns [col, col + kWide) of a row, `left` of which there are; zeros beyond. Requires: col is a
// multiple of kWide.
template <bool kAligned, typename W>
__device__ inline void read_weights(const Rows<const W>& w, int64_t row, int col, int left,
                                    float (&v)[kWide]) {
  const Wide<W> x = load_wide<kAligned>(w[row] + col, left);
#pragma unroll
  for (int i = 0; i < kWide; ++i) v[i] = x[i];
}
// A stretch lies in one group, and 4-bit codes of it in one half of their bytes.
template <bool kAligned>
__device__ inline void read_weights(const Codes& w, int64_t row, int col, int left,
                                    float (&v)[kWide]) {
  const uint8_t* codes = w.row(row);
  const float scale = w.scale(row, col);
  const bool bytes = w.bits == 8;
  const uint8_t* from = codes + (bytes ? col : col / 32 * 16 + col % 16);
  const int shift = col % 32 < 16 ? 0 : 4;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    const int code = bytes ? static_cast<int8_t>(from[i]) : (from[i] >> shift & 15) - 8;
    v[i] = i < left ? scale * static_cast<float>(code) : 0.0f;
  }
}

// Calls f(Rows<const W> or Codes, whether it is wide_aligned).
template <typename F>
void with_weights(const Operand& o, F&& f) {
  if (dtype_is_quantized(o.dtype)) return f(codes(o), true);
  with_float(o.dtype, [&](auto* type) {
    using W = std::remove_pointer_t<decltype(type)>;
    f(rows<const W>(o), wide_aligned(o));
  });
}

}  // namespace wick::cuda
