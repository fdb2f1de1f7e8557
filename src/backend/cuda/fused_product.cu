// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/adapted_round.h"
#include "backend/cuda/fused.h"
#include "backend/cuda/fused_product.cuh"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

constexpr int64_t kLaunch = 10000, kMeeting = 10000;  // of a launch before, of a cluster
constexpr int64_t kMostMade = 16;                     // ranks of h that a tile makes
constexpr int64_t kMostMet = 2;                       // adapters that a tile meets
constexpr int64_t kFewDepth = 136;                    // of adapted products: three stages
// Of the rows of tiles that end with a lane, an eighth: more costs what launches do.
constexpr int64_t kMostUnused = 8;
constexpr int64_t kFewRows = 128;       // fewer are other kernels'
constexpr int64_t kFewGatedRows = 256;  // the library splits the depth where tiles are few
constexpr int64_t kMostDepth = 2048, kMostWork = int64_t{28} << 30;

// Tiles of `cols` columns. Blocks of a cluster share a tile's depth (splits) or the ranks of h
// (sharers).
struct FusedForm {
  int cols = 0, splits = 1, sharers = 1;
};

// A tile is of one lane.
int64_t tiles_down(const FusedProduct& p) {
  return p.lanes * divide_up(p.x.rows / p.lanes, kFusedRows);
}

// The most ranks that a tile of so many columns meets.
int64_t ranks_met(const FusedProduct& p, int64_t cols) {
  int64_t most = 0;
  for (int64_t n0 = 0; n0 < p.y.cols; n0 += cols) {
    int64_t ranks = 0;
    for (const FusedAdapter& a : p.adapters)
      if (p.made || (a.first < n0 + cols && a.first + a.b.rows > n0)) ranks += a.b.cols;
    most = std::max(most, ranks);
    if (p.made) break;
  }
  return most;
}

// Whether every adapter's ranks begin where a fragment of h does, which is also where the copy
// engine may begin: it refuses columns that are not at multiples of 16 bytes.
bool ranks_in_eights(const FusedProduct& p) {
  for (const FusedAdapter& a : p.adapters)
    if (a.first_rank % 8 != 0 || (p.adapters.size() > 1 && a.b.cols % 8 != 0)) return false;
  return true;
}

// The most adapters that a tile of so many columns meets.
int64_t adapters_met(const FusedProduct& p, int64_t cols) {
  int64_t most = 0;
  for (int64_t n0 = 0; n0 < p.y.cols; n0 += cols) {
    int64_t count = 0;
    for (const FusedAdapter& a : p.adapters)
      count += a.first < n0 + cols && a.first + a.b.rows > n0;
    most = std::max(most, count);
  }
  return p.made ? static_cast<int64_t>(p.adapters.size()) : most;
}

// h by a launch before.
bool make_h(const Queue& queue, const FusedProduct& p) {
  auto own = [&](Operand o, int64_t lane) {
    o.rows /= p.lanes;
    o.data = o.as<std::byte>() + lane * o.rows * o.ld * static_cast<int64_t>(sizeof(Bf16));
    return o;
  };
  for (int64_t lane = 0; lane < p.lanes; ++lane) {
    Operand a = p.a;
    a.data = a.as<std::byte>() + lane * p.lane_bytes;
    if (!narrow_product(queue, 1.0f, false, true, own(p.x, lane), a, own(p.h, lane))) return false;
  }
  return true;
}

