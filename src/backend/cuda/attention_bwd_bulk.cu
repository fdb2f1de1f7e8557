// SPDX-License-Identifier: Apache-2.0
// attention backward on sm_90 for heads of 64 and 128: the products of attention_bwd.cu, by warp
// groups whose tiles come by the bulk copy engine.
//
// A group has 64 fixed rows, and 64 others at a time streaming past them; a block has two groups
// that share what streams past, or one. Fixed are keys (k, v of a kv head; the rows of all its
// heads stream past) or rows (q, dy of a head; keys stream past). A group asks for the products of
// a tile and for the next tile's scores at once, and makes the next tile's probabilities and their
// gradients while those run.
//
// A key block's list is cut into equal stretches, one for each block of a cluster, whose sums are
// added through shared memory in the order of the stretches. How many depends on T, kv heads and
// multiprocessors.
//
// H200, in a graph with the statistics (2026-11): 14 heads of 64 over 2, blocks of two groups, 512
// 15 us, 4 x 2048 228 (330 TFLOP/s counted as five products); 28 of 128 over 4, 2048: 215.
#include "backend/cuda/attention_bwd_bulk.cuh"

namespace wick::cuda {
namespace {

// One group's fixed rows against the tiles of its block's list.
template <class S, bool Keys>
struct Group {
  static constexpr int E = S::E;
  // Whether registers hold dp and p in f32 beside what the products before them read.
  static constexpr bool kEarly = E == 64 || !Keys;
  // Whether they hold the fixed rows too, so that shared memory is read for the streamed alone.
  static constexpr bool kHeld = E == 64;
  const BwdBulkArgs& a;
  const BwdWork& w;
  const BwdLayout<S>& at;
  int group, fixed0, row, col;  // the thread's rows (and row + 8) and columns in a tile
  float s[8][4], dp[8][4], sums1[E / 8][4] = {}, sums2[Keys ? E / 8 : 1][4] = {};
  uint32_t p[4][4], ds[4][4], held[2][kHeld ? E / 16 : 1][4];
  float lse[2], delta[2];  // of rows
  int low[2], most_low;
  int positions[2];  // of fixed rows, where they are turned back
  BulkRing<S::kStages> ring;

