// SPDX-License-Identifier: Apache-2.0
// attention backward by the bulk copy engine: what a block does, and where its tiles lie.
#pragma once

#include "backend/cuda/attention_bulk.cuh"

namespace wick::cuda {

constexpr int kFixedRows = 64 * kBulkGroups;  // rows of a block
constexpr int kMostBwdCluster = 4;

struct BwdBulkArgs : AttentionBwd<Bf16> {
  float scale2 = 0;   // to powers of 2
  int cluster = 1;    // blocks that share a key block's list
  bool deep = false;  // key blocks of 64, whose lists a block's groups share
  int key_blocks = 0, row_blocks = 0;
  AttentionTurn turn = {};
};
struct BwdMaps {
  CUtensorMap q, dy, k, v;
};

template <int E_>
struct BwdBulkShape {
  static constexpr int E = E_, kStages = E == 64 ? 6 : 4;
  static constexpr int kFewRegisters = E == 64 ? 40 : 24, kRegisters = E == 64 ? 232 : 240;
  static constexpr int kTileBytes = kBulkPanel * (E / 64);
  static constexpr int kFixedBytes = 2 * kBulkGroups * kTileBytes;
  static constexpr int kStageBytes = 2 * kTileBytes + 1024;  // and lse, delta, low of its rows
  static constexpr int kStatBytes = 64 * static_cast<int>(sizeof(float));
  static constexpr int kSumLd = E + 8,
                       kSumBytes = kFixedRows * kSumLd * static_cast<int>(sizeof(float));
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
    return base + (which * kBulkGroups + group) * S::kTileBytes;
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
__device__ inline bool place(const BwdBulkArgs& a, BwdWork& w) {
  int id = static_cast<int>(blockIdx.x);
  w.group = a.heads / a.kv_heads;
  w.keys = id < a.key_blocks;
  if (w.keys) {
    id /= a.cluster;
    w.deep = a.deep;
    w.head = id % a.kv_heads;
    w.fixed0 = id / a.kv_heads * (a.deep ? 64 : kFixedRows);
    w.top = w.fixed0 / 64;
    return true;
  }
  id -= a.key_blocks;  // the longest first, in causal order
  const int tiles = (a.tokens + kFixedRows - 1) / kFixedRows;
  w.head = id % a.heads;
  w.fixed0 = (tiles - 1 - id / a.heads) * kFixedRows;
  w.top = (min(w.fixed0 + kFixedRows, a.tokens) - 1) / 64;
  return id < a.row_blocks;
}
// The block's stretch of the list, by every warp for itself.
__device__ inline void find_list(const BwdBulkArgs& a, BwdWork& w) {
  if (!w.keys) {
    w.to = w.top - min(a.low[w.fixed0], w.fixed0) / 64 + 1;
    return;
  }
  // Row blocks [top, top + count) see these keys: where a row begins never decreases.
  const int lane = static_cast<int>(threadIdx.x) % 32,
            rank = static_cast<int>(blockIdx.x) % a.cluster;
  const int behind = w.fixed0 + (w.deep ? 64 : kFixedRows);
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

}  // namespace wick::cuda
