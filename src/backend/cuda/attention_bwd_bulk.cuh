// SPDX-License-Identifier: Apache-2.0
// attention backward by the bulk copy engine: what a block does, and where its tiles lie.
#pragma once

#include "backend/cuda/attention_bulk.cuh"

namespace wick::cuda {

struct BwdBulkArgs : AttentionBwd<Bf16> {
  float scale2 = 0;   // to powers of 2
  int cluster = 1;    // blocks that share a key block's list
  bool deep = false;  // of two groups: key blocks of 64, whose lists they share
  int key_blocks = 0, row_blocks = 0;
  AttentionTurn turn = {};
};
struct BwdMaps {
  CUtensorMap q, dy, k, v;
};

// Blocks of two groups that multiply, or of one: then two of them share a multiprocessor, and one
// multiplies while the other begins or ends.
template <int E_, int Groups_>
struct BwdBulkShape {
  static constexpr int E = E_, kGroups = Groups_, kResident = kGroups == 1 ? 2 : 1;
  static constexpr int kThreads = 128 * (kGroups + 1), kRows = 64 * kGroups;  // fixed rows
  static constexpr int kMostCluster = kGroups == 1 ? 8 : 4;
  static constexpr int kStages = E == 64 ? (kGroups == 1 ? 5 : 6) : 4;
  static constexpr int kFewRegisters = E == 64 ? (kGroups == 1 ? 32 : 40) : 24,
                       kRegisters = E == 64 ? (kGroups == 1 ? 224 : 232) : 240;
  static constexpr int kTileBytes = kBulkPanel * (E / 64);
  static constexpr int kFixedBytes = 2 * kGroups * kTileBytes;
  static constexpr int kStageBytes = 2 * kTileBytes + 1024;  // and lse, delta, low of its rows
  static constexpr int kStatBytes = 64 * static_cast<int>(sizeof(float));
  static constexpr int kSumLd = E + 8, kSumBytes = kRows * kSumLd * static_cast<int>(sizeof(float));
  static constexpr int kStreamBytes = kFixedBytes + kStages * kStageBytes;
  static constexpr size_t kBytes =
      1024 + (kStreamBytes > 2 * kSumBytes ? kStreamBytes : 2 * kSumBytes) + 8 * (2 * kStages + 1);
};

// Where things lie in shared memory.
template <class S>
struct BwdLayout {
  uint32_t base, barriers;
  __device__ explicit BwdLayout(uint32_t shared) {
    base = (shared + 1023) / 1024 * 1024;
    barriers = shared + static_cast<uint32_t>(S::kBytes) - 8 * (2 * S::kStages + 1);
  }
  __device__ uint32_t fixed(int which, int group) const {
    return base + (which * S::kGroups + group) * S::kTileBytes;
  }
  __device__ uint32_t stage(int i) const { return base + S::kFixedBytes + i * S::kStageBytes; }
  __device__ uint32_t full(int i) const { return barriers + 8 * i; }
  __device__ uint32_t empty(int i) const { return barriers + 8 * (S::kStages + i); }
  __device__ uint32_t fixed_full() const { return barriers + 16 * S::kStages; }
};

// What a block does: which rows are fixed, and the list of tiles that stream past them.
struct BwdWork {
  bool keys;
  bool deep;     // both groups have the same 64 fixed rows, and take tiles in turn
  int fixed0;    // the first fixed row
  int head;      // of rows; kv head of keys
  int group;     // heads of a kv head
  int from, to;  // its stretch of the list
  int top;       // keys: the first row block of the list; rows: the last key block
};
// A tile of the list: its place among row blocks or key blocks, and its head. Of keys, the heads of
// a row block come one after the other.
struct BwdItem {
  int block, head;
  __device__ BwdItem(const BwdWork& w, int at)
      : block(w.keys ? w.top + at / w.group : w.top - at), head(w.keys ? at % w.group : 0) {}
  template <bool Keys>
  __device__ __forceinline__ void advance(const BwdWork& w, int by) {
    if constexpr (Keys) {
      for (head += by; head >= w.group; head -= w.group) ++block;
    } else {
      block -= by;
    }
  }
};

// Which rows are fixed; reads nothing. False for a block that only fills a cluster.
template <class S>
__device__ inline bool place(const BwdBulkArgs& a, BwdWork& w) {
  int id = static_cast<int>(blockIdx.x);
  w.group = a.heads / a.kv_heads;
  w.keys = id < a.key_blocks;
  if (w.keys) {
    id /= a.cluster;
    w.deep = a.deep;
    w.head = id % a.kv_heads;
    w.fixed0 = id / a.kv_heads * (a.deep ? 64 : S::kRows);
    w.top = w.fixed0 / 64;
    return true;
  }
  id -= a.key_blocks;  // the longest first, in causal order
  const int tiles = (a.tokens + S::kRows - 1) / S::kRows;
  w.head = id % a.heads;
  w.fixed0 = (tiles - 1 - id / a.heads) * S::kRows;
  w.top = (min(w.fixed0 + S::kRows, a.tokens) - 1) / 64;
  return id < a.row_blocks;
}
// The block's stretch of the list, by every warp for itself.
template <class S>
__device__ inline void find_list(const BwdBulkArgs& a, BwdWork& w) {
  if (!w.keys) {
    w.to = w.top - min(a.low[w.fixed0], w.fixed0) / 64 + 1;
    return;
  }
  // Row blocks [top, top + count) see these keys: where a row begins never decreases.
  const int lane = static_cast<int>(threadIdx.x) % 32,
            rank = static_cast<int>(blockIdx.x) % a.cluster;
  const int behind = w.fixed0 + (w.deep ? 64 : S::kRows);
  int count = 0;
  for (int b = w.top; b < a.padded / 64; b += 32) {
    const bool sees = b + lane < a.padded / 64 && a.low[(b + lane) * 64] < behind;
    const unsigned more = __ballot_sync(0xffffffffu, sees);
    count += __popc(more);
    if (more != 0xffffffffu) break;
  }
  const int64_t items = static_cast<int64_t>(count) * w.group;
  w.from = static_cast<int>(items * rank / a.cluster);
  w.to = static_cast<int>(items * (rank + 1) / a.cluster);
}

// ---- copies

template <class S>
__device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap& map, int head, int row,
                                          uint32_t barrier) {
#pragma unroll
  for (int panel = 0; panel < S::E / 64; ++panel)
    copy_box(to + panel * kBulkPanel, map, head * S::E + panel * 64, row, barrier);
}
template <class S>
__device__ inline void copy_fixed(const BwdMaps& maps, const BwdWork& w, const BwdLayout<S>& at) {
  const int parts = w.deep ? 1 : S::kGroups;
  barrier_expect(at.fixed_full(), parts * 2 * S::kTileBytes);
  for (int g = 0; g < parts; ++g) {
    const int row = w.fixed0 + 64 * g;
    copy_tile<S>(at.fixed(0, g), w.keys ? maps.k : maps.q, w.head, row, at.fixed_full());
    copy_tile<S>(at.fixed(1, g), w.keys ? maps.v : maps.dy, w.head, row, at.fixed_full());
  }
}