  __device__ Group(const BwdBulkArgs& args, const BwdWork& work, const BwdLayout<S>& layout, int g)
      : a(args), w(work), at(layout), group(g), fixed0(work.fixed0 + (work.deep ? 0 : 64 * g)) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    row = thread / 32 * 16 + thread % 32 / 4;
    col = thread % 4 * 2;
    if (a.turn.table)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        positions[half] = a.turn.positions[min(fixed0 + row + 8 * half, a.tokens - 1)];
    if constexpr (!Keys) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = min(fixed0 + row + 8 * half, a.padded - 1);
        const int64_t from = static_cast<int64_t>(w.head) * a.padded + t;
        lse[half] = a.lse[from];
        delta[half] = a.delta[from];
        low[half] = a.low[t];
      }
      most_low = a.low[min(fixed0 + 63, a.padded - 1)];
    }
  }

  __device__ uint32_t fixed(int which) const { return at.fixed(which, w.deep ? 0 : group); }
  // to = fixed streamedᵀ
  __device__ __forceinline__ void multiply_transposed(float (&to)[8][4], int which,
                                                      int stage) const {
    const uint64_t left = panel_at(fixed(which));
    const uint64_t right = panel_at(at.stage(stage) + which * S::kTileBytes);
    group_begin();
#pragma unroll
    for (int k = 0; k < E / 16; ++k) {
      const int offset = k / 4 * kBulkPanel + k % 4 * 32;
      if constexpr (kHeld)
        group_multiply<true>(to, held[which][k], panel_after(right, offset), k > 0);
      else
        group_multiply_64(to, panel_after(left, offset), panel_after(right, offset), k > 0);
    }
  }
  // to += left streamed
  __device__ __forceinline__ void multiply(float (&to)[E / 8][4], const uint32_t (&left)[4][4],
                                           int which, int stage) const {
    const uint64_t right = panel_at(at.stage(stage) + which * S::kTileBytes);
    group_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int n = 0; n < E / 64; ++n)
        group_multiply<false>(&to[n * 8], left[k], panel_after(right, n * kBulkPanel + k * 2048),
                              true);
  }
  __device__ const float* statistics(int stage, const unsigned char* shared) const {
    return reinterpret_cast<const float*>(shared + (at.stage(stage) - at.base) + 2 * S::kTileBytes);
  }

  // s becomes p = exp2(scale2 * s - lse), 0 where a row does not see a key.
  __device__ __forceinline__ void mask(int block, const float* stats) {
    const int streamed0 = block * 64;
    const int* lows = reinterpret_cast<const int*>(stats + 128);
    const bool masked = Keys ? streamed0 < fixed0 + 63 || lows[63] > fixed0
                             : streamed0 + 63 > fixed0 || most_low > streamed0;
    if (!masked) return;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int2 pair = Keys ? *reinterpret_cast<const int2*>(lows + col + n * 8) : int2{};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = fixed0 + row + i / 2 * 8, c = streamed0 + col + n * 8 + i % 2;
        const int t = Keys ? c : r, key = Keys ? r : c;
        const int first = Keys ? (i % 2 ? pair.y : pair.x) : low[i / 2];
        if (key > t || key < first) s[n][i] = -INFINITY;
      }
    }
  }
  __device__ __forceinline__ void make_probabilities(const float* stats) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 pair = Keys ? *reinterpret_cast<const float2*>(stats + col + n * 8) : float2{};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float of = Keys ? (i % 2 ? pair.y : pair.x) : lse[i / 2];
        s[n][i] = exp2_fast(fmaf(s[n][i], a.scale2, -of));
      }
    }
  }
  // dp becomes ds = p * (dp - delta).
  __device__ __forceinline__ void make_gradients(const float* stats) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 pair =
          Keys ? *reinterpret_cast<const float2*>(stats + 64 + col + n * 8) : float2{};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t both = p[n / 2][n % 2 * 2 + i / 2];
        const float of =
            kEarly ? s[n][i] : __uint_as_float(i % 2 ? both & 0xffff0000u : both << 16);
        dp[n][i] = of * (dp[n][i] - (Keys ? (i % 2 ? pair.y : pair.x) : delta[i / 2]));
      }
    }
  }
  __device__ __forceinline__ static void round(uint32_t (&to)[4][4], const float (&x)[8][4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) left_of_sums(to[k], x[2 * k], x[2 * k + 1]);
  }

  __device__ __forceinline__ void release(int stage) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(at.empty(stage));
  }
  __device__ void run(const unsigned char* shared) {
    // The first tiles of the list lie before the second group's keys, or behind the first's rows.
    const int stride = Keys && w.deep ? S::kGroups : 1;
    int item = w.from;
    if (stride > 1) {
      item += group;
      if (group == 1) ring.next();
    } else {
      if (Keys && group == 1) item = min(max(item, w.group), w.to);
      if (!Keys) item = min(w.to, max(0, w.top - fixed0 / 64));
      for (int i = w.from; i < item; ++i, ring.next()) {
        barrier_wait(at.full(ring.stage), ring.phase);
        release(ring.stage);
      }
    }
    barrier_wait(at.fixed_full(), 0);
    if (item >= w.to) return;
    if constexpr (kHeld) {
      bulk_left(held[0], fixed(0), row / 16 * 16);
      bulk_left(held[1], fixed(1), row / 16 * 16);
    }
    barrier_wait(at.full(ring.stage), ring.phase);
    BwdItem tile(w, item);
    const float* stats = statistics(ring.stage, shared);
    multiply_transposed(s, 0, ring.stage);
    group_commit();
    multiply_transposed(dp, 1, ring.stage);
    group_commit();
    group_wait<1>();
    group_done(s);
    mask(tile.block, stats);
    make_probabilities(stats);
    if constexpr (Keys) round(p, s);
    group_wait<0>();
    group_done(dp);
    make_gradients(stats);
    round(ds, dp);
    // A step makes p and ds of a tile while the products of the tile before it run.
    int stage = ring.stage;
#pragma unroll 1
    for (item += stride; item < w.to; item += stride) {
      ring.next();
      if (stride > 1) ring.next();
      tile.advance<Keys>(w, stride);
      stats = statistics(ring.stage, shared);
      barrier_wait(at.full(ring.stage), ring.phase);
      multiply_transposed(s, 0, ring.stage);
      group_commit();
      if constexpr (Keys) {
        multiply(sums2, p, 1, stage);
        group_commit();
      }
      if constexpr (kEarly) {
        multiply_transposed(dp, 1, ring.stage);
        group_commit();
      }
      multiply(sums1, ds, 0, stage);
      group_commit();
      group_wait<(Keys ? 2 : 1) + (kEarly ? 1 : 0)>();
      group_done(s);
      mask(tile.block, stats);
      make_probabilities(stats);
      bulk_made(s, at.full(ring.stage), ring.phase);
      if constexpr (kEarly) {
        if constexpr (Keys) {
          group_wait<2>();
          round(p, s);
        }
        group_wait<1>();
      } else {
        group_wait<0>();
        round(p, s);
        multiply_transposed(dp, 1, ring.stage);
        group_commit();
        group_wait<0>();
      }
      group_done(dp);
      make_gradients(stats);
      bulk_made(dp, at.full(ring.stage), ring.phase);
      group_wait<0>();
      round(ds, dp);
      release(stage);
      stage = ring.stage;
    }
    if constexpr (Keys) multiply(sums2, p, 1, stage);
    multiply(sums1, ds, 0, stage);
    group_commit();
    group_wait<0>();
    group_done(sums1);
    group_done(sums2);
  }
};

