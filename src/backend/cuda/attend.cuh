// SPDX-License-Identifier: Apache-2.0
// The kernel of attend.h.
#pragma once

#include "backend/cuda/attend.h"
#include "backend/cuda/attend_keys.cuh"
#include "backend/cuda/parted_norm.cuh"

namespace wick::cuda {

constexpr int kAttendWarps = 8, kAttendShift = 8, kAttendThreads = 1 << kAttendShift;
static_assert(kAttendThreads == 32 * kAttendWarps);
// A row's range is cut into as many parts for each block; those of the first set come first.
constexpr int kAttendSets = 2;

// The sums of 16 rows of w and up to 4 kTiles rows of x over units [begin, end), by a warp, to
// [16][1 << m_shift]; `low` and `high` are the lane's rows of w.
template <int kTiles, class W>
__device__ inline void multiply_tile(const W& w, const uint8_t* low, const uint8_t* high,
                                     const typename W::template X<kTiles>& x, int begin, int end,
                                     int m, int m_shift, float* to) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  typename W::template Sums<kTiles> sums;
  w.template multiply_short<16, kTiles>(low, high, x, begin, end, t, sums);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (4 * n + t < m) to[((half * 8 + g) << m_shift) + 4 * n + t] = sums.at[n][half];
}

// How a block's warps share its rows: tiles of 16, cut into pieces of their columns.
struct AttendShare {
  int tiles, pieces, piece_units, inverse;  // inverse of `pieces`, of 2^16
  // f(tile, piece) for this warp's.
  template <typename F>
  __device__ void each(F&& f) const {
    for (int job = threadIdx.x / 32; job < tiles * pieces; job += kAttendWarps) {
      const int tile = job * inverse >> 16;
      f(tile, job - tile * pieces);
    }
  }
};

template <class W>
struct AttendArgs {
  PartedNorm norm;
  W qkv, out;
  AnyFloats qkv_bias, out_bias;
  Rows<Bf16> cache_k, cache_v;
  Rows<const float> table;
  const int32_t *positions, *cache_rows, *begin, *end;
  float* parts;
  float scale2;
  int m, k, m_shift, row_shift;
  int heads, kv_heads, keys, window, out_rows;
  int cluster_shift;
  int pairs, rows;  // of a block: pairs of rows of q, k, v; rows of o
  AttendShare first, second;
  int qkv_ld, out_ld;          // bytes from a row in shared memory to the next
  int out_bytes, scale_bytes;  // of a row of o: of this kv head's columns, of all scales
  int64_t out_scales_at;
  // Where things lie in shared memory.
  int out_at, x_at, x_ld, gains_at, counts_at, joint_at, most_at, new_at, raw_at, own_at;
};

