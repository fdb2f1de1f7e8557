// SPDX-License-Identifier: Apache-2.0
// x of matvec_mma.cu and matvec_codes.cuh into shared memory, as it is or as the norm of something,
// laid out as the lanes want it. Rows are cut into stretches of 256 columns, one to a warp at a
// time; the warps of a block share a row where rows are fewer than they. The sum of a row's squares
// is that of its stretches in order, however many warps make them, so a row's bits do not depend on
// the others.
#pragma once

#include "backend/cuda/matvec.cuh"
#include "backend/cuda/matvec.h"
#include "backend/cuda/matvec_weights.cuh"
#include "backend/cuda/row_copy.cuh"

namespace wick::cuda {

constexpr int kStretchColumns = 256, kMostStretches = 64;

struct MatvecNorm {
  Rows<const Bf16> a, b;
  Rows<Bf16> sum, normed;
  AnyFloats gain;
  float inverse, eps;
};

// A norm's gain, asked for without waiting for the kernel before: for `one` row each thread's
// eight, else all of it into shared memory.
template <int kThreads>
__device__ __forceinline__ void take_gain(const AnyFloats& from, int k, bool one, float (&gain)[8],
                                          float* gains) {
  if (one) {
    if (8 * threadIdx.x < k) from.eight(8 * threadIdx.x, gain);
    return;
  }
#pragma unroll 1
  for (int c = threadIdx.x * 8; c < k; c += kThreads * 8) from.eight(c, gains + c);
}

// f(row, first stretch, step) for the rows of this warp; `shift`: of the warps that share one.
template <int kWarps, typename F>
__device__ inline void each_row(int m, int shift, F&& f) {
  const int warp = threadIdx.x / 32;
  for (int r = warp >> shift; r < m; r += kWarps >> shift)
    f(r, warp & ((1 << shift) - 1), 1 << shift);
}

// x into shared memory, zeros behind its columns.
template <class W>
__device__ inline void take_x(Rows<const Bf16> from, int m, int k, int shift, const XRows& x) {
  constexpr int kAtOnce = 4;
  const int lane = threadIdx.x % 32, padded = x_columns(k);
  each_row<W::kWarps>(m, shift, [&](int r, int s, int step) {
    const Bf16* row = from[r];
    for (int c0 = s * kStretchColumns + lane * 8; c0 < padded;
         c0 += kAtOnce * step * kStretchColumns) {
      Pack<Bf16, 8> v[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int c = c0 + i * step * kStretchColumns;
        if (c < k) v[i] = load<8>(row + c);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int c = c0 + i * step * kStretchColumns;
        if (c < padded) W::put(x, r, c, v[i]);
      }
    }
  });
  barrier_of_first<32 * W::kWarps>();
}

// The norm of one row of at most 8 columns to a thread; `gain` are the thread's.
template <class W>
__device__ inline void make_norm_of_one(const MatvecNorm& norm, int k, const XRows& x,
                                        const float (&gain)[8]) {
  __shared__ float squares[W::kWarps];
  const int c = threadIdx.x * 8;
  Pack<Bf16, 8> v{};
  float sum = 0.0f;
  if (c < k) {
    v = load<8>(norm.a.data + c);
    if (norm.b) {
      const Pack<Bf16, 8> b = load<8>(norm.b.data + c);
#pragma unroll
      for (int j = 0; j < 8; ++j) v.at[j] = from_f32<Bf16>(to_f32(v.at[j]) + to_f32(b.at[j]));
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(to_f32(v.at[j]), to_f32(v.at[j]), sum);
    if (norm.sum && blockIdx.x == 0) store(norm.sum.data + c, v);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
  barrier_of_first<32 * W::kWarps>();
  if (c < x_columns(k)) {
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < W::kWarps; ++i) sum += squares[i];
    const float rstd = rsqrtf(fmaf(sum, norm.inverse, norm.eps));
#pragma unroll
    for (int j = 0; j < 8; ++j) v.at[j] = from_f32<Bf16>(to_f32(v.at[j]) * rstd * gain[j]);
    W::put(x, 0, c, v);
    if (norm.normed && blockIdx.x == 0 && c < k) store(norm.normed.data + c, v);
  }
  barrier_of_first<32 * W::kWarps>();
}

// The norm of a + b into shared memory. `gains` hold its gain.
template <class W>
__device__ inline void make_norm(const MatvecNorm& norm, int m, int k, int shift, const XRows& x,
                                 const float* gains) {
  constexpr int kAtOnce = 2;
  __shared__ float squares[kMatvecMmaRows][kMostStretches];
  const int padded = x_columns(k), lane = threadIdx.x % 32;
  const int stretches = (k + kStretchColumns - 1) / kStretchColumns;
  each_row<W::kWarps>(m, shift, [&](int r, int s0, int step) {
    for (int base = s0; base < stretches; base += kAtOnce * step) {
      Pack<Bf16, 8> a[kAtOnce] = {}, b[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int c = (base + i * step) * kStretchColumns + lane * 8;
        if (c < k) {
          a[i] = load<8>(norm.a[r] + c);
          if (norm.b) b[i] = load<8>(norm.b[r] + c);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int s = base + i * step, c = s * kStretchColumns + lane * 8;
        if (s >= stretches) break;
        float sum = 0.0f;
        if (c < k) {
          if (norm.b)
#pragma unroll
            for (int j = 0; j < 8; ++j)
              a[i].at[j] = from_f32<Bf16>(to_f32(a[i].at[j]) + to_f32(b[i].at[j]));
#pragma unroll
          for (int j = 0; j < 8; ++j) sum = fmaf(to_f32(a[i].at[j]), to_f32(a[i].at[j]), sum);
          store(x.x + r * x.ld + c, a[i]);
          if (norm.sum && blockIdx.x == 0) store(norm.sum[r] + c, a[i]);
        }
        sum = warp_sum(sum);
        if (lane == 0) squares[r][s] = sum;
      }
    }
  });
  barrier_of_first<32 * W::kWarps>();
  each_row<W::kWarps>(m, shift, [&](int r, int s0, int step) {
    float sum = 0.0f;
    for (int s = 0; s < stretches; ++s) sum += squares[r][s];
    const float rstd = rsqrtf(fmaf(sum, norm.inverse, norm.eps));
    for (int s = s0; s * kStretchColumns < padded; s += step) {
      const int c = s * kStretchColumns + lane * 8;
      Pack<Bf16, 8> v{};
      if (c < k) {
        v = load<8>(x.x + r * x.ld + c);
        const Pack<float, 4> low = load<4>(gains + c), high = load<4>(gains + c + 4);
#pragma unroll
        for (int j = 0; j < 8; ++j)
          v.at[j] = from_f32<Bf16>(to_f32(v.at[j]) * rstd * (j < 4 ? low : high).at[j % 4]);
        if (norm.normed && blockIdx.x == 0) store(norm.normed[r] + c, v);
      }
      // Places change within units alone, whose columns neighbouring lanes have.
      __syncwarp();
      if (c < padded) W::put(x, r, c, v);
    }
  });
  barrier_of_first<32 * W::kWarps>();
}

// The first element that a thread finishes, for which it asks early: for weights before the kernel
// before is done, for what that one makes behind it.
template <class Out>
struct FirstElement {
  typename Out::Early early;
  typename Out::Spot spot;
  int mm;     // row of x
  bool real;  // there is one
};

// x into shared memory, or with kNorm the norm, behind the wait for the kernel before. `one`: there
// is one row, of at most 8 columns to a thread.
template <class W, bool kNorm, class Args, class Out>
__device__ __forceinline__ void bring_x(const Args& p, int m, bool one, const XRows& x,
                                        float* gains, FirstElement<Out>& first) {
  float gain[8] = {};
  if constexpr (kNorm) take_gain<32 * W::kWarps>(p.norm.gain, p.k, one, gain, gains);
  __syncthreads();
  begin_kernel();
  if constexpr (kNorm) {
    if (first.real) p.out.feeds(first.early, first.mm);
    if (one)
      make_norm_of_one<W>(p.norm, p.k, x, gain);
    else
      make_norm<W>(p.norm, m, p.k, p.row_shift, x, gains);
    if (first.real) p.out.look_up(first.early, first.spot);
  } else {
    take_x<W>(p.x, m, p.k, p.row_shift, x);
  }
}

}  // namespace wick::cuda
