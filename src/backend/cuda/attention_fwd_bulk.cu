// SPDX-License-Identifier: Apache-2.0
// attention forward of causal rows on sm_90 for heads of 64 and 128, by warp groups whose tiles
// come by the bulk copy engine. Blocks stay and take tile after tile: 64 consecutive rows of one
// head for each group, against the keys that they see, from the last block of keys to the first. A
// group asks for the next block's scores before the last one's values are added, so that
// exponentials are made while both products run. Where tiles are few (Deep), both groups have the
// same 64 rows and take blocks of keys in turn; their results are joined through shared memory.
#include <algorithm>

#include "backend/cuda/attention_bulk.cuh"

namespace wick::cuda {
namespace {

struct FwdArgs : AttentionFwd<Bf16> {
  float scale2 = 0;  // to powers of 2
  int tiles = 0;     // of all heads
};
struct Maps {
  CUtensorMap q, k, v;
};

constexpr int N = 64;             // keys of a block
constexpr int kMostSorted = 512;  // tiles of a head

template <int E_, bool Deep_>
struct Shape {
  static constexpr bool kDeep = Deep_;
  static constexpr int E = E_, kParts = kDeep ? 1 : kBulkGroups, kRows = 64 * kParts;
  static constexpr int kPanels = E / 64, kPanelBytes = N * 128;  // of keys or values
  static constexpr int kTileBytes = kPanels * kPanelBytes, kStageBytes = 2 * kTileBytes;
  static constexpr int kQBytes = kPanels * kBulkPanel;  // of a group
  // What the second group hands over: sums, maxima and totals, a thread's next to its neighbours'.
  static constexpr int kJoinBytes = kDeep ? 128 * (E / 2 + 4) * 4 : 0;
  static constexpr int kStages =
      std::min(8, ((224 << 10) - kParts * kQBytes - kJoinBytes) / kStageBytes / 2 * 2);
  static constexpr int kBarriers = 3 * kStages + 2;
  static constexpr size_t kBytes = 1024 + kParts * kQBytes + kStages * kStageBytes + kJoinBytes +
                                   2 * kMostSorted + 8 * kBarriers;
};

template <class S>
struct Layout {
  uint32_t base;
  __device__ explicit Layout(uint32_t shared) : base((shared + 1023) / 1024 * 1024) {}
  __device__ uint32_t q(int part) const { return base + part * S::kQBytes; }
  __device__ uint32_t k(int stage) const {
    return base + S::kParts * S::kQBytes + stage * S::kStageBytes;
  }
  __device__ uint32_t v(int stage) const { return k(stage) + S::kTileBytes; }
  __device__ uint32_t joined() const { return k(S::kStages); }
  __device__ uint32_t order() const { return joined() + S::kJoinBytes; }
  __device__ uint32_t barrier(int i) const { return order() + 2 * kMostSorted + 8 * i; }
  __device__ uint32_t k_full(int stage) const { return barrier(stage); }
  __device__ uint32_t v_full(int stage) const { return barrier(S::kStages + stage); }
  __device__ uint32_t empty(int stage) const { return barrier(2 * S::kStages + stage); }
  __device__ uint32_t q_full() const { return barrier(3 * S::kStages); }
  __device__ uint32_t q_empty() const { return barrier(3 * S::kStages + 1); }
};

__device__ inline int first_key(const FwdArgs& a, int t) {
  return visible(a, min(t, a.tokens - 1)).low;
}
// The blocks of keys that the rows from t0 on see, or may: [first, last].
template <class S>
__device__ inline int last_block(const FwdArgs& a, int t0) {
  return (min(t0 + S::kRows, a.tokens) - 1) / N;
}
__device__ inline int first_block(int t0, int first_key) { return min(first_key, t0) / N; }

// The rows of a block's `turn`th tile: long ones first, and each round in the other direction.
// `order`: the tiles of a head from the longest on, or null where that is the last.
template <class S>
struct Tile {
  int t0 = 0, head = 0, top = 0;  // top: the last block of keys
  bool real = false;
  __device__ Tile(const FwdArgs& a, int turn, const uint16_t* order) {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const int id = turn * blocks + (turn % 2 == 0 ? block : blocks - 1 - block);
    real = id < a.tiles;
    if (!real) return;
    const int at = id / a.heads;
    t0 = (order != nullptr ? order[at] : a.tiles / a.heads - 1 - at) * S::kRows;
    head = id - at * a.heads;
    top = last_block<S>(a, t0);
  }
};

// By all threads; `lengths` are written over later.
template <class S>
__device__ inline void sort_tiles(const FwdArgs& a, uint16_t* order, uint16_t* lengths) {
  const int count = a.tiles / a.heads, thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < count; i += kBulkThreads) {
    const int t0 = i * S::kRows;
    lengths[i] = static_cast<uint16_t>(last_block<S>(a, t0) - first_block(t0, first_key(a, t0)));
  }
  __syncthreads();
  for (int i = thread; i < count; i += kBulkThreads) {
    int before = 0;
    for (int j = 0; j < count; ++j)
      before += lengths[j] > lengths[i] || (lengths[j] == lengths[i] && j > i);
    order[before] = static_cast<uint16_t>(i);
  }
  group_publish();
  __syncthreads();
}

template <class S>
__device__ void produce(const FwdArgs& a, const Maps& maps, const Layout<S>& at,
                        const uint16_t* order) {
  BulkRing<S::kStages> ring;
  const int group = a.heads / a.kv_heads;
  for (int turn = 0;; ++turn) {
    const Tile<S> tile(a, turn, order);
    if (!tile.real) break;
    const int col = tile.head * S::E, kv_col = tile.head / group * S::E;
    const int least = first_block(tile.t0, first_key(a, tile.t0));
    barrier_wait(at.q_empty(), turn % 2 ^ 1);
    barrier_expect(at.q_full(), S::kParts * S::kQBytes);
    for (int g = 0; g < S::kParts; ++g)
      for (int p = 0; p < S::kPanels; ++p)
        copy_box(at.q(g) + p * kBulkPanel, maps.q, col + p * 64, tile.t0 + 64 * g, at.q_full());
    for (int block = tile.top; block >= least; --block, ring.next()) {
      barrier_wait(at.empty(ring.stage), ring.phase ^ 1);
      barrier_expect(at.k_full(ring.stage), S::kTileBytes);
      for (int p = 0; p < S::kPanels; ++p)
        copy_box(at.k(ring.stage) + p * S::kPanelBytes, maps.k, kv_col + p * 64, block * N,
                 at.k_full(ring.stage));
      barrier_expect(at.v_full(ring.stage), S::kTileBytes);
      for (int p = 0; p < S::kPanels; ++p)
        copy_box(at.v(ring.stage) + p * S::kPanelBytes, maps.v, kv_col + p * 64, block * N,
                 at.v_full(ring.stage));
    }
  }
}

template <class S>
struct Group {
  static constexpr int E = S::E;
  const FwdArgs& a;
  const Layout<S>& at;
  static constexpr int kStride = S::kDeep ? kBulkGroups : 1;
  int group, part;  // of the block's groups, and of the tile's rows
  int row, col;     // the thread's rows (and row + 8) and columns in a part
  uint32_t q[E / 16][4], p[N / 16][4];
  float s[N / 8][4], sums[E / 8][4], most[2], total[2];
  BulkRing<S::kStages> ring;

