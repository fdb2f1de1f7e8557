// SPDX-License-Identifier: Apache-2.0
// A block makes one tile, turned: 192 columns of the weights are the rows of its sums, some tokens
// the columns, since a product's columns come in eights and its rows in groups of 64: so a tile has
// as many tokens as makes all tiles one round. A warp asks the copy engine for panels of both and,
// from the start, for the tile's gates, a panel a stage. Gradients take the gates' places in shared
// memory and leave by the copy engine.
#include "backend/cuda/apart.h"
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/fused_parts.cuh"
#include "backend/cuda/gated_round.h"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

constexpr int kGroups = 3, kCols = 64 * kGroups;
constexpr int kWorkers = 128 * kGroups, kThreads = kWorkers + 32;
constexpr int kWeightPanel = 64 * 128, kWeights = kGroups * kWeightPanel;  // bytes of a stage
constexpr int kMostStages = 4, kMostShared = 227 << 10;
constexpr int kMostRankTiles = 2;  // of 8
// A longer way is better shared by the library's blocks.
constexpr int64_t kFewDepth = 256, kMostDepth = 1536;

template <int Tokens>
struct Shape {
  static constexpr int kPanel = Tokens * 128;  // of dz, of a group's gates
  static constexpr int kStage = kWeights + kPanel, kGates = 2 * kGroups * kPanel;
  static constexpr int bytes(int stages) {
    return stages * kStage + kGates + 8 * (2 * kMostStages + 1);
  }
  static constexpr int kStages = bytes(kMostStages) <= kMostShared ? kMostStages : kMostStages - 1;
  static_assert(bytes(kStages) <= kMostShared);
};

struct Maps {
  CUtensorMap dz, w;
  CUtensorMap y[2], dy[2];  // halves
};

struct Args {
  int rows, cols, depth;
  Act act;
  Rows<const Bf16> dh;
  Rows<const float> a;
  int ranks;
  float scale;
};

// A box of shared memory into the map's matrix, from (column, row) on; what is beyond it stays.
__device__ inline void store_box(const CUtensorMap& map, int column, int row, uint32_t from) {
#ifdef WICK_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n" ::"l"(&map),
      "r"(column), "r"(row), "r"(from)
      : "memory");
#endif
}
// Until what was stored has been read.
__device__ inline void stores_wait() {
#ifdef WICK_WGMMA
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n" ::: "memory");
#endif
}

// Tiles of 8 x 8, turned, in pairs of 8 rows by lane / 8: what a lane gets is as sums lie.
__device__ inline void load_turned(uint32_t (&to)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}
template <int Count>
__device__ inline void store_turned(uint32_t at, const uint32_t (&from)[4]) {
#ifdef WICK_WGMMA
  if constexpr (Count == 4)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};\n" ::"r"(at),
                 "r"(from[0]), "r"(from[1])
                 : "memory");
#endif
}

// Gates and ups, two tokens of each, become gradients.
template <Act A>
__device__ __forceinline__ void reverse_gate(uint32_t& gate, uint32_t& up, float low, float high) {
  const float2 g = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&gate));
  const float2 u = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&up));
  const ValueAndSlope a = act<A, Bf16>(g.x), b = act<A, Bf16>(g.y);
  gate = pack_bf16(low * u.x * a.slope, high * u.y * b.slope);
  up = pack_bf16(low * a.value, high * b.value);
}

// A warp's 16 columns of the weights by all tokens of the tile, in the panels of gates and ups.
template <Act A, int Tokens>
__device__ __forceinline__ void reverse_gates(const float (&d)[Tokens / 8][4], uint32_t gate_at,
                                              uint32_t up_at) {
  const int lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int token = lane % 8, chunk = 2 * warp + lane / 8 % 2;
  auto leave = [&](auto count, int j) {
    constexpr int kCount = count();
    const uint32_t at =
        (8 * (j + (kCount == 4 ? lane / 16 : 0)) + token) * 128 + (chunk ^ token) * 16;
    uint32_t gate[4], up[4];
    load_turned(gate, gate_at + at);
    load_turned(up, up_at + at);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      reverse_gate<A>(gate[i], up[i], d[j + i / 2][i % 2 * 2], d[j + i / 2][i % 2 * 2 + 1]);
    store_turned<kCount>(gate_at + at, gate);
    store_turned<kCount>(up_at + at, up);
  };
  constexpr int kTiles = Tokens / 8;
#pragma unroll
  for (int j = 0; j + 1 < kTiles; j += 2) leave(std::integral_constant<int, 4>{}, j);
  if constexpr (kTiles % 2 != 0) leave(std::integral_constant<int, 2>{}, kTiles - 1);
}

