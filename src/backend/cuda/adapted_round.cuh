// SPDX-License-Identifier: Apache-2.0
// The kernel of adapted_round.cu: a product with adapters whose tiles are one round of the card, so
// that a block makes one. Its parts: a warp that asks the copy engine for x, one for the weights,
// two or four warps that round A into the panel behind the weights', and two groups that multiply
// 64 rows each, of x with the weights and A at once, and bring B and the bias meanwhile. Weights
// and A, which no kernel of this pass writes, are asked for before the kernel before is done.
#pragma once

#include "backend/cuda/adapted_round_parts.cuh"
#include "backend/cuda/fused.h"
#include "backend/cuda/fused_parts.cuh"

namespace wick::cuda {

constexpr int kRoundRows = 128, kRoundLeft = kRoundRows * 128;  // of a tile; bytes of a stage of x
constexpr int kRoundMultipliers = 256;

struct RoundArgs {
  static constexpr int kMost = 3;
  int rows, cols, depth;
  int left_slots, right_slots;
  Rows<Bf16> y, h;
  const Bf16* bias;
  const float* a;  // of the adapters, rank after rank
  int a_ld;
  AdapterPart part[kMost];  // by column and by rank
  int parts;
};

// Barrier of the groups that multiply, all of which fill B.
enum : int { kFilled = 1 };

// Of a tile: its columns; of 8, how many ranks of h a block makes. Paired: two blocks of a cluster,
// neighbours in a row of tiles, make half of the ranks each.
template <int Cols, int RankTiles, bool Paired>
struct RoundShape {
  static constexpr bool kFew = Cols > 128;  // registers are short
  // Threads that round A, and what they have of a stage.
  static constexpr int kMakers = RankTiles == 1 || kFew ? 64 : 128;
  static constexpr int kItems = 64 * RankTiles / kMakers;
  static constexpr int kThreads = kMakers == 64 ? 384 : 512;
  static constexpr int kAll = Paired ? 2 * RankTiles : RankTiles;
  static constexpr int kRight = Cols * 128 + RankTiles * 1024;  // bytes of a stage
  static constexpr bool kMerged = Cols + 8 * RankTiles <= 144;
  static constexpr int kB = kAll * Cols * 32, kBias = Cols * 2;
  // h of the other block.
  static constexpr int kOther = Paired ? kRoundMultipliers * 8 * RankTiles : 0;
  static constexpr int kBarriers = 64 * 8;
  static constexpr int bytes(int left_slots, int right_slots) {
    return left_slots * kRoundLeft + right_slots * kRight + kOther + kB + kBias + kBarriers;
  }
};

template <int Cols, int RankTiles, bool Paired>
__global__ void __launch_bounds__((RoundShape<Cols, RankTiles, Paired>::kThreads), 1)
    adapted_round_kernel(const __grid_constant__ CUtensorMap left,
                         const __grid_constant__ CUtensorMap right,
                         const __grid_constant__ RoundArgs a) {
  using S = RoundShape<Cols, RankTiles, Paired>;
  extern __shared__ __align__(1024) unsigned char memory[];
  let_next_start();
  const uint32_t base = shared_address(memory);
  const uint32_t right_base = base + a.left_slots * kRoundLeft;
  const int other_at = a.left_slots * kRoundLeft + a.right_slots * S::kRight;  // in `memory`
  const int b_at = other_at + S::kOther, bias_at = b_at + S::kB;
  const uint32_t barriers = base + bias_at + S::kBias;
  auto left_at = [&](int slot) { return base + slot * kRoundLeft; };
  auto right_at = [&](int slot) { return right_base + slot * S::kRight; };
  auto left_full = [&](int slot) { return barriers + 8 * slot; };
  auto left_empty = [&](int slot) { return barriers + 8 * (a.left_slots + slot); };
  auto right_full = [&](int slot) { return barriers + 8 * (2 * a.left_slots + slot); };
  auto right_empty = [&](int slot) {
    return barriers + 8 * (2 * a.left_slots + a.right_slots + slot);
  };
  const uint32_t came = barriers + 8 * 63;  // what the other block sends

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (warp == 0) {
    const int slots = a.left_slots + a.right_slots;
    if (lane < a.left_slots) {
      barrier_init(left_full(lane), 1);
      barrier_init(left_empty(lane), 8);
    } else if (lane < slots) {
      barrier_init(right_full(lane - a.left_slots), 1 + S::kMakers / 32);
      barrier_init(right_empty(lane - a.left_slots), 8);
    } else if (lane == 31) {
      barrier_init(came, 1);
      if (Paired) barrier_expect(came, S::kOther);
      ask_for_map(left);
    }
    barriers_ready();
  }
  __syncthreads();
  if (Paired) cluster_arrive();  // no block sends before the other has come so far

  const int block = static_cast<int>(blockIdx.x);
  const int self = Paired ? block % 2 : 0, pair = Paired ? block / 2 : block;
  constexpr int kWide = Paired ? 2 * Cols : Cols;
  const int down = (a.rows + kRoundRows - 1) / kRoundRows;
  const int m0 = pair % down * kRoundRows;
  const int pair_n0 = pair / down * kWide, n0 = pair_n0 + self * Cols;
  const int steps = (a.depth + kBulkDepth - 1) / kBulkDepth;
  // The adapters of the pair's columns: their ranks follow each other.
  int met_begin = 0;
  while (met_begin < a.parts && a.part[met_begin].first + a.part[met_begin].cols <= pair_n0)
    ++met_begin;
  int met_end = met_begin;
  while (met_end < a.parts && a.part[met_end].first < pair_n0 + kWide) ++met_end;
  const int r0 = met_begin < met_end ? a.part[met_begin].first_rank : 0;
  const int ranks =
      met_begin < met_end ? a.part[met_end - 1].first_rank + a.part[met_end - 1].ranks - r0 : 0;

  if (warp < 4 || warp >= 12) {
    if (S::kFew) keep_registers<72>();
    if (threadIdx.x == 0) {
      wait_for_previous();
      RingPlace at(a.left_slots);
      for (int k = 0; k < steps; ++k, at.next()) {
        if (k >= a.left_slots) barrier_wait(left_empty(at.slot), at.phase ^ 1);
        barrier_expect(left_full(at.slot), kRoundLeft);
        copy_box(left_at(at.slot), left, k * kBulkDepth, m0, left_full(at.slot));
      }
    } else if (threadIdx.x == 32) {
      RingPlace at(a.right_slots);
      for (int k = 0; k < steps; ++k, at.next()) {
        if (k >= a.right_slots) barrier_wait(right_empty(at.slot), at.phase ^ 1);
        barrier_expect(right_full(at.slot), Cols * 128);
        copy_box(right_at(at.slot), right, k * kBulkDepth, n0, right_full(at.slot));
      }
    } else if (S::kMakers == 64 ? warp >= 2 : warp >= 12) {
      // Row 2t of eight is rank t and row 2t + 1 rank t + 4, so that what a lane gets of h is what
      // the product with B wants of it.
      constexpr int kAhead = S::kItems == 1 ? (S::kFew ? 4 : 8) : S::kFew ? 2 : 5;
      const int maker = static_cast<int>(threadIdx.x) - (S::kMakers == 64 ? 64 : 384);
      const int chunk = maker % 8, line = maker / 8;  // and every kMakers / 8 lines
      const int first = (Paired ? self * RankTiles * 8 : 0) + line;
      const int row = line % 8 < 4 ? 2 * (line % 8) : 2 * (line % 8) - 7;
      Four x[kAhead][S::kItems][2];
      auto ask = [&](Four(&to)[S::kItems][2], int k) {
        const int column = k * kBulkDepth + chunk * 8;
#pragma unroll
        for (int i = 0; i < S::kItems; ++i) {
          const int rank = first + i * (S::kMakers / 8);
          to[i][0] = to[i][1] = Four{};
          if (rank < ranks && column < a.depth) {
            const float* from = a.a + static_cast<int64_t>(r0 + rank) * a.a_ld + column;
            to[i][0] = load<4>(from);
            to[i][1] = load<4>(from + 4);
          }
        }
      };
#pragma unroll
      for (int d = 0; d < kAhead; ++d) ask(x[d], d);
      RingPlace at(a.right_slots);
#pragma unroll 1
      for (int k0 = 0; k0 < steps; k0 += kAhead) {
#pragma unroll
        for (int d = 0; d < kAhead; ++d) {
          const int k = k0 + d;
          if (k >= steps) break;
          EightOf made[S::kItems];
#pragma unroll
          for (int i = 0; i < S::kItems; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
              made[i].at[j] =
                  pack_bf16(x[d][i][j / 2].at[j % 2 * 2], x[d][i][j / 2].at[j % 2 * 2 + 1]);
          ask(x[d], k + kAhead);
          if (k >= a.right_slots) barrier_wait(right_empty(at.slot), at.phase ^ 1);
          unsigned char* to = memory + (right_at(at.slot) - base) + Cols * 128 + line / 8 * 1024 +
                              row * 128 + (chunk ^ row) * 16;
#pragma unroll
          for (int i = 0; i < S::kItems; ++i)
            *reinterpret_cast<EightOf*>(to + i * (S::kMakers / 64) * 1024) = made[i];
          group_publish();
          __syncwarp();
          if (lane == 0) barrier_arrive(right_full(at.slot));
          at.next();
        }
      }
    }
    __syncwarp();
    if (Paired) cluster_wait();
    return;
  }

  if (S::kFew) get_registers<216>();
  const int worker = static_cast<int>(threadIdx.x) - 128, group = worker / 128;
  const int g = lane / 4, t = lane % 4;
  wait_for_previous();
  // B and the bias, while x is on its way. B by eights of ranks, a column's eight in 32 bytes whose
  // halves change places every four columns, so that no two lanes meet in a bank; for pairs in
  // panels of 32 ranks, rounded when they are there.
  auto fill = [&](auto f) {
    for (int i = worker; i < S::kAll * Cols * 2; i += kRoundMultipliers) {
      const int half = i % 2, col = i / 2 % Cols, tile = i / 2 / Cols;
      f(r0 + 8 * tile + 4 * half, n0 + col,
        memory + b_at +
            (Paired ? tile / 4 * (Cols * 128) + col * 128 + ((tile % 4 * 2 + half) ^ (col % 8)) * 16
                    : (tile * Cols + col) * 32 + (half ^ (col / 4 % 2)) * 16));
    }
  };
  fill([&](int rank, int n, unsigned char* to) {
    const float* from = nullptr;
    for (int p = met_begin; p < met_end; ++p) {
      const AdapterPart& part = a.part[p];
      if (n >= part.first && n < part.first + part.cols && rank >= part.first_rank &&
          rank < part.first_rank + part.ranks)
        from = part.b + static_cast<int64_t>(n - part.first) * part.b_ld + rank - part.first_rank;
    }
    copy16(to, from != nullptr ? from : a.a, from != nullptr);
  });
  for (int i = worker; a.bias != nullptr && i < Cols / 8; i += kRoundMultipliers) {
    const bool within = n0 + i * 8 < a.cols;
    copy16(memory + bias_at + i * 16, within ? a.bias + n0 + i * 8 : a.bias, within);
  }

  constexpr int kSums = Cols / 8 + (S::kMerged ? RankTiles : 0);
  float d[kSums][4] = {}, apart[RankTiles][4] = {};
  {
    RingPlace l(a.left_slots), r(a.right_slots);
    int l_before = 0, r_before = 0;
#pragma unroll 1
    for (int k = 0; k < steps; ++k, l.next(), r.next()) {
      barrier_wait(right_full(r.slot), r.phase);
      barrier_wait(left_full(l.slot), l.phase);
      const uint64_t rows_at = panel_at(left_at(l.slot) + group * 64 * 128);
      const uint64_t cols_at = panel_at(right_at(r.slot));
      group_begin();
#pragma unroll
      for (int i = 0; i < kBulkDepth / 16; ++i)
        multiply_more<8 * kSums>(d, rows_at + 2 * i, cols_at + 2 * i);
      if constexpr (!S::kMerged) {
#pragma unroll
        for (int i = 0; i < kBulkDepth / 16; ++i)
          multiply_more<8 * RankTiles>(apart, rows_at + 2 * i, cols_at + Cols * 8 + 2 * i);
      }
      group_commit();
      if (k > 0) {
        group_wait<1>();
        if (lane == 0) {
          barrier_arrive(right_empty(r_before));
          barrier_arrive(left_empty(l_before));
        }
      }
      l_before = l.slot;
      r_before = r.slot;
    }
    group_wait<0>();
    group_done(d);
    if constexpr (!S::kMerged) group_done(apart);
  }
  float own[Cols / 8][4];
#pragma unroll
  for (int j = 0; j < Cols / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) own[j][i] = d[j][i];

  const int row = m0 + worker / 32 * 16 + g;
  uint32_t packed[S::kAll][2];  // h: ranks t and t + 4 of row `row`, then of `row` + 8
  {
    uint32_t mine[RankTiles][2];
#pragma unroll
    for (int j = 0; j < RankTiles; ++j)
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        if constexpr (S::kMerged)
          mine[j][low] = pack_bf16(d[Cols / 8 + j][2 * low], d[Cols / 8 + j][2 * low + 1]);
        else
          mine[j][low] = pack_bf16(apart[j][2 * low], apart[j][2 * low + 1]);
      }
    if constexpr (Paired) {
      cluster_wait();
      const uint32_t bell = address_in(came, 1 - self);
      const uint32_t to = address_in(base + other_at, 1 - self);
#pragma unroll
      for (int j = 0; j < RankTiles; j += 2) {
        const uint32_t x[4] = {mine[j][0], mine[j][1], mine[j + 1][0], mine[j + 1][1]};
        send(to + (kRoundMultipliers * (j / 2) + worker) * 16, x, bell);
      }
    }
    // The tile, or pair, with an adapter's first column stores its h.
    const int first_rank = r0 + (Paired ? self * RankTiles * 8 : 0);
    for (int p = met_begin; p < met_end; ++p) {
      const AdapterPart& part = a.part[p];
      if (part.first < pair_n0 || part.first >= pair_n0 + kWide) continue;
#pragma unroll
      for (int j = 0; j < RankTiles; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = row + i / 2 * 8, rank = first_rank + 8 * j + t + i % 2 * 4;
          if (at < a.rows && rank >= part.first_rank && rank < part.first_rank + part.ranks) {
            const uint32_t both = mine[j][i / 2];
            a.h[at][rank] = __ushort_as_bfloat16(
                static_cast<unsigned short>(i % 2 == 0 ? both & 0xffff : both >> 16));
          }
        }
    }
    copies_wait();
    if (Paired) {
      fill([&](int, int, unsigned char* at) {
        auto& x = *reinterpret_cast<Four*>(at);
        *reinterpret_cast<EightOf*>(at) = {to_tf32(x.at[0]), to_tf32(x.at[1]), to_tf32(x.at[2]),
                                           to_tf32(x.at[3])};
      });
      group_publish();
    }
    meet(kFilled, kRoundMultipliers);
    if constexpr (Paired) {
      barrier_wait_cluster(came, 0);
#pragma unroll
      for (int j = 0; j < RankTiles; j += 2) {
        const EightOf got = *reinterpret_cast<const EightOf*>(
            memory + other_at + (kRoundMultipliers * (j / 2) + worker) * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t word = mine[j + i / 2][i % 2];
          packed[j + i / 2][i % 2] = self == 0 ? word : got.at[i];
          packed[RankTiles + j + i / 2][i % 2] = self == 0 ? got.at[i] : word;
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < RankTiles; ++j) packed[j][0] = mine[j][0], packed[j][1] = mine[j][1];
    }
  }
  auto left_of = [&](int r, uint32_t(&fa)[4]) {
    float scale = 0.0f;
    for (int p = met_begin; p < met_end; ++p)
      if (r0 + 8 * r >= a.part[p].first_rank) scale = a.part[p].scale;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t both = packed[r][i % 2];
      fa[i] = to_tf32(scale * __uint_as_float(i / 2 == 1 ? both & 0xffff0000u : both << 16));
    }
  };
  if constexpr (Paired) {
    uint32_t fa[S::kAll][4];
#pragma unroll
    for (int r = 0; r < S::kAll; ++r) left_of(r, fa[r]);
    group_begin();
#pragma unroll
    for (int r = 0; r < S::kAll; ++r)
      multiply_tf32(own, fa[r], panel_at(base + b_at + r / 4 * (Cols * 128)) + 2 * (r % 4));
    group_commit();
    group_wait<0>();
    group_done(own);
  } else {
#pragma unroll
    for (int r = 0; r < S::kAll; ++r) {
      if (8 * r >= ranks) break;
      uint32_t fa[4];
      left_of(r, fa);
      const unsigned char* b = memory + b_at + (r * Cols + g) * 32 + 4 * t;
      const int low = g / 4 * 16, high = 16 - low;
#pragma unroll
      for (int j = 0; j < Cols / 8; ++j) {
        const uint32_t fb[2] = {to_tf32(*reinterpret_cast<const float*>(b + 256 * j + low)),
                                to_tf32(*reinterpret_cast<const float*>(b + 256 * j + high))};
        mma_tf32(own[j], fa, fb);
      }
    }
  }
  if (a.bias != nullptr) {
#pragma unroll
    for (int j = 0; j < Cols / 8; ++j) {
      const float2 b = __bfloat1622float2(
          *reinterpret_cast<const __nv_bfloat162*>(memory + bias_at + 16 * j + 4 * t));
      own[j][0] += b.x, own[j][2] += b.x;
      own[j][1] += b.y, own[j][3] += b.y;
    }
  }
#pragma unroll
  for (int low = 0; low < 2; ++low)
#pragma unroll
    for (int j = 0; j < Cols / 8; j += 4) {
      EightOf made;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        made.at[i] = pack_bf16(own[j + i][2 * low], own[j + i][2 * low + 1]);
      turn_quad(made.at, t);
      const int col = n0 + 8 * (j + t);
      if (row + 8 * low < a.rows && col < a.cols) eight(a.y[row + 8 * low] + col) = made;
    }
}

}  // namespace wick::cuda
