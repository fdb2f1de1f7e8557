// SPDX-License-Identifier: Apache-2.0
// A warp has 32 columns of each half and goes down the rows, 16 at a time; a block is some
// neighbouring warps, and a stretch of rows. Lane (g, t) has columns 8 t to 8 t + 7 of rows g and
// g + 8: which column meets which slot of the tensor core does not matter, so that what is made of
// an element is a fragment without moving. Only for sums over rows tiles are turned, through the
// place that their operands came to.
//
// Sums over rows stay in registers; sums over columns are added up by warps for each 16 rows, and
// are a part for each block. A second kernel adds the parts (parts.h).
#include <algorithm>

#include "backend/cuda/gate.cuh"
#include "backend/cuda/gated_sums.cuh"
#include "backend/cuda/gated_sums.h"
#include "backend/cuda/parts.h"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

using namespace gated;

constexpr int64_t kLeastTokens = 2048, kLeastColumns = 8192;

// ---- forward

struct ForwardArgs {
  Bf16 *y = nullptr, *made = nullptr;
  int y_ld = 0, made_ld = 0;
  Narrow<2>::From h[2] = {};
  const float *b[2] = {}, *c = nullptr;
  int b_ld[2] = {}, c_ld = 0, more_ranks = 0;
  float scale[2] = {};
  float* parts = nullptr;  // [stripes, T, R]; null: no more
  int tokens = 0, cols = 0, chunk = 0, stripes = 0;
};

constexpr int kForwardStages = 5;  // of gate, up, made
constexpr size_t forward_shared(int warps) {
  const auto w = static_cast<size_t>(warps);
  return sizeof(Bf16) * kForwardStages * (w * kTiles + Narrow<2>::kElements) +
         sizeof(float) * 2 * w * RowSums<1>::kFloats;
}

template <Act A>
__global__ void __launch_bounds__(32 * kMostWarps, 1)
    gated_forward_kernel(const __grid_constant__ ForwardArgs a) {
  extern __shared__ __align__(16) char shared[];
  const Share s(a.stripes, a.tokens, a.chunk, a.cols);
  auto* tiles = reinterpret_cast<Bf16*>(shared);
  Bf16* hs = tiles + s.warps * kForwardStages * kTiles;
  auto* sums = reinterpret_cast<float*>(hs + kForwardStages * Narrow<2>::kElements);
  let_next_start();
  uint32_t b[2][4][2][2], c[2][2][2] = {};  // parameters, which no kernel of the graph writes
#pragma unroll
  for (int i = 0; i < 2; ++i)
    load_wide_b(b[i], s, a.cols, a.h[i].ranks, [&](int col, int rank) {
      return a.b[i][static_cast<int64_t>(col) * a.b_ld[i] + rank];
    });
  if (a.parts != nullptr)
    load_narrow_b(c, s, a.more_ranks, [&](int col, int rank) {
      return a.c[static_cast<int64_t>(rank) * a.c_ld + col];
    });
  wait_for_previous();
  const int steps = s.steps(), mine = s.warp * kTiles + place(s.g, s.t);
  const Copier copier(s, a.cols);
  auto stage = [&](int step) { return tiles + step % kForwardStages * s.warps * kTiles; };
  auto fetch = [&](int step) {
    if (step < steps) {
      const int m0 = s.begin + step * kRows;
      Bf16* to = stage(step) + copier.at;
      // Beyond the last row, and column, others are read: there h, and the parameters, are zero.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = min(m0 + copier.row + 8 * i, a.tokens - 1);
        const Bf16* from = a.y + static_cast<int64_t>(row) * a.y_ld + copier.col;
        copy16(to + 8 * i * kCols, from, true);
        copy16(to + kTile + 8 * i * kCols, from + a.cols, true);
      }
      Narrow<2>::fetch(hs + step % kForwardStages * Narrow<2>::kElements, a.h, m0, s.end);
    }
    copies_commit();
  };
  auto leave = [&](int step) {
    Bf16* from = stage(step) + copier.at;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = s.begin + step * kRows + copier.row + 8 * i;
      if (!copier.inside || row >= s.end) continue;
      Bf16* y = a.y + static_cast<int64_t>(row) * a.y_ld + copier.col;
      eight(y) = eight(from + 8 * i * kCols);
      eight(y + a.cols) = eight(from + kTile + 8 * i * kCols);
      eight(a.made + static_cast<int64_t>(row) * a.made_ld + copier.col) =
          eight(from + 2 * kTile + 8 * i * kCols);
    }
  };
  auto finish = [&](int step) {
    const float* from = sums + step % 2 * s.warps * RowSums<1>::kFloats;
    RowSums<1>::add(from, s.warps, [&](int row, int, int rank, float2 total) {
      const int m = s.begin + step * kRows + row;
      if (m < s.end && rank < a.more_ranks)
        two(a.parts + (static_cast<int64_t>(s.stripe) * a.tokens + m) * a.more_ranks + rank) =
            total;
    });
  };
