// SPDX-License-Identifier: Apache-2.0
// matvec: products of a few rows with a frozen matrix, bound by reading the matrix once: decoding.
// A warp makes one column of y (two where there are many), its lanes reading 16 bytes of the
// matrix at a time. A row's bits do not depend on how many rows there are.
#include "backend/cuda/codes.cuh"
#include "backend/cuda/matvec.h"

namespace wick::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

// How a lane reads its next kWidth elements of row n from column k.
template <typename T>
struct Plain {
  static constexpr int kWidth = 8;
  Rows<const T> w;
  __device__ void get(int64_t n, int64_t k, float (&out)[kWidth]) const {
    constexpr int kPack = 16 / sizeof(T);
#pragma unroll
    for (int i = 0; i < kWidth; i += kPack) {
      const Pack<T, kPack> p = load<kPack>(w[n] + k + i);
#pragma unroll
      for (int j = 0; j < kPack; ++j) out[i + j] = to_f32(p.at[j]);
    }
  }
};

template <int Bits>
struct Coded {
  static constexpr int kWidth = 128 / Bits;
  Codes w;
  __device__ void get(int64_t n, int64_t k, float (&out)[kWidth]) const {
    const Pack<uint8_t, 16> p = load<16>(w.row(n) + k * Bits / 8);
    const float scale = w.scale(n, k);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if constexpr (Bits == 8) {
        out[i] = static_cast<float>(static_cast<int8_t>(p.at[i])) * scale;
      } else {
        out[i] = static_cast<float>((p.at[i] & 15) - 8) * scale;
        out[16 + i] = static_cast<float>((p.at[i] >> 4) - 8) * scale;
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

struct Into {
  void* y;
  int64_t ld;
  bool f32, accumulate;
  const void* bias;
  DType bias_dtype;
  float alpha;

  __device__ float bias_at(int64_t n) const {
    if (bias == nullptr) return 0.0f;
    if (bias_dtype == DType::kBF16) return to_f32(static_cast<const Bf16*>(bias)[n]);
    if (bias_dtype == DType::kF16) return to_f32(static_cast<const F16*>(bias)[n]);
    return static_cast<const float*>(bias)[n];
  }
  __device__ void put(int64_t m, int64_t n, float sum) const {
    const float value = alpha * sum + bias_at(n);
    if (f32) {
      float* at = static_cast<float*>(y) + m * ld + n;
      *at = value + (accumulate ? *at : 0.0f);
    } else {
      Bf16* at = static_cast<Bf16*>(y) + m * ld + n;
      *at = from_f32<Bf16>(value + (accumulate ? to_f32(*at) : 0.0f));
    }
  }
};

template <int M, int N, typename X, typename W>
__global__ void __launch_bounds__(kThreads)
    matvec_fwd(Rows<const X> x, W w, Into into, int64_t m, int64_t n, int64_t k) {
  constexpr int kWidth = W::kWidth;
  const int lane = threadIdx.x % 32;
  begin_kernel();
  const int64_t n0 = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * N;
  if (n0 >= n) return;
  float sums[M][N] = {};
#pragma unroll 2
  for (int64_t at = lane * kWidth; at < k; at += 32 * kWidth) {
    float row[N][kWidth];
#pragma unroll
    for (int j = 0; j < N; ++j) w.get(min(n0 + j, n - 1), at, row[j]);
#pragma unroll
    for (int i = 0; i < M; ++i) {
      float xs[kWidth];
      get_row<kWidth>(x[min(static_cast<int64_t>(i), m - 1)], at, k, xs);
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sums[i][j] = fmaf(xs[e], row[j][e], sums[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float sum = warp_sum(sums[i][j]);
      if (lane == 0 && i < m && n0 + j < n) into.put(i, n0 + j, sum);
    }
}

template <typename X, typename W>
void launch(const Queue& queue, const Operand& x, const W& w, const Into& into, int64_t n) {
  const auto go = [&](auto m, auto wide) {
    const auto blocks = static_cast<unsigned>(divide_up(n, kWarps * wide()));
    cuda::launch(queue, matvec_fwd<m(), wide(), X, W>, blocks, kThreads, 0, rows<const X>(x), w,
                 into, x.rows, n, x.cols);
  };
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  const bool many = n >= int64_t{64} * queue.sms;
  if (x.rows == 1)
    many ? go(One(), Two()) : go(One(), One());
  else if (x.rows == 2)
    go(Two(), One());
  else if (x.rows <= 4)
    go(std::integral_constant<int, 4>(), One());
  else
    go(std::integral_constant<int, 8>(), One());
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
  const bool coded = has_codes(w);
  if (x.rows > kMatvecRows || !aligned16(x) || (!coded && (!aligned16(w) || w.cols % 8 != 0)))
    return false;
  const Into into{y.data, y.ld, y.dtype == DType::kF32, accumulate, bias.data, bias.dtype, alpha};
  if (x.dtype == DType::kBF16)
    launch_any<Bf16>(queue, x, w, into);
  else
    launch_any<float>(queue, x, w, into);
  return true;
}

}  // namespace wick::cuda
