// SPDX-License-Identifier: Apache-2.0
// attention forward with tensor cores. A block makes the rows of one tile; its warps stand in WK
// sets of WM, a set takes every WK-th block of keys (bound by latency otherwise: a sequence of 512
// has few tiles), and the sets' running maxima, sums and totals are joined in order at the end.
// Blocks of keys run from the last to the first, so that a causal tile can fetch its first block
// before it has read where its rows begin.
//
// Two kinds of tiles: consecutive rows of one head; and, for decoding, the heads of one row that
// share a kv head, against one of `splits` parts of the row's range. Parts are counted from the
// range's begin, their length depends on the range's and on S, so a row's bits do not depend on
// what it is decoded with. On sm_90 the blocks of a row's parts are a cluster and join their
// results through shared memory; elsewhere a second launch joins them.
//
// On sm_90 attention_fwd_bulk.cu serves causal rows of heads of 64 and 128. H200, bf16, 14 heads of
// 64 over 2, in a graph (2026-11): one row against 640 keys 4.3 us, against 4096 6.6.
#include <algorithm>

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_early.h"
#include "backend/cuda/attention_fwd.cuh"
#include "backend/cuda/attention_join.cuh"

namespace wick::cuda {
namespace {

constexpr int kDecodeRows = 64;   // most rows of a step that is decoded
constexpr int kDecodeGroup = 16;  // most heads of a kv head
// Parts of a range: a cluster of blocks joins its own (sm_90), or their results lie in scratch
// until a second launch. Their length is a multiple of kPart.
constexpr int kClusterPart = 32;
constexpr int64_t kClusterKeys = 1 << 17;  // longer caches are better cut finer
constexpr int kMostSplits = 64, kPart = 128;

// visible() before the kernel waits: from the second-level cache, since the first one is cleared by
// the wait alone.
__device__ inline KeyRange visible_now(const FwdArgs& a, int t) {
  const int end = __ldcg(a.end + t);
  int low = __ldcg(a.begin + t);
  if (a.window > 0) low = max(low, end - a.window);
  return {max(low, 0), min(end, a.keys)};
}

// Asks for a block's keys and values before the kernel waits. Where they lie may be written by the
// kernel before: what is read too early is no more than a hint.
template <class C>
__device__ inline void ask_for_part(const FwdArgs& a, int t, int kv) {
  const KeyRange range = visible_now(a, t);
  const int keys = part_keys(a, range.high - range.low), first = range.low + blockIdx.x * keys;
  const int count = min(range.high, first + keys) - first;
  constexpr int kLines = (C::E + 63) / 64;  // of 128 bytes of a row
  for (int i = threadIdx.x; i < 2 * kLines * count; i += C::kThreads) {
    const Rows<const Bf16>& of = i % 2 == 0 ? a.k : a.v;
    const Bf16* at = of[first + i / (2 * kLines)] + kv * C::E + i / 2 % kLines * 64;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kMinBlocks) fwd_mma(FwdArgs a) {
  constexpr int E = C::E, MT = C::MT, BN = C::BN;
  extern __shared__ __align__(1024) unsigned char shared[];
  const bool early = C::kDecode && a.new_rows != nullptr;
  if constexpr (C::kDecode) {
    let_next_start();
    if (a.cluster) {
      if (threadIdx.x == 0) Given<C>(shared).expect(a.heads / a.kv_heads, blockIdx.x);
      __syncwarp();
      cluster_arrive();
    }
    if (!early) ask_for_part<C>(a, blockIdx.z, blockIdx.y);
  }
  if (!early) begin_kernel();
  Bf16* q_tile = reinterpret_cast<Bf16*>(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, set = warp / C::WM;
  const int row0 = warp % C::WM * 16 * MT, g = lane / 4;
  Bf16* stages = q_tile + C::kQTile + set * 4 * C::kTile;  // k, v; k, v
  const TileRows<C> rows(a);
  const int kv = rows.head0 / (a.heads / a.kv_heads);

  // [first, stop): the keys that some row may see. Of a causal tile `first` comes later.
  int base = 0, first = 0, stop = 0;
  if constexpr (C::kDecode) {
    const KeyRange range = visible_now(a, rows.t0);
    const int keys = part_keys(a, range.high - range.low);
    base = first = range.low + blockIdx.x * keys;
    stop = min(range.high, first + keys);
    if (first >= stop && blockIdx.x > 0 && !a.cluster) return;
  } else if (a.causal) {
    stop = min(rows.t0 + rows.count, a.keys);
  } else {
    first = INT32_MAX;
    for (int r = lane; r < rows.count; r += 32) {
      const KeyRange range = visible(a, rows.token(r));
      if (range.empty()) continue;
      first = min(first, range.low);
      stop = max(stop, range.high);
    }
    first = __reduce_min_sync(0xffffffffu, first);
    stop = __reduce_max_sync(0xffffffffu, stop);
  }
  const int copy_low = first, copy_high = stop;
  auto fetch = [&](int block, int stage) {
    const int thread = threadIdx.x % C::kSetThreads, j0 = base + block * BN;
    Bf16* to = stages + stage * 2 * C::kTile;
    copy_tile<E, BN, C::kSetThreads, C::kGroups>(to, a.k.data + kv * E, a.k.ld, j0, copy_low,
                                                 copy_high, thread);
    copy_tile<E, BN, C::kSetThreads, C::kGroups>(to + C::kTile, a.v.data + kv * E, a.v.ld, j0,
                                                 copy_low, copy_high, thread);
  };
  // The last block of this set; below `least` where it has none.
  const int last = stop > base ? (stop - base - 1) / BN : -1;
  int block = last - (last - set + C::WK) % C::WK;
  if (last >= 0 && block >= 0) fetch(block, 0);
  if constexpr (C::kDecode)
    if (early) {
      static_assert(C::kSetThreads == 32);
      const int j0 = block >= 0 ? base + block * BN : stop;
      const NewKeys<C, kDecodeRows / 32> newer(a.new_rows, a.tokens, j0, stop);
      wait_for_previous();
      newer.copy(a.k, a.v, kv, j0, stages);
    }
  if (!C::kDecode && a.causal) first = visible(a, rows.t0).low;
  const int least = max(0, (first - base) / BN);

  int low[MT][2], high[MT][2], any_low = INT32_MAX, any_high = 0, all_low = 0, all_high = INT32_MAX;
  uint32_t q[C::kQShared ? 1 : MT][C::kQShared ? 1 : E / 16][4];
#pragma unroll
  for (int mt = 0; mt < MT; ++mt)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row0 + mt * 16 + half * 8 + g;
      const bool real = r < rows.count;
      KeyRange range{0, INT32_MAX};  // rows that do not exist ask for no mask
      if (real) {
        range = C::kDecode ? KeyRange{first, stop} : visible(a, rows.token(r));
        if (!range.empty()) {
          any_low = min(any_low, range.low);
          any_high = max(any_high, range.high);
        }
      }
      low[mt][half] = range.low;
      high[mt][half] = range.high;
      all_low = max(all_low, range.low);
      all_high = min(all_high, range.high);
      if constexpr (!C::kQShared) {
        const Bf16* from =
            a.q[rows.token(real ? r : 0)] + rows.head(real ? r : 0) * E + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < E / 16; ++k)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            q[mt][k][2 * i + half] =
                real ? *reinterpret_cast<const uint32_t*>(from + k * 16 + i * 8) : 0;
      }
    }
  if constexpr (C::kGroups) {  // one decision for the group's warps
    const int r = row0 / 64 * 64;
    any_low = a.causal && r < rows.count ? visible(a, rows.t0 + r).low : 0;
    any_high = r >= rows.count ? 0 : a.causal ? rows.t0 + r + 64 : INT32_MAX;
  } else {
    any_low = __reduce_min_sync(0xffffffffu, any_low);
    any_high = __reduce_max_sync(0xffffffffu, any_high);
  }
  all_low = __reduce_max_sync(0xffffffffu, all_low);
  all_high = __reduce_min_sync(0xffffffffu, all_high);
  if constexpr (C::kQShared) {
    for (int i = threadIdx.x; i < C::kRows * (E / 8); i += C::kThreads) {
      const int r = i / (E / 8), col = i % (E / 8) * 8;
      const bool real = r < rows.count;
      const int of = real ? r : 0;
      copy16(q_tile + r * C::kLd + col, a.q[rows.token(of)] + rows.head(of) * E + col, real);
    }
    copies_wait();
    __syncthreads();
  }

  float sums[MT][E / 8][4] = {}, most[MT][2], total[MT][2] = {};
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) most[mt][0] = most[mt][1] = -INFINITY;
  for (int stage = 0; block >= least; block -= C::WK, stage ^= 1) {
    copies_wait();
    if constexpr (C::kGroups) group_publish();
    set_barrier<C::kSetThreads, C::WK>(set);
    if (block - C::WK >= least) fetch(block - C::WK, stage ^ 1);
    const int j0 = base + block * BN;
    if (j0 >= any_high || j0 + BN <= any_low) continue;
    const Bf16 *k_tile = stages + stage * 2 * C::kTile, *v_tile = k_tile + C::kTile;
    float s[MT][BN / 8][4];
    scores<C>(s, q, q_tile, k_tile, row0);
    const bool masked = j0 < all_low || j0 + BN > all_high;
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
      soften<C>(s[mt], sums[mt], most[mt], total[mt], low[mt], high[mt], masked, j0, a.scale2);
    add_values<C>(sums, s, v_tile);
  }

