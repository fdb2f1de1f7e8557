// SPDX-License-Identifier: Apache-2.0
// attention on CUDA, between its files. Two families of kernels make the same function:
//
// - exact (attention_exact.cu): any element type, head_dim up to 256, any leading dimension; true
//   f32 products. The maximum of a row comes first and every sum runs over keys (dk, dv: heads,
//   then rows) one by one, so an element's bits depend on its own row's range and nothing else.
// - mma (attention_fwd.cu, attention_bwd.cu): bf16 operands in rows that lie aligned to 16 bytes,
//   head_dim 64, 80, 96, 128 or 256; by warp groups on sm_90 for 64 and 128, and there, for causal
//   rows, with tiles by the bulk copy engine (attention_fwd_bulk.cu, attention_bwd_bulk.cu).
//   Probabilities and their gradients are rounded to bf16 before they are multiplied, sums are f32.
//   Blocks of keys are counted from row 0 of k, so bits depend on a segment's place in the pack, on
//   T, the heads and the number of multiprocessors, not on its neighbours. Decoding counts keys
//   from the row's own begin: its bits depend on the range's length and on S.
//
// Ranges are clamped to the rows of k. Within the hull of the ranges of neighbouring rows (128 at
// most) v must be finite, also where no row looks.
#pragma once

#include "backend/cuda/shared.cuh"

namespace wick::cuda {

constexpr int kAttentionMostDim = 256;
constexpr int kAttentionBlock = 64;  // rows of a tile of backward; statistics are padded to them

template <typename T>
struct AttentionFwd {
  Rows<const T> q, k, v;
  Rows<T> y;
  Rows<float> lse;
  const int32_t *begin, *end;
  int tokens, keys, heads, kv_heads, head_dim, window;
  bool causal;  // end[t] = t + 1 and begin never decreases
  float scale;
};

// `lse`, `delta` and `low` are what attention_stats made.
template <typename T>
struct AttentionBwd {
  Rows<const T> dy, q, k, v;
  Rows<T> dq, dk, dv;
  const float *lse, *delta;  // [heads][padded]
  const int32_t* low;        // [padded]: the first key of each row; never decreases
  int tokens, padded, heads, kv_heads, head_dim;
  float scale;
};

// What backward reads per row, [heads][padded] and [padded]. lse is multiplied by `factor`, and
// +inf for rows that see nothing and for those from `tokens` on, so that their probabilities are 0.
struct AttentionStats {
  float *lse, *delta;
  int32_t* low;
  int padded;
  static size_t bytes(int64_t tokens, int64_t heads) {
    return static_cast<size_t>(padded_rows(tokens) * (2 * heads + 1)) * sizeof(float);
  }
  static int64_t padded_rows(int64_t tokens) {
    return divide_up(tokens, kAttentionBlock) * kAttentionBlock;
  }
};
// Take the operands of attention_bwd; `scratch` holds AttentionStats::bytes(). The first only says
// where they will be.
AttentionStats attention_stats_at(const StepArgs& args, void* scratch);
AttentionStats attention_stats(const StepArgs& args, float factor, void* scratch);

template <typename T>
AttentionFwd<T> attention_fwd_args(const StepArgs& args) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  return {rows<const T>(args.in[0]),
          rows<const T>(args.in[1]),
          rows<const T>(args.in[2]),
          rows<T>(args.out[0]),
          args.out.size() > 1 ? rows<float>(args.out[1]) : Rows<float>{},
          args.in[3].template as<const int32_t>(),
          args.in[4].template as<const int32_t>(),
          static_cast<int>(args.in[0].rows),
          static_cast<int>(args.in[1].rows),
          static_cast<int>(a.heads),
          static_cast<int>(a.kv_heads),
          static_cast<int>(a.head_dim),
          static_cast<int>(a.window),
          a.causal_self,
          a.scale};
}
template <typename T>
AttentionBwd<T> attention_bwd_args(const StepArgs& args, const AttentionStats& stats) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  return {rows<const T>(args.in[0]),
          rows<const T>(args.in[1]),
          rows<const T>(args.in[2]),
          rows<const T>(args.in[3]),
          rows<T>(args.out[0]),
          rows<T>(args.out[1]),
          rows<T>(args.out[2]),
          stats.lse,
          stats.delta,
          stats.low,
          static_cast<int>(args.in[1].rows),
          stats.padded,
          static_cast<int>(a.heads),
          static_cast<int>(a.kv_heads),
          static_cast<int>(a.head_dim),
          a.scale};
}

// The rotation that dq and dk are turned back by as they leave; none where the table is absent.
struct AttentionTurn {
  Rows<const float> table;  // cosines of half a head, then sines
  const int32_t* positions;
};

void attention_fwd_exact(const StepArgs& args);
void attention_bwd_exact(const StepArgs& args);  // scratch: AttentionStats::bytes()

// Whether the mma kernels serve these shapes and types; what they then need of scratch.
bool attention_mma_serves(const AttentionAttr& attr, DType dtype);
size_t attention_fwd_mma_scratch(const AttentionAttr& attr, int64_t tokens, int64_t keys,
                                 Arch arch);
size_t attention_bwd_mma_scratch(const AttentionAttr& attr, int64_t tokens, int sms, Arch arch);
// False, with nothing enqueued, where the card has too little shared memory.
bool attention_fwd_mma(const StepArgs& args);
bool attention_bwd_mma(const StepArgs& args);
// The same with tiles by the bulk copy engine, where it serves; false too where there is no driver
// function for its maps.
bool attention_bulk_serves(const AttentionAttr& attr, Arch arch);
bool attention_fwd_bulk(const StepArgs& args);  // causal_self alone
// `has_stats`: scratch holds them, the factor being kLog2E.
bool attention_bwd_bulk(const StepArgs& args, const AttentionTurn& turn = {},
                        bool has_stats = false);
// The keys that row t looks at, of those that exist.
struct KeyRange {
  int low, high;
  __device__ bool empty() const { return high <= low; }
};
template <typename T>
__device__ inline KeyRange visible(const AttentionFwd<T>& a, int t) {
  const int end = a.causal ? t + 1 : a.end[t];
  int low = a.begin[t];
  if (a.window > 0) low = max(low, end - a.window);
  return {max(low, 0), min(end, a.keys)};
}

}  // namespace wick::cuda
