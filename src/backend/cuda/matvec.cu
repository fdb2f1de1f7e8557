// SPDX-License-Identifier: Apache-2.0
// matvec by plain arithmetic, for what the tensor cores do not take: f32, and weights in f32 or
// f16. A warp makes one column of y, or a part of it where k is long, its lanes reading 16 bytes of
// the matrix at a time. The first of them are on their way before the kernel waits for x. A row's
// bits do not depend on how many rows there are.
#include "backend/cuda/codes.cuh"
#include "backend/cuda/matvec.cuh"
#include "backend/cuda/matvec.h"

namespace wick::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kAhead = 4;  // pieces of 16 bytes of codes or halves that a lane has on their way

// How a lane reads kWidth elements of row n from column k, and what they are in f32.
template <typename T>
struct Plain {
  static constexpr int kWidth = 8;
  struct Raw {
    Pack<T, 16 / sizeof(T)> at[kWidth * sizeof(T) / 16];
  };
  Rows<const T> w;
  __device__ Raw read(int64_t n, int64_t k) const {
    constexpr int kPack = 16 / sizeof(T);
    Raw raw;
#pragma unroll
    for (int i = 0; i < kWidth / kPack; ++i) raw.at[i] = load<kPack>(w[n] + k + i * kPack);
    return raw;
  }
  static __device__ void widen(const Raw& raw, float (&out)[kWidth]) {
    constexpr int kPack = 16 / sizeof(T);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] = to_f32(raw.at[i / kPack].at[i % kPack]);
  }
};

template <int Bits>
struct Coded {
  static constexpr int kWidth = 128 / Bits;
  struct Raw {
    Pack<uint8_t, 16> codes;
    float scale;
  };
  Codes w;
  __device__ Raw read(int64_t n, int64_t k) const {
    return {load<16>(w.row(n) + k * Bits / 8), w.scale(n, k)};
  }
  static __device__ void widen(const Raw& raw, float (&out)[kWidth]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint8_t code = raw.codes.at[i];
      if constexpr (Bits == 8) {
        out[i] = static_cast<float>(static_cast<int8_t>(code)) * raw.scale;
      } else {
        out[i] = static_cast<float>((code & 15) - 8) * raw.scale;
        out[16 + i] = static_cast<float>((code >> 4) - 8) * raw.scale;
      }
    }
  }
};

template <int Width, typename T>
__device__ inline void get_row(const T* x, int64_t k, int64_t end, float (&out)[Width]) {
  constexpr int kPack = 16 / sizeof(T);
  if (k + Width <= end) {
#pragma unroll
    for (int i = 0; i < Width; i += kPack) {
      const Pack<T, kPack> p = load<kPack>(x + k + i);
#pragma unroll
      for (int j = 0; j < kPack; ++j) out[i + j] = to_f32(p.at[j]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < Width; ++i) out[i] = k + i < end ? to_f32(x[k + i]) : 0.0f;
  }
}

// `parts` warps of a block share one column of y, each with every parts-th stretch of k.
template <int M, typename X, typename W>
__global__ void __launch_bounds__(kThreads)
    matvec_fwd(Rows<const X> x, W w, Into into, int64_t m, int64_t n, int64_t k, int parts) {
  constexpr int kWidth = W::kWidth;
  __shared__ float shared[kWarps][M];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % parts;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * (kWarps / parts) + warp / parts;
  const int64_t row = min(col, n - 1), step = static_cast<int64_t>(32 * kWidth) * parts;
  int64_t at = static_cast<int64_t>(part * 32 + lane) * kWidth;
  typename W::Raw ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (at + i * step < k) ahead[i] = w.read(row, at + i * step);
  begin_kernel();
  float sums[M] = {};
  for (; at < k; at += kAhead * step) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t here = at + i * step, next = here + kAhead * step;
      if (here >= k) break;
      float ws[kWidth];
      W::widen(ahead[i], ws);
      if (next < k) ahead[i] = w.read(row, next);
#pragma unroll
      for (int r = 0; r < M; ++r) {
        float xs[kWidth];
        get_row<kWidth>(x[min(static_cast<int64_t>(r), m - 1)], here, k, xs);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sums[r] = fmaf(xs[e], ws[e], sums[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < M; ++r) {
    sums[r] = warp_sum(sums[r]);
    if (lane == 0) shared[warp][r] = sums[r];
  }
  if (parts > 1)
    __syncthreads();
  else
    __syncwarp();
  if (part > 0 || lane >= M || lane >= m || col >= n) return;
  float sum = shared[warp][lane];
  for (int i = 1; i < parts; ++i) sum += shared[warp + i][lane];
  into.put(lane, col, sum, into.bias[col]);
}

// As many warps to a column as keep what each reads of it within what is on its way at once.
template <int Width>
int parts_of(int64_t k) {
  int parts = 1;
  while (parts < kWarps && divide_up(k, 32 * Width * parts) > kAhead) parts *= 2;
  return parts;
}

template <typename X, typename W>
void launch(const Queue& queue, const Operand& x, const W& w, const Into& into, int64_t n) {
  const int parts = parts_of<W::kWidth>(x.cols);
  const auto blocks = static_cast<unsigned>(divide_up(n, kWarps / parts));
  const auto go = [&](auto m) {
    cuda::launch(queue, matvec_fwd<m(), X, W>, blocks, kThreads, 0, rows<const X>(x), w, into,
                 x.rows, n, x.cols, parts);
  };
  if (x.rows == 1)
    go(std::integral_constant<int, 1>());
  else if (x.rows <= 4)
    go(std::integral_constant<int, 4>());
  else
    go(std::integral_constant<int, 8>());
}

template <typename X>
void launch_any(const Queue& queue, const Operand& x, const Operand& w, const Into& into) {
  if (has_codes(w)) {
    if (quant_bits(w.dtype) == 8)
      launch<X>(queue, x, Coded<8>{codes(w)}, into, w.rows);
    else
      launch<X>(queue, x, Coded<4>{codes(w)}, into, w.rows);
  } else {
    with_float(w.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      launch<X>(queue, x, Plain<T>{rows<const T>(w)}, into, w.rows);
    });
  }
}

}  // namespace

bool matvec(const Queue& queue, float alpha, bool accumulate, const Operand& x, const Operand& w,
            const Operand& bias, const Operand& y) {
  if (matvec_mma(queue, {.x = x}, alpha, accumulate, w, bias, y)) return true;
  const bool coded = has_codes(w);
  if (x.rows > kMatvecRows || !aligned16(x) || (!coded && (!aligned16(w) || w.cols % 8 != 0)))
    return false;
  const Into to = into(alpha, accumulate, bias, y);
  if (x.dtype == DType::kBF16)
    launch_any<Bf16>(queue, x, w, to);
  else
    launch_any<float>(queue, x, w, to);
  return true;
}

}  // namespace wick::cuda
