// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backend/cuda/adapted_round.cuh"
#include "backend/cuda/adapted_round.h"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

constexpr int kMostShared = 227 << 10, kMostSlots = 4;
constexpr int64_t kMostAlone = 16;  // ranks

template <int Cols, int RankTiles, bool Paired>
bool start(const Queue& queue, const FusedProduct& p, RoundArgs a) {
  using S = RoundShape<Cols, RankTiles, Paired>;
  auto* kernel = adapted_round_kernel<Cols, RankTiles, Paired>;
  const int steps = static_cast<int>(divide_up(p.x.cols, kBulkDepth));
  a.left_slots = a.right_slots = std::min(steps, kMostSlots);
  while (S::bytes(a.left_slots, a.right_slots) > kMostShared) --a.left_slots, --a.right_slots;
  CUtensorMap left, right;
  const auto shared = static_cast<size_t>(S::bytes(a.left_slots, a.right_slots));
  if (!make_map(p.x, kBulkDepth, kRoundRows, left) || !make_map(p.w, kBulkDepth, Cols, right) ||
      !allow_shared(kernel, shared))
    return false;
  prefer_shared(kernel);
  const int64_t wide = Paired ? 2 * Cols : Cols;
  const int64_t blocks =
      divide_up(p.x.rows, kRoundRows) * divide_up(p.y.cols, wide) * (Paired ? 2 : 1);
  flush(queue);
  launch_clusters(queue, kernel, static_cast<unsigned>(blocks), S::kThreads, shared, Paired ? 2 : 1,
                  left, right, a);
  return true;
}

// The most ranks from the first to the last that `cols` neighbouring columns meet.
int64_t ranks_between(const FusedProduct& p, int64_t cols) {
  int64_t most = 0;
  for (int64_t n0 = 0; n0 < p.y.cols; n0 += cols) {
    int64_t begin = -1, end = 0;
    for (const FusedAdapter& a : p.adapters)
      if (a.first < n0 + cols && a.first + a.b.rows > n0) {
        if (begin < 0) begin = a.first_rank;
        end = a.first_rank + a.b.cols;
      }
    if (begin >= 0) most = std::max(most, end - begin);
  }
  return most;
}

// A block for each tile, which makes all ranks that its columns meet.
template <int Cols>
bool start_alone(const Queue& queue, const FusedProduct& p, const RoundArgs& a) {
  const int64_t ranks = ranks_between(p, Cols);
  if (ranks <= 8) return start<Cols, 1, false>(queue, p, a);
  return ranks <= kMostAlone && start<Cols, 2, false>(queue, p, a);
}

}  // namespace

bool adapted_round(const Queue& queue, const FusedProduct& p) {
  if (p.made || p.lanes > 1 || p.turn.head_dim > 0 || p.adapters.empty() ||
      p.adapters.size() > RoundArgs::kMost)
    return false;
  const int64_t down = divide_up(p.x.rows, kRoundRows);
  RoundArgs a{.rows = static_cast<int>(p.y.rows),
              .cols = static_cast<int>(p.y.cols),
              .depth = static_cast<int>(p.x.cols),
              .left_slots = 0,
              .right_slots = 0,
              .y = rows<Bf16>(p.y),
              .h = rows<Bf16>(p.h),
              .bias = p.bias.as<const Bf16>(),
              .a = p.a.as<const float>(),
              .a_ld = static_cast<int>(p.a.ld),
              .part = {},
              .parts = 0};
  for (const FusedAdapter& adapter : p.adapters) a.part[a.parts++] = part_of(adapter);
  auto fit = [&](int64_t cols) { return down * divide_up(p.y.cols, cols) <= queue.sms; };
  if (fit(64)) {
    const int64_t ranks = ranks_between(p, 64), of_two = ranks_between(p, 128);
    if (ranks <= kMostAlone) return start_alone<64>(queue, p, a);
    if (2 * down * divide_up(p.y.cols, 128) > queue.sms) return false;
    // Beyond, as fused_product() does: h of several adapters comes from a launch before.
    if (ranks > 32 && (p.adapters.size() > 1 || divide_up(p.y.cols, 64) % 2 != 0)) return false;
    if (of_two <= 32) return start<64, 2, true>(queue, p, a);
    return of_two <= 64 && start<64, 4, true>(queue, p, a);
  }
  if (fit(128)) return start_alone<128>(queue, p, a);
  if (fit(192)) return start_alone<192>(queue, p, a);
  return fit(256) && start_alone<256>(queue, p, a);
}

}  // namespace wick::cuda
