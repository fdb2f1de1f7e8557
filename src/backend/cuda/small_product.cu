// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/apart.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/skinny.h"
#include "backend/cuda/small_product.h"
#include "backend/cuda/small_ring.cuh"

namespace wick::cuda {
namespace {

constexpr int kSide = kSmallSide, kShared = SmallRing<true>::bytes(kSmallMostStages);
// Fewer tiles leave too much of the card idle; a longer way is better shared.
constexpr int64_t kFewTiles = 64, kMostDepth = 1536, kFewDepth = 256;

constexpr int kMostRankTiles = 3;  // of 8

struct Args {
  int rows, cols, depth;
  Rows<Bf16> y;
  Rows<const Bf16> more = {};
  Rows<const float> more_b = {};
  int ranks = 0;
  float scale = 1.0f;
  // With Stats, as of attention_stats().
  Rows<const Bf16> attended = {};
  Rows<const float> lse = {};
  const int32_t* begin = nullptr;
  int window = 0;
  AttentionStats stats = {};
};

__device__ __forceinline__ void add_pair(float& low, float& high, uint32_t pair) {
  const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  low += x.x;
  high += x.y;
}

__device__ __forceinline__ float dot(uint32_t a, uint32_t b) {
  const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&a));
  const float2 y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&b));
  return fmaf(x.x, y.x, x.y * y.y);
}

// Turned: the right operand is [K, N]. Adds: to what y holds. Stats: a tile is a head of y.
// RankTiles: of `more`, of 8 ranks.
template <bool Turned, bool Adds, bool Stats, int RankTiles>
__global__ void __launch_bounds__(kSmallThreads, 1)
    small_product_kernel(const __grid_constant__ CUtensorMap left,
                         const __grid_constant__ CUtensorMap right, const Args a) {
  extern __shared__ unsigned char memory[];
  let_next_start();
  SmallRing<Turned> ring(memory, kSmallMostStages, a.rows, a.depth);
  if (ring.is_producer()) ring.begin(right);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  constexpr int kRanks = RankTiles > 0 ? RankTiles : 1;
  uint32_t more_b[kRanks][8][2] = {}, more[kRanks][4] = {};  // as mma_tf32 wants them
  if (RankTiles > 0 && threadIdx.x < kSmallMultipliers) {
#pragma unroll
    for (int r = 0; r < kRanks; ++r)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int rank = 8 * r + 4 * i + t, c = ring.n0 + 8 * j + g;
          if (rank < a.ranks && c < a.cols) more_b[r][j][i] = to_tf32(a.more_b[rank][c]);
        }
  }
  __syncthreads();
  wait_for_previous();
  if (threadIdx.x >= kSmallMultipliers) {
    if (ring.is_producer()) ring.produce(left, right);
    return;
  }
  const int row = ring.m0 + static_cast<int>(threadIdx.x) / 32 * 16 + g;
  // A lane has, of each half of the tile, eight neighbours of rows `row` and `row` + 8.
  auto col = [&](int half) { return ring.n0 + 32 * half + 8 * t; };
  auto inside = [&](int half, int low) { return row + 8 * low < a.rows && col(half) < a.cols; };
  Eight old[2][2] = {};
  if constexpr (Adds) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int low = 0; low < 2; ++low)
        if (inside(half, low))
          old[half][low] = *reinterpret_cast<const Eight*>(a.y[row + 8 * low] + col(half));
  }
  Eight other[2][2] = {};
  if constexpr (Stats) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int low = 0; low < 2; ++low)
        if (inside(half, low))
          other[half][low] = *reinterpret_cast<const Eight*>(a.attended[row + 8 * low] + col(half));
  }
  if constexpr (RankTiles > 0) {
#pragma unroll
    for (int r = 0; r < kRanks; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int rank = 8 * r + i / 2 * 4 + t, at = row + i % 2 * 8;
        if (rank < a.ranks && at < a.rows) more[r][i] = to_tf32(a.scale * to_f32(a.more[at][rank]));
      }
  }
  float d[8][4] = {};
  ring.multiply(d, [](int, int, uint64_t) {});
  if constexpr (RankTiles > 0) {
#pragma unroll
    for (int r = 0; r < kRanks; ++r)
#pragma unroll
      for (int j = 0; j < 8; ++j) mma_tf32(d[j], more[r], more_b[r][j]);
  }
  float dots[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      if constexpr (Adds) {
        turn_quad(old[half][low].at, t);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float(&x)[4] = d[4 * half + j];
          add_pair(x[2 * low], x[2 * low + 1], old[half][low].at[j]);
        }
      }
      Eight made;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        made.at[j] = pack_bf16(d[4 * half + j][2 * low], d[4 * half + j][2 * low + 1]);
      if constexpr (Stats) {
        turn_quad(other[half][low].at, t);
#pragma unroll
        for (int j = 0; j < 4; ++j) dots[low] += dot(made.at[j], other[half][low].at[j]);
      }
      turn_quad(made.at, t);
      if (inside(half, low)) *reinterpret_cast<Eight*>(a.y[row + 8 * low] + col(half)) = made;
    }
  if constexpr (Stats) {
    const int head = ring.n0 / kSide;
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const int r = row + 8 * low;
      dots[low] += __shfl_xor_sync(0xffffffffu, dots[low], 1);
      dots[low] += __shfl_xor_sync(0xffffffffu, dots[low], 2);
      if (r >= a.rows) continue;
      const int64_t at = static_cast<int64_t>(head) * a.stats.padded + r;
      if (t == 0) a.stats.delta[at] = dots[low];
      if (t == 1) {
        const float value = a.lse[r][head];
        a.stats.lse[at] = value == -INFINITY ? INFINITY : value * kLog2E;
      }
      if (t == 2 && head == 0)
        a.stats.low[r] = max(max(a.begin[r], 0), a.window > 0 ? r + 1 - a.window : 0);
    }
  }
}

