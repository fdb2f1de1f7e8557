// SPDX-License-Identifier: Apache-2.0
// Pieces of fused_product.cuh: what a launch is told, the shapes of its tiles, what is done to one.
#pragma once

#include "backend/cuda/bulk.cuh"
#include "backend/cuda/gate.cuh"
#include "backend/cuda/mma.cuh"

namespace wick::cuda {

constexpr int kFusedRows = 128, kFusedDepth = kBulkDepth;
constexpr int kFusedLeft = kFusedRows * 128;  // bytes of a stage's rows of x
constexpr int kFusedRanks = 32;               // of B in a stage: rows of 128 bytes
constexpr int kMultipliers = 256;             // threads
// Warps that round what comes in f32: three beside the producer and, where a block has one tile,
// the four that will store it.
constexpr int kRounders = 3, kMostRounders = 7;

struct FusedPart {
  int first, cols;  // of y
  int first_rank, ranks;
  float scale;
};

struct FusedArgs {
  static constexpr int kMost = 3;
  int rows, cols, depth;
  int lane_rows;                    // whose adapters are other matrices; tiles end with them
  int half;                         // gated: where the second half of y's columns begins
  int stages = 0, stage_bytes = 0;  // of the ring
  int a_rows = 0;                   // ranks that a block makes of h; 0: h is given
  int rounders = kRounders;
  // Blocks of a cluster: splits share a tile's depth, sharers make h together. One of them is 1; a
  // block of a cluster has one tile.
  int splits, sharers;
  Act act;
  Rows<Bf16> y, made, h;
  const Bf16* bias;
  int parts = 0;  // adapters, by column and by rank
  FusedPart part[kMost] = {};
};

struct FusedMaps {
  CUtensorMap left, right;
  CUtensorMap small;                // A by lane, or h where it is given
  CUtensorMap b[FusedArgs::kMost];  // by lane
};

// RankTiles: of 8, how many ranks of h a tile makes; 0: h is given, or there is none.
template <int Cols, bool Gated, int RankTiles>
struct FusedShape {
  static constexpr int kHalf = Gated ? Cols / 2 : Cols;  // a box of weights
  static constexpr int kRightBytes = Cols * 128;
  // Of a row of a finished tile: neighbours begin four banks apart.
  static constexpr int kRowBytes = 2 * Cols + 16;
  static constexpr int kTileBytes = kFusedRows * kRowBytes;
  static constexpr int kTiles = Cols / 8 + RankTiles;  // of sums, a group's
  // Three warps of the producer's group round, or store where nothing is rounded.
  static constexpr int kThreads = RankTiles > 0 ? 512 : 384;
  static constexpr int kLeavers = RankTiles > 0 ? 128 : 96, kMeeters = kLeavers + kMultipliers;
  static constexpr bool kSplits = !Gated && Cols <= 128;  // blocks may share the depth
  static constexpr bool kShares = Cols == 64 && RankTiles > 0;
  static constexpr int kMostShared = 226 << 10;
  static constexpr int kSharedH = kMultipliers * 16;  // bytes of 8 ranks of h, as fragments
  static constexpr int kOther = 1024 + 24 * 8;        // alignment, barriers
};

// Barriers of the groups that multiply and the warps that follow them: a tile is finished, its
// place is free again; and of the groups alone.
enum : int { kFinished = 1, kFree = 2, kMultiplied = 3 };
__device__ inline void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void say(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

template <int Registers>
__device__ inline void keep_registers() {
#ifdef WICK_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Registers));
#endif
}
template <int Registers>
__device__ inline void get_registers() {
#ifdef WICK_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Registers));
#endif
}
__device__ inline void ask_for_map(const CUtensorMap& map) {
#ifdef WICK_WGMMA
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
#endif
}

// A box of the map of several matrices, from (column, row) of one of them on, into shared memory.
__device__ inline void copy_box_of(uint32_t to, const CUtensorMap& map, int column, int row,
                                   int matrix, uint32_t barrier) {
#ifdef WICK_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3, %4}], [%5];\n" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
      : "memory");
#endif
}
// As make_map(), of f32 matrices like `o`, each `apart` bytes behind the one before.
inline bool make_map_of(const Operand& o, int64_t matrices, int64_t apart, int cols, int rows,
                        CUtensorMap& map) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return false;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(o.cols), static_cast<cuuint64_t>(o.rows),
                               static_cast<cuuint64_t>(matrices)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(o.ld) * sizeof(float),
                                 static_cast<cuuint64_t>(apart)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(cols), static_cast<cuuint32_t>(rows), 1},
                   steps[3] = {1, 1, 1};
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, o.data, sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

using Four = Pack<float, 4>;
using EightOf = Pack<uint32_t, 4>;  // neighbours of a row
template <typename T>
__device__ __forceinline__ T shared_at(uint32_t address) {
  return *static_cast<const T*>(__cvta_shared_to_generic(address));
}
__device__ __forceinline__ EightOf& eight(Bf16* p) { return *reinterpret_cast<EightOf*>(p); }
__device__ __forceinline__ const EightOf& eight(const unsigned char* p) {
  return *reinterpret_cast<const EightOf*>(p);
}

// Of a tile: its first row and column, the row behind the lane's last, and whose lane it is.
struct FusedPlace {
  int m0, n0, end, whose;
};