  __device__ Group(const FwdArgs& args, const Layout<S>& layout, int g)
      : a(args), at(layout), group(g), part(S::kDeep ? 0 : g) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    row = thread / 32 * 16 + thread % 32 / 4;
    col = thread % 4 * 2;
  }
  __device__ __forceinline__ void release(uint32_t barrier) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }
  // s = q kᵀ
  __device__ __forceinline__ void multiply_keys(int stage) {
    const uint64_t right = panel_at(at.k(stage));
    group_begin();
#pragma unroll
    for (int k = 0; k < E / 16; ++k)
      group_multiply<true>(s, q[k], panel_after(right, k / 4 * S::kPanelBytes + k % 4 * 32), k > 0);
    group_commit();
  }
  // sums += p v
  __device__ __forceinline__ void add_values(int stage) {
    const uint64_t right = panel_at(at.v(stage));
    group_begin();
#pragma unroll
    for (int k = 0; k < N / 16; ++k)
#pragma unroll
      for (int n = 0; n < E / 64; ++n)
        group_multiply<false>(&sums[n * 8], p[k], panel_after(right, n * S::kPanelBytes + k * 2048),
                              true);
    group_commit();
  }
  __device__ __forceinline__ void mask(int j0, int t, const int (&low)[2]) {
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = j0 + n * 8 + col + i % 2;
        if (key > t + i / 2 * 8 || key < low[i / 2]) s[n][i] = -INFINITY;
      }
  }
  // s becomes probabilities, relative to the new maxima; what sums are to be multiplied with.
  __device__ __forceinline__ void soften(float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = most[half];
#pragma unroll
      for (int n = 0; n < N / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float base = top == -INFINITY ? 0.0f : top * a.scale2;
      factor[half] = exp2_fast(fmaf(most[half], a.scale2, -base));
      most[half] = top;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[n][i] = exp2_fast(fmaf(s[n][i], a.scale2, -base));
          sum += s[n][i];
        }
      total[half] = fmaf(total[half], factor[half], sum);
    }
  }
  __device__ __forceinline__ void round() {
#pragma unroll
    for (int k = 0; k < N / 16; ++k) left_of_sums(p[k], s[2 * k], s[2 * k + 1]);
  }

  __device__ __forceinline__ void run(const Tile<S>& tile, const int (&low)[2], int first,
                                      int most_low, int turn) {
    const int own = tile.t0 + 64 * part, t = own + row;
    const int least = first_block(tile.t0, first);
    auto masked = [&](int block) { return block * N + N - 1 > own || block * N < most_low; };
    auto advance = [&] {
      ring.next();
      if (S::kDeep) ring.next();
    };
    barrier_wait(at.q_full(), turn % 2);
    bulk_left(q, at.q(part), row / 16 * 16);
#pragma unroll
    for (int n = 0; n < E / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0.0f;
    most[0] = most[1] = -INFINITY;
    total[0] = total[1] = 0.0f;
    int block = tile.top;
    if constexpr (S::kDeep) {
      if (group == 1) {
        --block;
        ring.next();
      }
    } else {
      for (; block * N > own + 63; --block, ring.next()) {  // keys behind all of the group's rows
        barrier_wait(at.k_full(ring.stage), ring.phase);
        barrier_wait(at.v_full(ring.stage), ring.phase);
        release(at.empty(ring.stage));
      }
    }
    if (block >= least) {
      float factor[2];
      barrier_wait(at.k_full(ring.stage), ring.phase);
      multiply_keys(ring.stage);
      group_wait<0>();
      group_done(s);
      release(at.q_empty());
      if (masked(block)) mask(block * N, t, low);
      soften(factor);
      round();
      int stage = ring.stage, phase = ring.phase;
#pragma unroll 1
      for (block -= kStride; block >= least; block -= kStride) {
        advance();
        barrier_wait(at.k_full(ring.stage), ring.phase);
        multiply_keys(ring.stage);
        barrier_wait(at.v_full(stage), phase);
        add_values(stage);
        group_wait<1>();
        group_done(s);
        if (masked(block)) mask(block * N, t, low);
        soften(factor);
        bulk_made(s, at.k_full(ring.stage), ring.phase);
        group_wait<0>();
        group_done(sums);
        release(at.empty(stage));
        round();
#pragma unroll
        for (int n = 0; n < E / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[n][i] *= factor[i / 2];
        stage = ring.stage;
        phase = ring.phase;
      }
      barrier_wait(at.v_full(stage), phase);
      add_values(stage);
      group_wait<0>();
      group_done(sums);
      release(at.empty(stage));
      ring.next();
      if (block + kStride > least) ring.next();  // the other group's last block
    } else {
      release(at.q_empty());
    }
    if constexpr (S::kDeep) {
      join();
      if (group == 1) return;
    }
    finish(tile, t);
  }

  // The second group's sums, maxima and totals go to the first.
  __device__ __forceinline__ void join() {
    const uint32_t to = at.joined() + static_cast<uint32_t>(threadIdx.x % 128) * 8;
    auto pair = [&](int i) { return to + i * 1024; };
    if (group == 1) {
      put_pair(pair(0), most[0], most[1]);
      put_pair(pair(1), total[0], total[1]);
#pragma unroll
      for (int n = 0; n < E / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          put_pair(pair(2 + 2 * n + half), sums[n][2 * half], sums[n][2 * half + 1]);
    }
    bulk_meet();
    if (group == 0) {
      const float2 tops = get_pair(pair(0)), totals = get_pair(pair(1));
      const float other[2] = {tops.x, tops.y}, others[2] = {totals.x, totals.y};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = fmaxf(most[half], other[half]);
        const float base = top == -INFINITY ? 0.0f : top * a.scale2;
        const float mine = exp2_fast(fmaf(most[half], a.scale2, -base));
        const float its = exp2_fast(fmaf(other[half], a.scale2, -base));
        most[half] = top;
        total[half] = fmaf(total[half], mine, others[half] * its);
#pragma unroll
        for (int n = 0; n < E / 8; ++n) {
          const float2 x = get_pair(pair(2 + 2 * n + half));
          sums[n][2 * half] = fmaf(sums[n][2 * half], mine, x.x * its);
          sums[n][2 * half + 1] = fmaf(sums[n][2 * half + 1], mine, x.y * its);
        }
      }
    }
    bulk_meet();  // the place is free again
  }

  // y and lse; four lanes turn their words so that each has eight neighbours of a row.
  __device__ __forceinline__ void finish(const Tile<S>& tile, int t) {
    const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = total[half];
      x += __shfl_xor_sync(0xffffffffu, x, 1);
      x += __shfl_xor_sync(0xffffffffu, x, 2);
      const bool none = most[half] == -INFINITY, real = t + 8 * half < a.tokens;
      const float factor = none ? 0.0f : 1.0f / x;
      if (lane == 0 && real && a.lse)
        a.lse[t + 8 * half][tile.head] =
            none ? -INFINITY : fmaf(most[half], a.scale2, log2f(x)) * kLn2;
#pragma unroll
      for (int n = 0; n < E / 8; n += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = pack2(sums[n + i][2 * half] * factor, sums[n + i][2 * half + 1] * factor);
        turn_quad(words, lane);
        if (real)
          store(reinterpret_cast<uint32_t*>(a.y[t + 8 * half] + tile.head * E + (n + lane) * 8),
                Pack<uint32_t, 4>{{words[0], words[1], words[2], words[3]}});
      }
    }
  }
};