#pragma unroll 1
  for (int step = 0; step < kForwardStages - 2; ++step) fetch(step);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    copies_wait_but<kForwardStages - 3>();
    __syncthreads();
    fetch(step + kForwardStages - 2);
    if (step > 0) leave(step - 1);
    if (a.parts != nullptr && step > 0) finish(step - 1);
    Bf16* tile = stage(step) + mine;
    const Bf16* h = hs + step % kForwardStages * Narrow<2>::kElements;
    uint32_t x[2][2][4], made[2][4];  // halves, rows, pairs
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float d[4][4] = {};
      widen(d, h + kRanks * half, Narrow<2>::kLd, b[half]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Eight was = eight(tile + half * kTile + 8 * i * kCols);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 old = unpack(was.at[j]);
          x[half][i][j] = pack_bf16(fmaf(a.scale[half], d[j][2 * i], old.x),
                                    fmaf(a.scale[half], d[j][2 * i + 1], old.y));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 gate = unpack(x[0][i][j]), up = unpack(x[1][i][j]);
        made[i][j] =
            pack_bf16(act<A, Bf16>(gate.x).value * up.x, act<A, Bf16>(gate.y).value * up.y);
      }
      Bf16* to = tile + 8 * i * kCols;
      eight(to) = {x[0][i][0], x[0][i][1], x[0][i][2], x[0][i][3]};
      eight(to + kTile) = {x[1][i][0], x[1][i][1], x[1][i][2], x[1][i][3]};
      eight(to + 2 * kTile) = {made[i][0], made[i][1], made[i][2], made[i][3]};
    }
    if (a.parts != nullptr) {
      float more[2][4] = {};
      narrow(more, made, c);
      RowSums<1>::put(sums + (step % 2 * s.warps + s.warp) * RowSums<1>::kFloats, 0, more);
    }
  }
  __syncthreads();
  if (steps == 0) return;
  leave(steps - 1);
  if (a.parts != nullptr) finish(steps - 1);
}

// ---- reverse

struct ReverseArgs {
  const Bf16 *dmade = nullptr, *y = nullptr;
  Bf16* dy = nullptr;
  int dmade_ld = 0, y_ld = 0, dy_ld = 0;
  Narrow<3>::From h[3] = {};  // of c, then by halves
  const float *c = nullptr, *b[2] = {};
  int c_ld = 0, b_ld[2] = {};
  float c_scale = 1.0f;
  float* dh_parts[2] = {};   // [stripes, T, R]
  float* sum_parts[3] = {};  // dc, db: [chunks, F, R]
  int tokens = 0, cols = 0, chunk = 0, stripes = 0;
};

constexpr int kReverseStages = 4;
constexpr size_t reverse_shared(int warps) {
  const auto w = static_cast<size_t>(warps);
  return sizeof(Bf16) * kReverseStages * (w * 3 * kTile + Narrow<3>::kElements) +
         sizeof(float) * 2 * w * RowSums<2>::kFloats;
}