// kTiles: 4 rows of x each. kOne: there is one row, of at most 8 columns to a thread; else the
// cluster's blocks make x together.
template <class W, int E, int kTiles, bool kOne>
__global__ void __launch_bounds__(kAttendThreads, 2)
    attend_fwd(const __grid_constant__ AttendArgs<W> p) {
  using X = typename W::template X<kTiles>;
  constexpr int kHalf = E / 2, kChunks = E / 16;  // of a head: what a lane has of a part's sums
  extern __shared__ __align__(128) uint8_t shared[];
  // Complete when the rows of q, k, v and of o are there; q, k, v of all blocks; parts; y; x.
  __shared__ CopyBarrier ready[2], given[4];
  __shared__ RowSquares squares;
  __shared__ int new_rows[kAttendRows];
  __shared__ int2 spans[kAttendRows];  // keys of a row, and of a part of them
  const int m = kOne ? 1 : p.m, m_shift = kOne ? 0 : p.m_shift;
  let_next_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int cluster = 1 << p.cluster_shift, all_parts = kAttendSets << p.cluster_shift;
  const int rank = blockIdx.x & (cluster - 1), kv = blockIdx.x >> p.cluster_shift;
  const int group = p.heads / p.kv_heads, width = group * E, new_ld = width + 2 * E;
  const int owned = (group * kChunks + cluster - 1) >> p.cluster_shift;  // chunks to a block
  XRows x{reinterpret_cast<Bf16*>(shared + p.x_at), reinterpret_cast<float*>(shared + p.counts_at),
          p.x_ld, x_counts_ld(p.x_ld)};
  float* gains = reinterpret_cast<float*>(shared + p.gains_at);
  float* joint = reinterpret_cast<float*>(shared + p.joint_at);
  float2* most = reinterpret_cast<float2*>(shared + p.most_at);
  Bf16* made = reinterpret_cast<Bf16*>(shared + p.new_at);  // q, k, v of all blocks
  Bf16* raw = reinterpret_cast<Bf16*>(shared + p.raw_at);
  Bf16* own = reinterpret_cast<Bf16*>(shared + p.own_at);
  // Pairs of rows of q, k and v: head by head, as they stand in `made`.
  const int all_pairs = (group + 2) * kHalf, first_pair = rank * p.pairs;
  const int pairs = max(0, min(p.pairs, all_pairs - first_pair));
  auto row_of_pair = [&](int pair) {
    const int h = pair / kHalf;
    const int head = h < group ? kv * group + h : p.heads + kv + (h > group ? p.kv_heads : 0);
    return head * E + pair % kHalf;
  };
  const int first_row = rank * p.rows, rows = max(0, min(p.rows, p.out_rows - first_row));

  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) barrier_init(ready + i, 1);
    for (int i = 0; i < 4; ++i) barrier_init(given + i, 1);
    barriers_ready();
    barrier_expect(ready, 2 * pairs * p.qkv.bytes);
    barrier_expect(ready + 1, rows * (p.out_bytes + p.scale_bytes));
    barrier_expect(given, m * new_ld * 2);
    barrier_expect(given + 2, m * width * 2);
    if constexpr (!kOne) barrier_expect(given + 3, shared_scaled_bytes(m, p.k));
  }
  __syncthreads();
  // Copies are asked for by all threads: one warp asks for one in 50 cycles.
