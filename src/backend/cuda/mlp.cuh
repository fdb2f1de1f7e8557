// SPDX-License-Identifier: Apache-2.0
// The kernel of mlp.h.
#pragma once

#include <algorithm>

#include "backend/cuda/attend.h"
#include "backend/cuda/matvec_codes.h"
#include "backend/cuda/mlp.h"
#include "backend/cuda/parted_norm.cuh"

namespace wick::cuda {

constexpr int kMlpColumns = 64, kMlpCluster = 16, kMlpWarps = 16, kMlpThreads = 32 * kMlpWarps;
constexpr int kMlpTiles = kMlpColumns / 8;         // of pairs of gate and up
constexpr int kMlpPieces = kMlpWarps / kMlpTiles;  // of a tile's columns
constexpr int kMlpPairBytes = 2 * 16 * 4;          // sums of two tiles of the result

// More warps than matvec's.
template <int Bits, bool kWide>
struct MlpWeights : CodedWeights<Bits, kWide> {
  static constexpr int kWarps = kMlpWarps;
};

template <class W>
struct MlpArgs {
  PartedNorm norm;
  W gate_up, down;
  AnyFloats gate_up_bias, down_bias;
  float* parts;
  bool silu;
  bool meets;  // the cluster, before sums take the place of gate's and up's rows
  int m, k, m_shift;
  int columns, rows;  // of the hidden layer, of the result
  int units, piece_units;
  int gate_ld, down_ld;  // bytes from a row in shared memory to the next
  int pairs;             // of tiles of 16 rows of the result that a block of a cluster adds
  // Where things lie in shared memory.
  int down_at, x_at, gains_at, counts_at, joint_at, hidden_at, sums_at;
};

// kTiles: 4 rows of x each. kOne: there is one row, of at most 8 columns to a thread; else the
// cluster's blocks make x together.
template <class W, int kTiles, bool kOne>
__global__ void __launch_bounds__(kMlpThreads, 2) mlp_fwd(const __grid_constant__ MlpArgs<W> p) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ CopyBarrier ready[2];  // of gate and up, of down
  __shared__ CopyBarrier given[2];  // by the blocks of the cluster: sums, x
  __shared__ RowSquares squares;
  const int m = kOne ? 1 : p.m, m_shift = kOne ? 0 : p.m_shift;
  let_next_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rank = blockIdx.x % kMlpCluster, unit = blockIdx.x, column = unit * kMlpColumns;
  const bool works = column < p.columns;
  const XRows x{reinterpret_cast<Bf16*>(shared + p.x_at),
                reinterpret_cast<float*>(shared + p.counts_at), x_ld(p.k), x_counts_ld(p.k)};
  float* gains = reinterpret_cast<float*>(shared + p.gains_at);
  float* joint = reinterpret_cast<float*>(shared + p.joint_at);
  Bf16* hidden = reinterpret_cast<Bf16*>(shared + p.hidden_at);
  float* sums_of_all = reinterpret_cast<float*>(shared + p.sums_at);
  uint8_t* down = shared + p.down_at;
  // The scales of a row of down that this block needs lie in four bytes.
  const int scale = p.down.scales_before(unit) & ~3;

  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) barrier_init(ready + i, 1);
    for (int i = 0; i < 2; ++i) barrier_init(given + i, 1);
    barriers_ready();
    barrier_expect(ready, 2 * kMlpColumns * p.gate_up.bytes);
    barrier_expect(ready + 1, p.rows * W::kUnitBytes);
    // Of the tiles that this block adds, from every block.
    barrier_expect(given, p.pairs * kMlpCluster * m * kMlpPairBytes);
    if constexpr (!kOne) barrier_expect(given + 1, shared_scaled_bytes(m, p.k));
  }
  __syncthreads();
  cluster_arrive();
  if (works) {
    // By all threads: one warp asks for one in 50 cycles.
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * kMlpColumns; i += kMlpThreads) {
      const int row = i < kMlpColumns ? column + i : p.columns + column + i - kMlpColumns;
      copy_bulk(shared + i * p.gate_ld, p.gate_up.row(row), p.gate_up.bytes, ready);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < p.rows; i += kMlpThreads) {
      const uint8_t* row = p.down.row(i);
      copy_bulk(down + i * p.down_ld, row + unit * W::kUnitBytes, W::kUnitBytes, ready + 1);
      copy_small<4>(down + i * p.down_ld + W::kUnitBytes, row + p.down.w.scales_at + scale);
    }
  }
  const int mm = threadIdx.x & ((1 << m_shift) - 1), item = threadIdx.x >> m_shift;
  const bool real = works && mm < m && item < kMlpColumns;
  float gate_bias = 0.0f, up_bias = 0.0f;
  if (real) {
    gate_bias = p.gate_up_bias[column + item];
    up_bias = p.gate_up_bias[p.columns + column + item];
  }
  float gain[8] = {};
  take_gain<kMlpThreads>(p.norm.gain, p.k, kOne, gain, gains);
  cluster_wait();  // all have started, and may be given something
  copies_wait();
  __syncthreads();
  wait_for_previous();

  if constexpr (kOne)
    make_scaled_of_one<W, 2>(p.norm, p.k, x, gain, squares);
  else
    share_scaled<W, 2>(p.norm, m, p.k, kMlpCluster, rank, x, gains, squares, given + 1);
  const int tile_floats = 16 << m_shift;
  if (works) {
    const typename W::template X<kTiles> lane_x(x, m, lane);
    const int tile = warp / kMlpPieces, piece = warp % kMlpPieces, begin = piece * p.piece_units;
    const uint8_t* low = shared + (8 * tile + g) * p.gate_ld;
    typename W::template Sums<kTiles> sums;
    barrier_wait(ready, 0);
    p.gate_up.template multiply_short<16, kTiles>(low, low + kMlpColumns * p.gate_ld, lane_x, begin,
                                                  min(p.units, begin + p.piece_units), t, sums);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (4 * n + t < m)
          joint[warp * tile_floats + ((half * 8 + g) << m_shift) + 4 * n + t] = sums.at[n][half];
  }
  const float factor = row_factor(p.norm, min(mm, m - 1), p.k, squares);
  __syncthreads();
  if (p.meets) cluster_arrive();
  if (real) {
    const float* at = joint + item / 8 * kMlpPieces * tile_floats + (item % 8 << m_shift) + mm;
    float gate = 0.0f, up = 0.0f;
#pragma unroll
    for (int i = 0; i < kMlpPieces; ++i) {
      gate += at[i * tile_floats];
      up += at[i * tile_floats + (8 << m_shift)];
    }
    // Rounded as if they had been written in between.
    const float a = to_f32(from_f32<Bf16>(gate * factor + gate_bias));
    const float u = to_f32(from_f32<Bf16>(up * factor + up_bias));
    const float inner = p.silu ? a : 1.5957691216f * a * fmaf(a * a, 0.044715f, 1.0f);
    hidden[mm * kMlpColumns + item] =
        from_f32<Bf16>(a * __fdividef(1.0f, 1.0f + __expf(-inner)) * u);
  }
  __syncthreads();
  // x of down: one unit.
  XRows h = x;
  h.ld = x_ld(kMlpColumns);
  h.counts_ld = 1;
  if (threadIdx.x < 8 * m) {
    const int r = threadIdx.x / 8, c = threadIdx.x % 8 * 8;
    W::put(h, r, c, load<8>(hidden + r * kMlpColumns + c));
  }
  __syncthreads();
  if (p.meets) cluster_wait();
  {
    // As if the unit had its place among all columns.
    h.x -= unit * kMlpColumns;
    h.counts -= unit;
    const typename W::template X<kTiles> lane_x(h, m, lane);
    const int before = unit * W::kUnitBytes;
    W w = p.down;
    w.w.scales_at = before + W::kUnitBytes - scale;
    if (works) barrier_wait(ready + 1, 0);
    // A warp's tiles are those that one block adds. A lane gives it what it has of two of them at
    // once, as [pair of tiles][block][row of x][g][tile][half].
    static_assert(kMlpWarps == kMlpCluster);
    constexpr int kAtOnce = 4 / kTiles;
    const Neighbour adder(warp);
#pragma unroll 1
    for (int pair = 0; pair < p.pairs; pair += kAtOnce / 2) {
      typename W::template Sums<kTiles> sums[kAtOnce];
      if (works)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int row = 16 * ((2 * pair + i) * kMlpCluster + warp) + g;
          w.template multiply_unit<16, kTiles>(down + min(row, p.rows - 1) * p.down_ld - before,
                                               down + min(row + 8, p.rows - 1) * p.down_ld - before,
                                               lane_x, unit, true, t, sums[i]);
        }
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < kAtOnce; i += 2)
          if (4 * n + t < m && pair + i / 2 < p.pairs)
            cluster_give(
                sums_of_all + (((pair + i / 2) * kMlpCluster + rank) * m + 4 * n + t) * 32 + 4 * g,
                adder,
                Pack<float, 4>{sums[i].at[n][0], sums[i].at[n][1], sums[i + 1].at[n][0],
                               sums[i + 1].at[n][1]},
                given);
    }
  }
  __syncwarp();
  barrier_wait(given, 0);
