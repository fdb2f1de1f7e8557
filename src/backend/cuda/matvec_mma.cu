// SPDX-License-Identifier: Apache-2.0
// matvec by the tensor cores: x in bf16, w in bf16 (codes: matvec_codes.cuh). Rows of w are the m
// of mma.m16n8k16, rows of x its n, so that 8 rows cost what one does and 16 little more.
//
// A tile is 16 or 8 rows of w; a block's warps split k between them, tile for tile, and one more
// warp copies tiles (or slices of them) into a ring of stages in shared memory. What a kernel costs
// in a chain of them is the time from its predecessor's end to its own, so everything that needs no
// predecessor comes before the wait: the ring is filled (with all that a block needs, for most
// matrices of a layer), and the next kernel is let in at once to do the same. The copies are bulk
// copies: those of threads stop the loads of the kernel beside them while memory is busy. Which k
// of a chunk stands in which place of the product does not matter as long as x agrees, so x is
// laid out as the lanes want it, or (matvec_held.cuh) lies with them.
//
// A row's bits depend on K and on whether the norm is written, not on N, the card or the rows
// beside it.
#include "backend/cuda/matvec_codes.h"
#include "backend/cuda/matvec_held.cuh"
#include "backend/cuda/matvec_out.cuh"
#include "backend/cuda/matvec_weights.cuh"
#include "backend/cuda/matvec_x.cuh"

