// SPDX-License-Identifier: Apache-2.0
// matvec_mma.cu for weights in codes, which need little memory and more arithmetic: the products
// are of bytes (matvec_weights.cuh), and 4 rows of x cost what one does.
//
// A block has as many items (rows of w, or pairs of them) as every other, in tiles of 8 or 16 rows.
// A tile's columns are cut into pieces, and a block's warps take pieces of its tiles in turn: as
// few pieces as keep them all busy, for each costs a warp as much as one or two units. Another warp
// copies tiles into a ring of stages in shared memory, and all else that needs no predecessor comes
// before the wait too, as there.
//
// A row's bits depend on the matrix and the card, not on the rows beside it.
#pragma once

#include <algorithm>

#include "backend/cuda/matvec_codes.h"
#include "backend/cuda/matvec_out.cuh"
#include "backend/cuda/matvec_weights.cuh"
#include "backend/cuda/matvec_x.cuh"

namespace wick::cuda {

constexpr int kCodesStages = 12;

template <class W, class Out>
struct CodesArgs {
  Rows<const Bf16> x;
  MatvecNorm norm;
  W w;
  Out out;
  int items, block_items, m, k;
  int stages, ring_rows, stage_ld;  // rows of the ring, bytes from one to the next
  int pieces, piece_units;          // of a tile
  int piece_inverse;                // of 256, for numbers below 16
  int step_tiles, step_pieces;      // kWarps pieces on
  int gains;                        // floats, where threads do not keep them
  int m_shift;                      // m, as the power of two that holds it
  int row_shift;                    // warps that share a row of x, as a power of two
  int turn_tiles;                   // whose sums are joined together
  int joint_floats;                 // of a turn's sums
};

// Goes round the ring. A warp that multiplies sees every so manyth tile only, and copies may end
// out of turn: it may ask for a stage while the tile before is still on its way there, which one
// bit of a barrier's phase does not tell from what it waits for. So even and odd rounds have
// barriers of their own: the one before last is over when a tile of the last one has been seen, as
// long as a warp's steps are no longer than the ring.
struct CodesPlace {
  int stage = 0, round = 0;
  __device__ void step(int stages, int by = 1) {
    stage += by;
    while (stage >= stages) {
      stage -= stages;
      ++round;
    }
  }
  __device__ CopyBarrier* of(CopyBarrier* full) const {
    return full + round % 2 * kCodesStages + stage;
  }
  __device__ int parity() const { return round / 2 % 2; }
};

// The tiles of this block.
template <class W, class Out>
struct CodesTiles {
  int first, last;  // items
  __device__ CodesTiles(const CodesArgs<W, Out>& p)
      : first(blockIdx.x * p.block_items), last(min(first + p.block_items, p.items)) {}
  __device__ int tiles() const { return (last - first + Out::kItems - 1) / Out::kItems; }
  __device__ int item(int tile) const { return first + tile * Out::kItems; }
  __device__ int count(int tile) const { return min(Out::kItems, last - item(tile)); }
};

// The copying warp, which lets the others come when the ring has been filled once.
template <class W, class Out>
__device__ inline void copy_codes(const CodesArgs<W, Out>& p, uint8_t* ring, CopyBarrier* full,
                                  CopyBarrier* empty) {
  const int lane = threadIdx.x % 32;
  if (lane < p.stages) {
    barrier_init(full + lane, kCopyArrivals);
    barrier_init(full + kCodesStages + lane, kCopyArrivals);
    barrier_init(empty + lane, p.pieces);
  }
  barriers_ready();
  __syncwarp();
  const CodesTiles<W, Out> mine(p);
  CodesPlace place;
  bool first_round = true;
  for (int tile = 0; tile < mine.tiles(); ++tile) {
    // Rows, and behind them their partners.
    const int count = mine.count(tile), rows = Out::kPairs ? 2 * count : count;
    const bool partner = Out::kPairs && lane >= count;
    const int j = min(partner ? lane - count : lane, count - 1);
    const uint8_t* row = p.w.row(p.out.row(p.out.spot(mine.item(tile) + j), partner));
    if (!first_round) barrier_wait(empty + place.stage, (place.round - 1) % 2);
    copy_rows(ring + place.stage * Out::kRows * p.stage_ld, p.stage_ld, row, rows, p.w.bytes,
              place.of(full));
    place.step(p.stages);
    if (first_round && place.stage == 0) {
      first_round = false;
      __syncthreads();
    }
  }
  if (first_round) __syncthreads();
}

// kTiles: 4 rows of x each. kOne: there is one row.
template <class W, int kTiles, bool kOne, bool kNorm, class Out>
__global__ void __launch_bounds__(32 * W::kWarps + 32, W::kBlocks)
    matvec_codes_fwd(const __grid_constant__ CodesArgs<W, Out> p) {
  constexpr int kRows = Out::kRows, kItems = Out::kItems;
  constexpr int kWarps = W::kWarps, kWorkers = 32 * kWarps;
  extern __shared__ uint4 dynamic[];
  __shared__ CopyBarrier full[2 * kCodesStages], empty[kCodesStages];
  const int m = kOne ? 1 : p.m, m_shift = kOne ? 0 : p.m_shift;
  let_next_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  auto* ring = reinterpret_cast<uint8_t*>(dynamic);
  if (warp == kWarps) return copy_codes(p, ring, full, empty);
  XRows x{reinterpret_cast<Bf16*>(ring + p.ring_rows * p.stage_ld), nullptr, x_ld(p.k),
          x_counts_ld(p.k)};
  float* gains = reinterpret_cast<float*>(x.x + m * x.ld);
  float* joints = gains + p.gains;
  x.counts = joints;
  joints += m * x.counts_ld;
  const CodesTiles<W, Out> mine(p);
  const int tiles = mine.tiles();

  // A thread's element of a turn: row mm of x, item j of a tile.
  struct Element {
    int mm, j, tile;
  };
  auto element = [&](int i, int first_tile) {
    const int j = i >> m_shift;
    return Element{i & ((1 << m_shift) - 1), j % kItems, first_tile + j / kItems};
  };
  auto real = [&](const Element& e) {
    return e.mm < m && e.tile < tiles && e.j < mine.count(e.tile);
  };
  const Element at_first = element(threadIdx.x, 0);
  FirstElement<Out> first{.early = {},
                          .spot = p.out.spot(mine.item(at_first.tile) + at_first.j),
                          .mm = at_first.mm,
                          .real = real(at_first)};
  if (first.real) p.out.weights(first.early, first.spot, first.mm);
  bring_x<W, kNorm>(p, m, kOne && x_columns(p.k) <= kWorkers * 8, x, gains, first);
  const typename W::template X<kTiles> lane_x(x, m, lane);

  const int units = (p.k + W::kUnit - 1) / W::kUnit;
  const int part = kRows << m_shift;  // of a tile's sums
  float* joint = joints;
  CodesPlace turn_place;
  for (int turn = 0; turn < tiles; turn += p.turn_tiles) {
    const int in_turn = min(p.turn_tiles, tiles - turn);
    int tile = warp * p.piece_inverse >> 8, piece = warp - tile * p.pieces;
    CodesPlace place = turn_place;
    place.step(p.stages, tile);
    while (tile < in_turn) {
      const int count = mine.count(turn + tile);
      const int begin = piece * p.piece_units, end = min(units, begin + p.piece_units);
      const uint8_t* stage = ring + place.stage * kRows * p.stage_ld;
      const int low = min(g, count - 1);
      const int high = Out::kPairs ? count + low : min(g + 8, count - 1);
      typename W::template Sums<kTiles> sums;
      barrier_wait(place.of(full), place.parity());
      p.w.template multiply<kRows, kTiles>(stage + low * p.stage_ld, stage + high * p.stage_ld,
                                           lane_x, begin, end, t, sums);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + place.stage);
      float* to = joint + (tile * p.pieces + piece) * part;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int mm = 4 * n + t;
        if (mm >= m) continue;
#pragma unroll
        for (int half = 0; half < kRows / 8; ++half)
          to[((half * 8 + g) << m_shift) + mm] = sums.at[n][half];
      }
      int on = p.step_tiles;
      piece += p.step_pieces;
      if (piece >= p.pieces) {
        piece -= p.pieces;
        ++on;
      }
      tile += on;
      place.step(p.stages, on);
    }
    turn_place.step(p.stages, in_turn);