#pragma unroll 1
  for (int i = warp; i < p.pairs << m_shift; i += kMlpWarps) {
    const int pair = i >> m_shift, r = i & ((1 << m_shift) - 1);
    const int row = 16 * ((2 * pair + lane / 2 % 2) * kMlpCluster + rank) + lane % 2 * 8 + g;
    if (r >= m || row >= p.rows) continue;
    float sum = blockIdx.x < kMlpCluster ? p.down_bias[row] : 0.0f;
    const float* at = sums_of_all + (pair * kMlpCluster * m + r) * 32 + lane;
#pragma unroll
    for (int b = 0; b < kMlpCluster; ++b) sum += at[b * m * 32];
    p.parts[(static_cast<int>(blockIdx.x) / kMlpCluster * m + r) * p.rows + row] = sum;
  }
}

// ---- launches

constexpr int64_t kMlpMost = int64_t{222} << 10;

template <class W, int kTiles, bool kOne>
bool launch_mlp(const Queue& queue, const Mlp& a, const W& gate_up, const W& down, bool launches) {
  const int64_t m = a.in.a.rows, k = a.in.a.cols, rows = a.down.rows, columns = a.down.cols;
  const auto kernel = mlp_fwd<W, kTiles, kOne>;
  auto narrow = [](int64_t n) { return static_cast<int>(n); };
  const int m_shift = shift_of(m);
  // An odd number of 16 bytes: rows that are read together lie in other banks.
  auto row_ld = [](int64_t bytes) {
    return divide_up(bytes, 16) * 16 + (bytes % 32 == 0 ? 16 : 0);
  };
  const int64_t units = k / W::kUnit;
  MlpArgs<W> p{};
  p.norm = parted_norm(a.in);
  p.gate_up = gate_up;
  p.down = down;
  p.gate_up_bias = any_floats(a.gate_up_bias);
  p.down_bias = any_floats(a.down_bias);
  p.parts = a.parts;
  p.silu = a.act == Act::kSilu;
  p.m = narrow(m);
  p.k = narrow(k);
  p.m_shift = m_shift;
  p.columns = narrow(columns);
  p.rows = narrow(rows);
  p.units = narrow(units);
  p.piece_units = narrow(divide_up(units, kMlpPieces));
  p.gate_ld = narrow(row_ld(gate_up.bytes));
  p.down_ld = narrow(row_ld(W::kUnitBytes + 4));
  p.pairs = narrow(divide_up(rows, 2 * 16 * kMlpCluster));
  auto place = [&](int64_t m, bool meets) {
    p.meets = meets;
    int64_t at = 0;
    auto take = [&](int64_t bytes) {
      const int64_t from = at;
      at += divide_up(bytes, 128) * 128;
      return narrow(from);
    };
    const int64_t tile = int64_t{16 * 4} << shift_of(m);
    take(2 * kMlpColumns * p.gate_ld);
    p.down_at = take(rows * p.down_ld);
    p.x_at = take(m * x_ld(p.k) * 2);
    p.gains_at = take(x_columns(p.k) * 4);
    p.counts_at = take(m * x_counts_ld(p.k) * 4);
    p.joint_at = take(kMlpWarps * tile);
    p.hidden_at = take(m * kMlpColumns * 2);
    p.sums_at = meets ? 0 : take(p.pairs * kMlpCluster * m * kMlpPairBytes);
    return at;
  };
  // How a row is made must not depend on how many there are.
  static_assert(kMlpColumns * kMlpRows <= kMlpThreads);
  const bool meets = place(kMlpRows, false) > kMlpMost;
  const int64_t most = place(kMlpRows, meets), at = place(m, meets);
  if (most > kMlpMost ||
      p.pairs * kMlpCluster * kMlpRows * kMlpPairBytes > 2 * kMlpColumns * p.gate_ld ||
      !allow_shared(kernel, static_cast<size_t>(std::max(most, int64_t{49} << 10))))
    return false;
  prefer_shared(kernel);
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
      cudaSuccess)
    return false;
  const int64_t parts = mlp_parts(columns);
  const auto blocks = static_cast<unsigned>(parts * kMlpCluster);
  if (clusters_at_once(kernel, blocks, kMlpThreads, static_cast<size_t>(most), kMlpCluster) < parts)
    return false;
  if (!launches) return true;
  launch_clusters(queue, kernel, blocks, kMlpThreads, static_cast<size_t>(at), kMlpCluster, p);
  return true;
}

// For codes of `Bits` bits (mlp_q8.cu, mlp_q4.cu).
template <int Bits>
bool mlp_codes(const Queue& queue, const Mlp& a, bool launches);

template <int Bits>
bool mlp_codes_here(const Queue& queue, const Mlp& a, bool launches) {
  const auto go = [&](auto wide) {
    using W = MlpWeights<Bits, decltype(wide)::value>;
    auto coded = [](const Operand& w) {
      return W{{codes(w), static_cast<int>(device_row_bytes(w.dtype, w.cols)),
                static_cast<int>(quant_groups(w.dtype, w.cols))}};
    };
    const W gate_up = coded(a.gate_up), down = coded(a.down);
    if (a.in.a.rows == 1 && x_columns(static_cast<int>(a.in.a.cols)) <= kMlpThreads * 8)
      return launch_mlp<W, 1, true>(queue, a, gate_up, down, launches);
    return a.in.a.rows <= 4 ? launch_mlp<W, 1, false>(queue, a, gate_up, down, launches)
                            : launch_mlp<W, 2, false>(queue, a, gate_up, down, launches);
  };
  return quant_group(a.gate_up.dtype) >= 64 ? go(std::true_type{}) : go(std::false_type{});
}

}  // namespace wick::cuda
