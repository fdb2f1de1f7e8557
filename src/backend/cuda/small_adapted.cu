// SPDX-License-Identifier: Apache-2.0
// A product with adapters in tiles of 64 x 64 (fused.h, small_ring.cuh): where rows are few,
// more blocks, and two of them on a multiprocessor. All that is no activation is read before the
// kernel before is done: the rounded A of the tile's adapter lies in shared memory for the whole
// depth, B, the bias and rope's angles wait in registers.
#include <algorithm>

#include "backend/cuda/fused.h"
#include "backend/cuda/skinny.h"
#include "backend/cuda/small_ring.cuh"

namespace wick::cuda {
namespace {

constexpr int kMost = 3, kMostRankTiles = 2;  // adapters; of 8 ranks
constexpr int64_t kFewTiles = 64, kMostDepth = 1024, kFewDepth = 256;
constexpr int kMostShared = 226 << 10, kHalfShared = 112 << 10;  // of one block, of two

struct Args {
  int rows, cols, depth, stages;
  const float* a;  // of the adapters, rank after rank
  int a_ld;
  Rows<Bf16> y, h;
  const Bf16* bias;
  AdapterPart part[kMost];
  int parts;
  Rows<const float> table;  // rope's, of heads of 64
  const int32_t* positions;
  Rows<Bf16> turned;
  int turned_cols;
};

// 8 * RankTiles ranks of A from `first` on, zeros beyond `ranks`, as panels of 64 columns. Row 2t
// of eight is rank t and row 2t + 1 rank t + 4, so that what a lane gets of h is what the product
// with B wants of it.
template <int RankTiles>
__device__ __forceinline__ void round_a(const Args& a, const AdapterPart& p, uint32_t to) {
  const int chunks = a.depth / 8;
#pragma unroll 2
  for (int i = threadIdx.x; i < 8 * RankTiles * chunks; i += kSmallMultipliers) {
    const int rank = i / chunks, chunk = i - rank * chunks;
    Pack<float, 4> low{}, high{};
    if (rank < p.ranks) {
      const float* from = a.a + static_cast<int64_t>(p.first_rank + rank) * a.a_ld + 8 * chunk;
      low = load<4>(from);
      high = load<4>(from + 4);
    }
    const Eight made{pack_bf16(low.at[0], low.at[1]), pack_bf16(low.at[2], low.at[3]),
                     pack_bf16(high.at[0], high.at[1]), pack_bf16(high.at[2], high.at[3])};
    const int within = rank % 8, row = within < 4 ? 2 * within : 2 * within - 7;
    const uint32_t at =
        to + chunk / 8 * (1024 * RankTiles) + rank / 8 * 1024 + row * 128 + (chunk % 8 ^ row) * 16;
    *static_cast<Eight*>(__cvta_shared_to_generic(at)) = made;
  }
  // The last panel's columns beyond the depth meet zeros, but must be numbers.
  for (int i = chunks + static_cast<int>(threadIdx.x) / (8 * RankTiles); i < (chunks + 7) / 8 * 8;
       i += kSmallMultipliers / (8 * RankTiles)) {
    const int line = threadIdx.x % (8 * RankTiles), row = line % 8;
    *static_cast<Eight*>(__cvta_shared_to_generic(
        to + i / 8 * (1024 * RankTiles) + line / 8 * 1024 + row * 128 + (i % 8 ^ row) * 16)) =
        Eight{};
  }
  group_publish();
}

// The tensor core's narrowest product: 64 rows, 8 columns.
__device__ __forceinline__ void multiply_8(float (&d)[4], uint64_t left, uint64_t right) {
#ifdef WICK_WGMMA
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(left), "l"(right));
#endif
}

template <int RankTiles>
__global__ void __launch_bounds__(kSmallThreads)
    small_adapted_kernel(const __grid_constant__ CUtensorMap left,
                         const __grid_constant__ CUtensorMap right,
                         const __grid_constant__ Args a) {
  extern __shared__ unsigned char memory[];
  let_next_start();
  SmallRing<false> ring(memory, a.stages, a.rows, a.depth);
  const bool multiplies = threadIdx.x < kSmallMultipliers;
  if (ring.is_producer()) ring.begin(right);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int n0 = ring.n0, row = ring.m0 + static_cast<int>(threadIdx.x) / 32 * 16 + g;
  int which = 0;  // the adapter of these columns; none: `parts`
  while (which < a.parts &&
         (n0 < a.part[which].first || n0 >= a.part[which].first + a.part[which].cols))
    ++which;
  const bool adapted = multiplies && which < a.parts;
  const AdapterPart& p = a.part[adapted ? which : 0];
  const uint32_t a_at = (ring.barriers + 16 * a.stages + 1023) / 1024 * 1024;
  if (adapted) round_a<RankTiles>(a, p, a_at);
  uint32_t b[RankTiles][8][2];  // rank t and t + 4 of column 8 j + g
  float2 bias[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int col = n0 + 8 * j;
    const float* from = p.b + static_cast<int64_t>(col + g - p.first) * p.b_ld;
#pragma unroll
    for (int r = 0; r < RankTiles; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int rank = 8 * r + 4 * i + t;
        b[r][j][i] = adapted && rank < p.ranks ? to_tf32(from[rank]) : 0;
      }
    bias[j] = float2{};
    if (multiplies && a.bias != nullptr && col + 2 * t < a.cols)
      bias[j] = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(a.bias + col + 2 * t));
  }
  const bool turns = multiplies && n0 < a.turned_cols;
  float2 cosine[2][4] = {}, sine[2][4] = {};  // of rows `row` and `row` + 8, columns 8 j + 2 t
  if (turns) {
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const float* angles = a.table[a.positions[min(row + 8 * low, a.rows - 1)]] + 2 * t;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        cosine[low][j] = *reinterpret_cast<const float2*>(angles + 8 * j);
        sine[low][j] = *reinterpret_cast<const float2*>(angles + 32 + 8 * j);
      }
    }
  }
  __syncthreads();
  wait_for_previous();
  if (!multiplies) {
    if (ring.is_producer()) ring.produce(left, right);
    return;
  }
  float d[8][4] = {}, h[RankTiles][4] = {};
  if (adapted)
    ring.multiply(d, [&](int k, int i, uint64_t rows_at) {
#pragma unroll
      for (int r = 0; r < RankTiles; ++r)
        multiply_8(
            h[r], rows_at,
            panel_at(a_at + static_cast<uint32_t>(k) * (1024 * RankTiles) + 1024 * r) + 2 * i);
    });
  else
    ring.multiply(d, [](int, int, uint64_t) {});
  if (adapted) {
    group_done(h);
#pragma unroll
    for (int r = 0; r < RankTiles; ++r) {
      uint32_t fa[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Bf16 rounded = from_f32<Bf16>(h[r][i]);
        const int at = row + i / 2 * 8, rank = 8 * r + t + i % 2 * 4;
        if (n0 == p.first && at < a.rows && rank < p.ranks) a.h[at][p.first_rank + rank] = rounded;
        fa[i % 2 * 2 + i / 2] = to_tf32(p.scale * to_f32(rounded));
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) mma_tf32(d[j], fa, b[r][j]);
    }
  }
  auto put = [&](const Rows<Bf16>& to, int half, int low, const Eight& made) {
    if (row + 8 * low < a.rows && n0 + 32 * half + 8 * t < a.cols)
      *reinterpret_cast<Eight*>(to[row + 8 * low] + n0 + 32 * half + 8 * t) = made;
  };
