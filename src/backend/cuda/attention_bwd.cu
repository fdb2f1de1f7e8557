// SPDX-License-Identifier: Apache-2.0
// attention backward with tensor cores, without atomics. Three launches: the rows' statistics; the
// products; the sum of dk's and dv's parts where there are several.
//
// The products are made by two kinds of blocks in one launch, so that they fill the card together:
// - a block of keys: 64 keys of one kv head against the rows that see them, head by head, row block
//   by row block. A warp has 16 keys and makes pᵀ and dsᵀ, which are then left operands as they lie
//   in its registers: dv += pᵀ dy, dk += dsᵀ q.
// - a block of rows: 64 rows of one head against the keys they see: dq += ds k.
// Both make the scores again; that is seven products of five. A key block's list of (head, row
// block) is cut into `splits` equal stretches, each summed into a part of its own in f32, because a
// short sequence has few key blocks. The number depends on T, the heads and the multiprocessors.
// On sm_90 attention_bwd_bulk.cu serves heads of 64 and 128.
#include <algorithm>

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_bwd.cuh"

namespace wick::cuda {
namespace {

constexpr int kBlock = kAttentionBlock, kThreads = 128;
constexpr int kMostSplits = 12, kStep = kBwdStep;

struct BwdArgs : AttentionBwd<Bf16> {
  float scale2 = 0;    // to powers of 2
  int splits = 1;      // of a key block's list
  int key_blocks = 0;  // of the grid; the rest are blocks of rows
  // [splits][padded][K * E], where splits > 1
  float *dk_parts = nullptr, *dv_parts = nullptr;
};

// Stores a warp's 16 rows of sums, `factor` times: as bf16, or as f32 into a part.
template <int E>
__device__ inline void put(const float (&sums)[E / 8][4], float factor, Rows<Bf16> to, float* part,
                           int64_t part_ld, int row, int rows, int col) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + lane / 4 + half * 8;
    if (r >= rows) continue;
#pragma unroll
    for (int n = 0; n < E / 8; ++n) {
      const int c = col + n * 8 + lane % 4 * 2;
      const float x = sums[n][2 * half] * factor, y = sums[n][2 * half + 1] * factor;
      if (part != nullptr)
        *reinterpret_cast<float2*>(part + r * part_ld + c) = {x, y};
      else
        *reinterpret_cast<uint32_t*>(to[r] + c) = pack2(x, y);
    }
  }
}

// dk (With1) and dv (With2) of key block `block` of kv head `kv`: stretch `split` of its list.
template <class C, bool With1, bool With2>
__device__ void make_keys(const BwdArgs& a, unsigned char* shared, int block, int kv, int split) {
  constexpr int E = C::E;
  if (!(With1 && a.dk) && !(With2 && a.dv)) return;
  const int j0 = block * kBlock, group = a.heads / a.kv_heads, thread = threadIdx.x;
  copy_tile<E, kBlock, kThreads>(reinterpret_cast<Bf16*>(shared), a.k.data + kv * E, a.k.ld, j0, 0,
                                 a.tokens, thread);
  copy_tile<E, kBlock, kThreads>(reinterpret_cast<Bf16*>(shared) + C::kTile, a.v.data + kv * E,
                                 a.v.ld, j0, 0, a.tokens, thread);
  // Row blocks [block, block + count) see these keys: where a row begins never decreases.
  int count = 0;
  for (int b = block; b < a.padded / kBlock; b += kThreads) {
    const int mine = b + thread;
    const int more =
        __syncthreads_count(mine < a.padded / kBlock && a.low[mine * kBlock] < j0 + kBlock);
    count += more;
    if (more < kThreads) break;
  }
  const int items = count * group;
  const int from = static_cast<int>(static_cast<int64_t>(items) * split / a.splits);
  const int to = static_cast<int>(static_cast<int64_t>(items) * (split + 1) / a.splits);
  auto fetch = [&](int item, int i) {
    const Stage<C> stage(shared, i);
    const int head = kv * group + item / count, t0 = (block + item % count) * kBlock;
    copy_tile<E, kBlock, kThreads>(stage.first, a.q.data + head * E, a.q.ld, t0, 0, a.tokens,
                                   thread);
    copy_tile<E, kBlock, kThreads>(stage.second, a.dy.data + head * E, a.dy.ld, t0, 0, a.tokens,
                                   thread);
    const int64_t at = static_cast<int64_t>(head) * a.padded + t0;
    if (thread < kBlock / 4)
      copy16(stage.lse + thread * 4, a.lse + at + thread * 4, true);
    else if (thread < kBlock / 2)
      copy16(stage.delta + (thread - kBlock / 4) * 4, a.delta + at + (thread - kBlock / 4) * 4,
             true);
    else if (thread < kBlock * 3 / 4)
      copy16(stage.low + (thread - kBlock / 2) * 4, a.low + t0 + (thread - kBlock / 2) * 4, true);
  };
  if (from < to) fetch(from, 0);
  copies_wait();
  __syncthreads();
  Warp<C, true, With1, With2> warp(shared);
  warp.keep_fixed();
  for (int item = from, i = 0; item < to; ++item, i ^= 1) {
    if (item > from) {
      copies_wait();
      __syncthreads();
    }
    if (item + 1 < to) fetch(item + 1, i ^ 1);
    const Stage<C> stage(shared, i);
    const int t0 = (block + item % count) * kBlock;
    const bool masked = t0 < j0 + kBlock - 1 || stage.low[kBlock - 1] > j0;
#pragma unroll
    for (int first = 0; first < kBlock; first += kStep)
      if (t0 + first + kStep > j0 + warp.row0)
        warp.step(stage, first, j0, t0, masked, a.scale2, stage.lse, stage.delta, stage.low,
                  bool(a.dk), bool(a.dv));
  }
  const int64_t width = static_cast<int64_t>(a.kv_heads) * E;
  const int64_t part = static_cast<int64_t>(split) * a.padded * width;
  const bool parts = a.splits > 1;
  if constexpr (With1)
    if (a.dk)
      put<E>(warp.sums1, a.scale, a.dk, parts ? a.dk_parts + part : nullptr, width, j0 + warp.row0,
             a.tokens, kv * E);
  if constexpr (With2)
    if (a.dv)
      put<E>(warp.sums2, 1.0f, a.dv, parts ? a.dv_parts + part : nullptr, width, j0 + warp.row0,
             a.tokens, kv * E);
}