template <class S>
__global__ void __launch_bounds__(kBulkThreads, 1)
    fwd_bulk(const __grid_constant__ Maps maps, const FwdArgs a) {
  extern __shared__ unsigned char memory[];
  const Layout<S> at(shared_address(memory));
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(at.k_full(i), 1);
      barrier_init(at.v_full(i), 1);
      barrier_init(at.empty(i), 4 * S::kParts);
    }
    barrier_init(at.q_full(), 1);
    barrier_init(at.q_empty(), 4 * kBulkGroups);
    barriers_ready();
  }
  __syncthreads();
  begin_kernel();
  const uint16_t* order = nullptr;
  if (a.tiles > static_cast<int>(gridDim.x) && a.tiles / a.heads <= kMostSorted) {
    unsigned char* aligned = memory + (at.base - shared_address(memory));
    auto* sorted = reinterpret_cast<uint16_t*>(aligned + (at.order() - at.base));
    sort_tiles<S>(a, sorted, reinterpret_cast<uint16_t*>(aligned));
    order = sorted;
  }
  const int role = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == 0) {
    bulk_keep_registers<40>();
    if (threadIdx.x == 0) produce<S>(a, maps, at, order);
    return;
  }
  bulk_get_registers<232>();
  Group<S> group(a, at, role - 1);
  // Where a tile's rows begin is asked for a tile ahead.
  int low[2], first = 0, most_low = 0;
  auto ask = [&](const Tile<S>& tile) {
    const int own = tile.t0 + 64 * group.part;
    low[0] = first_key(a, own + group.row);
    low[1] = first_key(a, own + group.row + 8);
    first = first_key(a, tile.t0);
    most_low = first_key(a, own + 63);
  };
  Tile<S> tile(a, 0, order);
  ask(tile);