#pragma unroll
  for (int low = 0; low < 2; ++low) {
    Eight made[2], turned[2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 x[2];  // of both halves of a head, as rounded
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&from)[4] = d[4 * half + j];
        const float2& more = bias[4 * half + j];
        made[half].at[j] = pack_bf16(from[2 * low] + more.x, from[2 * low + 1] + more.y);
        x[half] = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&made[half].at[j]));
      }
      const float2 c = cosine[low][j], s = sine[low][j];
      turned[0].at[j] = pack_bf16(x[0].x * c.x - x[1].x * s.x, x[0].y * c.y - x[1].y * s.y);
      turned[1].at[j] = pack_bf16(x[1].x * c.x + x[0].x * s.x, x[1].y * c.y + x[0].y * s.y);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      turn_quad(made[half].at, t);
      put(a.y, half, low, made[half]);
      if (!turns) continue;
      turn_quad(turned[half].at, t);
      put(a.turned, half, low, turned[half]);
    }
  }
}

template <int RankTiles>
bool start(const Queue& queue, const FusedProduct& p, Args a, int64_t tiles) {
  auto* kernel = small_adapted_kernel<RankTiles>;
  const int steps = static_cast<int>(divide_up(p.x.cols, kBulkDepth));
  const int most = tiles > queue.sms ? kHalfShared : kMostShared;
  const int panels = steps * 1024 * RankTiles;  // of A
  auto bytes = [&](int stages) { return SmallRing<false>::bytes(stages) + 1024 + panels; };
  a.stages = std::min(steps, kSmallMostStages);
  while (a.stages > 3 && bytes(a.stages) > most) --a.stages;
  CUtensorMap left, right;
  const auto shared = static_cast<size_t>(bytes(a.stages));
  if (static_cast<int>(shared) > most || !make_map(p.x, kBulkDepth, kSmallSide, left) ||
      !make_map(p.w, kBulkDepth, kSmallSide, right) || !allow_shared(kernel, shared))
    return false;
  prefer_shared(kernel);
  flush(queue);
  launch(queue, kernel, static_cast<unsigned>(tiles), kSmallThreads, shared, left, right, a);
  return true;
}

}  // namespace