template <int Tokens, int RankTiles>
__global__ void __launch_bounds__(kThreads, 1)
    gated_round_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Args a) {
  using S = Shape<Tokens>;
  extern __shared__ __align__(1024) unsigned char memory[];
  let_next_start();
  const uint32_t base = shared_address(memory);
  const uint32_t gates = base + S::kStages * S::kStage, barriers = gates + S::kGates;
  auto weights_at = [&](int stage) { return base + stage * S::kStage; };
  auto tokens_at = [&](int stage) { return weights_at(stage) + kWeights; };
  auto full = [&](int stage) { return barriers + 8 * stage; };
  auto empty = [&](int stage) { return barriers + 8 * (S::kStages + stage); };
  const uint32_t came = barriers + 8 * 2 * S::kStages;  // the gates

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int block = static_cast<int>(blockIdx.x), down = (a.rows + Tokens - 1) / Tokens;
  const int m0 = block % down * Tokens, n0 = block / down * kCols;
  const int steps = (a.depth + kBulkDepth - 1) / kBulkDepth;
  const bool asks = threadIdx.x == kWorkers;
  // Panels behind the last column need no weights, but the barrier counts them: zeros.
  auto ask_weights = [&](int k, int stage) {
    barrier_expect(full(stage), S::kStage);
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
      copy_box(weights_at(stage) + i * kWeightPanel, maps.w, n0 + 64 * i, k * kBulkDepth,
               full(stage));
  };
  if (asks) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), kWorkers / 32);
    }
    barrier_init(came, 1);
    barriers_ready();
    for (int k = 0; k < min(S::kStages, steps); ++k) ask_weights(k, k);
  }
  const int g = lane / 4, t = lane % 4;
  const int column = n0 + warp * 16 + g;  // of workers: of the weights
  constexpr int kRanks = RankTiles > 0 ? RankTiles : 1;
  uint32_t part_a[kRanks][4] = {}, part_dh[kRanks][Tokens / 8][2] = {};  // as mma_tf32 wants them
  if (RankTiles > 0 && warp < kWorkers / 32) {
#pragma unroll
    for (int r = 0; r < kRanks; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int rank = 8 * r + i / 2 * 4 + t, c = column + i % 2 * 8;
        if (rank < a.ranks && c < a.cols) part_a[r][i] = to_tf32(a.a[rank][c]);
      }
  }
  __syncthreads();
  wait_for_previous();

  if (warp == kWorkers / 32) {
    if (!asks) return;
    int stage = 0, phase = 0, gate = 0;
    auto ask_gate = [&] {  // one of its panels
      if (gate == 0) barrier_expect(came, S::kGates);
      copy_box(gates + gate * S::kPanel, maps.y[gate / kGroups], n0 + 64 * (gate % kGroups), m0,
               came);
      ++gate;
    };
    for (int k = 0; k < steps; ++k) {
      if (k >= S::kStages) {
        barrier_wait(empty(stage), phase ^ 1);
        ask_weights(k, stage);
      }
      copy_box(tokens_at(stage), maps.dz, k * kBulkDepth, m0, full(stage));
      if (gate < 2 * kGroups) ask_gate();
      if (++stage == S::kStages) stage = 0, phase ^= 1;
    }
    while (gate < 2 * kGroups) ask_gate();
    return;
  }

  if constexpr (RankTiles > 0) {
#pragma unroll
    for (int r = 0; r < kRanks; ++r)
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int rank = 8 * r + 4 * i + t, row = m0 + 8 * j + g;
          if (rank < a.ranks && row < a.rows)
            part_dh[r][j][i] = to_tf32(a.scale * to_f32(a.dh[row][rank]));
        }
  }
  const int group = warp / 4;
  // Not zeroed: the first product takes their place. Zeros that are written here make the assembler
  // run the products of narrow tiles one after the other.
  float d[Tokens / 8][4];
  int stage = 0, phase = 0, before = 0;
