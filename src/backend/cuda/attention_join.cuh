// SPDX-License-Identifier: Apache-2.0
// attention forward: which rows a block makes, and how the results of its sets of warps, of a
// cluster's blocks and of the parts of a range are joined.
#pragma once

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_fwd.cuh"
#include "backend/cuda/row_copy.cuh"

namespace wick::cuda {

// On sm_90 a cluster of so many blocks joins the parts of a range.
constexpr int kClusterSplits = 8;

struct FwdArgs : AttentionFwd<Bf16> {
  float scale2 = 0;            // to powers of 2
  int sms = 0;                 // > 0: fewer than two tiles each, to be paired
  int splits = 1, part = 0;    // of a range; a multiple of how many keys
  bool cluster = false;        // of `splits` blocks
  float* part_sums = nullptr;  // [T * H][splits][E]
  float2* part_max = nullptr;  // [T * H][splits]: maximum, total
  // [T]: the rows of k and v that the launch before may write (none where negative). All others,
  // and where rows look, are there before it ends.
  const int32_t* new_rows = nullptr;
};

// How long the parts of a range are.
__device__ inline int part_keys(const FwdArgs& a, int keys) {
  const int least = (keys + a.splits - 1) / a.splits;
  return max(1, (least + a.part - 1) / a.part) * a.part;
}

// Which rows a block makes.
template <class C>
struct TileRows {
  int t0, head0, count;  // row r: token t0 + r of head0, or (decoding) head head0 + r of token t0

  __device__ TileRows(const FwdArgs& a) {
    if constexpr (C::kDecode) {
      const int group = a.heads / a.kv_heads;
      t0 = blockIdx.z;
      head0 = blockIdx.y * group;
      count = group;
    } else {
      // Long tiles first. Where no multiprocessor gets more than two, the second ones come from the
      // short end.
      int id = blockIdx.x;
      if (a.sms > 0 && id >= a.sms) id = gridDim.x - 1 - (id - a.sms);
      const int tile = gridDim.x / a.heads - 1 - id / a.heads;
      t0 = tile * C::kRows;
      head0 = id % a.heads;
      count = min(C::kRows, a.tokens - t0);
    }
  }
  __device__ int token(int r) const { return C::kDecode ? t0 : t0 + r; }
  __device__ int head(int r) const { return C::kDecode ? head0 + r : head0; }
};

// y and lse of a row and head from its sums (four columns from `col` on), maximum and total.
__device__ inline void finish(const FwdArgs& a, int t, int head, int col,
                              const Pack<float, 4>& sums, float top, float total) {
  const float factor = top == -INFINITY ? 0.0f : 1.0f / total;
  Pack<Bf16, 4> out;
#pragma unroll
  for (int c = 0; c < 4; ++c) out.at[c] = from_f32<Bf16>(sums.at[c] * factor);
  store(a.y[t] + head * a.head_dim + col, out);
  if (col == 0 && a.lse) a.lse[t][head] = top == -INFINITY ? top : (top + log2f(total)) * kLn2;
}

// Adds parts in order: get(i, max) gives four sums and a maximum with its total.
template <typename Get>
__device__ inline void add_parts(int parts, Get&& get, Pack<float, 4>& sums, float& top,
                                 float& total) {
  sums = {};
  top = -INFINITY;
  total = 0.0f;
  for (int i = 0; i < parts; ++i) {
    float2 m;
    const Pack<float, 4> x = get(i, m);
    if (m.x == -INFINITY) continue;
    const float most = fmaxf(top, m.x), old = exp2_fast(top - most), now = exp2_fast(m.x - most);
    top = most;
    total = total * old + m.y * now;
#pragma unroll
    for (int c = 0; c < 4; ++c) sums.at[c] = sums.at[c] * old + x.at[c] * now;
  }
}

// The same for a few, all of which are asked for before one is used.
template <int kParts, typename Get>
__device__ inline void add_few_parts(Get&& get, Pack<float, 4>& sums, float& top, float& total) {
  Pack<float, 4> x[kParts];
  float2 m[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) x[i] = get(i, m[i]);
  top = m[0].x;
#pragma unroll
  for (int i = 1; i < kParts; ++i) top = fmaxf(top, m[i].x);
  const float base = top == -INFINITY ? 0.0f : top;
  sums = {};
  total = 0.0f;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float factor = exp2_fast(m[i].x - base);
    total = fmaf(m[i].y, factor, total);
#pragma unroll
    for (int c = 0; c < 4; ++c) sums.at[c] = fmaf(x[i].at[c], factor, sums.at[c]);
  }
}

