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
// A stretch lies in one group and, of 4 bits, in one half of its bytes; rows are 16-byte aligned.
template <bool kAligned>
__device__ inline void read_weights(const Codes& w, int64_t row, int col, int left,
                                    float (&v)[kWide]) {
  const bool bytes = w.bits == 8;
  const Pack<uint8_t, kWide> codes =
      load<kWide>(w.row(row) + (bytes ? col : col / 32 * 16 + col % 16));
  const float scale = w.scale(row, col);
  const int shift = col % 32 < 16 ? 0 : 4;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    const int code = bytes ? static_cast<int8_t>(codes.at[i]) : (codes.at[i] >> shift & 15) - 8;
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