template <class S>
__device__ inline void produce(const BwdBulkArgs& a, const BwdMaps& maps, const BwdWork& w,
                               const BwdLayout<S>& at) {
  BulkRing<S::kStages> ring;
  BwdItem item(w, w.from);
  for (int i = w.from; i < w.to; ++i, ring.next()) {
    const int head = w.keys ? w.head * w.group + item.head : w.head / w.group;
    const int row = item.block * 64;
    w.keys ? item.advance<true>(w, 1) : item.advance<false>(w, 1);
    const uint32_t stage = at.stage(ring.stage), full = at.full(ring.stage);
    barrier_wait(at.empty(ring.stage), ring.phase ^ 1);
    barrier_expect(full, 2 * S::kTileBytes + (w.keys ? 3 * S::kStatBytes : 0));
    copy_tile<S>(stage, w.keys ? maps.q : maps.k, head, row, full);
    copy_tile<S>(stage + S::kTileBytes, w.keys ? maps.dy : maps.v, head, row, full);
    if (w.keys) {
      const int64_t from = static_cast<int64_t>(head) * a.padded + row;
      const uint32_t to = stage + 2 * S::kTileBytes;
      copy_bulk(to, a.lse + from, S::kStatBytes, full);
      copy_bulk(to + S::kStatBytes, a.delta + from, S::kStatBytes, full);
      copy_bulk(to + 2 * S::kStatBytes, a.low + row, S::kStatBytes, full);
    }
  }
}

}  // namespace wick::cuda