#pragma unroll 1
  for (int i = threadIdx.x; i < 2 * pairs; i += kAttendThreads) {
    const int j = i < pairs ? i : i - pairs;
    const int row = row_of_pair(first_pair + j) + (i < pairs ? 0 : kHalf);
    copy_bulk(shared + i * p.qkv_ld, p.qkv.row(row), p.qkv.bytes, ready);
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < rows; i += kAttendThreads) {
    const uint8_t* row = p.out.row(first_row + i);
    uint8_t* to = shared + p.out_at + i * p.out_ld;
    copy_bulk(to, row + kv * p.out_bytes, p.out_bytes, ready + 1);
    if (p.scale_bytes > 0)
      copy_bulk(to + p.out_bytes, row + p.out_scales_at, p.scale_bytes, ready + 1);
  }
  cluster_arrive();

  // What is read before the wait comes from the second-level cache: the first one is cleared by the
  // wait alone.
  // Of a row: the first key it looks at, how many, and how many a part has.
  auto span_of = [&](int row) {
    const int high = min(__ldcg(p.end + row), p.keys);
    int low = max(__ldcg(p.begin + row), 0);
    if (p.window > 0) low = max(low, high - p.window);
    const int keys = max(0, high - low);
    const int least = (keys + all_parts - 1) >> (p.cluster_shift + 1);
    return int3{low, keys, max(1, (least + kAttendKeys - 1) / kAttendKeys) * kAttendKeys};
  };
  static_assert(kAttendSets == 2);
  auto part_of = [&](int job, int& row, int& part) {
    row = job < m ? job : job - m;
    part = (job < m ? 0 : cluster) + rank;
    const int3 span = span_of(row);
    const int first = span.x + part * span.z;
    return KeyPart{first, min(span.x + span.y, first + span.z)};
  };
  const int jobs = kAttendSets * m;
  const Rows<const Bf16> cache_k{p.cache_k.data, p.cache_k.ld},
      cache_v{p.cache_v.data, p.cache_v.ld};
  int row = 0, part = 0;
  KeyPart looks{};
  // One row's jobs are shared by four warps each, which have one; else the keys of a warp's next
  // job are asked for with the last ones of this.
  const int first_job = kOne ? warp / 4 : warp, quarter = warp % 4;
  constexpr int kJobsAtOnce = kOne ? kAttendWarps / 4 : kAttendWarps;
  KeyBlock<E, kOne> ahead;
  auto begin_job = [&](int job) {
    if (job >= jobs) return;
    looks = part_of(job, row, part);
    if (looks.first < looks.stop)
      ahead.take(cache_k, cache_v, kv * E, looks.first, looks.stop, quarter);
  };
  begin_job(first_job);

  // A thread's pair of q, k and v.
  const int mm = threadIdx.x & ((1 << m_shift) - 1), pair = threadIdx.x >> m_shift;
  const bool real = mm < m && pair < pairs;
  const int low_row = row_of_pair(first_pair + pair), h = (first_pair + pair) / kHalf;
  float low_bias = 0.0f, high_bias = 0.0f, cosine = 1.0f, sine = 0.0f;
  int cache_row = -1;
  if (real) {
    low_bias = p.qkv_bias[low_row];
    high_bias = p.qkv_bias[low_row + kHalf];
    cache_row = __ldcg(p.cache_rows + mm);
    const float* angle = p.table[__ldcg(p.positions + mm)] + (first_pair + pair) % kHalf;
    if (h <= group) {
      cosine = angle[0];
      sine = angle[kHalf];
    }
  }
  if (threadIdx.x < m) {
    new_rows[threadIdx.x] = __ldcg(p.cache_rows + threadIdx.x);
    const int3 span = span_of(threadIdx.x);
    spans[threadIdx.x] = {span.y, span.z};
  }
  if (warp == kAttendWarps - 1) {
    // Chunks that this block joins, of as many parts as a row's range has.
    const int chunks = (group * kChunks - rank + cluster - 1) >> p.cluster_shift;
    int parts = 0;
    if (lane < m) {
      const int3 span = span_of(lane);
      parts = (span.y + span.z - 1) / span.z;
    }
    parts = __reduce_add_sync(0xffffffffu, parts);
    if (lane == 0) barrier_expect(given + 1, max(0, chunks) * parts * (64 + 8));
  }
  float gain[8] = {};
  take_gain<kAttendThreads>(p.norm.gain, p.k, kOne, gain, gains);
  cluster_wait();  // all have started, and may be given something
  __syncthreads();
  wait_for_previous();

  if constexpr (kOne)
    make_scaled_of_one<W, 5>(p.norm, p.k, x, gain, squares);
  else
    share_scaled<W, 5>(p.norm, m, p.k, cluster, rank, x, gains, squares, given + 3);

  const int tile_floats = 16 << m_shift;
  {
    const X lane_x(x, m, lane);
    const int units = p.k / W::kUnit;
    barrier_wait(ready, 0);
    p.first.each([&](int tile, int piece) {
      const int j = min(8 * tile + g, pairs - 1), begin = piece * p.first.piece_units;
      if (8 * tile >= pairs) return;
      multiply_tile<kTiles>(p.qkv, shared + j * p.qkv_ld, shared + (pairs + j) * p.qkv_ld, lane_x,
                            begin, min(units, begin + p.first.piece_units), m, m_shift,
                            joint + (tile * p.first.pieces + piece) * tile_floats);
    });
  }
  const float factor = row_factor(p.norm, min(mm, m - 1), p.k, squares);
  __syncthreads();
  if (real) {
    const float* at = joint + pair / 8 * p.first.pieces * tile_floats + (pair % 8 << m_shift) + mm;
    float low = 0.0f, high = 0.0f;
#pragma unroll 4
    for (int i = 0; i < p.first.pieces; ++i) {
      low += at[i * tile_floats];
      high += at[i * tile_floats + (8 << m_shift)];
    }
    // Rounded as if they had been written in between.
    const float u = to_f32(from_f32<Bf16>(low * factor + low_bias));
    const float v = to_f32(from_f32<Bf16>(high * factor + high_bias));
    const Bf16 turned[2] = {from_f32<Bf16>(u * cosine - v * sine),
                            from_f32<Bf16>(v * cosine + u * sine)};
    Bf16* mine = own + mm * 2 * p.pairs + pair;
    mine[0] = turned[0];
    mine[p.pairs] = turned[1];
    if (h >= group && cache_row >= 0) {
      Bf16* to =
          (h == group ? p.cache_k : p.cache_v)[cache_row] + kv * E + (first_pair + pair) % kHalf;
      to[0] = turned[0];
      to[kHalf] = turned[1];
    }
  }
  __syncthreads();
  {
    // Words of four pairs, to every block.
    const int lanes = kAttendThreads >> p.cluster_shift;
    const Neighbour to(threadIdx.x >> (kAttendShift - p.cluster_shift));
    const int half_words = p.pairs / 4;
    for (int r = 0; r < m; ++r)
      for (int w = threadIdx.x & (lanes - 1); w < p.pairs / 2; w += lanes) {
        const bool high = w >= half_words;
        const int j = first_pair + 4 * (high ? w - half_words : w);
        if (j >= all_pairs) continue;
        const auto* from = reinterpret_cast<const uint2*>(own + r * 2 * p.pairs) + w;
        Bf16* at = made + r * new_ld + j / kHalf * E + j % kHalf + (high ? kHalf : 0);
        cluster_give(reinterpret_cast<uint2*>(at), to, *from, given);
      }
  }
  barrier_wait(given, 0);

  for (int job = first_job; job < jobs; job += kJobsAtOnce) {
    if (looks.first >= looks.stop) {
      if constexpr (!kOne) begin_job(job + kJobsAtOnce);
      continue;
    }
    const int of_row = row, of_part = part;
    const KeyPart keys = looks;
    uint4 q[E / 32];
#pragma unroll
    for (int j = 0; j < E / 32; ++j)
      q[j] = load16(made + of_row * new_ld + min(g, group - 1) * E + 32 * j + 8 * t);
    HeadSums<E, kOne> sums;
    for (int j0 = keys.first; j0 < keys.stop; j0 += kAttendKeys) {
      KeyBlock<E, kOne> block = ahead;
      if (j0 + kAttendKeys < keys.stop)
        ahead.take(cache_k, cache_v, kv * E, j0 + kAttendKeys, keys.stop, quarter);
      else if constexpr (!kOne)
        begin_job(job + kJobsAtOnce);
      for (int r = 0; r < m; ++r)
        block.replace(new_rows[r], made + r * new_ld + width, made + r * new_ld + width + E, j0,
                      keys.stop, quarter);
      sums.add(block, q, j0, keys.stop, p.scale2);
    }
    sums.finish();
#pragma unroll
    for (int j = 0; j < E / 64 && g < group; ++j) {
      const int chunk = g * kChunks + 4 * j + t;
      const Neighbour to(chunk & (cluster - 1));
      const int slot = (of_row * owned + (chunk >> p.cluster_shift)) * all_parts + of_part;
      float* to_sums = joint + slot * 16;
      if constexpr (kOne) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          cluster_give(reinterpret_cast<uint2*>(to_sums + 8 * i + 2 * quarter), to,
                       {__float_as_uint(sums.at[0][i]), __float_as_uint(sums.at[1][i])}, given + 1);
        if (quarter != 0) continue;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Pack<float, 4> four;
#pragma unroll
          for (int c = 0; c < 4; ++c) four.at[c] = sums.at[8 * j + i % 2 * 4 + c][i / 2];
          cluster_give(to_sums + 4 * i, to, four, given + 1);
        }
      }
      cluster_give(reinterpret_cast<uint2*>(most + slot), to,
                   {__float_as_uint(sums.most * p.scale2), __float_as_uint(sums.total)}, given + 1);
    }
    __syncwarp();
  }
  barrier_wait(given + 1, 0);

  // Joins the chunks that this block was given, by a warp each, and gives them to every block.
  for (int u = 0, r = 0, c = 0; r < m; ++u) {
    const int chunk = (c << p.cluster_shift) + rank, slot = (r * owned + c) * all_parts;
    const int2 span = spans[r];
    const int of = r;
    if (++c == owned) c = 0, ++r;
    if (u % kAttendWarps != warp || chunk >= group * kChunks) continue;
    constexpr int kEach = kAttendSets * 16 / 8;
    Pack<float, 4> v[kEach] = {};
    float2 stats[kEach];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int from = g + 8 * i;
      stats[i] = {-INFINITY, 0.0f};
      if (from < all_parts && from * span.y < span.x) {
        stats[i] = most[slot + from];
        v[i] = load<4>(joint + (slot + from) * 16 + 4 * t);
      }
      top = fmaxf(top, stats[i].x);
    }
