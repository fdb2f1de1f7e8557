// SPDX-License-Identifier: Apache-2.0
// The kernel of reverse_product (fused.h): fused_product.cuh's, with the weights read the other way
// and one tile for each block. A tile of dx walks down dy's columns; its groups multiply their rows
// of dy with W and, as 16 more columns of the same products, with the adapter's B of that stretch,
// which the rounders make bf16. Where an adapter's stretch ends, its part of dh is put aside; at
// the end A is one more stage, by tf32. Tiles of dx's first columns store dh.
#pragma once

#include "backend/cuda/fused_parts.cuh"

namespace wick::cuda {

constexpr int kReverseCols = 64, kReverseRanks = 16;  // of a tile, of an adapter

struct ReverseShape {
  using Base = FusedShape<kReverseCols, false, kReverseRanks / 8>;
  static constexpr int kPanel = kFusedDepth * 128;  // bytes of 64 columns: W's, then dh's
  static constexpr int kSmall = kFusedDepth * kReverseRanks * 4;  // the most of B as it comes
  static constexpr int kSmallAt = kFusedLeft + 2 * kPanel, kStageBytes = kSmallAt + kSmall;
  static constexpr int kPutAside = kMultipliers * 16;  // bytes of 8 ranks of dh, as fragments
};

// The stretch of the depth around a stage: of one adapter or, where `part` is -1, of none.
struct Stretch {
  int part, end;
};
__device__ __forceinline__ Stretch stretch_at(const FusedArgs& a, int k) {
  int p = 0;
  while (p < a.parts && a.part[p].first + a.part[p].cols <= k * kFusedDepth) ++p;
  if (p == a.parts) return {-1, 1 << 30};
  if (a.part[p].first > k * kFusedDepth) return {-1, a.part[p].first / kFusedDepth};
  return {p, (a.part[p].first + a.part[p].cols) / kFusedDepth};
}

// Rounds 32 rows of B, from `row` on, into the first columns of a panel; zeros
// where there are no `ranks`. B came as rows of 128 bytes, whichever its own are: the copy engine
// takes as long for a short row as for a long one. By a warp. Column 2t of 8 is rank t and column
// 2t + 1 rank t + 4, so that what a lane gets of dh is what the product with A wants of it.
__device__ __forceinline__ void round_b(uint32_t from, uint32_t panel, int row, int ranks) {
  row += static_cast<int>(threadIdx.x) % 32;
  EightOf eights[2] = {};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    auto four = [&](int i) {
      const int at = row * ranks / 4 + 2 * j + i;
      return 8 * j + 4 * i < ranks
                 ? shared_at<Four>(from + at / 8 * 128 + ((at % 8) ^ (at / 8 % 8)) * 16)
                 : Four{};
    };
    const Four low = four(0), high = four(1);
#pragma unroll
    for (int i = 0; i < 4; ++i) eights[j].at[i] = pack_bf16(low.at[i], high.at[i]);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j)
    *static_cast<EightOf*>(__cvta_shared_to_generic(panel + row * 128 + (j ^ (row % 8)) * 16)) =
        eights[j];
  group_publish();
  __syncwarp();
}

// d += fa A for 8 ranks; A's stage are boxes of 32 columns of `box_rows` ranks.
template <int Tiles>
__device__ __forceinline__ void spread_a(float (&d)[Tiles][4], const uint32_t (&fa)[4],
                                         uint32_t a_at, int rank, int box_rows) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const uint32_t low = a_at + (rank + t) * 128 + g % 4 * 4, high = low + 4 * 128;
#pragma unroll
  for (int j = 0; j < kReverseCols / 8; ++j) {
    const uint32_t box = j / 4 * box_rows * 128;
    const int chunk = j % 4 * 2 + g / 4;
    const uint32_t fb[2] = {to_tf32(shared_at<float>(low + box + (chunk ^ t) * 16)),
                            to_tf32(shared_at<float>(high + box + (chunk ^ (t + 4)) * 16))};
    mma_tf32(d[j], fa, fb);
  }
}