// Sums of rows `row` and row + 8 turned back: column c of half a head with that of the other half.
template <int E>
__device__ __forceinline__ void turn_back(float (&sums)[E / 8][4], const AttentionTurn& turn,
                                          const int (&positions)[2], int col) {
  if (!turn.table) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* angles = turn.table[positions[half]] + col;
#pragma unroll
    for (int n = 0; n < E / 16; ++n) {
      const float2 cosine = *reinterpret_cast<const float2*>(angles + n * 8);
      const float2 sine = *reinterpret_cast<const float2*>(angles + E / 2 + n * 8);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float &u = sums[n][2 * half + i], &v = sums[n + E / 16][2 * half + i];
        const float c = i == 0 ? cosine.x : cosine.y, s = i == 0 ? sine.x : sine.y;
        const float back = u * c + v * s;
        v = v * c - u * s;
        u = back;
      }
    }
  }
}

// A group's 64 rows of sums, `factor` times, as bf16: four lanes turn their words so that each has
// eight neighbours of a row.
template <int E>
__device__ __forceinline__ void put(const float (&sums)[E / 8][4], float factor, Rows<Bf16> to,
                                    int row, int rows, int col) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int n = 0; n < E / 8; n += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = pack2(sums[n + i][2 * half] * factor, sums[n + i][2 * half + 1] * factor);
      turn_quad(words, lane);
      if (row + 8 * half < rows)
        store(reinterpret_cast<uint32_t*>(to[row + 8 * half] + col + (n + lane) * 8),
              Pack<uint32_t, 4>{{words[0], words[1], words[2], words[3]}});
    }
}
template <class S>
__device__ __forceinline__ void keep_sums(const float (&sums)[S::E / 8][4], float factor,
                                          float* to) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int n = 0; n < S::E / 8; ++n)
      *reinterpret_cast<float2*>(to + half * 8 * S::kSumLd + n * 8) = {
          sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor};
}