  copies_wait();
  __syncthreads();
  float* set_sums = reinterpret_cast<float*>(shared);
  float2* set_most = reinterpret_cast<float2*>(set_sums + C::kJoinRows * C::kSumLd);
#pragma unroll
  for (int mt = 0; mt < MT; ++mt)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = total[mt][half];
      x += __shfl_xor_sync(0xffffffffu, x, 1);
      x += __shfl_xor_sync(0xffffffffu, x, 2);
      const int r = set * C::kRows + row0 + mt * 16 + half * 8 + g;
      if (lane % 4 == 0) set_most[r] = {most[mt][half] * a.scale2, x};
#pragma unroll
      for (int n = 0; n < E / 8; ++n)
        *reinterpret_cast<float2*>(set_sums + r * C::kSumLd + n * 8 + lane % 4 * 2) = {
            sums[mt][n][2 * half], sums[mt][n][2 * half + 1]};
    }
  __syncthreads();
  join<C>(a, rows, set_sums, set_most, shared);
  if constexpr (C::kDecode)
    if (a.cluster) join_cluster<C>(a, rows, shared);
}

// y and lse of one row and head from the parts of its range. A thread per four columns.
__global__ void join_parts(FwdArgs a) {
  begin_kernel();
  const int head = blockIdx.x, t = blockIdx.y, col = threadIdx.x * 4;
  const KeyRange range = visible(a, t);
  const int keys = max(0, range.high - range.low), part = part_keys(a, keys);
  const int64_t at = (static_cast<int64_t>(t) * a.heads + head) * a.splits;
  Pack<float, 4> y;
  float top, total;
  add_parts(
      max(1, (keys + part - 1) / part),
      [&](int i, float2& m) {
        m = a.part_max[at + i];
        return load<4>(a.part_sums + (at + i) * a.head_dim + col);
      },
      y, top, total);
  finish(a, t, head, col, y, top, total);
}