    barrier_of_first<kWorkers>();
    for (int i = threadIdx.x; i < in_turn * kItems << m_shift; i += kWorkers) {
      const Element e = element(i, turn);
      if (!real(e)) continue;
      const typename Out::Spot spot = p.out.spot(mine.item(e.tile) + e.j);
      if (e.tile != at_first.tile || i != threadIdx.x) {
        p.out.weights(first.early, spot, e.mm);
        p.out.feeds(first.early, e.mm);
        p.out.look_up(first.early, spot);
      }
      const float* at = joint + (e.tile - turn) * p.pieces * part + (e.j << m_shift) + e.mm;
      float sum = 0.0f, partner = 0.0f;
#pragma unroll 4
      for (int w = 0; w < p.pieces; ++w) {
        sum += at[w * part];
        if constexpr (Out::kPairs) partner += at[w * part + (8 << m_shift)];
      }
      p.out.put(e.mm, spot, sum, partner, first.early);
    }
    // The next turn's sums lie elsewhere: these are still read.
    joint = joint == joints ? joints + p.joint_floats : joints;
  }
}

// ---- launches

constexpr int64_t kCodesRing = int64_t{120} << 10;
// Where two blocks share a multiprocessor of 228 KB: all of one but what is static (and a KB of the
// card's), if that leaves so many stages.
constexpr int64_t kCodesHalf = (int64_t{113} << 10) - 4480, kCodesLeast = 5;
constexpr size_t kCodesShared = size_t{220} << 10, kCodesTurn = size_t{24} << 10,
                 kCodesShortTurn = size_t{4} << 10;

