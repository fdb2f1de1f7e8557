// SPDX-License-Identifier: Apache-2.0
// Bound by bytes: a thread takes 8 codes and stores 8 floats at a time, neighbours beside each
// other, and has asked for all of its codes before it widens the first.
#include "backend/cuda/codes.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/shared.cuh"
#include "backend/cuda/wide.cuh"
#include "backend/cuda/widen.h"

namespace wick::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;  // stretches of kWide columns to a thread

struct Stretches {
  uint32_t count, per_row, inverse;  // inverse of per_row, of 2^32
  int cols;
};

template <typename T, bool kAligned>
__device__ inline void put(T* to, int left, const float (&v)[kWide]) {
  if constexpr (!kAligned) {
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      if (i < left) to[i] = from_f32<T>(v[i]);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    *reinterpret_cast<uint4*>(to) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                                     pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
  } else {
    *reinterpret_cast<float4*>(to) = {v[0], v[1], v[2], v[3]};
    *reinterpret_cast<float4*>(to + 4) = {v[4], v[5], v[6], v[7]};
  }
}

template <int Bits, typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    widen_codes(Codes from, T* to, const Stretches s, const bool free) {
  let_next_start();
  uint2 codes[kEach];
  float scale[kEach];
  int row[kEach], col[kEach];
  const uint32_t first = blockIdx.x * (kThreads * kEach) + threadIdx.x;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const uint32_t i = min(first + e * kThreads, s.count - 1);
    // At most one less than the quotient.
    uint32_t quotient = __umulhi(i, s.inverse), rest = i - quotient * s.per_row;
    if (rest >= s.per_row) ++quotient, rest -= s.per_row;
    row[e] = static_cast<int>(quotient);
    col[e] = static_cast<int>(rest) * kWide;
    // A stretch lies in one group and, of 4 bits, in one half of its bytes.
    const int at = Bits == 8 ? col[e] : col[e] / 32 * 16 + col[e] % 16;
    codes[e] = *reinterpret_cast<const uint2*>(from.row(row[e]) + at);
    scale[e] = from.scale(row[e], col[e]);
  }
  if (!free) wait_for_previous();
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    // As bytes from 0 on, each of which is the end of a float from 2^23 on.
    constexpr float kZero = 8388608.0f + (Bits == 8 ? 128.0f : 8.0f);
    const int shift = col[e] % 32 < 16 ? 0 : 4;
    float v[kWide];
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const uint32_t word = i < 4 ? codes[e].x : codes[e].y;
      const uint32_t bytes = Bits == 8 ? word ^ 0x80808080u : word >> shift & 0x0f0f0f0fu;
      const float whole = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440 + i % 4));
      v[i] = scale[e] * (whole - kZero);
    }
    if (first + e * kThreads < s.count)
      put<T, kAligned>(to + static_cast<int64_t>(row[e]) * s.cols + col[e], s.cols - col[e], v);
  }
  if (free) wait_for_previous();
}

}  // namespace

void widen(const Queue& queue, const Operand& from, const Operand& to, bool free) {
  if (from.elements() == 0) return;
  const int64_t per_row = divide_up(from.cols, kWide), count = from.rows * per_row;
  const Stretches s{static_cast<uint32_t>(count), static_cast<uint32_t>(per_row),
                    0xffffffffu / static_cast<uint32_t>(per_row), static_cast<int>(from.cols)};
  with_activation(to.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(to), [&](auto aligned) {
      const auto go = [&](auto* kernel) {
        prefer_shared(kernel);
        launch(queue, kernel, static_cast<unsigned>(divide_up(count, kThreads * kEach)), kThreads,
               0, codes(from), to.as<T>(), s, free);
      };
      if (quant_bits(from.dtype) == 8)
        go(widen_codes<8, T, aligned()>);
      else
        go(widen_codes<4, T, aligned()>);
    });
  });
}

}  // namespace wick::cuda
