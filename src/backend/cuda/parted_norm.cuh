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

// A lane's eight columns of a row.
struct ScaledPiece {
  Pack<Bf16, 8> a = {}, b = {};

  template <int kParts>
  __device__ void take(const PartedNorm& norm, int r, int k, int c) {
    if (c >= k) return;
    a = load<8>(norm.a[r] + c);
    if (norm.adds()) b = added<kParts>(norm, r, k, c);
  }
  // Puts a + b times the gain into x, and a + b into norm.sum where this block `writes`; the
  // stretch's sum of squares.
  template <class W, typename Gain>
  __device__ float put(const PartedNorm& norm, int r, int k, int c, const XRows& x, bool writes,
                       Gain&& gain_of) {
    float sum = 0.0f;
    if (c < k) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (norm.adds()) a.at[j] = from_f32<Bf16>(to_f32(a.at[j]) + to_f32(b.at[j]));
        sum = fmaf(to_f32(a.at[j]), to_f32(a.at[j]), sum);
      }
      if (norm.sum && writes) store(norm.sum[r] + c, a);
#pragma unroll
      for (int j = 0; j < 8; ++j) a.at[j] = from_f32<Bf16>(to_f32(a.at[j]) * gain_of(j));
    }
    if (c < x_columns(k)) W::put(x, r, c, a);
    return warp_sum(sum);
  }
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
  const bool writes = blockIdx.x == 0;
  if (one) {
    const int s = threadIdx.x / 32, c = threadIdx.x * 8;
    ScaledPiece piece;
    piece.take<kParts>(norm, 0, k, c);
    if (s * kStretchColumns < padded) {
      const float sum = piece.put<W>(norm, 0, k, c, x, writes, [&](int j) { return gain[j]; });
      if (lane == 0) squares.at[0][s] = sum;
    }
  } else {
    each_row<W::kWarps>(m, shift, [&](int r, int s0, int step) {
      for (int base = s0; base * kStretchColumns < padded; base += kAtOnce * step) {
        ScaledPiece pieces[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          pieces[i].take<kParts>(norm, r, k, (base + i * step) * kStretchColumns + lane * 8);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int s = base + i * step, c = s * kStretchColumns + lane * 8;
          if (s * kStretchColumns >= padded) break;
          const float sum =
              pieces[i].put<W>(norm, r, k, c, x, writes, [&](int j) { return gains[c + j]; });
          if (lane == 0) squares.at[r][s] = sum;
        }
      }
    });
  }
  barrier_of_first<32 * W::kWarps>();
}

// The same by the blocks of a cluster together, from kSharedRows rows on: a block makes every so
// manyth stretch and gives it to all, so that each reads its share of a, b and the parts and not
// all of them. Completes `given`, of which shared_scaled_bytes() are expected.
constexpr int kSharedRows = 3;
__host__ __device__ constexpr int shared_scaled_bytes(int m, int k) {
  const int padded = x_columns(k), stretches = (padded + kStretchColumns - 1) / kStretchColumns;
  return m * (padded * 2 + padded / 64 * 4 + stretches * 4);
}
template <class W, int kParts>
__device__ inline void share_scaled(const PartedNorm& norm, int m, int k, int cluster, int rank,
                                    const XRows& x, const float* gains, RowSquares& squares,
                                    CopyBarrier* given) {
  constexpr int kUnits = kStretchColumns / 64;
  const int padded = x_columns(k), lane = threadIdx.x % 32;
  const int stretches = (padded + kStretchColumns - 1) / kStretchColumns;
  for (int i = rank + static_cast<int>(threadIdx.x) / 32 * cluster; i < m * stretches;
       i += W::kWarps * cluster) {
    const int r = i / stretches, s = i - r * stretches, c = s * kStretchColumns + lane * 8;
    ScaledPiece piece;
    piece.take<kParts>(norm, r, k, c);
    const float sum = piece.put<W>(norm, r, k, c, x, static_cast<int>(blockIdx.x) < cluster,
                                   [&](int j) { return gains[c + j]; });
    __syncwarp();
    auto* row = reinterpret_cast<float*>(x.x + r * x.ld + c);
    float* counts = x.counts + r * x.counts_ld + s * kUnits;
    const Pack<float, 4> bytes = load<4>(row);
    const int unit = lane % kUnits;
    const bool counts_unit = s * kUnits + unit < padded / 64;
    const float count = counts_unit ? counts[unit] : 0.0f;
#pragma unroll 4
    for (int b = 0; b < cluster; ++b)
      if (c < padded) cluster_give(row, Neighbour(b), bytes, given);
    for (int b = lane / kUnits; b < cluster; b += 32 / kUnits)
      if (counts_unit) cluster_give(counts + unit, Neighbour(b), count, given);
    if (lane < cluster) cluster_give(&squares.at[r][s], Neighbour(lane), sum, given);
  }
  __syncwarp();
  barrier_wait(given, 0);
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