// Into how many pieces the units of a tile are cut for `warps` of them, by a count of
// instructions: those of a unit, of a piece, of a sum of pieces.
inline int64_t codes_pieces(int64_t tiles, int64_t units, int64_t stages, int64_t warps) {
  constexpr int64_t kUnitCost = 40, kPieceCost = 60, kSumCost = 4;
  // Where stages are filled again, half of them are on their way.
  const int64_t most = std::min(warps, units);
  const int64_t least = tiles > stages ? std::min(most, divide_up(2 * warps, stages)) : 1;
  int64_t best = 1, best_cost = INT64_MAX;
  for (int64_t pieces = least; pieces <= most; ++pieces) {
    const int64_t cost =
        divide_up(tiles * pieces, warps) * (divide_up(units, pieces) * kUnitCost + kPieceCost) +
        pieces * kSumCost;
    if (cost < best_cost) {
      best = pieces;
      best_cost = cost;
    }
  }
  // As many as that length makes.
  return divide_up(units, divide_up(units, best));
}

template <class W, class Out>
bool launch_coded(const Queue& queue, const MatvecIn& in, const W& w, const Operand& matrix,
                  const Out& out) {
  constexpr int kRows = Out::kRows, kItems = Out::kItems, kWarps = W::kWarps;
  const bool norms = static_cast<bool>(in.a);
  const Operand& x = norms ? in.a : in.x;
  const int64_t items = matrix.rows * kItems / kRows, units = divide_up(x.cols, W::kUnit);
  // Every block gets as many; where those are many, two blocks share a multiprocessor.
  const bool many = divide_up(items, kItems) >= 16 * queue.sms;
  const int64_t align = many ? kItems : 1;
  const int64_t each =
      divide_up(divide_up(items, int64_t{queue.sms} * (many ? 2 : 1)), align) * align;
  const int64_t tiles = divide_up(each, kItems);
  const int64_t row = std::max<int64_t>(w.bytes, units * W::kUnitBytes);
  const int64_t stage_ld = divide_up(row, 128) * 128 + W::kPad;
  const int64_t all_rows = each * kRows / kItems;
  const bool all = tiles <= kCodesStages && all_rows * stage_ld <= kCodesRing;
  int64_t stages = all ? tiles
                       : std::clamp<int64_t>(kCodesRing / (kRows * stage_ld), 1,
                                             std::min<int64_t>(kCodesStages, tiles));
  const int64_t pieces = codes_pieces(tiles, units, stages, kWarps);
  const int k = static_cast<int>(x.cols), m_shift = shift_of(x.rows);
  const int64_t tile_floats = pieces * kRows << m_shift;
  const bool one = x.rows == 1 && x_columns(k) <= 256 * kWarps;
  const int gains = norms && !one ? x_columns(k) : 0;
  int64_t turn = 0, beside = 0;
  const auto take_turns = [&](size_t bytes) {
    turn = std::clamp<int64_t>(static_cast<int64_t>(bytes) / (4 * tile_floats), 1, tiles);
    beside = x.rows * (x_ld(k) * 2 + x_counts_ld(k) * 4) + gains * 4 +
             turn * tile_floats * 4 * (tiles > turn ? 2 : 1);
  };
  take_turns(kCodesTurn);
  if (many && !all) {  // how many pieces a tile has must not depend on the rows
    const int64_t least = std::max(kCodesLeast, divide_up(int64_t{kWarps}, pieces));
    const auto fit = [&] { return (kCodesHalf - beside) / (kRows * stage_ld); };
    if (fit() < least) take_turns(kCodesShortTurn);
    if (fit() >= least)
      stages = std::min(stages, fit());
    else
      take_turns(kCodesTurn);
  }
  const int64_t ring_rows = all ? all_rows : stages * kRows;
  auto narrow = [](int64_t n) { return static_cast<int>(n); };
  const CodesArgs<W, Out> p{.x = rows<const Bf16>(in.x),
                            .norm = {rows<const Bf16>(in.a), rows<const Bf16>(in.b),
                                     rows<Bf16>(in.sum), rows<Bf16>(in.normed), any_floats(in.gain),
                                     1.0f / static_cast<float>(x.cols), in.eps},
                            .w = w,
                            .out = out,
                            .items = narrow(items),
                            .block_items = narrow(each),
                            .m = narrow(x.rows),
                            .k = k,
                            .stages = narrow(stages),
                            .ring_rows = narrow(ring_rows),
                            .stage_ld = narrow(stage_ld),
                            .pieces = narrow(pieces),
                            .piece_units = narrow(divide_up(units, pieces)),
                            .piece_inverse = narrow(divide_up(256, pieces)),
                            .step_tiles = narrow(kWarps / pieces),
                            .step_pieces = narrow(kWarps % pieces),
                            .gains = gains,
                            .m_shift = m_shift,
                            .row_shift = std::max(0, shift_of(kWarps) - m_shift),
                            .turn_tiles = narrow(turn),
                            .joint_floats = narrow(turn * tile_floats)};
  const auto shared = static_cast<size_t>(ring_rows * stage_ld + beside);
  if (shared > kCodesShared) return false;
  const auto go = [&](auto tiles_of_x, auto one, auto norm) {
    const auto kernel = matvec_codes_fwd<W, tiles_of_x(), one(), norm(), Out>;
    // A kernel's static part counts too.
    if (!allow_shared(kernel, std::max(shared, size_t{49} << 10))) return false;
    prefer_shared(kernel);
    launch(queue, kernel, static_cast<unsigned>(divide_up(items, each)), 32 * kWarps + 32, shared,
           p);
    return true;
  };
  const auto with_norm = [&](auto norm) {
    using Several = std::false_type;
    if (x.rows == 1) return go(std::integral_constant<int, 1>{}, std::true_type{}, norm);
    if (x.rows <= 4) return go(std::integral_constant<int, 1>{}, Several{}, norm);
    if (x.rows <= 8) return go(std::integral_constant<int, 2>{}, Several{}, norm);
    return go(std::integral_constant<int, 4>{}, Several{}, norm);
  };
  if constexpr (!Out::kPairs)
    if (!norms) return with_norm(std::false_type{});
  return with_norm(std::true_type{});
}

template <int Bits, class Out>
bool launch_codes_here(const Queue& queue, const MatvecIn& in, const Operand& w, const Out& out) {
  const int row_bytes = static_cast<int>(device_row_bytes(w.dtype, w.cols));
  const int groups = static_cast<int>(quant_groups(w.dtype, w.cols));
  const auto go = [&](auto wide) {
    const CodedWeights<Bits, wide()> coded{codes(w), row_bytes, groups};
    return launch_coded(queue, in, coded, w, out);
  };
  return quant_group(w.dtype) >= 64 ? go(std::true_type{}) : go(std::false_type{});
}

}  // namespace wick::cuda