// Which adapters a tile meets.
struct Met {
  int begin, end;
};
template <int Cols, bool Gated>
__device__ __forceinline__ Met met(const FusedArgs& a, int n0) {
  if constexpr (Gated) return {0, a.parts};
  Met m{0, 0};
  while (m.begin < a.parts && a.part[m.begin].first + a.part[m.begin].cols <= n0) ++m.begin;
  m.end = m.begin;
  while (m.end < a.parts && a.part[m.end].first < n0 + Cols) ++m.end;
  return m;
}

__device__ __forceinline__ int extra_stages(const FusedArgs& a, const Met& m) {
  int count = 0;
  for (int p = m.begin; p < m.end; ++p) count += (a.part[p].ranks + kFusedRanks - 1) / kFusedRanks;
  return count;
}

// Rounds 8 ranks of a stage's A, two boxes of 32 columns, to a panel in the place of the first: by
// a warp. Row 2t of it is rank t and row 2t + 1 rank t + 4, so that what a lane gets of h is what
// the product with B wants of it.
__device__ __forceinline__ void round_a(uint32_t at, int box_bytes) {
  const int lane = threadIdx.x % 32, rank = lane / 4, quarter = lane % 4;
  const int row = rank < 4 ? 2 * rank : 2 * rank - 7;
  EightOf eights[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int chunk = quarter % 2 * 4 + i;
    const Four x = shared_at<Four>(at + quarter / 2 * box_bytes + rank * 128 + (chunk ^ rank) * 16);
    eights[i / 2].at[i % 2 * 2] = pack_bf16(x.at[0], x.at[1]);
    eights[i / 2].at[i % 2 * 2 + 1] = pack_bf16(x.at[2], x.at[3]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; ++i)
    *static_cast<EightOf*>(
        __cvta_shared_to_generic(at + row * 128 + ((2 * quarter + i) ^ row) * 16)) = eights[i];
  group_publish();
  __syncwarp();
}

// Tiles [Begin, End) of d += fa B for 8 ranks, the stage's `k`-th.
template <int Begin, int End, int Tiles>
__device__ __forceinline__ void spread(float (&d)[Tiles][4], const uint32_t (&fa)[4], uint32_t b_at,
                                       int k) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const uint32_t low = b_at + g * 128 + ((2 * k) ^ g) * 16 + 4 * t;
  const uint32_t high = b_at + g * 128 + ((2 * k + 1) ^ g) * 16 + 4 * t;
#pragma unroll
  for (int j = Begin; j < End; ++j) {
    const uint32_t fb[2] = {to_tf32(shared_at<float>(low + 1024 * j)),
                            to_tf32(shared_at<float>(high + 1024 * j))};
    mma_tf32(d[j], fa, fb);
  }
}

// A group's sums, in bf16, into the finished tile.
template <int Cols, int Tiles>
__device__ __forceinline__ void put(const float (&d)[Tiles][4], unsigned char* tile, int row) {
  using S = FusedShape<Cols, false, 0>;
  unsigned char* to = tile + row * S::kRowBytes + 4 * (threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < Cols / 8; ++j) {
    *reinterpret_cast<uint32_t*>(to + 16 * j) = pack_bf16(d[j][0], d[j][1]);
    *reinterpret_cast<uint32_t*>(to + 8 * S::kRowBytes + 16 * j) = pack_bf16(d[j][2], d[j][3]);
  }
}

template <Act A>
__device__ __forceinline__ EightOf gate_of(const EightOf& gate, const EightOf& up) {
  EightOf made;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&gate.at[c]));
    const float2 y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&up.at[c]));
    made.at[c] = pack_bf16(act<A, Bf16>(x.x).value * y.x, act<A, Bf16>(x.y).value * y.y);
  }
  return made;
}

// What leaves a finished tile, by `threads` threads of which this one is
// `thread`.
template <int Cols, bool Gated, Act A>
__device__ __forceinline__ void leave(const FusedArgs& a, const unsigned char* tile,
                                      const FusedPlace& at, int thread, int threads) {
  using S = FusedShape<Cols, Gated, 0>;
  constexpr int kInRow = S::kHalf / 8;
  const int most = Gated ? a.half : a.cols;
#pragma unroll 2
  for (int i = thread; i < kFusedRows * kInRow; i += threads) {
    const int row = i / kInRow, col = i % kInRow * 8;
    if (at.m0 + row >= at.end || at.n0 + col >= most) continue;
    const EightOf first = eight(tile + row * S::kRowBytes + 2 * col);
    Bf16* to = a.y[at.m0 + row] + at.n0 + col;
    eight(to) = first;
    if constexpr (Gated) {
      const EightOf up = eight(tile + row * S::kRowBytes + 2 * (S::kHalf + col));
      eight(to + a.half) = up;
      eight(a.made[at.m0 + row] + at.n0 + col) = gate_of<A>(first, up);
    }
  }
}

template <int Cols, bool Gated>
__device__ __forceinline__ void leave(const FusedArgs& a, const unsigned char* tile,
                                      const FusedPlace& at, int thread, int threads) {
  if (!Gated || a.act == Act::kSilu)
    leave<Cols, Gated, Act::kSilu>(a, tile, at, thread, threads);
  else
    leave<Cols, Gated, Act::kGeluTanh>(a, tile, at, thread, threads);
}

}  // namespace wick::cuda