// The sums of a cluster's blocks, in order; every block does some of the rows.
template <class S>
__device__ void join(const BwdBulkArgs& a, const BwdWork& w, const float* sums) {
  constexpr int kChunks = S::E / 4;
  const int rank = static_cast<int>(blockIdx.x) % a.cluster;
  const int share = (w.deep ? 64 : S::kRows) / a.cluster;
  auto total = [&](int which, int r, int col) {
    const float* from = sums + which * (S::kSumBytes / 4) + r * S::kSumLd + col;
    Pack<float, 4> part[S::kMostCluster][S::kGroups];
#pragma unroll
    for (int b = 0; b < S::kMostCluster; ++b)
#pragma unroll
      for (int g = 0; g < S::kGroups; ++g)
        if (b < a.cluster && (g == 0 || w.deep))
          part[b][g] =
              cluster_load(reinterpret_cast<const Pack<float, 4>*>(from + g * 64 * S::kSumLd), b);
    Pack<float, 4> sum{};
#pragma unroll
    for (int b = 0; b < S::kMostCluster; ++b)
#pragma unroll
      for (int g = 0; g < S::kGroups; ++g)
        if (b < a.cluster && (g == 0 || w.deep))
#pragma unroll
          for (int c = 0; c < 4; ++c) sum.at[c] += part[b][g].at[c];
    return sum;
  };
  auto put = [&](const Rows<Bf16>& to, int key, int col, const Pack<float, 4>& x) {
    store(reinterpret_cast<uint32_t*>(to[key] + w.head * S::E + col),
          Pack<uint32_t, 2>{{pack2(x.at[0], x.at[1]), pack2(x.at[2], x.at[3])}});
  };
  // f(row, key, column) for every fourth of so many columns.
  auto each = [&](int chunks, auto f) {
    for (int i = static_cast<int>(threadIdx.x) - 128; i < share * chunks; i += 128 * S::kGroups) {
      const int r = rank * share + i / chunks, key = w.fixed0 + r;
      if (key < a.tokens) f(r, key, i % chunks * 4);
    }
  };
  if (a.dv) each(kChunks, [&](int r, int key, int col) { put(a.dv, key, col, total(1, r, col)); });
  if (!a.dk) return;
  if (!a.turn.table)
    return each(kChunks, [&](int r, int key, int col) { put(a.dk, key, col, total(0, r, col)); });
  each(kChunks / 2, [&](int r, int key, int col) {
    const float* angles = a.turn.table[a.turn.positions[key]] + col;
    const Pack<float, 4> cosine = load<4>(angles), sine = load<4>(angles + S::E / 2);
    Pack<float, 4> u = total(0, r, col), v = total(0, r, col + S::E / 2);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float back = u.at[c] * cosine.at[c] + v.at[c] * sine.at[c];
      v.at[c] = v.at[c] * cosine.at[c] - u.at[c] * sine.at[c];
      u.at[c] = back;
    }
    put(a.dk, key, col, u);
    put(a.dk, key, col + S::E / 2, v);
  });
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident)
    bwd_bulk(const __grid_constant__ BwdMaps maps, const BwdBulkArgs a) {
  constexpr int E = S::E;
  extern __shared__ unsigned char memory[];
  const BwdLayout<S> at(shared_address(memory));
  unsigned char* shared = memory + (at.base - shared_address(memory));
  const bool deep = a.deep && static_cast<int>(blockIdx.x) < a.key_blocks;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(at.full(i), 1);
      barrier_init(at.empty(i), 4 * (deep ? 1 : S::kGroups));
    }
    barrier_init(at.fixed_full(), 1);
    barriers_ready();
  }
  __syncthreads();
  begin_kernel();
  BwdWork w{};
  if (!place<S>(a, w)) return;
  if (threadIdx.x == 0) copy_fixed<S>(maps, w, at);
  find_list<S>(a, w);
  const int role = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == 0) {
    bulk_keep_registers<S::kFewRegisters>();
    if (threadIdx.x == 0) produce<S>(a, maps, w, at);
    if (w.keys && a.cluster > 1) {
      __syncwarp();
      cluster_barrier();
      cluster_leave();
    }
    return;
  }
  bulk_get_registers<S::kRegisters>();
  const int g = role - 1;
  if (!w.keys) {
    Group<S, false> group(a, w, at, g);
    group.run(shared);
    turn_back<E>(group.sums1, a.turn, group.positions, group.col);
    put<E>(group.sums1, a.scale, a.dq, group.fixed0 + group.row, a.tokens, w.head * E);
    return;
  }
  Group<S, true> group(a, w, at, g);
  group.run(shared);
  if (a.cluster == 1) {
    turn_back<E>(group.sums1, a.turn, group.positions, group.col);
    if (a.dk) put<E>(group.sums1, a.scale, a.dk, group.fixed0 + group.row, a.tokens, w.head * E);
    if (a.dv) put<E>(group.sums2, 1.0f, a.dv, group.fixed0 + group.row, a.tokens, w.head * E);
    return;
  }
  bulk_meet<S::kGroups>();  // the sums lie where the other group's tiles were
  float* sums = reinterpret_cast<float*>(shared);
  float* mine = sums + (64 * g + group.row) * S::kSumLd + group.col;
  keep_sums<S>(group.sums1, a.scale, mine);
  keep_sums<S>(group.sums2, 1.0f, mine + S::kSumBytes / 4);
  cluster_barrier();
  join<S>(a, w, sums);
  cluster_leave();  // until then the others' shared memory is read
}