template <class C>
bool launch_shape(const FwdArgs& a, dim3 grid, const Queue& to) {
  if (!allow_shared(fwd_mma<C>, C::kBytes)) return false;
  launch(to, fwd_mma<C>, grid, C::kThreads, C::kBytes, a);
  return true;
}
template <class C>
bool launch_tiles(FwdArgs a, const Queue& to) {
  const int64_t tiles = divide_up(a.tokens, C::kRows) * a.heads;
  a.sms = tiles <= 2 * to.sms ? to.sms : 0;
  return launch_shape<C>(a, dim3(static_cast<unsigned>(tiles)), to);
}

// Many rows: tiles that read shared memory least. Few: tiles that are many and short.
template <int E>
struct Shapes {
  using Many = FwdShape<E, E <= 128 ? 2 : 1, 4, 1, E <= 96 ? 64 : 32, 1>;
  using Few = FwdShape<E, 1, 2, E <= 96 ? 4 : 2, 32, E <= 96 ? 2 : 1>;
  using Decode = FwdShape<E, 1, 1, 4, 32, 1, TileKind::kDecode>;
};
// The same for warp groups, E = 64 or 128.
template <int E>
struct GroupShapes {
  using Many = FwdShape<E, 1, 4, 1, 64, E <= 64 ? 4 : 3, TileKind::kGroups>;
  using Few = FwdShape<E, 1, 4, 2, 64, E <= 64 ? 2 : 1, TileKind::kGroups>;
};