template <Act A>
__global__ void __launch_bounds__(32 * kMostWarps, 1)
    gated_reverse_kernel(const __grid_constant__ ReverseArgs a) {
  extern __shared__ __align__(16) char shared[];
  const Share s(a.stripes, a.tokens, a.chunk, a.cols);
  auto* tiles = reinterpret_cast<Bf16*>(shared) + s.warp * kReverseStages * 3 * kTile;
  auto* hs = reinterpret_cast<Bf16*>(shared) + s.warps * kReverseStages * 3 * kTile;
  auto* row_sums = reinterpret_cast<float*>(hs + kReverseStages * Narrow<3>::kElements);
  let_next_start();
  uint32_t c[4][2][2], b[2][2][2][2];  // parameters, which no kernel of the graph writes
  load_wide_b(c, s, a.cols, a.h[0].ranks, [&](int col, int rank) {
    return a.c_scale * a.c[static_cast<int64_t>(rank) * a.c_ld + col];
  });
#pragma unroll
  for (int i = 0; i < 2; ++i)
    load_narrow_b(b[i], s, a.h[1 + i].ranks, [&](int col, int rank) {
      return a.b[i][static_cast<int64_t>(col) * a.b_ld[i] + rank];
    });
  wait_for_previous();
  const int steps = s.steps(), mine = place(s.g, s.t);
  const int safe = min(s.col, a.cols - 8);  // a column that can be read
  // A tile each of dmade, gate and up.
  auto fetch = [&](int step) {
    if (step < steps) {
      const int m0 = s.begin + step * kRows;
      Bf16* to = tiles + step % kReverseStages * 3 * kTile + mine;
      // Beyond the last row, and column, others are read: there h, and the parameters, are zero.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = min(m0 + s.g + 8 * i, a.tokens - 1);
        const Bf16* y = a.y + static_cast<int64_t>(row) * a.y_ld + safe;
        copy16(to + 8 * i * kCols, a.dmade + static_cast<int64_t>(row) * a.dmade_ld + safe, true);
        copy16(to + kTile + 8 * i * kCols, y, true);
        copy16(to + 2 * kTile + 8 * i * kCols, y + a.cols, true);
      }
      Narrow<3>::fetch(hs + step % kReverseStages * Narrow<3>::kElements, a.h, m0, s.end);
    }
    copies_commit();
  };
  auto finish = [&](int step) {
    const float* from = row_sums + step % 2 * s.warps * RowSums<2>::kFloats;
    RowSums<2>::add(from, s.warps, [&](int row, int half, int rank, float2 total) {
      const int m = s.begin + step * kRows + row;
      const int ranks = half == 0 ? a.h[1].ranks : a.h[2].ranks;
      float* to = half == 0 ? a.dh_parts[0] : a.dh_parts[1];
      if (m < s.end && rank < ranks)
        two(to + (static_cast<int64_t>(s.stripe) * a.tokens + m) * ranks + rank) = total;
    });
  };
  float sums[3][4][4] = {};  // dc, db: 16 ranks by 8 columns
  const int turned_h = (s.lane % 8 + 8 * (s.lane / 16)) * Narrow<3>::kLd + 8 * (s.lane / 8 % 2);