#pragma unroll
    for (int o = 4; o < 32; o *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    const float base = top == -INFINITY ? 0.0f : top;
    float total = 0.0f, sum[4] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float factor = exp2_fast(stats[i].x - base);
      total = fmaf(stats[i].y, factor, total);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = fmaf(v[i].at[j], factor, sum[j]);
    }
#pragma unroll
    for (int o = 4; o < 32; o *= 2) {
      total += __shfl_xor_sync(0xffffffffu, total, o);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], o);
    }
    const float factor = top == -INFINITY ? 0.0f : 1.0f / total;
    const uint2 y{pack_bf16(sum[0] * factor, sum[1] * factor),
                  pack_bf16(sum[2] * factor, sum[3] * factor)};
    Bf16* to = raw + of * width + chunk * 16 + 4 * t;
    for (int b = g; b < cluster; b += 8)
      cluster_give(reinterpret_cast<uint2*>(to), Neighbour(b), y, given + 2);
  }
  barrier_wait(given + 2, 0);

  each_row<kAttendWarps>(m, p.row_shift, [&](int r, int s, int step) {
    for (int c = s * kStretchColumns + 8 * lane; c < width; c += step * kStretchColumns)
      W::put(x, r, kv * width + c, load<8>(raw + r * width + c));
  });
  __syncthreads();
  {
    const X lane_x(x, m, lane);
    const int before = kv * p.out_bytes, units = width / W::kUnit;
    W w = p.out;
    w.w.scales_at = before + p.out_bytes;
    const uint8_t* base = shared + p.out_at - before;
    barrier_wait(ready + 1, 0);
    p.second.each([&](int tile, int piece) {
      if (16 * tile >= rows) return;
      const int begin = piece * p.second.piece_units;
      multiply_tile<kTiles>(w, base + min(16 * tile + g, rows - 1) * p.out_ld,
                            base + min(16 * tile + 8 + g, rows - 1) * p.out_ld, lane_x,
                            kv * units + begin,
                            kv * units + min(units, begin + p.second.piece_units), m, m_shift,
                            joint + (tile * p.second.pieces + piece) * tile_floats);
    });
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < rows << m_shift; i += kAttendThreads) {
    const int r = i >> m_shift, at_row = i & ((1 << m_shift) - 1);
    if (at_row >= m) continue;
    const float* at = joint + r / 16 * p.second.pieces * tile_floats + (r % 16 << m_shift) + at_row;
    float sum = kv == 0 ? p.out_bias[first_row + r] : 0.0f;
#pragma unroll 4
    for (int j = 0; j < p.second.pieces; ++j) sum += at[j * tile_floats];
    p.parts[(kv * m + at_row) * p.out_rows + first_row + r] = sum;
  }
}

}  // namespace wick::cuda