bool small_adapted(const Queue& queue, const FusedProduct& p) {
  const int64_t tiles = divide_up(p.y.rows, kSmallSide) * divide_up(p.y.cols, kSmallSide);
  // Two blocks on some multiprocessors pay where a launch is saved.
  const int64_t most = p.turn.head_dim > 0 ? queue.sms + queue.sms / 4 : queue.sms;
  if (p.made || p.adapters.empty() || p.adapters.size() > kMost || tiles < kFewTiles ||
      tiles > most || p.x.cols < kFewDepth || p.x.cols > kMostDepth ||
      (p.turn.head_dim > 0 &&
       (p.turn.head_dim != kSmallSide || !aligned16(p.turn.turned) || !aligned16(p.turn.table))))
    return false;
  Args a{.rows = static_cast<int>(p.y.rows),
         .cols = static_cast<int>(p.y.cols),
         .depth = static_cast<int>(p.x.cols),
         .stages = 0,
         .a = p.a.as<const float>(),
         .a_ld = static_cast<int>(p.a.ld),
         .y = rows<Bf16>(p.y),
         .h = rows<Bf16>(p.h),
         .bias = p.bias.as<const Bf16>(),
         .part = {},
         .parts = 0,
         .table = rows<const float>(p.turn.table),
         .positions = p.turn.positions.as<const int32_t>(),
         .turned = rows<Bf16>(p.turn.turned),
         .turned_cols = static_cast<int>(p.turn.turned.cols)};
  int64_t ranks = 0;
  for (const FusedAdapter& adapter : p.adapters) {
    // A tile has one adapter.
    if (adapter.first % kSmallSide != 0 || adapter.b.rows % kSmallSide != 0) return false;
    ranks = std::max(ranks, adapter.b.cols);
    a.part[a.parts++] = part_of(adapter);
  }
  if (ranks <= 8) return start<1>(queue, p, a, tiles);
  return ranks <= 8 * kMostRankTiles && start<kMostRankTiles>(queue, p, a, tiles);
}

}  // namespace wick::cuda