// `ranks`: the most that a tile meets.
template <int Cols, bool Gated, int RankTiles>
bool start(const Queue& queue, const FusedProduct& p, const FusedForm& form, int64_t ranks) {
  using S = FusedShape<Cols, Gated, RankTiles>;
  FusedArgs a{.rows = static_cast<int>(p.x.rows),
              .cols = static_cast<int>(p.y.cols),
              .depth = static_cast<int>(p.x.cols),
              .lane_rows = static_cast<int>(p.x.rows / p.lanes),
              .half = static_cast<int>(p.made.cols),
              .splits = form.splits,
              .sharers = form.sharers,
              .act = p.act,
              .y = rows<Bf16>(p.y),
              .made = rows<Bf16>(p.made),
              .h = rows<Bf16>(p.h),
              .bias = p.bias.as<const Bf16>()};
  constexpr bool kMakesH = RankTiles > 0;
  if ((form.sharers > 1 && !S::kShares) || (!kMakesH && !aligned16(p.h))) return false;
  if (kMakesH) a.a_rows = static_cast<int>(8 * divide_up(divide_up(ranks, 8), form.sharers));
  FusedMaps maps;
  auto map_lanes = [&](const Operand& o, int cols, int rows, CUtensorMap& map) {
    const auto own = divide_up(o.rows * o.ld, 4) * 16;  // of one alone, any
    return make_map_of(o, p.lanes, p.lanes > 1 ? p.lane_bytes : own, cols, rows, map);
  };
  if (!make_map(p.x, kFusedDepth, kFusedRows, maps.left) ||
      !make_map(p.w, kFusedDepth, S::kHalf, maps.right) ||
      (ranks > 0 && !(kMakesH ? map_lanes(p.a, 32, a.a_rows, maps.small)
                              : make_map(p.h, 64, kFusedRows, maps.small))))
    return false;
  int most_extra = 0;
  for (const FusedAdapter& adapter : p.adapters) {
    if (!map_lanes(adapter.b, kFusedRanks, S::kHalf, maps.b[a.parts])) return false;
    a.part[a.parts++] = {.first = static_cast<int>(adapter.first),
                         .cols = static_cast<int>(adapter.b.rows),
                         .first_rank = static_cast<int>(adapter.first_rank),
                         .ranks = static_cast<int>(adapter.b.cols),
                         .scale = adapter.scale};
    most_extra += static_cast<int>(divide_up(adapter.b.cols, kFusedRanks));
  }
  const int shared_h = form.sharers > 1 ? RankTiles * S::kSharedH : 0;
  a.stage_bytes = kFusedLeft + S::kRightBytes + 2 * 128 * a.a_rows;
  a.stages = std::min((S::kMostShared - S::kOther - shared_h - S::kTileBytes) / a.stage_bytes, 8);
  if (a.stages < 2 || (form.splits > 1 && (!S::kSplits || most_extra > 1 || a.stages < 4)))
    return false;
  const size_t bytes =
      static_cast<size_t>(a.stages * a.stage_bytes + S::kTileBytes + S::kOther + shared_h);
  if (!allow_shared(fused_kernel<Cols, Gated, RankTiles>, bytes)) return false;
  prefer_shared(fused_kernel<Cols, Gated, RankTiles>);
  const int64_t tiles = tiles_down(p) * divide_up(Gated ? a.half : a.cols, S::kHalf) * form.splits;
  const int cluster = form.splits * form.sharers;
  const int64_t most = queue.sms;
  if (cluster > 1 && tiles > most) return false;
  if (ranks > 0 && !kMakesH && !make_h(queue, p)) return false;
  if (a.a_rows > 8 && tiles <= most) a.rounders = kMostRounders;
  flush(queue);
  launch_clusters(queue, fused_kernel<Cols, Gated, RankTiles>,
                  static_cast<unsigned>(std::min(tiles, most)), S::kThreads, bytes, cluster, maps,
                  a);
  return true;
}

template <int Cols, bool Gated>
bool start(const Queue& queue, const FusedProduct& p, const FusedForm& form) {
  const int64_t ranks = ranks_met(p, FusedShape<Cols, Gated, 0>::kHalf);
  if constexpr (Cols < 256) {
    if (ranks > 0 && ranks <= kMostMade * form.sharers)
      return start<Cols, Gated, kMostMade / 8>(queue, p, form, ranks);
  }
  if constexpr (Cols == 64) {
    if (ranks > 0 && ranks <= 2 * kMostMade * form.sharers)
      return start<Cols, Gated, kMostMade / 4>(queue, p, form, ranks);
  }
  return start<Cols, Gated, 0>(queue, p, form, ranks);
}

