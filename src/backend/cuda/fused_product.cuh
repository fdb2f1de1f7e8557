// SPDX-License-Identifier: Apache-2.0
// The kernel of fused.h: a product by warp groups whose tiles come by the bulk copy engine. A block
// is a producer, two groups that multiply 64 rows each of a tile of 128, and a group that stores a
// finished tile while the next one is multiplied; blocks stay and take tile after tile, those of
// the same weights next to each other. The weights of a block's first stages are asked for before
// the kernel waits for the one before it.
//
// LoRA: while a tile walks down the depth, its groups also multiply their rows with A, which the
// rounders make bf16 where it lies, into h. (Small products of single warps
// between the groups' large ones wait some 130 cycles each.) Then each adapter that the tile meets
// is one more stage (two beyond rank 32): B's rows of the tile's columns, zeros where they are not
// its. The tile with an adapter's first column stores its h.
#pragma once

#include "backend/cuda/fused_parts.cuh"

namespace wick::cuda {

template <int Cols, bool Gated, int RankTiles>
__global__ void __launch_bounds__((FusedShape<Cols, Gated, RankTiles>::kThreads), 1)
    fused_kernel(const __grid_constant__ FusedMaps maps, const __grid_constant__ FusedArgs a) {
  using S = FusedShape<Cols, Gated, RankTiles>;
  constexpr int kMeeters = S::kMeeters;
  constexpr int kFewRegisters = RankTiles > 0 ? 64 : 112;
  extern __shared__ unsigned char memory[];
  let_next_start();
  const uint32_t base = (shared_address(memory) + 1023) / 1024 * 1024;
  const int ring = a.stages * a.stage_bytes;
  unsigned char* ring_at = memory + (base - shared_address(memory));
  unsigned char* tile_at = ring_at + ring;
  const uint32_t barriers = base + ring + S::kTileBytes;
  auto* h_at = reinterpret_cast<Four*>(tile_at + S::kTileBytes + 24 * 8);  // for sharers
  auto full = [&](int stage) { return barriers + 8 * stage; };
  auto empty = [&](int stage) { return barriers + 8 * (a.stages + stage); };
  auto ready = [&](int stage) { return barriers + 8 * (2 * a.stages + stage); };
  auto left_at = [&](int stage) { return base + stage * a.stage_bytes; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < a.stages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), 8);
      barrier_init(ready(i), a.rounders);
    }
    barriers_ready();
    ask_for_map(maps.left);
    ask_for_map(maps.right);
    if (a.parts > 0) ask_for_map(maps.small);
    for (int i = 0; i < a.parts; ++i) ask_for_map(maps.b[i]);
  }
  __syncthreads();
  const int cluster = a.splits * a.sharers, in_cluster = static_cast<int>(blockIdx.x) % cluster;
  const int split = a.splits > 1 ? in_cluster : 0, sharer = a.sharers > 1 ? in_cluster : 0;
  const int each = (a.lane_rows + kFusedRows - 1) / kFusedRows;  // tiles of a lane
  const int down = a.rows / a.lane_rows * each;
  const int across = ((Gated ? a.half : a.cols) + S::kHalf - 1) / S::kHalf;
  const int tiles = down * ((across + a.sharers - 1) / a.sharers);
  const int blocks = static_cast<int>(gridDim.x) / cluster;
  const int first = static_cast<int>(blockIdx.x) / cluster;
  auto n_of = [&](int tile) { return (tile / down * a.sharers + sharer) * S::kHalf; };
  auto place_of = [&](int tile) {
    const int row = tile % down, whose = row / each, first_row = whose * a.lane_rows;
    return FusedPlace{first_row + (row - whose * each) * kFusedRows, n_of(tile),
                      first_row + a.lane_rows, whose};
  };
  const int all_steps = (a.depth + kFusedDepth - 1) / kFusedDepth;
  const int k_begin = all_steps * split / a.splits, k_end = all_steps * (split + 1) / a.splits;
  const int role = static_cast<int>(threadIdx.x) / 128;
  const int box_bytes = a.a_rows * 128;
  int stage = 0, phase = 0;
  auto next = [&] {
    if (++stage == a.stages) {
      stage = 0;
      phase ^= 1;
    }
  };
  auto store_tiles = [&](int thread) {
    wait_for_previous();
    for (int tile = first; tile < tiles && split == 0; tile += blocks) {
      const bool last = tile + blocks >= tiles;
      meet(kFinished, kMeeters);
      leave<Cols, Gated>(a, tile_at, place_of(tile), last ? kMultipliers + thread : thread,
                         last ? kMeeters : S::kLeavers);
      if (!last) say(kFree, kMeeters);
    }
  };
  // What the rounders do, of which this warp is `which`.
  auto round_all = [&](int which) {
    const int tiles_of_a = a.a_rows / 8;
    int turn = -which;  // this warp's where it is 0
    for (int tile = first; tile < tiles; tile += blocks) {
      const Met m = met<Cols, Gated>(a, n_of(tile));
      int left = k_end - k_begin;
      const int after = split > 0 ? 0 : extra_stages(a, m);
      // Every warp says so at every stage: none may fall a ring behind the copies, of whose
      // barriers only the last two phases can be told apart.
#pragma unroll 1
      for (; left > -after; --left, next()) {
        barrier_wait(full(stage), phase);
#pragma unroll 1
        for (int j = 0; j < tiles_of_a; ++j, turn = turn == a.rounders - 1 ? 0 : turn + 1)
          if (turn == 0 && left > 0 && m.begin < m.end)
            round_a(left_at(stage) + kFusedLeft + S::kRightBytes + 1024 * j, box_bytes);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(ready(stage));
      }
    }
  };
  if (role == 0) {
    keep_registers<kFewRegisters>();
    if (threadIdx.x == 0) {
      // A slot that is free must be asked for at once: whatever can be known before is.
      int rank = 0, bytes = 0;
      FusedPlace place{};
      Met m{};
      auto turn_to = [&](int tile) {
        place = place_of(tile);
        m = met<Cols, Gated>(a, place.n0);
        const bool makes_h = RankTiles > 0 && m.begin < m.end;
        rank = makes_h ? a.part[m.begin].first_rank + sharer * a.a_rows : -1;
        bytes = kFusedLeft + S::kRightBytes + (makes_h ? 2 * box_bytes : 0);
      };
      auto copy_right = [&](int column, uint32_t at) {
        copy_box(at, maps.right, column, place.n0, full(stage));
        if (Gated)
          copy_box(at + S::kRightBytes / 2, maps.right, column, a.half + place.n0, full(stage));
      };
      auto copy_b = [&](int p, int rank, uint32_t at) {
        const int row = place.n0 - a.part[p].first;
        copy_box_of(at, maps.b[p], rank, row, place.whose, full(stage));
        if (Gated)
          copy_box_of(at + S::kRightBytes / 2, maps.b[p], rank, a.half + row, place.whose,
                      full(stage));
      };
      turn_to(first);
      const int early = min(a.stages, k_end - k_begin);
      for (int k = 0; k < early; ++k, ++stage) {
        barrier_expect(full(stage), bytes);
        copy_right((k_begin + k) * kFusedDepth, left_at(stage) + kFusedLeft);
      }
      stage = 0;
      wait_for_previous();
      for (int tile = first; tile < tiles; tile += blocks) {
        turn_to(tile);
#pragma unroll 1
        for (int k = k_begin; k < k_end; ++k, next()) {
          const bool asked = tile == first && k < k_begin + early;
          const uint32_t at = left_at(stage);
          if (!asked) {
            barrier_wait(empty(stage), phase ^ 1);
            barrier_expect(full(stage), bytes);
          }
          copy_box(at, maps.left, k * kFusedDepth, place.m0, full(stage));
          if (!asked) copy_right(k * kFusedDepth, at + kFusedLeft);
          if (RankTiles > 0 && rank >= 0) {
            const uint32_t to = at + kFusedLeft + S::kRightBytes;
            copy_box_of(to, maps.small, k * kFusedDepth, rank, place.whose, full(stage));
            copy_box_of(to + box_bytes, maps.small, k * kFusedDepth + 32, rank, place.whose,
                        full(stage));
          }
        }
        if (split > 0) continue;
        for (int p = m.begin; p < m.end; ++p)
          for (int r = 0; r < a.part[p].ranks; r += kFusedRanks, next()) {
            barrier_wait(empty(stage), phase ^ 1);
            barrier_expect(full(stage), S::kRightBytes + (RankTiles > 0 ? 0 : kFusedLeft));
            copy_b(p, r, left_at(stage) + kFusedLeft);
            if (RankTiles == 0)
              copy_box(left_at(stage), maps.small, a.part[p].first_rank + r, place.m0, full(stage));
          }
      }
    }
    if (RankTiles > 0 && threadIdx.x >= 32) round_all(static_cast<int>(threadIdx.x) / 32 - 1);
    __syncwarp();
    if (cluster > 1) {
      cluster_barrier();
      cluster_barrier();
    }
    if (RankTiles == 0 && threadIdx.x >= 32) store_tiles(static_cast<int>(threadIdx.x) - 32);
  } else if (role == 3) {
    keep_registers<kFewRegisters>();
    if (a.rounders > kRounders) round_all(static_cast<int>(threadIdx.x) / 32 - 12 + kRounders);
    if (cluster > 1) {
      cluster_barrier();
      cluster_barrier();
    }
    store_tiles(static_cast<int>(threadIdx.x) - 384);
  } else {
    get_registers<192>();
    wait_for_previous();
    const int group = role - 1, worker = static_cast<int>(threadIdx.x) - 128;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const int warp_row = worker / 32 * 16;  // within the tile
    for (int tile = first; tile < tiles; tile += blocks) {
      const FusedPlace place = place_of(tile);
      const int m0 = place.m0, n0 = place.n0;
      const Met m = met<Cols, Gated>(a, n0);
      const bool makes_h = RankTiles > 0 && m.begin < m.end;
      float d[S::kTiles][4] = {};
      constexpr int kH = Cols / 8;  // d[kH + j] are tiles of h
      int before = 0;
#pragma unroll 1
      for (int k = k_begin; k < k_end; ++k, next()) {
        barrier_wait(full(stage), phase);
        if (RankTiles > 0) barrier_wait(ready(stage), phase);
        const uint64_t rows_at = panel_at(left_at(stage) + group * 64 * 128);
        const uint64_t cols_at = panel_at(left_at(stage) + kFusedLeft);
        group_begin();
#pragma unroll
        for (int i = 0; i < kFusedDepth / 16; ++i)
          multiply_panels<8 * S::kTiles>(d, rows_at + 2 * i, cols_at + 2 * i, true);
        group_commit();
        if (k > k_begin) {
          group_wait<1>();
          if (lane == 0) barrier_arrive(empty(before));
        }
        before = stage;
      }
      group_wait<0>();
      group_done(d);
      if (lane == 0) barrier_arrive(empty(before));
      if (S::kSplits && a.splits > 1) {
        auto* sums = reinterpret_cast<Four*>(ring_at) + worker;
        auto each = [&](auto f) {
#pragma unroll
          for (int j = 0; j < S::kTiles; ++j) f(sums + kMultipliers * j, d[j]);
        };
        if (split > 0) {
          meet(kMultiplied, kMultipliers);
          each([](Four* to, const float(&x)[4]) { *to = {x[0], x[1], x[2], x[3]}; });
        }
        cluster_barrier();
        if (split == 0)
#pragma unroll 1
          for (int s = 1; s < a.splits; ++s)
            each([&](const Four* from, float(&x)[4]) {
              const Four more = cluster_load(from, s);
#pragma unroll
              for (int i = 0; i < 4; ++i) x[i] += more.at[i];
            });
        cluster_barrier();
        if (split > 0) return;
      }
      const int r0 = makes_h ? a.part[m.begin].first_rank : 0;
      if (makes_h) {
#pragma unroll
        for (int j = 0; j < RankTiles; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) d[kH + j][i] = to_f32(from_f32<Bf16>(d[kH + j][i]));
        for (int p = m.begin; p < m.end; ++p) {
          const FusedPart& part = a.part[p];
          const bool begins =
              Gated ? n0 == 0 : n0 - sharer * Cols <= part.first && part.first < n0 + Cols;
          if (!begins) continue;
#pragma unroll
          for (int j = 0; j < RankTiles; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int row = m0 + warp_row + g + i / 2 * 8;
              const int rank = r0 + sharer * a.a_rows + 8 * j + t + i % 2 * 4;
              if (8 * j < a.a_rows && row < place.end && rank >= part.first_rank &&
                  rank < part.first_rank + part.ranks)
                a.h[row][rank] = from_f32<Bf16>(d[kH + j][i]);
            }
        }
      }
      if (S::kShares && a.sharers > 1) {
#pragma unroll
        for (int j = 0; j < RankTiles; ++j)
          if (8 * j < a.a_rows)
            h_at[kMultipliers * j + worker] = {d[kH + j][0], d[kH + j][1], d[kH + j][2],
                                               d[kH + j][3]};
        cluster_barrier();
      }
      auto shared_h = [&](int j) {
        const int each = a.a_rows / 8;
        return cluster_load(h_at + kMultipliers * (j % each) + worker, j / each);
      };
      Four ahead{};  // of h's tiles, the next: it comes from far
      if (S::kShares && a.sharers > 1) ahead = shared_h(0);
      for (int p = m.begin; p < m.end; ++p)
        for (int r = 0; r < a.part[p].ranks; r += kFusedRanks, next()) {
          barrier_wait(full(stage), phase);
          if (RankTiles > 0) barrier_wait(ready(stage), phase);
          const float scale = a.part[p].scale;
          const int count = (min(kFusedRanks, a.part[p].ranks - r) + 7) / 8;
#pragma unroll 1
          for (int k = 0; k < count; ++k) {
            const int j = (a.part[p].first_rank - r0 + r) / 8 + k;  // of h's tiles
            float x[4] = {};
            if (a.a_rows == 0) {
              const uint32_t at = left_at(stage) + (warp_row + g) * 128 + (k ^ g) * 16 + 2 * t;
#pragma unroll
              for (int i = 0; i < 4; ++i)
                x[i] = to_f32(shared_at<Bf16>(at + i / 2 * 1024 + i % 2 * 8));
            } else if (S::kShares && a.sharers > 1) {
#pragma unroll
              for (int i = 0; i < 4; ++i) x[i] = ahead.at[i];
              if (8 * (j + 1) < a.part[p].ranks) ahead = shared_h(j + 1);
            } else {
#pragma unroll
              for (int c = 0; c < RankTiles; ++c)
#pragma unroll
                for (int i = 0; i < 4; ++i) x[i] = c == j ? d[kH + c][i] : x[i];
            }
            const uint32_t fa[4] = {to_tf32(scale * x[0]), to_tf32(scale * x[2]),
                                    to_tf32(scale * x[1]), to_tf32(scale * x[3])};
            const uint32_t b_at = left_at(stage) + kFusedLeft;
            if constexpr (Gated) {
              if (a.part[p].first < a.half) spread<0, kH / 2>(d, fa, b_at, k);
              if (a.part[p].first + a.part[p].cols > a.half) spread<kH / 2, kH>(d, fa, b_at, k);
            } else {
              spread<0, kH>(d, fa, b_at, k);
            }
          }
          __syncwarp();
          if (lane == 0) barrier_arrive(empty(stage));
        }
      if (S::kShares && a.sharers > 1) cluster_barrier();
      if (!Gated && a.bias != nullptr) {
#pragma unroll
        for (int j = 0; j < Cols / 8; ++j) {
          const int col = n0 + 8 * j + 2 * t;
          if (col >= a.cols) continue;
          const float2 b =
              __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(a.bias + col));
          d[j][0] += b.x, d[j][2] += b.x;
          d[j][1] += b.y, d[j][3] += b.y;
        }
      }
      if (tile != first) meet(kFree, kMeeters);
      put<Cols>(d, tile_at, warp_row + g);
      if (tile + blocks < tiles) {
        say(kFinished, kMeeters);
      } else {  // there is nothing else to do
        meet(kFinished, kMeeters);
        leave<Cols, Gated>(a, tile_at, place, worker, kMeeters);
      }
    }
  }
}

}  // namespace wick::cuda
