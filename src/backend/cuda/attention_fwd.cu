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
// what it is decoded with.
#include <algorithm>

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_mma.cuh"

namespace wick::cuda {
namespace {

constexpr int kDecodeRows = 64;    // most rows of a step that is decoded
constexpr int kDecodeGroup = 16;   // most heads of a kv head
constexpr int kDecodePart = 128;   // keys of a part: a multiple of this
constexpr int kDecodeSplits = 64;  // most parts of a range

struct FwdArgs : AttentionFwd<Bf16> {
  float scale2;      // to powers of 2
  int sms;           // > 0: fewer than two tiles each, to be paired
  int splits;        // of a range
  float* part_sums;  // [T * H][splits][E]
  float2* part_max;  // [T * H][splits]: maximum, total
};

// How long the parts of a range are.
__device__ inline int part_keys(int keys, int splits) {
  const int least = (keys + splits - 1) / splits;
  return max(1, (least + kDecodePart - 1) / kDecodePart) * kDecodePart;
}

// E columns; a warp has MT times 16 rows, a set WM warps, a block WK sets; blocks of BN keys.
template <int E_, int MT_, int WM_, int WK_, int BN_, int Blocks_, bool Decode_ = false>
struct FwdShape {
  static constexpr int E = E_, MT = MT_, WM = WM_, WK = WK_, BN = BN_, kMinBlocks = Blocks_;
  static constexpr bool kDecode = Decode_;
  static constexpr int kRows = 16 * MT * WM, kThreads = 32 * WM * WK, kSetThreads = 32 * WM;
  static constexpr int kLd = E + 8, kTile = BN * kLd;  // of k or v
  static constexpr bool kQShared = MT * E > 128;       // q's fragments do not fit registers
  static constexpr int kQTile = kQShared ? kRows * kLd : 0;
  static constexpr int kSumLd = E + 8;  // rows of sums, whose halves of a warp then differ in banks
  static constexpr size_t kStreamBytes = sizeof(Bf16) * (kQTile + WK * 4 * kTile);
  static constexpr size_t kJoinBytes = sizeof(float) * WK * kRows * (kSumLd + 2);
  static constexpr size_t kBytes = kStreamBytes > kJoinBytes ? kStreamBytes : kJoinBytes;
};

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

// The scores of a warp's rows become probabilities; totals and sums are scaled to the new maxima.
template <class C>
__device__ inline void soften(float (&s)[C::BN / 8][4], float (&sums)[C::E / 8][4],
                              float (&most)[2], float (&total)[2], const int (&low)[2],
                              const int (&high)[2], bool masked, int j0, float scale2) {
  const int q = threadIdx.x % 4;
  if (masked)
#pragma unroll
    for (int n = 0; n < C::BN / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = j0 + n * 8 + q * 2 + i % 2;
        if (key < low[i / 2] || key >= high[i / 2]) s[n][i] = -INFINITY;
      }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = most[half];
#pragma unroll
    for (int n = 0; n < C::BN / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top * scale2;
    const float factor = exp2_fast(fmaf(most[half], scale2, -base));
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < C::BN / 8; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        s[n][i] = exp2_fast(fmaf(s[n][i], scale2, -base));
        sum += s[n][i];
      }
    total[half] = fmaf(total[half], factor, sum);
    most[half] = top;
#pragma unroll
    for (int n = 0; n < C::E / 8; ++n) {
      sums[n][2 * half] *= factor;
      sums[n][2 * half + 1] *= factor;
    }
  }
}

// Joins the sets' results, set by set, and stores y and lse, or a part of them.
template <class C>
__device__ void join(const FwdArgs& a, const TileRows<C>& rows, const float* sums,
                     const float2* most, int split) {
  constexpr int kChunks = C::E / 8;
  for (int i = threadIdx.x; i < rows.count * kChunks; i += C::kThreads) {
    const int r = i / kChunks, col = i % kChunks * 8;
    float top = -INFINITY, total = 0.0f, y[8] = {};
#pragma unroll
    for (int set = 0; set < C::WK; ++set) top = fmaxf(top, most[set * C::kRows + r].x);
#pragma unroll
    for (int set = 0; set < C::WK; ++set) {
      const float2 m = most[set * C::kRows + r];
      const float factor = m.x == -INFINITY ? 0.0f : exp2f(m.x - top);
      total = fmaf(m.y, factor, total);
      const float* from = sums + (set * C::kRows + r) * C::kSumLd + col;
#pragma unroll
      for (int c = 0; c < 8; ++c) y[c] = fmaf(from[c], factor, y[c]);
    }
    const int t = rows.token(r), head = rows.head(r);
    if (C::kDecode && a.splits > 1) {
      const int64_t at = (static_cast<int64_t>(t) * a.heads + head) * a.splits + split;
#pragma unroll
      for (int c = 0; c < 8; c += 4)
        store(a.part_sums + at * C::E + col + c,
              Pack<float, 4>{y[c], y[c + 1], y[c + 2], y[c + 3]});
      if (col == 0) a.part_max[at] = {top, total};
      continue;
    }
    const float divisor = top == -INFINITY ? 1.0f : total;
    Pack<Bf16, 8> out;
#pragma unroll
    for (int c = 0; c < 8; ++c) out.at[c] = from_f32<Bf16>(y[c] / divisor);
    store(a.y[t] + head * C::E + col, out);
    if (col == 0 && a.lse) a.lse[t][head] = top == -INFINITY ? top : (top + log2f(total)) * kLn2;
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kMinBlocks) fwd_mma(FwdArgs a) {
  constexpr int E = C::E, MT = C::MT, BN = C::BN;
  extern __shared__ __align__(16) unsigned char shared[];
  Bf16* q_tile = reinterpret_cast<Bf16*>(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, set = warp / C::WM;
  const int row0 = warp % C::WM * 16 * MT, g = lane / 4;
  Bf16* stages = q_tile + C::kQTile + set * 4 * C::kTile;  // k, v; k, v
  const TileRows<C> rows(a);
  const int kv = rows.head0 / (a.heads / a.kv_heads);

  // [first, stop): the keys that some row may see. Of a causal tile `first` comes later.
  int base = 0, first = 0, stop = 0;
  if constexpr (C::kDecode) {
    const KeyRange range = visible(a, rows.t0);
    const int keys = part_keys(range.high - range.low, a.splits);
    base = first = range.low + blockIdx.x * keys;
    stop = min(range.high, first + keys);
    if (first >= stop && blockIdx.x > 0) return;
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
    copy_tile<E, BN, C::kSetThreads>(to, a.k.data + kv * E, a.k.ld, j0, copy_low, copy_high,
                                     thread);
    copy_tile<E, BN, C::kSetThreads>(to + C::kTile, a.v.data + kv * E, a.v.ld, j0, copy_low,
                                     copy_high, thread);
  };
  // The last block of this set; below `least` where it has none.
  const int last = stop > base ? (stop - base - 1) / BN : -1;
  int block = last - (last - set + C::WK) % C::WK;
  if (last >= 0 && block >= 0) fetch(block, 0);
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
  any_low = __reduce_min_sync(0xffffffffu, any_low);
  any_high = __reduce_max_sync(0xffffffffu, any_high);
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
    set_barrier<C::kSetThreads, C::WK>(set);
    if (block - C::WK >= least) fetch(block - C::WK, stage ^ 1);
    const int j0 = base + block * BN;
    if (j0 >= any_high || j0 + BN <= any_low) continue;
    const Bf16 *k_tile = stages + stage * 2 * C::kTile, *v_tile = k_tile + C::kTile;
    float s[MT][BN / 8][4] = {};
#pragma unroll
    for (int k = 0; k < E / 16; ++k) {
      uint32_t left[MT][4];
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) {
        if constexpr (C::kQShared) {
          load_left<E>(left[mt], q_tile, row0 + mt * 16, k * 16);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) left[mt][i] = q[mt][k][i];
        }
      }
#pragma unroll
      for (int n = 0; n < BN / 16; ++n) {
        uint32_t right[4];
        load_right_transposed<E>(right, k_tile, n * 16, k * 16);
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) {
          multiply_add(s[mt][2 * n], left[mt], right[0], right[1]);
          multiply_add(s[mt][2 * n + 1], left[mt], right[2], right[3]);
        }
      }
    }
    const bool masked = j0 < all_low || j0 + BN > all_high;
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
      soften<C>(s[mt], sums[mt], most[mt], total[mt], low[mt], high[mt], masked, j0, a.scale2);
#pragma unroll
    for (int k = 0; k < BN / 16; ++k) {
      uint32_t left[MT][4];
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) left_of_sums(left[mt], s[mt][2 * k], s[mt][2 * k + 1]);
#pragma unroll
      for (int n = 0; n < E / 16; ++n) {
        uint32_t right[4];
        load_right<E>(right, v_tile, k * 16, n * 16);
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) {
          multiply_add(sums[mt][2 * n], left[mt], right[0], right[1]);
          multiply_add(sums[mt][2 * n + 1], left[mt], right[2], right[3]);
        }
      }
    }
  }

  copies_wait();
  __syncthreads();
  float* set_sums = reinterpret_cast<float*>(shared);
  float2* set_most = reinterpret_cast<float2*>(set_sums + C::WK * C::kRows * C::kSumLd);
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
  join<C>(a, rows, set_sums, set_most, C::kDecode ? blockIdx.x : 0);
}