namespace wick::cuda {
namespace {

constexpr int kMostStages = 8;

template <class W, class Out>
struct Args {
  Rows<const Bf16> x;
  MatvecNorm norm;
  W w;
  Out out;
  int tiles, items, m, k;
  int stages, stage_ld;      // bytes from a row of a stage to the next
  int slices, slice_chunks;  // of a tile
  int m_shift;               // m, as the power of two that holds it
  int row_shift;             // warps that share a row of x, as a power of two
  int turn_tiles;            // whose sums are joined together
  int joint_bytes;           // of a turn's sums
};

// Goes round the ring.
struct Place {
  int stage = 0, parity = 0;
  __device__ void step(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// The copying warp, which lets the others come when the ring has been filled once.
template <class W, class Out>
__device__ inline void copy_tiles(const Args<W, Out>& p, uint8_t* ring, CopyBarrier* full,
                                  CopyBarrier* empty) {
  constexpr int kRows = Out::kRows;
  const int lane = threadIdx.x % 32, slice_bytes = p.slice_chunks * W::kChunkBytes;
  if (lane < p.stages) {
    barrier_init(full + lane, kCopyArrivals);
    barrier_init(empty + lane, W::kWarps);
  }
  barriers_ready();
  __syncwarp();
  Place place;
  bool first_round = true;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const int i = lane % kRows, item = min(tile * Out::kItems + i % Out::kItems, p.items - 1);
    const uint8_t* row = p.w.row(p.out.row(p.out.spot(item), i >= Out::kItems));
    for (int slice = 0; slice < p.slices; ++slice) {
      if (!first_round) barrier_wait(empty + place.stage, place.parity ^ 1);
      copy_rows(ring + place.stage * kRows * p.stage_ld, p.stage_ld, row + slice * slice_bytes,
                kRows, min(slice_bytes, p.w.bytes - slice * slice_bytes), full + place.stage);
      place.step(p.stages);
      if (first_round && place.stage == 0) {
        first_round = false;
        __syncthreads();
      }
    }
  }
  if (first_round) __syncthreads();
}

// kEights: 8 rows of x each. kHeld: x is in registers.
template <class W, int kEights, bool kHeld, bool kNorm, class Out>
__global__ void __launch_bounds__(32 * W::kWarps + 32, kEights > 1 && kHeld ? 2 : W::kBlocks)
    matvec_mma_fwd(const __grid_constant__ Args<W, Out> p) {
  constexpr int kRows = Out::kRows, kItems = Out::kItems;
  constexpr int kWarps = W::kWarps, kWorkers = 32 * kWarps;
  extern __shared__ uint4 dynamic[];
  __shared__ CopyBarrier full[kMostStages], empty[kMostStages];
  let_next_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  auto* ring = reinterpret_cast<uint8_t*>(dynamic);
  if (warp == kWarps) return copy_tiles(p, ring, full, empty);
  const XRows x{reinterpret_cast<Bf16*>(ring + p.stages * kRows * p.stage_ld), nullptr, x_ld(p.k),
                0};
  float* gains = reinterpret_cast<float*>(x.x + (kHeld ? 0 : p.m * x.ld));
  float* joints = gains + (!kNorm ? 0 : kHeld ? kHeldSquares : x_ld(p.k));
  const int chunks = (p.k + kChunk - 1) / kChunk, stride = gridDim.x;

  // What is not copied is multiplied by zeros, so it must be finite.
  for (int row = warp; row < p.stages * kRows; row += kWarps)
    for (int i = p.w.bytes + 16 * lane; i < p.stage_ld; i += 512)
      *reinterpret_cast<uint4*>(ring + row * p.stage_ld + i) = {};

  // A thread's element of a turn: row mm of x, item j of a tile.
  struct Element {
    int mm, j, tile;
  };
  auto element = [&](int i, int first_tile) {
    const int j = i >> p.m_shift;
    return Element{i & ((1 << p.m_shift) - 1), j % kItems, first_tile + j / kItems * stride};
  };
  auto real = [&](const Element& e) {
    return e.mm < p.m && e.tile < p.tiles && e.tile * kItems + e.j < p.items;
  };
  const Element at_first = element(threadIdx.x, blockIdx.x);
  FirstElement<Out> first{.early = {},
                          .spot = p.out.spot(at_first.tile * kItems + at_first.j),
                          .mm = at_first.mm,
                          .real = real(at_first)};
  if (first.real) p.out.weights(first.early, first.spot, first.mm);
  [[maybe_unused]] HeldX<kEights> held;
  [[maybe_unused]] const Bf16* rows_of_x[kEights];
  if constexpr (kHeld) {
    [[maybe_unused]] HeldGain gain;
    if constexpr (kNorm) gain.take(p.norm.gain, p.k);
    __syncthreads();
    begin_kernel();
    if constexpr (kNorm) {
      if (first.real) p.out.feeds(first.early, first.mm);
      held.norm(p.norm, p.m, p.k, gain, gains);
      if (first.real) p.out.look_up(first.early, first.spot);
    } else {
      held.take(p.x, p.m, p.k);
    }
  } else {
    bring_x<W, kNorm>(p, p.m, p.m == 1 && x_columns(p.k) <= kWorkers * 8, x, gains, first);
    // Rows that x has not give sums that nobody reads.
#pragma unroll
    for (int n = 0; n < kEights; ++n) rows_of_x[n] = x.x + min(8 * n + g, p.m - 1) * x.ld;
  }

  Place place;
  int in_turn = 0, turn_first = blockIdx.x;
  float* joint = joints;
  for (int tile = blockIdx.x; tile < p.tiles; tile += stride) {
    float sums[kEights][W::kChains][4] = {};
    for (int slice = 0; slice < p.slices; ++slice) {
      const int begin = slice * p.slice_chunks, end = min(chunks, begin + p.slice_chunks);
      const uint8_t* stage = ring + place.stage * kRows * p.stage_ld;
      barrier_wait(full + place.stage, place.parity);
      if constexpr (kHeld) {
#pragma unroll
        for (int j = 0; j < kHeldChunks; ++j) {
          const int c = warp + j * kWarps;
          if (c >= chunks) break;
          W::multiply(p.w.template take<kRows>(stage, p.stage_ld, 0, c, lane), held.at[j], sums);
        }
      } else {
#pragma unroll 2
        for (int c = begin + warp; c < end; c += kWarps) {
          uint4 of_x[kEights];
#pragma unroll
          for (int n = 0; n < kEights; ++n) of_x[n] = load16(rows_of_x[n] + c * kChunk + 8 * t);
          W::multiply(p.w.template take<kRows>(stage, p.stage_ld, begin, c, lane), of_x, sums);
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + place.stage);
      place.step(p.stages);
    }
    float* to = joint + ((in_turn * kWarps + warp) * kRows << p.m_shift);
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int e = 0; e < 2 * (kRows / 8); ++e) {
        const int mm = 8 * n + 2 * t + e % 2;
        float sum = sums[n][0][e];
        if constexpr (W::kChains > 1) sum += sums[n][W::kChains - 1][e];
        if (mm < p.m) to[((e / 2 * 8 + g) << p.m_shift) + mm] = sum;
      }
    if (++in_turn < p.turn_tiles && tile + stride < p.tiles) continue;

    barrier_of_first<kWorkers>();
    float factor = 1.0f;
    if constexpr (kHeld && kNorm) factor = held_factor(p.norm, min(first.mm, p.m - 1), gains);
    for (int i = threadIdx.x; i < in_turn * kItems << p.m_shift; i += kWorkers) {
      const Element e = element(i, turn_first);
      if (!real(e)) continue;
      const typename Out::Spot spot = p.out.spot(e.tile * kItems + e.j);
      if (e.tile != at_first.tile || i != threadIdx.x) {
        p.out.weights(first.early, spot, e.mm);
        p.out.feeds(first.early, e.mm);
        p.out.look_up(first.early, spot);
      }
      const int part = kRows << p.m_shift;
      const float* at =
          joint + (i >> p.m_shift) / kItems * kWarps * part + (e.j << p.m_shift) + e.mm;
      float sum = 0.0f, partner = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        sum += at[w * part];
        if constexpr (Out::kPairs) partner += at[w * part + (8 << p.m_shift)];
      }
      p.out.put(e.mm, spot, sum * factor, partner * factor, first.early);
    }
    // The next turn's sums lie elsewhere: these are still read.
    joint = joint == joints ? joints + p.joint_bytes / 4 : joints;
    in_turn = 0;
    turn_first = tile + stride;
  }
}

// ---- launches

constexpr size_t kMostShared = size_t{220} << 10, kTurnBytes = size_t{24} << 10;
constexpr int64_t kRingBytes = int64_t{120} << 10;  // where a stage is not larger
constexpr int64_t kMostSize = int64_t{1} << 28;

template <class W, class Out>
bool launch_with(const Queue& queue, const MatvecIn& in, const W& w, const Operand& matrix,
                 const Out& out) {
  constexpr int kRows = Out::kRows, kWarps = W::kWarps;
  const bool norms = static_cast<bool>(in.a);
  const Operand& x = norms ? in.a : in.x;
  const int64_t items = matrix.rows * Out::kItems / kRows;
  const int64_t tiles = divide_up(items, Out::kItems), chunks = divide_up(x.cols, kChunk);
  // Every block gets as many tiles; where those are many, two blocks share a multiprocessor.
  const int64_t places = int64_t{queue.sms} * (tiles >= 16 * queue.sms ? 2 : 1);
  const int64_t each = divide_up(tiles, places), blocks = divide_up(tiles, each);
  // Slices of whole turns of the warps, two of which a ring can hold.
  int64_t slices = 1;
  if constexpr (W::kSlices)
    while (kRows * divide_up(chunks, slices) * W::kChunkBytes > kRingBytes) ++slices;
  const int64_t slice_chunks = divide_up(divide_up(chunks, slices), kWarps) * kWarps;
  slices = divide_up(chunks, slice_chunks);
  const int64_t row = slices > 1 ? slice_chunks * W::kChunkBytes
                                 : std::max<int64_t>(w.bytes, chunks * W::kChunkBytes);
  const int64_t stage_ld = divide_up(row, 128) * 128 + W::kPad;
  const int64_t stages = std::clamp<int64_t>(kRingBytes / (kRows * stage_ld), 1,
                                             std::min<int64_t>(kMostStages, each * slices));
  const int k = static_cast<int>(x.cols), m_shift = shift_of(x.rows);
  const size_t tile_bytes = size_t{kWarps * kRows * 4} << m_shift;
  const int64_t turn = std::clamp<int64_t>(static_cast<int64_t>(kTurnBytes / tile_bytes), 1, each);
  Args<W, Out> p{.x = rows<const Bf16>(in.x),
                 .norm = {rows<const Bf16>(in.a), rows<const Bf16>(in.b), rows<Bf16>(in.sum),
                          rows<Bf16>(in.normed), any_floats(in.gain),
                          1.0f / static_cast<float>(x.cols), in.eps},
                 .w = w,
                 .out = out,
                 .tiles = static_cast<int>(tiles),
                 .items = static_cast<int>(items),
                 .m = static_cast<int>(x.rows),
                 .k = k,
                 .stages = static_cast<int>(stages),
                 .stage_ld = static_cast<int>(stage_ld),
                 .slices = static_cast<int>(slices),
                 .slice_chunks = static_cast<int>(slice_chunks),
                 .m_shift = m_shift,
                 .row_shift = std::max(0, shift_of(kWarps) - m_shift),
                 .turn_tiles = static_cast<int>(turn),
                 .joint_bytes = static_cast<int>(static_cast<size_t>(turn) * tile_bytes)};
  // A warp's chunks of x in registers, where they are few.
  const bool holds = divide_up(chunks, kWarps) <= kHeldChunks &&
                     (!norms || (in.gain.dtype == DType::kBF16 && !in.normed));
  const size_t shared = static_cast<size_t>(
      stages * kRows * stage_ld + (holds ? 0 : p.m * x_ld(k) * 2) +
      (norms ? (holds ? kHeldSquares : x_ld(k)) * 4 : 0) + p.joint_bytes * (each > turn ? 2 : 1));
  if (shared > kMostShared) return false;
  const auto go = [&](auto eights, auto held, auto norm) {
    const auto kernel = matvec_mma_fwd<W, eights(), held(), norm(), Out>;
    if (!allow_shared(kernel, shared)) return false;
    prefer_shared(kernel);
    launch(queue, kernel, static_cast<unsigned>(blocks), 32 * kWarps + 32, shared, p);
    return true;
  };
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  const auto with_norm = [&](auto norm) {
    if (holds)
      return x.rows <= 8 ? go(One{}, std::true_type{}, norm) : go(Two{}, std::true_type{}, norm);
    return x.rows <= 8 ? go(One{}, std::false_type{}, norm) : go(Two{}, std::false_type{}, norm);
  };
  if constexpr (!Out::kPairs)
    if (!norms) return with_norm(std::false_type{});
  return with_norm(std::true_type{});
}

template <class Out>
bool launch_any(const Queue& queue, const MatvecIn& in, const Operand& w, const Out& out) {
  const Operand& x = in.a ? in.a : in.x;
  for (const Operand& o : {in.x, in.a, in.b, in.sum, in.normed})
    if (o && (o.dtype != DType::kBF16 || !aligned16(o))) return false;
  if (reinterpret_cast<uintptr_t>(in.gain.data) % 16 != 0) return false;
  if (x.rows > kMatvecMmaRows || x.cols > kMostSize || w.rows > kMostSize) return false;
  if (in.a && x.cols > kStretchColumns * kMostStretches) return false;
  if (has_codes(w))
    return quant_bits(w.dtype) == 8 ? launch_codes<8>(queue, in, w, out)
                                    : launch_codes<4>(queue, in, w, out);
  if (w.dtype != DType::kBF16 || !aligned16(w)) return false;
  const PlainWeights plain{w.as<const uint8_t>(), w.ld * 2, static_cast<int>(w.cols * 2)};
  return launch_with(queue, in, plain, w, out);
}

}  // namespace

bool matvec_mma(const Queue& queue, const MatvecIn& in, float alpha, bool accumulate,
                const Operand& w, const Operand& bias, const Operand& y) {
  const Into to = into(alpha, accumulate, bias, y);
  if (w.rows <= 16 * queue.sms) return launch_any(queue, in, w, MatvecStore<8>{to});
  return launch_any(queue, in, w, MatvecStore<16>{to});
}

bool matvec_gated(const Queue& queue, const MatvecIn& in, const Operand& w, const Operand& bias,
                  Act act, const Operand& y) {
  if (w.rows % MatvecGated::kRows != 0 || y.dtype != DType::kBF16) return false;
  return launch_any(queue, in, w,
                    MatvecGated{rows<Bf16>(y), any_floats(bias), static_cast<int>(w.rows / 2),
                                act == Act::kSilu});
}

bool matvec_rotated(const Queue& queue, const MatvecIn& in, const Operand& w, const Operand& bias,
                    const MatvecRotation& r) {
  if (r.head_dim % MatvecRotated::kRows != 0 || r.q.dtype != DType::kBF16 ||
      r.cache_k.dtype != DType::kBF16)
    return false;
  const MatvecRotated out{.q = rows<Bf16>(r.q),
                          .cache_k = rows<Bf16>(r.cache_k),
                          .cache_v = rows<Bf16>(r.cache_v),
                          .table = rows<const float>(r.table),
                          .positions = r.positions.as<const int32_t>(),
                          .cache_rows = r.cache_rows.as<const int32_t>(),
                          .bias = any_floats(bias),
                          .heads = static_cast<int>(r.heads),
                          .kv_heads = static_cast<int>(r.kv_heads),
                          .half = static_cast<int>(r.head_dim / 2),
                          .ahead = r.ahead};
  return launch_any(queue, in, w, out);
}

}  // namespace wick::cuda