template <int E>
bool launch_rows(const FwdArgs& a, const Queue& to) {
  auto tiles = [&](int rows) { return divide_up(a.tokens, rows) * a.heads; };
  if constexpr (E == 64 || E == 128) {
    if (to.arch == Arch::kSm90) {
      using S = GroupShapes<E>;
      if (tiles(S::Few::kRows) <= (E <= 64 ? 2 : 1) * to.sms)
        return launch_tiles<typename S::Few>(a, to);
      return launch_tiles<typename S::Many>(a, to);
    }
  }
  using S = Shapes<E>;
  if (tiles(S::Many::kRows) < 4 * to.sms) return launch_tiles<typename S::Few>(a, to);
  return launch_tiles<typename S::Many>(a, to);
}

bool decodes(const AttentionAttr& attr, int64_t tokens) {
  return !attr.causal_self && tokens <= kDecodeRows && attr.heads / attr.kv_heads <= kDecodeGroup;
}
// Depends on the cache alone, so that a row's bits do not depend on what is decoded beside it.
bool by_cluster(Arch arch, int64_t keys) { return arch == Arch::kSm90 && keys <= kClusterKeys; }
int64_t parts_of(int64_t keys) {
  return std::clamp<int64_t>(divide_up(keys, kPart), 1, kMostSplits);
}

template <int E>
bool launch_decode(FwdArgs a, const Queue& to, void* scratch) {
  using C = typename Shapes<E>::Decode;
  a.cluster = by_cluster(to.arch, a.keys);
  a.splits = a.cluster ? kClusterSplits : static_cast<int>(parts_of(a.keys));
  a.part = a.cluster ? kClusterPart : kPart;
  if (!a.cluster) a.new_rows = nullptr;
  const auto heads = static_cast<unsigned>(a.heads), tokens = static_cast<unsigned>(a.tokens);
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.kv_heads), tokens);
  if (!a.cluster) {
    a.part_sums = static_cast<float*>(scratch);
    a.part_max = reinterpret_cast<float2*>(a.part_sums + static_cast<int64_t>(a.tokens) * a.heads *
                                                             a.splits * a.head_dim);
    if (!launch_shape<C>(a, grid, to)) return false;
    if (a.splits > 1) launch(to, join_parts, dim3(heads, tokens), E / 4, 0, a);
    return true;
  }
  if (!allow_shared(fwd_mma<C>, C::kBytes)) return false;
  prefer_shared(fwd_mma<C>);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kClusterSplits, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = C::kBytes;
  config.stream = to.stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, fwd_mma<C>, a) == cudaSuccess;
}

}  // namespace

bool attention_mma_serves(const AttentionAttr& attr, DType dtype) {
  return dtype == DType::kBF16 && attr.scale > 0.0f &&
         with_head_dim(attr.head_dim, [](auto) { return true; });
}

size_t attention_fwd_mma_scratch(const AttentionAttr& attr, int64_t tokens, int64_t keys,
                                 Arch arch) {
  const int64_t parts = parts_of(keys);
  if (!decodes(attr, tokens) || by_cluster(arch, keys) || parts == 1) return 0;
  return static_cast<size_t>(tokens * attr.heads * parts * (attr.head_dim + 2)) * sizeof(float);
}

bool attention_fwd_mma(const StepArgs& args) { return attention_fwd_mma(args, nullptr); }

bool attention_fwd_mma(const StepArgs& args, const int32_t* new_rows) {
  const AttentionAttr& how = attr<AttentionAttr>(*args.step);
  if (how.causal_self && attention_bulk_serves(how, queue(args).arch) && attention_fwd_bulk(args))
    return true;
  FwdArgs a{attention_fwd_args<Bf16>(args)};
  a.scale2 = a.scale * kLog2E;
  if (decodes(how, a.tokens)) a.new_rows = new_rows;
  return with_head_dim(a.head_dim, [&](auto dim) {
    constexpr int E = decltype(dim)::value;
    return decodes(how, a.tokens) ? launch_decode<E>(a, queue(args), args.scratch)
                                  : launch_rows<E>(a, queue(args));
  });
}

}  // namespace wick::cuda