// y and lse of one row and head from the parts of its range, in order. A thread per column.
__global__ void join_parts(FwdArgs a) {
  const int head = blockIdx.x, t = blockIdx.y, col = threadIdx.x;
  const KeyRange range = visible(a, t);
  const int keys = max(0, range.high - range.low), part = part_keys(keys, a.splits);
  const int parts = max(1, (keys + part - 1) / part);
  const int64_t at = (static_cast<int64_t>(t) * a.heads + head) * a.splits;
  float top = -INFINITY, total = 0.0f, y = 0.0f;
  for (int i = 0; i < parts; ++i) top = fmaxf(top, a.part_max[at + i].x);
  for (int i = 0; i < parts; ++i) {
    const float2 m = a.part_max[at + i];
    const float factor = m.x == -INFINITY ? 0.0f : exp2f(m.x - top);
    total = fmaf(m.y, factor, total);
    y = fmaf(a.part_sums[(at + i) * a.head_dim + col], factor, y);
  }
  a.y[t][head * a.head_dim + col] = from_f32<Bf16>(y / (top == -INFINITY ? 1.0f : total));
  if (col == 0 && a.lse) a.lse[t][head] = top == -INFINITY ? top : (top + log2f(total)) * kLn2;
}

template <class C>
bool launch(const FwdArgs& a, dim3 grid, cudaStream_t stream) {
  if (!allow_shared(fwd_mma<C>, C::kBytes)) return false;
  fwd_mma<C><<<grid, C::kThreads, C::kBytes, stream>>>(a);
  return true;
}
template <class C>
bool launch_tiles(FwdArgs a, int sms, cudaStream_t stream) {
  const int64_t tiles = divide_up(a.tokens, C::kRows) * a.heads;
  a.sms = tiles <= 2 * sms ? sms : 0;
  return launch<C>(a, dim3(static_cast<unsigned>(tiles)), stream);
}