__global__ void __launch_bounds__(ReverseShape::Base::kThreads, 1)
    reverse_kernel(const __grid_constant__ FusedMaps maps, const __grid_constant__ FusedArgs a) {
  using R = ReverseShape;
  using S = R::Base;
  constexpr int kMeeters = S::kMeeters, kFewRegisters = 64;
  extern __shared__ unsigned char memory[];
  let_next_start();
  const uint32_t base = (shared_address(memory) + 1023) / 1024 * 1024;
  const int ring = a.stages * R::kStageBytes;
  unsigned char* tile_at = memory + (base - shared_address(memory)) + ring;
  // What is put aside of dh lies where the finished tile will.
  auto* aside = reinterpret_cast<Four*>(tile_at);
  const uint32_t barriers = base + ring + max(S::kTileBytes, a.parts * 2 * R::kPutAside);
  auto full = [&](int stage) { return barriers + 8 * stage; };
  auto empty = [&](int stage) { return barriers + 8 * (a.stages + stage); };
  auto ready = [&](int stage) { return barriers + 8 * (2 * a.stages + stage); };
  auto left_at = [&](int stage) { return base + stage * R::kStageBytes; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < a.stages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), 8);
      barrier_init(ready(i), kMostRounders);
    }
    barriers_ready();
    ask_for_map(maps.left);
    ask_for_map(maps.right);
    ask_for_map(maps.small);
    for (int i = 0; i < a.parts; ++i) ask_for_map(maps.b[i]);
  }
  __syncthreads();
  const int down = (a.rows + kFusedRows - 1) / kFusedRows, tile = static_cast<int>(blockIdx.x);
  const int m0 = tile % down * kFusedRows, n0 = tile / down * kReverseCols;
  const int steps = (a.depth + kFusedDepth - 1) / kFusedDepth;
  const int role = static_cast<int>(threadIdx.x) / 128;
  int stage = 0, phase = 0;
  auto next = [&] {
    if (++stage == a.stages) {
      stage = 0;
      phase ^= 1;
    }
  };
  // What the rounders do, of which this warp is `which`. Every one of them passes every stage, as
  // in fused_product.cuh, A's too, which stays as it is.
  auto round_all = [&](int which) {
    int turn = -which;  // this warp's where it is 0
    for (int k = 0; k <= steps;) {
      const Stretch at = k < steps ? stretch_at(a, k) : Stretch{-1, steps + 1};
      const int end = k < steps ? min(at.end, steps) : at.end;
      const int ranks = at.part >= 0 ? a.part[at.part].ranks : 0;
#pragma unroll 1
      for (; k < end; ++k, next()) {
        barrier_wait(full(stage), phase);
#pragma unroll 1
        for (int half = 0; half < 2; ++half, turn = turn == kMostRounders - 1 ? 0 : turn + 1)
          if (turn == 0 && k < steps)
            round_b(left_at(stage) + R::kSmallAt, left_at(stage) + kFusedLeft + R::kPanel,
                    32 * half, ranks);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(ready(stage));
      }
    }
  };
  if (role == 0) {
    keep_registers<kFewRegisters>();
    if (threadIdx.x == 0) {
      auto copy_weights = [&](int k) {
        copy_box(left_at(stage) + kFusedLeft, maps.right, n0, k * kFusedDepth, full(stage));
      };
      constexpr int kBytes = kFusedLeft + R::kPanel;
      auto small_bytes = [&](const Stretch& at) {
        return at.part >= 0 ? kFusedDepth * 4 * a.part[at.part].ranks : 0;
      };
      const int early = min(a.stages, steps);
      for (int k = 0; k < early; ++k, ++stage) {
        barrier_expect(full(stage), kBytes + small_bytes(stretch_at(a, k)));
        copy_weights(k);
      }
      stage = 0;
      wait_for_previous();
      for (int k = 0; k < steps;) {
        const Stretch at = stretch_at(a, k);
        const int end = min(at.end, steps), bytes = kBytes + small_bytes(at);
        const FusedPart& part = a.part[max(at.part, 0)];
        const CUtensorMap& b = maps.b[max(at.part, 0)];
        const int b_rows = kFusedDepth * part.ranks / 32;  // of a stage
        int b_row = (k - part.first / kFusedDepth) * b_rows;
#pragma unroll 1
        for (; k < end; ++k, b_row += b_rows, next()) {
          if (k >= early) {
            barrier_wait(empty(stage), phase ^ 1);
            barrier_expect(full(stage), bytes);
          }
          copy_box(left_at(stage), maps.left, k * kFusedDepth, m0, full(stage));
          if (k >= early) copy_weights(k);
          if (at.part >= 0) copy_box(left_at(stage) + R::kSmallAt, b, 0, b_row, full(stage));
        }
      }
      barrier_wait(empty(stage), phase ^ 1);
      barrier_expect(full(stage), kReverseCols / 32 * a.a_rows * 128);
#pragma unroll 1
      for (int i = 0; i < kReverseCols / 32; ++i)
        copy_box(left_at(stage) + i * a.a_rows * 128, maps.small, n0 + 32 * i, 0, full(stage));
    }
    if (threadIdx.x >= 32) round_all(static_cast<int>(threadIdx.x) / 32 - 1);
  } else if (role == 3) {
    keep_registers<kFewRegisters>();
    round_all(static_cast<int>(threadIdx.x) / 32 - 12 + kRounders);
    wait_for_previous();
    meet(kFinished, kMeeters);
    leave<kReverseCols, false>(a, tile_at, m0, n0, static_cast<int>(threadIdx.x) - 128, kMeeters);
  } else {
    get_registers<192>();
    wait_for_previous();
    const int group = role - 1, worker = static_cast<int>(threadIdx.x) - 128;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const int warp_row = worker / 32 * 16;  // within the tile
    float d[S::kTiles][4] = {};
    constexpr int kH = kReverseCols / 8;  // d[kH + j] are tiles of dh
#pragma unroll 1
    for (int k = 0; k < steps;) {
      const Stretch at = stretch_at(a, k);
      const int begin = k, end = min(at.end, steps);
      int before = 0;
#pragma unroll 1
      for (; k < end; ++k, next()) {
        barrier_wait(full(stage), phase);
        barrier_wait(ready(stage), phase);
        const uint64_t rows_at = panel_at(left_at(stage) + group * 64 * 128);
        const uint64_t cols_at = turned_panels_at(left_at(stage) + kFusedLeft);
        group_begin();
#pragma unroll
        for (int i = 0; i < kFusedDepth / 16; ++i)
          group_multiply_80<true>(d, rows_at + 2 * i, cols_at + 128 * i, true);
        group_commit();
        if (k > begin) {
          group_wait<1>();
          if (lane == 0) barrier_arrive(empty(before));
        }
        before = stage;
      }
      group_wait<0>();
      group_done(d);
      if (lane == 0) barrier_arrive(empty(before));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (at.part >= 0)
          aside[(2 * at.part + j) * kMultipliers + worker] = {d[kH + j][0], d[kH + j][1],
                                                              d[kH + j][2], d[kH + j][3]};
#pragma unroll
        for (int i = 0; i < 4; ++i) d[kH + j][i] = 0.0f;
      }
    }
    barrier_wait(full(stage), phase);
    barrier_wait(ready(stage), phase);
    for (int p = 0; p < a.parts; ++p) {
      const FusedPart& part = a.part[p];
#pragma unroll 1
      for (int j = 0; 8 * j < part.ranks; ++j) {
        const Four sum = aside[(2 * p + j) * kMultipliers + worker];
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Bf16 made = from_f32<Bf16>(part.scale * sum.at[i]);
          const int row = m0 + warp_row + g + i / 2 * 8, rank = 8 * j + t + i % 2 * 4;
          if (n0 == 0 && row < a.rows && rank < part.ranks) a.h[row][part.first_rank + rank] = made;
          x[i] = to_f32(made);
        }
        const uint32_t fa[4] = {__float_as_uint(x[0]), __float_as_uint(x[2]), __float_as_uint(x[1]),
                                __float_as_uint(x[3])};
        spread_a(d, fa, left_at(stage), part.first_rank + 8 * j, a.a_rows);
      }
    }
    meet(kMultiplied, kMultipliers);  // until then dh is read where the tile goes
    put<kReverseCols>(d, tile_at, warp_row + g);
    meet(kFinished, kMeeters);
    leave<kReverseCols, false>(a, tile_at, m0, n0, worker, kMeeters);
  }
}

}  // namespace wick::cuda