#pragma unroll 1
  for (int k = 0; k < steps; ++k) {
    barrier_wait(full(stage), phase);
    const uint64_t weights = panel_at(weights_at(stage) + group * kWeightPanel);
    const uint64_t tokens = panel_at(tokens_at(stage));
    group_begin();
#pragma unroll
    for (int i = 0; i < kBulkDepth / 16; ++i)
      multiply_panels<Tokens, false, true>(d, weights + 128 * i, tokens + 2 * i, k + i > 0);
    group_commit();
    if (k > 0) {
      group_wait<1>();
      if (lane == 0) barrier_arrive(empty(before));
    }
    before = stage;
    if (++stage == S::kStages) stage = 0, phase ^= 1;
  }
  group_wait<0>();
  group_done(d);
  if constexpr (RankTiles > 0) {
#pragma unroll
    for (int r = 0; r < kRanks; ++r)
#pragma unroll
      for (int j = 0; j < Tokens / 8; ++j) mma_tf32(d[j], part_a[r], part_dh[r][j]);
  }
  barrier_wait(came, 0);
  const uint32_t gate_at = gates + group * S::kPanel, up_at = gate_at + kGroups * S::kPanel;
  if (a.act == Act::kSilu)
    reverse_gates<Act::kSilu, Tokens>(d, gate_at, up_at);
  else
    reverse_gates<Act::kGeluTanh, Tokens>(d, gate_at, up_at);
  group_publish();
  meet(1 + group, 128);
  if (threadIdx.x % 128 == 0 && n0 + 64 * group < a.cols) {
    store_box(maps.dy[0], n0 + 64 * group, m0, gate_at);
    store_box(maps.dy[1], n0 + 64 * group, m0, up_at);
    stores_wait();
  }
}

int64_t tiles_of(const GatedRound& p, int64_t tokens) {
  return divide_up(p.dz.rows, tokens) * divide_up(p.w.cols, kCols);
}

bool make_half_maps(const Operand& all, int tokens, CUtensorMap (&maps)[2]) {
  for (int i = 0; i < 2; ++i) {
    Operand half = all;
    half.cols = all.cols / 2;
    half.data = all.as<Bf16>() + i * half.cols;
    if (!make_map(half, 64, tokens, maps[i])) return false;
  }
  return true;
}

template <int Tokens, int RankTiles>
bool start(const Queue& queue, const GatedRound& p) {
  using S = Shape<Tokens>;
  auto* kernel = gated_round_kernel<Tokens, RankTiles>;
  Maps maps;
  constexpr size_t kShared = S::bytes(S::kStages);
  if (!make_map(p.dz, kBulkDepth, Tokens, maps.dz) || !make_map(p.w, 64, kBulkDepth, maps.w) ||
      !make_half_maps(p.y, Tokens, maps.y) || !make_half_maps(p.dy, Tokens, maps.dy) ||
      !allow_shared(kernel, kShared))
    return false;
  prefer_shared(kernel);
  const Args a{.rows = static_cast<int>(p.dz.rows),
               .cols = static_cast<int>(p.w.cols),
               .depth = static_cast<int>(p.dz.cols),
               .act = p.act,
               .dh = rows<const Bf16>(p.dh),
               .a = rows<const float>(p.a),
               .ranks = static_cast<int>(p.dh.cols),
               .scale = p.scale};
  flush(queue);
  launch(queue, kernel, static_cast<unsigned>(tiles_of(p, Tokens)), kThreads, kShared, maps, a);
  return true;
}

template <int Tokens>
bool start(const Queue& queue, const GatedRound& p) {
  if (!p.a) return start<Tokens, 0>(queue, p);
  return p.a.rows <= 8 ? start<Tokens, 1>(queue, p) : start<Tokens, kMostRankTiles>(queue, p);
}

}  // namespace

bool gated_round(const Queue& queue, const GatedRound& p) {
  auto fits = [](const Operand& o) {
    return o.dtype == DType::kBF16 && aligned16(o) && o.rows < (1 << 24) && o.cols < (1 << 24);
  };
  const int64_t half = p.w.cols;
  if (queue.arch != Arch::kSm90 || !fits(p.dz) || !fits(p.w) || !fits(p.y) || !fits(p.dy) ||
      half % 8 != 0 || p.y.cols != 2 * half || p.dz.cols < kFewDepth || p.dz.cols > kMostDepth ||
      !apart(p.dy, p.dz) || !apart(p.dy, p.w) || !apart(p.dy, p.dh))
    return false;
  if (p.a &&
      (p.a.rows > 8 * kMostRankTiles || p.a.dtype != DType::kF32 || p.dh.dtype != DType::kBF16))
    return false;
  // Fewer tiles leave too much of the card idle.
  auto serves = [&](int64_t tokens) {
    const int64_t tiles = tiles_of(p, tokens);
    return tiles <= queue.sms && 4 * tiles >= 3 * queue.sms;
  };
  if (serves(64)) return start<64>(queue, p);
  if (serves(80)) return start<80>(queue, p);
  if (serves(96)) return start<96>(queue, p);
  if (serves(104)) return start<104>(queue, p);
  if (serves(112)) return start<112>(queue, p);
  return serves(128) && start<128>(queue, p);
}

}  // namespace wick::cuda