// What a cluster's blocks made of the rows that this one joins: row r is given to block
// r % kClusterSplits, and stands there behind those it joins before, one part for each block.
template <class C>
struct Given {
  float* sums;
  float2* most;
  CopyBarrier* all;  // complete when they are there
  __device__ explicit Given(unsigned char* shared)
      : sums(reinterpret_cast<float*>(shared + C::kOwnBytes)),
        most(reinterpret_cast<float2*>(sums + C::kRows * C::kSumLd)),
        all(reinterpret_cast<CopyBarrier*>(most + C::kRows)) {}
  // By one thread, before any block gives something.
  __device__ void expect(int rows, int rank) const {
    const int joined = (rows - rank + kClusterSplits - 1) / kClusterSplits;
    barrier_init(all, 1);
    barriers_ready();
    barrier_expect(all, max(0, joined) * kClusterSplits *
                            static_cast<int>(C::E * sizeof(float) + sizeof(float2)));
  }
  static __device__ int at(int r, int from) { return r / kClusterSplits * kClusterSplits + from; }
};

// Joins the sets' results, set by set, and stores y and lse, or a part of them.
template <class C>
__device__ void join(const FwdArgs& a, const TileRows<C>& rows, float* sums, float2* most,
                     unsigned char* shared) {
  constexpr int kChunks = C::E / 4;
  if (C::kDecode && a.cluster) cluster_wait();
  for (int i = threadIdx.x; i < rows.count * kChunks; i += C::kThreads) {
    const int r = i / kChunks, col = i % kChunks * 4, t = rows.token(r), head = rows.head(r);
    Pack<float, 4> y;
    float top, total;
    add_few_parts<C::WK>(
        [&](int set, float2& m) {
          m = most[set * C::kRows + r];
          return load<4>(sums + (set * C::kRows + r) * C::kSumLd + col);
        },
        y, top, total);
    if (C::kDecode && a.cluster) {
      const Given<C> given(shared);
      const int at = given.at(r, blockIdx.x);
      const Neighbour to(r % kClusterSplits);
      cluster_give(given.sums + at * C::kSumLd + col, to, y, given.all);
      if (col == 0)
        cluster_give(reinterpret_cast<uint2*>(given.most + at), to,
                     {__float_as_uint(top), __float_as_uint(total)}, given.all);
    } else if (C::kDecode && a.splits > 1) {
      const int64_t at = (static_cast<int64_t>(t) * a.heads + head) * a.splits + blockIdx.x;
      store(a.part_sums + at * C::E + col, y);
      if (col == 0) a.part_max[at] = {top, total};
    } else {
      finish(a, t, head, col, y, top, total);
    }
  }
}

// Joins what the cluster's blocks have given this one.
template <class C>
__device__ void join_cluster(const FwdArgs& a, const TileRows<C>& rows, unsigned char* shared) {
  static_assert(C::kRows % kClusterSplits == 0);
  const Given<C> given(shared);
  barrier_wait(given.all, 0);
  constexpr int kChunks = C::E / 4;
  for (int i = threadIdx.x; i < C::kRows / kClusterSplits * kChunks; i += C::kThreads) {
    const int r = i / kChunks * kClusterSplits + blockIdx.x, col = i % kChunks * 4;
    if (r >= rows.count) break;
    Pack<float, 4> y;
    float top, total;
    add_few_parts<kClusterSplits>(
        [&](int rank, float2& m) {
          m = given.most[given.at(r, rank)];
          return load<4>(given.sums + given.at(r, rank) * C::kSumLd + col);
        },
        y, top, total);
    finish(a, rows.token(r), rows.head(r), col, y, top, total);
  }
}

}  // namespace wick::cuda