int64_t tiles_of(const Operand& y) { return divide_up(y.rows, kSide) * divide_up(y.cols, kSide); }

template <bool Turned, bool Adds, bool Stats, int RankTiles>
bool start(const Queue& queue, const SmallProduct& p, const Args& a) {
  CUtensorMap left, right;
  auto* kernel = small_product_kernel<Turned, Adds, Stats, RankTiles>;
  if (!make_map(p.a, kBulkDepth, kSide, left) || !make_map(p.b, kBulkDepth, kSide, right) ||
      !allow_shared(kernel, kShared))
    return false;
  prefer_shared(kernel);
  flush(queue);
  launch(queue, kernel, static_cast<unsigned>(tiles_of(p.y)), kSmallThreads, kShared, left, right,
         a);
  return true;
}

template <bool Stats>
bool start(const Queue& queue, const SmallProduct& p, const Args& a) {
  if (!p.more)
    return p.how.accumulate ? start<true, true, Stats, 0>(queue, p, a)
                            : start<true, false, Stats, 0>(queue, p, a);
  return a.ranks <= 8    ? start<true, false, Stats, 1>(queue, p, a)
         : a.ranks <= 16 ? start<true, false, Stats, 2>(queue, p, a)
                         : start<true, false, Stats, kMostRankTiles>(queue, p, a);
}

bool serves(const Queue& queue, const SmallProduct& p) {
  auto fits = [](const Operand& o) {
    return o.dtype == DType::kBF16 && aligned16(o) && o.rows < (1 << 24) && o.cols < (1 << 24);
  };
  const int64_t tiles = tiles_of(p.y);
  return queue.arch == Arch::kSm90 && p.how.trans != Trans::kTN && p.how.alpha == 1.0f &&
         tiles >= kFewTiles && tiles <= queue.sms && p.a.cols >= kFewDepth &&
         p.a.cols <= kMostDepth && fits(p.a) && fits(p.b) && fits(p.y) &&
         (!p.more ||
          (p.how.trans == Trans::kNN && !p.how.accumulate && p.more.cols <= 8 * kMostRankTiles &&
           p.more.dtype == DType::kBF16 && p.more_b.dtype == DType::kF32));
}

// Whether the tiles are heads, and the statistics' place is free already: it need not be before its
// step, but what ends with this one is what it reads.
bool can_make_stats(const SmallProduct& p) {
  const AttentionAttr& a = attr<AttentionAttr>(*p.attention->step);
  const Operand& attended = p.attention->in[4];
  const int64_t floats =
      static_cast<int64_t>(AttentionStats::bytes(attended.rows, a.heads) / sizeof(float));
  const Operand scratch{.data = p.attention->scratch, .rows = 1, .cols = floats, .ld = floats};
  return p.how.trans == Trans::kNN && a.head_dim == kSide && p.y.cols == a.heads * kSide &&
         attended.dtype == DType::kBF16 && aligned16(attended) &&
         AttentionStats::padded_rows(p.y.rows) == p.y.rows && apart(scratch, p.a) &&
         apart(scratch, p.b) && apart(scratch, p.y) && apart(scratch, p.more);
}

}  // namespace

bool small_product(const Queue& queue, const SmallProduct& p) {
  if (!serves(queue, p) || (p.attention != nullptr && !can_make_stats(p))) return false;
  Args args{.rows = static_cast<int>(p.y.rows),
            .cols = static_cast<int>(p.y.cols),
            .depth = static_cast<int>(p.a.cols),
            .y = rows<Bf16>(p.y),
            .more = rows<const Bf16>(p.more),
            .more_b = rows<const float>(p.more_b),
            .ranks = static_cast<int>(p.more.cols),
            .scale = p.scale};
  if (p.attention != nullptr) {
    args.attended = rows<const Bf16>(p.attention->in[4]);
    args.lse = rows<const float>(p.attention->in[5]);
    args.begin = p.attention->in[6].as<const int32_t>();
    args.window = static_cast<int>(attr<AttentionAttr>(*p.attention->step).window);
    args.stats = attention_stats_at(*p.attention, p.attention->scratch);
    return start<true>(queue, p, args);
  }
  if (p.how.trans == Trans::kNN) return start<false>(queue, p, args);
  return p.how.accumulate ? start<false, true, false, 0>(queue, p, args)
                          : start<false, false, false, 0>(queue, p, args);
}

}  // namespace wick::cuda