// In tiles of how many columns the busiest multiprocessor has least to do, in cycles as measured:
// of a stage and of what a tile costs beside its stages. Where h is not made in the product a
// launch comes before.
FusedForm choose(const Queue& queue, const FusedProduct& p) {
  const int64_t down = tiles_down(p), steps = divide_up(p.x.cols, kFusedDepth);
  FusedForm best;
  int64_t least = 0;
  auto consider = [&](int cols, int64_t step, int64_t end, int64_t once = 0) {
    const int64_t tiles = down * divide_up(p.y.cols, cols);
    for (int splits = 1; splits <= (p.made || p.adapters.size() > 1 ? 1 : 4); splits *= 2) {
      if (splits > 1 && (tiles * splits > queue.sms || cols > 128 || cols < 32 * splits)) break;
      const int64_t rounds = divide_up(tiles * splits, queue.sms);
      const int64_t cost =
          once + (splits > 1 ? kMeeting : 0) + rounds * (divide_up(steps, splits) * step + end);
      if (best.cols == 0 || cost < least) {
        best = {.cols = cols, .splits = splits};
        least = cost;
      }
    }
  };
  const int64_t before = p.adapters.empty() ? 0 : kLaunch, end = p.adapters.empty() ? 1000 : 3000;
  if (p.made) {
    consider(160, 670, end, ranks_met(p, 80) > kMostMade ? before : 0);
    consider(256, p.adapters.empty() ? 1040 : 1100, end, before);
  } else {
    consider(64, 440, 2500);
    consider(128, 600, 4000, ranks_met(p, 128) > kMostMade ? before : 0);
    consider(256, 1040, 9000, before);
  }
  const int64_t across = divide_up(p.y.cols, 64);
  if (best.cols == 64 && best.splits == 1 && p.adapters.size() == 1 && across % 2 == 0 &&
      down * across <= queue.sms && p.adapters[0].b.cols > kMostMade / 2)
    best.sharers = 2;
  return best;
}

bool fits(const Operand& o, DType dtype) {
  return !o || (o.dtype == dtype && aligned16(o) && o.rows < (1 << 30) && o.cols < (1 << 30));
}

}  // namespace

bool fused_product(const Queue& queue, const FusedProduct& p) {
  if (queue.arch != Arch::kSm90 || p.adapters.size() > FusedArgs::kMost ||
      p.x.rows < (p.made ? kFewGatedRows : kFewRows) || !fits(p.x, DType::kBF16) ||
      !fits(p.w, DType::kBF16) || !fits(p.bias, DType::kBF16) || !fits(p.y, DType::kBF16) ||
      !fits(p.made, DType::kBF16) || !fits(p.a, DType::kF32))
    return false;
  // Beyond, the library's kernels gain more than launches and passes over y cost.
  const bool makes_h = ranks_met(p, 128) <= kMostMade;
  if (p.x.cols > (makes_h || p.made ? kMostDepth : kMostDepth / 2) &&
      (p.made || p.x.rows * p.y.cols * p.x.cols > kMostWork))
    return false;
  if (!p.adapters.empty() && (p.x.cols < kFewDepth || !ranks_in_eights(p))) return false;
  for (const FusedAdapter& a : p.adapters)
    if (a.b.cols > kSkinny || !fits(a.b, DType::kF32)) return false;
  if (p.h && p.h.dtype != DType::kBF16) return false;
  if (p.lanes > 1) {
    const int64_t unused = tiles_down(p) * kFusedRows - p.x.rows;
    if (unused > p.x.rows / kMostUnused || p.lane_bytes <= 0 || p.lane_bytes % 16 != 0)
      return false;
  } else if (small_adapted(queue, p)) {
    return true;
  }
  if (p.turn.head_dim > 0) return false;
  const FusedForm form = choose(queue, p);
  // Not where blocks share the depth or h comes from a launch before: those are other sums.
  if (form.splits == 1 && form.cols < 256 && adapted_round(queue, p)) return true;
  if (adapters_met(p, form.cols) > kMostMet) return false;
  if (p.made)
    return form.cols == 160 ? start<160, true>(queue, p, form) : start<256, true>(queue, p, form);
  return form.cols == 64    ? start<64, false>(queue, p, form)
         : form.cols == 128 ? start<128, false>(queue, p, form)
                            : start<256, false>(queue, p, form);
}

}  // namespace wick::cuda