#pragma unroll 1
  for (int turn = 0; tile.real; ++turn) {
    const int now[2] = {low[0], low[1]}, now_first = first, now_most = most_low;
    const Tile<S> next(a, turn + 1, order);
    if (next.real) ask(next);
    group.run(tile, now, now_first, now_most, turn);
    tile = next;
  }
}

template <class S>
bool launch(const StepArgs& args) {
  const Queue& to = queue(args);
  Maps maps;
  if (!make_map(args.in[0], 64, 64, maps.q) || !make_map(args.in[1], 64, N, maps.k) ||
      !make_map(args.in[2], 64, N, maps.v) || !allow_shared(fwd_bulk<S>, S::kBytes))
    return false;
  FwdArgs a{attention_fwd_args<Bf16>(args)};
  a.scale2 = a.scale * kLog2E;
  a.tiles = static_cast<int>(divide_up(a.tokens, S::kRows) * a.heads);
  prefer_shared(fwd_bulk<S>);
  launch(to, fwd_bulk<S>, dim3(static_cast<unsigned>(std::min(a.tiles, to.sms))), kBulkThreads,
         S::kBytes, maps, a);
  return true;
}
template <int E>
bool launch_dim(const StepArgs& args) {
  const int64_t heads = attr<AttentionAttr>(*args.step).heads;
  const bool few = divide_up(args.in[0].rows, 64) * heads <= 2 * queue(args).sms;
  return few ? launch<Shape<E, true>>(args) : launch<Shape<E, false>>(args);
}

}  // namespace

bool attention_fwd_bulk(const StepArgs& args) {
  return attr<AttentionAttr>(*args.step).head_dim == 64 ? launch_dim<64>(args)
                                                        : launch_dim<128>(args);
}

}  // namespace wick::cuda