// Enough stretches to fill the card beside the blocks of rows. `units` are blocks of keys.
template <class S>
int cluster_of(int64_t units, int sms) {
  if (S::kGroups > 1) return units <= sms / 2 ? 4 : units <= 2 * sms ? 2 : 1;
  return units <= sms / 4 ? 8 : units <= sms ? 4 : units <= 3 * sms / 2 ? 2 : 1;
}

// Whether the card holds all blocks of two groups at once, each alone on its multiprocessor.
bool holds_pairs(const StepArgs& args) {
  const AttentionAttr& how = attr<AttentionAttr>(*args.step);
  const int64_t rows = args.in[1].rows;
  return 4 * divide_up(rows, 64) * how.kv_heads + divide_up(rows, 128) * how.heads <=
         queue(args).sms;
}

template <class S>
bool launch(const StepArgs& args, const AttentionTurn& turn, bool has_stats) {
  const Queue& to = queue(args);
  BwdMaps maps;
  if (!make_map(args.in[0], 64, 64, maps.dy) || !make_map(args.in[1], 64, 64, maps.q) ||
      !make_map(args.in[2], 64, 64, maps.k) || !make_map(args.in[3], 64, 64, maps.v) ||
      !allow_shared(bwd_bulk<S>, S::kBytes))
    return false;
  const AttentionStats stats = has_stats ? attention_stats_at(args, args.scratch)
                                         : attention_stats(args, kLog2E, args.scratch);
  BwdBulkArgs a{attention_bwd_args<Bf16>(args, stats)};
  a.scale2 = a.scale * kLog2E;
  a.turn = turn;
  const int64_t tiles = divide_up(a.tokens, S::kRows);
  const bool keys = args.out[1] || args.out[2];
  a.cluster = keys ? cluster_of<S>(tiles * a.kv_heads, to.sms) : 1;
  a.deep = S::kGroups > 1 && tiles * a.kv_heads <= to.sms / 4;
  const int64_t key_tiles = a.deep ? divide_up(a.tokens, 64) : tiles;
  a.key_blocks = keys ? static_cast<int>(key_tiles * a.kv_heads * a.cluster) : 0;
  a.row_blocks = args.out[0] ? static_cast<int>(tiles * a.heads) : 0;
  const int64_t blocks = a.key_blocks + divide_up(a.row_blocks, a.cluster) * a.cluster;
  if (blocks == 0) return true;
  prefer_shared(bwd_bulk<S>);
  launch_clusters(to, bwd_bulk<S>, dim3(static_cast<unsigned>(blocks)), S::kThreads, S::kBytes,
                  a.cluster, maps, a);
  return true;
}

}  // namespace

bool attention_bulk_serves(const AttentionAttr& attr, Arch arch) {
  return arch == Arch::kSm90 && (attr.head_dim == 64 || attr.head_dim == 128);
}

bool attention_bwd_bulk(const StepArgs& args, const AttentionTurn& turn, bool has_stats) {
  if (attr<AttentionAttr>(*args.step).head_dim == 128)
    return launch<BwdBulkShape<128, 2>>(args, turn, has_stats);
  return holds_pairs(args) ? launch<BwdBulkShape<64, 2>>(args, turn, has_stats)
                           : launch<BwdBulkShape<64, 1>>(args, turn, has_stats);
}

}  // namespace wick::cuda
