// SPDX-License-Identifier: Apache-2.0
// Launches of attend.cuh's kernel.
#pragma once

#include <algorithm>

#include "backend/cuda/attend.cuh"
#include "backend/cuda/matvec_codes.h"

namespace wick::cuda {

// `tiles` of so many units among a block's warps, by a count of instructions.
inline AttendShare attend_share(int64_t tiles, int64_t units) {
  constexpr int64_t kUnitCost = 40, kPieceCost = 60, kSumCost = 4;
  int64_t best = 1, best_cost = INT64_MAX;
  for (int64_t pieces = 1; pieces <= std::min<int64_t>(kAttendWarps, units); ++pieces) {
    const int64_t cost = divide_up(tiles * pieces, kAttendWarps) *
                             (divide_up(units, pieces) * kUnitCost + kPieceCost) +
                         pieces * kSumCost;
    if (cost < best_cost) {
      best = pieces;
      best_cost = cost;
    }
  }
  const int64_t each = divide_up(units, best), pieces = divide_up(units, each);
  return {static_cast<int>(tiles), static_cast<int>(pieces), static_cast<int>(each),
          static_cast<int>(65536 / pieces + 1)};
}

constexpr int64_t kAttendMost = int64_t{160} << 10;

template <class W, int E, int kTiles, bool kShared>
bool launch_attend(const Queue& queue, const Attend& a, const W& qkv, const W& out) {
  const MatvecRotation& r = a.rotation;
  const int64_t m = a.in.a.rows, k = a.in.a.cols, group = r.heads / r.kv_heads, width = group * E;
  const auto kernel = attend_fwd<W, E, kTiles, kShared>;
  auto narrow = [](int64_t n) { return static_cast<int>(n); };
  auto row_ld = [](int64_t bytes) { return divide_up(bytes, 128) * 128 + W::kPad; };
  const int64_t out_bytes = width / W::kUnit * W::kUnitBytes;
  const int64_t scales_at = out.w.scales_at, scale_bytes = out.bytes - scales_at;
  if (scales_at % 16 != 0) return false;
  for (int shift : {4, 3}) {
    const int64_t cluster = int64_t{1} << shift;
    const int64_t pairs = divide_up(divide_up((group + 2) * E / 2, cluster), 4) * 4;
    const int64_t rows = divide_up(a.out.rows, cluster);
    if (pairs * kAttendRows > kAttendThreads) continue;
    AttendArgs<W> p{};
    p.norm = parted_norm(a.in);
    p.qkv = qkv;
    p.out = out;
    p.qkv_bias = any_floats(a.qkv_bias);
    p.out_bias = any_floats(a.out_bias);
    p.cache_k = cuda::rows<Bf16>(r.cache_k);
    p.cache_v = cuda::rows<Bf16>(r.cache_v);
    p.table = cuda::rows<const float>(r.table);
    p.positions = r.positions.as<const int32_t>();
    p.cache_rows = r.cache_rows.as<const int32_t>();
    p.begin = a.begin.as<const int32_t>();
    p.end = a.end.as<const int32_t>();
    p.parts = a.parts;
    p.scale2 = a.scale * kLog2E;
    p.m = narrow(m);
    p.k = narrow(k);
    p.m_shift = shift_of(m);
    p.row_shift = std::max(0, shift_of(kAttendWarps) - p.m_shift);
    p.heads = narrow(r.heads);
    p.kv_heads = narrow(r.kv_heads);
    p.keys = narrow(r.cache_k.rows);
    p.window = narrow(a.window);
    p.out_rows = narrow(a.out.rows);
    p.cluster_shift = shift;
    p.pairs = narrow(pairs);
    p.rows = narrow(rows);
    p.first = attend_share(divide_up(pairs, 8), k / W::kUnit);
    p.second = attend_share(divide_up(rows, 16), width / W::kUnit);
    p.qkv_ld = narrow(row_ld(qkv.bytes));
    p.out_ld = narrow(row_ld(out_bytes + scale_bytes));
    p.out_bytes = narrow(out_bytes);
    p.scale_bytes = narrow(scale_bytes);
    p.out_scales_at = scales_at;
    p.x_ld = x_ld(narrow(std::max(k, a.out.cols)));
    // Everything has the same place in all blocks.
    auto place = [&](int64_t m) {
      int64_t at = 0;
      auto take = [&](int64_t bytes) {
        const int64_t from = at;
        at += divide_up(bytes, 128) * 128;
        return narrow(from);
      };
      const int64_t tile = int64_t{16} << shift_of(m);
      const int64_t slots = m * divide_up(width / 16, cluster) * kAttendSets * cluster;
      take(2 * pairs * p.qkv_ld);
      p.out_at = take(rows * p.out_ld);
      p.x_at = take(m * p.x_ld * 2);
      p.gains_at = take(x_columns(p.k) * 4);
      p.counts_at = take(m * x_counts_ld(p.x_ld) * 4);
      p.joint_at = take(4 * std::max({p.first.tiles * p.first.pieces * tile,
                                      p.second.tiles * p.second.pieces * tile, slots * 16}));
      p.most_at = take(slots * 8);
      p.new_at = take(m * (width + 2 * E) * 2);
      p.raw_at = take(m * width * 2);
      p.own_at = take(m * 2 * pairs * 2);
      return at;
    };
    // How a row is made must not depend on how many there are.
    const int64_t most = place(kAttendRows), shared = place(m);
    if (most > kAttendMost) continue;
    if (!allow_shared(kernel, static_cast<size_t>(std::max(most, int64_t{49} << 10)))) continue;
    prefer_shared(kernel);
    if (cluster > 8 && cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed,
                                            1) != cudaSuccess)
      continue;
    const auto blocks = static_cast<unsigned>(r.kv_heads * cluster);
    if (clusters_at_once(kernel, blocks, kAttendThreads, static_cast<size_t>(most),
                         narrow(cluster)) < r.kv_heads)
      continue;
    launch_clusters(queue, kernel, blocks, kAttendThreads, static_cast<size_t>(shared),
                    narrow(cluster), p);
    return true;
  }
  return false;
}

// For codes of `Bits` bits (attend_q8.cu, attend_q4.cu).
template <int Bits>
bool attend_codes(const Queue& queue, const Attend& a);

template <int Bits>
bool attend_codes_here(const Queue& queue, const Attend& a) {
  const auto go = [&](auto wide) {
    using W = CodedWeights<Bits, decltype(wide)::value>;
    auto coded = [](const Operand& w) {
      return W{codes(w), static_cast<int>(device_row_bytes(w.dtype, w.cols)),
               static_cast<int>(quant_groups(w.dtype, w.cols))};
    };
    const W qkv = coded(a.qkv), out = coded(a.out);
    if (a.in.a.rows < kSharedRows) return launch_attend<W, 64, 1, false>(queue, a, qkv, out);
    return a.in.a.rows <= 4 ? launch_attend<W, 64, 1, true>(queue, a, qkv, out)
                            : launch_attend<W, 64, 2, true>(queue, a, qkv, out);
  };
  return quant_group(a.qkv.dtype) >= 64 ? go(std::true_type{}) : go(std::false_type{});
}

}  // namespace wick::cuda