// Many rows: tiles that read shared memory least. Few: tiles that are many and short.
template <int E>
struct Shapes {
  using Many = FwdShape<E, E <= 128 ? 2 : 1, 4, 1, E <= 96 ? 64 : 32, 1>;
  using Few = FwdShape<E, 1, 2, E <= 96 ? 4 : 2, 32, E <= 96 ? 2 : 1>;
  using Decode = FwdShape<E, 1, 1, 4, 32, 1, true>;
};

bool decodes(const AttentionAttr& attr, int64_t tokens) {
  return !attr.causal_self && tokens <= kDecodeRows && attr.heads / attr.kv_heads <= kDecodeGroup;
}
int64_t decode_splits(int64_t keys) {
  return std::clamp<int64_t>(divide_up(keys, kDecodePart), 1, kDecodeSplits);
}

}  // namespace

bool attention_mma_serves(const AttentionAttr& attr, DType dtype) {
  return dtype == DType::kBF16 && attr.scale > 0.0f &&
         with_head_dim(attr.head_dim, [](auto) { return true; });
}

size_t attention_fwd_mma_scratch(const AttentionAttr& attr, int64_t tokens, int64_t keys) {
  const int64_t splits = decode_splits(keys);
  if (!decodes(attr, tokens) || splits == 1) return 0;
  return static_cast<size_t>(tokens * attr.heads * splits * (attr.head_dim + 2)) * sizeof(float);
}

bool attention_fwd_mma(const StepArgs& args) {
  const AttentionAttr& how = attr<AttentionAttr>(*args.step);
  const Queue& to = queue(args);
  FwdArgs a{attention_fwd_args<Bf16>(args)};
  a.scale2 = a.scale * kLog2E;
  a.splits = static_cast<int>(decode_splits(a.keys));
  return with_head_dim(a.head_dim, [&](auto dim) {
    using S = Shapes<decltype(dim)::value>;
    if (decodes(how, a.tokens)) {
      a.part_sums = static_cast<float*>(args.scratch);
      a.part_max = reinterpret_cast<float2*>(a.part_sums + static_cast<int64_t>(a.tokens) *
                                                               a.heads * a.splits * a.head_dim);
      const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.kv_heads),
                      static_cast<unsigned>(a.tokens));
      if (!launch<typename S::Decode>(a, grid, to.stream)) return false;
      if (a.splits > 1)
        join_parts<<<dim3(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.tokens)),
                     static_cast<unsigned>(a.head_dim), 0, to.stream>>>(a);
      return true;
    }
    if (divide_up(a.tokens, S::Many::kRows) * a.heads >= 4 * to.sms)
      return launch_tiles<typename S::Many>(a, to.sms, to.stream);
    return launch_tiles<typename S::Few>(a, to.sms, to.stream);
  });
}

}  // namespace wick::cuda