#pragma unroll 1
  for (int step = 0; step < kReverseStages - 1; ++step) fetch(step);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    copies_wait_but<kReverseStages - 2>();
    __syncthreads();
    fetch(step + kReverseStages - 1);
    if (step > 0) finish(step - 1);
    Bf16* tile = tiles + step % kReverseStages * 3 * kTile;
    const Bf16* h = hs + step % kReverseStages * Narrow<3>::kElements;
    float d[4][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Eight at = eight(tile + mine + 8 * i * kCols);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = unpack(at.at[j]);
        d[j][2 * i] = x.x, d[j][2 * i + 1] = x.y;
      }
    }
    widen(d, h, Narrow<3>::kLd, c);
    uint32_t gates[2][4], ups[2][4];  // their gradients; rows, pairs
    const int row = s.begin + step * kRows + s.g;
    Bf16* dy = a.dy + static_cast<int64_t>(row) * a.dy_ld + s.col;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Bf16* at = tile + mine + 8 * i * kCols;
      const Eight gate = eight(at + kTile), up = eight(at + 2 * kTile);
      Eight made;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = unpack(gate.at[j]), u = unpack(up.at[j]);
        const ValueAndSlope low = act<A, Bf16>(x.x), high = act<A, Bf16>(x.y);
        const float d0 = d[j][2 * i], d1 = d[j][2 * i + 1];
        made.at[j] = pack_bf16(low.value * u.x, high.value * u.y);
        gates[i][j] = pack_bf16(d0 * u.x * low.slope, d1 * u.y * high.slope);
        ups[i][j] = pack_bf16(d0 * low.value, d1 * high.value);
      }
      const Eight dgate{gates[i][0], gates[i][1], gates[i][2], gates[i][3]};
      const Eight dup{ups[i][0], ups[i][1], ups[i][2], ups[i][3]};
      eight(at) = made;
      eight(at + kTile) = dgate;
      eight(at + 2 * kTile) = dup;
      if (!s.inside || row + 8 * i >= s.end) continue;
      Bf16* to = dy + static_cast<int64_t>(8 * i) * a.dy_ld;
      eight(to) = dgate;
      eight(to + a.cols) = dup;
    }
    __syncwarp();
    float* to = row_sums + (step % 2 * s.warps + s.warp) * RowSums<2>::kFloats;
    {
      float made[2][2][4] = {};
      narrow(made[0], gates, b[0]);
      narrow(made[1], ups, b[1]);
      RowSums<2>::put(to, 0, made[0]);
      RowSums<2>::put(to, 1, made[1]);
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      uint32_t fa[4];
      load_turned(fa, h + turned_h + kRanks * i);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t fb[4];
        load_turned(fb, tile + i * kTile + place(s.lane % 16, j + s.lane / 16));
        mma_bf16(sums[i][j], fa, {fb[0], fb[1]});
        mma_bf16(sums[i][j + 1], fa, {fb[2], fb[3]});
      }
    }
  }
  __syncthreads();
  if (steps > 0) finish(steps - 1);
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int ranks = a.h[i].ranks;
    float* to = a.sum_parts[i] + static_cast<int64_t>(s.chunk) * a.cols * ranks;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int col = s.col - 8 * s.t + 8 * j + 2 * s.t + e % 2, rank = s.g + e / 2 * 8;
        if (col < a.cols && rank < ranks)
          to[static_cast<int64_t>(col) * ranks + rank] = sums[i][j][e];
      }
  }
}

// ---- launches

bool is_for(int64_t tokens, int64_t cols, DType dtype) {
  return dtype == DType::kBF16 && tokens >= kLeastTokens && tokens < (1 << 24) &&
         cols >= kLeastColumns && cols % 8 == 0 && cols < (1 << 24);
}

bool is(const Operand& o, DType dtype, int64_t rows, int64_t cols) {
  return o.dtype == dtype && o.form == WeightForm::kRows && o.rows == rows && o.cols == cols &&
         aligned16(o) && o.ld < (1 << 24);
}
bool has_ranks(const Operand& h, int64_t tokens) {
  return h.cols % 8 == 0 && h.cols <= kRanks && is(h, DType::kBF16, tokens, h.cols);
}

template <typename T>
T* columns(const Operand& o, int64_t first) {
  return o.as<T>() + first;
}

}  // namespace

