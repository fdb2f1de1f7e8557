// SPDX-License-Identifier: Apache-2.0
// x of attend.cuh and mlp.cuh as the norm of something that may lie in parts.
#pragma once

#include "backend/cuda/matvec_x.cuh"

namespace wick::cuda {

struct PartedNorm {
  Rows<const Bf16> a, b;
  Rows<Bf16> sum;
  AnyFloats gain;
  float inverse, eps;
  const float* parts;  // of b, where it is their sum in order: [part_count][m][k]
  int part_count, part_stride;
  __device__ bool adds() const { return static_cast<bool>(b) || part_count > 0; }
};
inline PartedNorm parted_norm(const MatvecIn& in) {
  return {rows<const Bf16>(in.a),
          rows<const Bf16>(in.b),
          rows<Bf16>(in.sum),
          any_floats(in.gain),
          1.0f / static_cast<float>(in.a.cols),
          in.eps,
          in.parts,
          in.part_count,
          static_cast<int>(in.a.rows * in.a.cols)};
}

// Columns [c, c + 8) of row r of b; of parts, so many are asked for at a time.
template <int kAtOnce>
__device__ inline Pack<Bf16, 8> added(const PartedNorm& n, int r, int k, int c) {
  if (n.part_count == 0) return load<8>(n.b[r] + c);
  const float* at = n.parts + r * k + c;
  float sum[8] = {};
#pragma unroll 1
  for (int first = 0; first < n.part_count; first += kAtOnce, at += kAtOnce * n.part_stride) {
    Pack<float, 4> v[kAtOnce][2] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < n.part_count) {
        v[i][0] = load<4>(at + i * n.part_stride);
        v[i][1] = load<4>(at + i * n.part_stride + 4);
      }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += v[i][j / 4].at[j % 4];
  }
  Pack<Bf16, 8> b;
#pragma unroll
  for (int j = 0; j < 8; ++j) b.at[j] = from_f32<Bf16>(sum[j]);
  return b;
}

struct alignas(16) RowSquares {
  float at[kMatvecMmaRows][kMostStretches];
};
// The norm of a + b but for the factor of each row, by which its sums are multiplied instead
// (row_factor): one reading and one barrier. `gains` hold the gain, or where there is `one` row
// that the block's threads hold, `gain` the thread's eight. Of parts of b kParts are asked for at a
// time.
template <class W, int kParts>
__device__ inline void make_scaled(const PartedNorm& norm, int m, int k, int shift, const XRows& x,
                                   const float* gains, bool one, const float (&gain)[8],
                                   RowSquares& squares) {
  constexpr int kAtOnce = 2;
  const int padded = x_columns(k), lane = threadIdx.x % 32;
  auto take = [&](int r, int c, Pack<Bf16, 8>& a, Pack<Bf16, 8>& b) {
    if (c >= k) return;
    a = load<8>(norm.a[r] + c);
    if (norm.adds()) b = added<kParts>(norm, r, k, c);
  };
  auto make = [&](int r, int s, int c, Pack<Bf16, 8> v, const Pack<Bf16, 8>& b, auto&& gain_of) {
    float sum = 0.0f;
    if (c < k) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (norm.adds()) v.at[j] = from_f32<Bf16>(to_f32(v.at[j]) + to_f32(b.at[j]));
        sum = fmaf(to_f32(v.at[j]), to_f32(v.at[j]), sum);
      }
      if (norm.sum && blockIdx.x == 0) store(norm.sum[r] + c, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) v.at[j] = from_f32<Bf16>(to_f32(v.at[j]) * gain_of(j));
    }
    if (c < padded) W::put(x, r, c, v);
    sum = warp_sum(sum);
    if (lane == 0) squares.at[r][s] = sum;
  };
  if (one) {
    const int s = threadIdx.x / 32, c = threadIdx.x * 8;
    Pack<Bf16, 8> a{}, b{};
    take(0, c, a, b);
    if (s * kStretchColumns < padded) make(0, s, c, a, b, [&](int j) { return gain[j]; });
  } else {
    each_row<W::kWarps>(m, shift, [&](int r, int s0, int step) {
      for (int base = s0; base * kStretchColumns < padded; base += kAtOnce * step) {
        Pack<Bf16, 8> a[kAtOnce] = {}, b[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          take(r, (base + i * step) * kStretchColumns + lane * 8, a[i], b[i]);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int s = base + i * step, c = s * kStretchColumns + lane * 8;
          if (s * kStretchColumns >= padded) break;
          make(r, s, c, a[i], b[i], [&](int j) { return gains[c + j]; });
        }
      }
    });
  }
  barrier_of_first<32 * W::kWarps>();
}
__device__ inline float row_factor(const PartedNorm& norm, int r, int k,
                                   const RowSquares& squares) {
  float sum = 0.0f;
#pragma unroll 1
  for (int s = 0; s * kStretchColumns < k; s += 4) {
    const Pack<float, 4> four = load<4>(squares.at[r] + s);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if ((s + i) * kStretchColumns < k) sum += four.at[i];
  }
  return rsqrtf(fmaf(sum, norm.inverse, norm.eps));
}

}  // namespace wick::cuda