// dq of row block `block` of a head.
template <class C>
__device__ void make_rows(const BwdArgs& a, unsigned char* shared, int block, int head) {
  constexpr int E = C::E;
  const int t0 = block * kBlock, kv = head / (a.heads / a.kv_heads), thread = threadIdx.x;
  auto fetch = [&](int b, int i) {
    const Stage<C> stage(shared, i);
    copy_tile<E, kBlock, kThreads>(stage.first, a.k.data + kv * E, a.k.ld, b * kBlock, 0, a.tokens,
                                   thread);
    copy_tile<E, kBlock, kThreads>(stage.second, a.v.data + kv * E, a.v.ld, b * kBlock, 0, a.tokens,
                                   thread);
  };
  fetch(block, 0);
  copy_tile<E, kBlock, kThreads>(reinterpret_cast<Bf16*>(shared), a.q.data + head * E, a.q.ld, t0,
                                 0, a.tokens, thread);
  copy_tile<E, kBlock, kThreads>(reinterpret_cast<Bf16*>(shared) + C::kTile, a.dy.data + head * E,
                                 a.dy.ld, t0, 0, a.tokens, thread);
  Warp<C, false, true, false> warp(shared);
  float lse[2], delta[2];
  int low[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = t0 + warp.row0 + warp.lane / 4 + half * 8;
    lse[half] = a.lse[static_cast<int64_t>(head) * a.padded + t];
    delta[half] = a.delta[static_cast<int64_t>(head) * a.padded + t];
    low[half] = a.low[t];
  }
  const int least = a.low[t0] / kBlock, most_low = a.low[t0 + kBlock - 1];
  for (int b = block, i = 0; b >= least; --b, i ^= 1) {
    copies_wait();
    __syncthreads();
    if (b == block) warp.keep_fixed();
    if (b > least) fetch(b - 1, i ^ 1);
    const Stage<C> stage(shared, i);
    const int j0 = b * kBlock;
    const bool masked = b == block || most_low > j0;
#pragma unroll
    for (int first = 0; first < kBlock; first += kStep)
      if (j0 + first <= t0 + warp.row0 + 15)
        warp.step(stage, first, t0, j0, masked, a.scale2, lse, delta, low, true, false);
  }
  copies_wait();
  put<E>(warp.sums1, a.scale, a.dq, nullptr, 0, t0 + warp.row0, a.tokens, head * E);
}