size_t gated_forward_scratch(int64_t tokens, int64_t cols, DType dtype, int sms) {
  if (!is_for(tokens, cols, dtype)) return 0;
  return static_cast<size_t>(share(tokens, cols, sms).stripes * tokens * kRanks) * sizeof(float);
}
size_t gated_reverse_scratch(int64_t tokens, int64_t cols, DType dtype, int sms) {
  if (!is_for(tokens, cols, dtype)) return 0;
  const Shares s = share(tokens, cols, sms);
  return static_cast<size_t>((2 * s.stripes * tokens + 3 * s.chunks * cols) * kRanks) *
         sizeof(float);
}

bool gated_forward(const Queue& queue, const GatedForward& g) {
  const FusedProduct& p = g.product;
  const int64_t tokens = p.y.rows, cols = p.made.cols;
  if (queue.arch != Arch::kSm90 || g.scratch == nullptr || !is_for(tokens, cols, p.y.dtype) ||
      !is(p.y, DType::kBF16, tokens, 2 * cols) || !is(p.made, DType::kBF16, tokens, cols) ||
      p.bias || p.adapters.size() != 2 || p.h.dtype != DType::kBF16 || p.h.rows != tokens)
    return false;
  const Shares s = share(tokens, cols, queue.sms);
  ForwardArgs a{.y = p.y.as<Bf16>(),
                .made = p.made.as<Bf16>(),
                .y_ld = static_cast<int>(p.y.ld),
                .made_ld = static_cast<int>(p.made.ld),
                .tokens = static_cast<int>(tokens),
                .cols = static_cast<int>(cols),
                .chunk = static_cast<int>(s.chunk),
                .stripes = static_cast<int>(s.stripes)};
  for (int i = 0; i < 2; ++i) {
    const FusedAdapter& adapter = p.adapters[static_cast<size_t>(i)];
    Operand h = p.h;
    h.data = columns<Bf16>(p.h, adapter.first_rank);
    h.cols = adapter.b.cols;
    if (adapter.first != i * cols || !has_ranks(h, tokens) ||
        !is(adapter.b, DType::kF32, cols, h.cols))
      return false;
    a.h[i] = {h.as<const Bf16>(), static_cast<int>(h.ld), static_cast<int>(h.cols)};
    a.b[i] = adapter.b.as<const float>();
    a.b_ld[i] = static_cast<int>(adapter.b.ld);
    a.scale[i] = adapter.scale;
  }
  if (g.more) {
    if (!has_ranks(g.more, tokens) || !is(g.c, DType::kF32, g.more.cols, cols)) return false;
    a.c = g.c.as<const float>();
    a.c_ld = static_cast<int>(g.c.ld);
    a.more_ranks = static_cast<int>(g.more.cols);
    a.parts = static_cast<float*>(g.scratch);
  }
  auto* kernel =
      p.act == Act::kSilu ? gated_forward_kernel<Act::kSilu> : gated_forward_kernel<Act::kGeluTanh>;
  const size_t bytes = forward_shared(s.warps);
  if (!allow_shared(kernel, bytes) || !narrow_product(queue, 1.0f, false, true, p.x, p.a, p.h))
    return false;
  flush(queue);
  product(queue, {}, p.x, p.w, p.y, g.product_scratch);
  prefer_shared(kernel);
  launch(queue, kernel, static_cast<unsigned>(s.stripes * s.chunks),
         static_cast<unsigned>(32 * s.warps), bytes, a);
  if (!g.more) return true;
  AllParts parts;
  parts.add({.from = a.parts,
             .y = g.more.data,
             .row_step = static_cast<int>(g.more.ld),
             .rank_step = 1,
             .parts = static_cast<int>(s.stripes),
             .rows = a.tokens,
             .r = a.more_ranks,
             .half = true});
  add_parts(queue, parts);
  return true;
}