template <class C>
__global__ void __launch_bounds__(kThreads, C::kMinBlocks) bwd_mma(BwdArgs a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  begin_kernel();
  const int blocks = a.padded / kBlock;
  int id = blockIdx.x;
  if (id >= a.key_blocks) {  // the longest first, in causal order
    id -= a.key_blocks;
    make_rows<C>(a, shared, blocks - 1 - id / a.heads, id % a.heads);
    return;
  }
  const int split = id % a.splits;
  id /= a.splits;
  const int kv = id % a.kv_heads;
  id /= a.kv_heads;
  if constexpr (C::kApart) {
    if (id < blocks)
      make_keys<C, true, false>(a, shared, id, kv, split);
    else
      make_keys<C, false, true>(a, shared, id - blocks, kv, split);
  } else {
    make_keys<C, true, true>(a, shared, id, kv, split);
  }
}

// The parts of dk and dv, four columns a thread, summed in order.
__global__ void __launch_bounds__(kThreads) sum_parts(BwdArgs a) {
  begin_kernel();
  const int64_t width = static_cast<int64_t>(a.kv_heads) * a.head_dim, chunks = width / 4;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = at / chunks, col = at % chunks * 4;
  if (row >= a.tokens) return;
  const Rows<Bf16> to = blockIdx.y == 0 ? a.dk : a.dv;
  if (!to) return;
  const float* from = (blockIdx.y == 0 ? a.dk_parts : a.dv_parts) + row * width + col;
  float sums[4] = {};
#pragma unroll 4
  for (int i = 0; i < a.splits; ++i) {
    const Pack<float, 4> x = load<4>(from + i * a.padded * width);
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[c] += x.at[c];
  }
  Pack<Bf16, 4> out;
#pragma unroll
  for (int c = 0; c < 4; ++c) out.at[c] = from_f32<Bf16>(sums[c]);
  store(to[row] + col, out);
}

// Enough blocks of keys to fill the card beside those of rows, as measured on an H200.
int64_t splits_of(const AttentionAttr& attr, int64_t tokens, int sms) {
  const int64_t units = divide_up(tokens, kBlock) * attr.kv_heads;
  return std::clamp<int64_t>((units <= sms / 2 ? 2 : 4) * sms / units, 1, kMostSplits);
}

template <class C>
bool launch(const StepArgs& args) {
  const AttentionAttr& how = attr<AttentionAttr>(*args.step);
  const Queue& to = queue(args);
  if (!allow_shared(bwd_mma<C>, C::kBytes)) return false;
  const AttentionStats stats = attention_stats(args, kLog2E, args.scratch);
  BwdArgs a{attention_bwd_args<Bf16>(args, stats)};
  const int64_t blocks = a.padded / kBlock;
  a.scale2 = a.scale * kLog2E;
  a.splits = static_cast<int>(splits_of(how, a.tokens, to.sms));
  const bool keys = args.out[1] || args.out[2];
  a.key_blocks = keys ? static_cast<int>(blocks * a.kv_heads * a.splits * (C::kApart ? 2 : 1)) : 0;
  a.dk_parts = reinterpret_cast<float*>(stats.low + a.padded);
  a.dv_parts = a.dk_parts + static_cast<int64_t>(a.splits) * a.padded * a.kv_heads * a.head_dim;
  const int64_t row_blocks = args.out[0] ? blocks * a.heads : 0;
  if (a.key_blocks + row_blocks == 0) return true;
  launch(to, bwd_mma<C>, static_cast<unsigned>(a.key_blocks + row_blocks), kThreads, C::kBytes, a);
  if (keys && a.splits > 1) {
    const int64_t chunks = static_cast<int64_t>(a.tokens) * a.kv_heads * a.head_dim / 4;
    launch(to, sum_parts, dim3(static_cast<unsigned>(divide_up(chunks, kThreads)), 2), kThreads, 0,
           a);
  }
  return true;
}

}  // namespace

size_t attention_bwd_mma_scratch(const AttentionAttr& attr, int64_t tokens, int sms, Arch arch) {
  if (attention_bulk_serves(attr, arch)) return 0;
  const int64_t splits = splits_of(attr, tokens, sms);
  if (splits == 1) return 0;
  const int64_t part = AttentionStats::padded_rows(tokens) * attr.kv_heads * attr.head_dim;
  return static_cast<size_t>(2 * splits * part) * sizeof(float);
}

bool attention_bwd_mma(const StepArgs& args) {
  const AttentionAttr& how = attr<AttentionAttr>(*args.step);
  if (attention_bulk_serves(how, queue(args).arch)) return attention_bwd_bulk(args);
  return with_head_dim(how.head_dim, [&](auto dim) {
    constexpr int E = decltype(dim)::value;
    return launch<BwdShape<E, E <= 64 ? 3 : E <= 96 ? 2 : 1>>(args);
  });
}

}  // namespace wick::cuda