bool gated_reverse(const Queue& queue, const GatedReverse& g) {
  const int64_t tokens = g.dmade.rows, cols = g.dmade.cols;
  if (queue.arch != Arch::kSm90 || g.scratch == nullptr || !is_for(tokens, cols, g.dmade.dtype) ||
      !is(g.dmade, DType::kBF16, tokens, cols) || !is(g.y, DType::kBF16, tokens, 2 * cols) ||
      !is(g.dy, DType::kBF16, tokens, 2 * cols) || !has_ranks(g.dmore, tokens) ||
      !is(g.c, DType::kF32, g.dmore.cols, cols) || !is(g.dc, DType::kF32, g.dmore.cols, cols))
    return false;
  const Shares s = share(tokens, cols, queue.sms);
  ReverseArgs a{.dmade = g.dmade.as<const Bf16>(),
                .y = g.y.as<const Bf16>(),
                .dy = g.dy.as<Bf16>(),
                .dmade_ld = static_cast<int>(g.dmade.ld),
                .y_ld = static_cast<int>(g.y.ld),
                .dy_ld = static_cast<int>(g.dy.ld),
                .c = g.c.as<const float>(),
                .c_ld = static_cast<int>(g.c.ld),
                .c_scale = g.c_scale,
                .tokens = static_cast<int>(tokens),
                .cols = static_cast<int>(cols),
                .chunk = static_cast<int>(s.chunk),
                .stripes = static_cast<int>(s.stripes)};
  a.h[0] = {g.dmore.as<const Bf16>(), static_cast<int>(g.dmore.ld), static_cast<int>(g.dmore.cols)};
  AllParts parts;
  auto* free = static_cast<float*>(g.scratch);
  auto add = [&](Parts p) {
    p.from = free;
    parts.add(p);
    return std::exchange(free, free + static_cast<int64_t>(p.parts) * p.rows * p.r);
  };
  a.sum_parts[0] = add({.y = g.dc.data,
                        .row_step = 1,
                        .rank_step = static_cast<int>(g.dc.ld),
                        .parts = static_cast<int>(s.chunks),
                        .rows = a.cols,
                        .r = a.h[0].ranks,
                        .alpha = g.c_scale,
                        .adds = g.dc_adds});
  for (int i = 0; i < 2; ++i) {
    const GatedReverse::Half& half = g.half[i];
    const int64_t ranks = half.h.cols;
    if (!has_ranks(half.h, tokens) || !is(half.b, DType::kF32, cols, ranks) ||
        !is(half.db, DType::kF32, cols, ranks) || half.dh.dtype != DType::kBF16)
      return false;
    a.h[1 + i] = {half.h.as<const Bf16>(), static_cast<int>(half.h.ld), static_cast<int>(ranks)};
    a.b[i] = half.b.as<const float>();
    a.b_ld[i] = static_cast<int>(half.b.ld);
    a.dh_parts[i] = add({.y = half.dh.data,
                         .row_step = static_cast<int>(half.dh.ld),
                         .rank_step = 1,
                         .parts = static_cast<int>(s.stripes),
                         .rows = a.tokens,
                         .r = static_cast<int>(ranks),
                         .alpha = half.scale,
                         .adds = half.dh_adds,
                         .half = true});
    a.sum_parts[1 + i] = add({.y = half.db.data,
                              .row_step = static_cast<int>(half.db.ld),
                              .rank_step = 1,
                              .parts = static_cast<int>(s.chunks),
                              .rows = a.cols,
                              .r = static_cast<int>(ranks),
                              .alpha = half.scale,
                              .adds = half.db_adds});
  }
  auto* kernel =
      g.act == Act::kSilu ? gated_reverse_kernel<Act::kSilu> : gated_reverse_kernel<Act::kGeluTanh>;
  const size_t bytes = reverse_shared(s.warps);
  if (!allow_shared(kernel, bytes)) return false;
  flush(queue);
  product(queue, {.trans = Trans::kNN, .alpha = g.w_scale}, g.dz, g.w, g.dmade, g.product_scratch);
  prefer_shared(kernel);
  launch(queue, kernel, static_cast<unsigned>(s.stripes * s.chunks),
         static_cast<unsigned>(32 * s.warps), bytes, a);
  add_parts(queue, parts);
  return true;
}

}  // namespace wick::cuda
