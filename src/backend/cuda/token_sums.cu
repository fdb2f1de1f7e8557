// SPDX-License-Identifier: Apache-2.0
// A block takes a stripe of columns of the wide side, and a stretch of its rows, through shared
// memory: what it sums over rows stays in registers, what it sums over columns is a part of
// `made`, written for each row. A second kernel adds the parts in order.
#include <algorithm>

#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/skinny.h"
#include "backend/cuda/token_sums.h"

namespace wick::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kStages = 4;
constexpr int kRows = 64;  // of a stage
constexpr int kOwn = 3;    // tiles of 16 columns of a warp, at most
constexpr int kMostSums = 8;
constexpr int kLeastTiles = 4;                     // of 16 columns, of a stripe
constexpr int kLeastStages = 4;                    // of a block
constexpr int64_t kLeastTokens = 2048;             // fewer: what starts and adds costs more,
constexpr int64_t kFewTokens = 512, kMany = 4096;  // but for many columns that are read twice
constexpr size_t kMostShared = size_t{227} << 10;  // of a block, and a little less than there is
constexpr size_t kReserved = 1024;                 // by the system, of each block

struct Sum {
  const Bf16 *a, *b;
  const float* w;
  float* y;
  float *made_parts, *y_parts;  // [stripes, M, R]; [chunks, N, R], or null: y itself is written
  int a_ld, b_ld, w_ld;
  int column_step, rank_step;  // of y
  int n, r, first_stripe;
  float alpha;
  bool adds;
};

struct Sums {
  Sum at[kMostSums];
  int count, stripes, cols;  // of all; of a stripe
  int tokens, chunk;         // rows; of a block, a multiple of kRows
};

template <int NT>
struct Layout {
  static constexpr int kBLd = 8 * NT + 8;
  int ld;  // of a's stages and w: an odd multiple of 16 bytes
  __host__ __device__ explicit Layout(int cols) : ld(cols + 8) {}
  __host__ __device__ int stage() const { return kRows * (ld + kBLd); }
  // Two steps of w are loaded at once, the second maybe beyond its end.
  __host__ __device__ int w_elements() const { return 8 * NT * ld + 16; }
  size_t bytes(bool both) const {
    return sizeof(Bf16) * static_cast<size_t>(kStages * stage() + (both ? w_elements() : 0));
  }
};

// Blocks on a multiprocessor.
template <int NT>
constexpr int kBeside = NT <= 4 ? 2 : 1;

template <int NT, bool kBoth>
__global__ void __launch_bounds__(kThreads, kBeside<NT>)
    token_sums_kernel(const __grid_constant__ Sums sums) {
  extern __shared__ __align__(16) char shared[];
  const Layout<NT> layout(sums.cols);
  constexpr int kBLd = Layout<NT>::kBLd;
  const int ld = layout.ld, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int stripe = static_cast<int>(blockIdx.x) % sums.stripes,
            chunk = static_cast<int>(blockIdx.x) / sums.stripes;
  int at = sums.count - 1;
  while (sums.at[at].first_stripe > stripe) --at;
  const Sum p = sums.at[at];
  const int c0 = (stripe - p.first_stripe) * sums.cols, n = p.n, r = p.r;
  const int tiles = (min(sums.cols, n - c0) + 15) / 16;
  const int begin = chunk * sums.chunk, end = min(sums.tokens, begin + sums.chunk);
  auto* stages = reinterpret_cast<Bf16*>(shared);
  Bf16* w = stages + kStages * layout.stage();
  let_next_start();
  if constexpr (kBoth) {  // parameters, which no kernel of the graph writes
    for (int i = threadIdx.x; i < 2 * NT * sums.cols; i += kThreads) {
      const int col = i / (2 * NT), rank = i % (2 * NT) * 4;
      Pack<float, 4> v{};
      if (c0 + col < n && rank < r)
        v = load<4>(p.w + static_cast<int64_t>(c0 + col) * p.w_ld + rank);
#pragma unroll
      for (int j = 0; j < 4; ++j) w[(rank + j) * ld + col] = from_f32<Bf16>(v.at[j]);
    }
  }
  wait_for_previous();

  const int steps = (end - begin + kRows - 1) / kRows;
  // Threads take stretches of 8 columns in turn, row after row.
  const int stretches = sums.cols / 8, first_row = static_cast<int>(threadIdx.x) / stretches,
            first_col = static_cast<int>(threadIdx.x) % stretches, next_row = kThreads / stretches,
            next_col = kThreads % stretches;
  auto fetch = [&](int step) {
    if (step < steps) {
      Bf16* to = stages + step % kStages * layout.stage();
      const int m0 = begin + step * kRows, rows = end - m0;
      const Bf16* from = p.a + static_cast<int64_t>(m0) * p.a_ld + c0;
#pragma unroll 1
      for (int row = first_row, col = first_col; row < kRows; row += next_row) {
        const bool real = row < rows && c0 + 8 * col < n;
        copy16(to + row * ld + 8 * col,
               real ? from + static_cast<int64_t>(row) * p.a_ld + 8 * col : p.a, real);
        col += next_col;
        if (col >= stretches) {
          col -= stretches;
          ++row;
        }
      }
      to += kRows * ld;
#pragma unroll 1
      for (int i = threadIdx.x; i < kRows * NT; i += kThreads) {
        const int row = i / NT, col = i % NT * 8;
        const bool real = row < rows && col < r;
        copy16(to + row * kBLd + col,
               real ? p.b + static_cast<int64_t>(m0 + row) * p.b_ld + col : p.b, real);
      }
    }
    copies_commit();
  };
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) fetch(s);

  // made: a warp has 16 rows of a stage and half of the ranks.
  constexpr int kHalf = NT > 1 ? NT / 2 : 1;
  const int row_tile = warp % 4, first_rank = warp / 4 * kHalf;
  float sum[kOwn][NT][4] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    copies_wait_but<kStages - 2>();
    __syncthreads();
    fetch(step + kStages - 1);
    const Bf16 *a = stages + step % kStages * layout.stage(), *b = a + kRows * ld;
    if (kBoth && first_rank < NT) {
      float made[kHalf][4] = {}, odd[kHalf][4] = {};  // two chains
      const Bf16* left = a + (16 * row_tile + lane % 16) * ld + 8 * (lane / 16);
      const Bf16* right = w + (8 * first_rank + lane % 8) * ld + 8 * (lane / 8);
#pragma unroll 1
      for (int k = 0; k < tiles; k += 4) {  // beyond the stripe lie numbers that count nothing
        uint32_t fa[4][4], fw[kHalf][2][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) load_matrices(fa[i], left + 16 * min(k + i, tiles - 1));
#pragma unroll
        for (int j = 0; j < kHalf; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            load_matrices(fw[j][i], right + 8 * j * ld + 16 * min(k + 2 * i, tiles - 1));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (k + i >= tiles) break;
#pragma unroll
          for (int j = 0; j < kHalf; ++j)
            mma_bf16(i % 2 == 0 ? made[j] : odd[j], fa[i],
                     {fw[j][i / 2][i % 2 * 2], fw[j][i / 2][i % 2 * 2 + 1]});
        }
      }
#pragma unroll
      for (int j = 0; j < kHalf; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) made[j][i] += odd[j][i];
      const int row = begin + step * kRows + 16 * row_tile + lane / 4;
      float* to = p.made_parts +
                  (static_cast<int64_t>(stripe - p.first_stripe) * sums.tokens + row) * r +
                  8 * first_rank + 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        if (8 * (first_rank + j) >= r) break;
        if (row < end) *reinterpret_cast<float2*>(to + 8 * j) = {made[j][0], made[j][1]};
        if (row + 8 < end) *reinterpret_cast<float2*>(to + 8 * (r + j)) = {made[j][2], made[j][3]};
      }
    }
#pragma unroll 1
    for (int k = 0; k < kRows; k += 16) {
      uint32_t fb[NT][2], fa[kOwn][4];
#pragma unroll
      for (int j = 0; j < NT; ++j) load_turned(fb[j], b + (k + lane % 16) * kBLd + 8 * j);
#pragma unroll
      for (int own = 0; own < kOwn; ++own)
        if (warp + kWarps * own < tiles)
          load_turned(fa[own], a + (k + 8 * (lane / 16) + lane % 8) * ld +
                                   16 * (warp + kWarps * own) + 8 * (lane / 8 % 2));
#pragma unroll
      for (int own = 0; own < kOwn; ++own)
        if (warp + kWarps * own < tiles)
#pragma unroll
          for (int j = 0; j < NT; ++j) mma_bf16(sum[own][j], fa[own], fb[j]);
    }
  }
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
#pragma unroll
    for (int i = 0; i < 4 * NT; ++i) {
      const int col = c0 + 16 * (warp + kWarps * own) + lane / 4 + 8 * (i / 2 % 2);
      const int rank = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
      if (16 * (warp + kWarps * own) >= sums.cols || col >= n || rank >= r) continue;
      const float made = sum[own][i / 4][i % 4];
      if (p.y_parts != nullptr) {
        p.y_parts[(static_cast<int64_t>(chunk) * n + col) * r + rank] = made;
      } else {
        float* y = p.y + static_cast<int64_t>(col) * p.column_step +
                   static_cast<int64_t>(rank) * p.rank_step;
        *y = fmaf(p.alpha, made, p.adds ? *y : 0.0f);
      }
    }
  }
}

// ---- adding parts

struct Parts {
  const float* from;  // [parts, rows, r]
  void* y;
  int row_step, rank_step;
  int parts, rows, r, first_block;
  float alpha;
  bool adds, half;  // bf16
};
struct AllParts {
  Parts at[2 * kMostSums];
  int count;
};

constexpr int kSharers = 8, kQuads = kThreads / kSharers;

__global__ void __launch_bounds__(kThreads) add_parts_kernel(const __grid_constant__ AllParts all) {
  __shared__ Pack<float, 4> shared[kSharers][kQuads];
  begin_kernel();
  int at = all.count - 1;
  while (all.at[at].first_block > static_cast<int>(blockIdx.x)) --at;
  const Parts& p = all.at[at];
  const int quad = threadIdx.x % kQuads, sharer = threadIdx.x / kQuads;
  const int64_t e =
      4 * (static_cast<int64_t>(static_cast<int>(blockIdx.x) - p.first_block) * kQuads + quad);
  const int64_t size = static_cast<int64_t>(p.rows) * p.r;
  const int each = (p.parts + kSharers - 1) / kSharers;
  const int first = sharer * each, last = min(p.parts, first + each);
  Pack<float, 4> sum{};
  if (e < size) {
#pragma unroll 8
    for (int i = first; i < last; ++i) {
      const Pack<float, 4> x = load<4>(p.from + i * size + e);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.at[j] += x.at[j];
    }
  }
  shared[sharer][quad] = sum;
  __syncthreads();
  if (sharer > 0 || e >= size) return;
  for (int i = 1; i < kSharers; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.at[j] += shared[i][quad].at[j];
  const int64_t row = e / p.r;
  const int rank = static_cast<int>(e - row * p.r);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t to = row * p.row_step + static_cast<int64_t>(rank + j) * p.rank_step;
    if (p.half) {
      Bf16* y = static_cast<Bf16*>(p.y) + to;
      *y = from_f32<Bf16>(fmaf(p.alpha, sum.at[j], p.adds ? to_f32(*y) : 0.0f));
    } else {
      float* y = static_cast<float*>(p.y) + to;
      *y = fmaf(p.alpha, sum.at[j], p.adds ? *y : 0.0f);
    }
  }
}

// ---- launches

bool fits(const TokenSum& s, int64_t tokens, bool both) {
  auto is = [](const Operand& o, DType dtype) {
    return o.dtype == dtype && o.form == WeightForm::kRows && aligned16(o) && o.ld < (1 << 24);
  };
  return s.a.rows == tokens && is(s.a, DType::kBF16) && is(s.b, DType::kBF16) &&
         s.b.cols % 8 == 0 && s.b.cols <= kSkinny && s.y.dtype == DType::kF32 &&
         bool(s.w) == both && (!both || (is(s.w, DType::kF32) && s.made.dtype == DType::kBF16));
}

// How the work is shared out.
struct Shares {
  int tiles = kLeastTiles;  // of 16 columns, of a stripe
  int64_t stripes = 0, chunks = 1;
  size_t bytes = 0;  // of parts

  // Of stripes as wide as that.
  void count(std::span<const TokenSum> sums, int blocks) {
    const int64_t tokens = sums[0].a.rows, stages = divide_up(tokens, kRows);
    stripes = 0;
    for (const TokenSum& s : sums) stripes += divide_up(s.a.cols, 16 * tiles);
    chunks = std::clamp<int64_t>(blocks / stripes, 1, divide_up(stages, kLeastStages));
    chunks = divide_up(stages, divide_up(stages, chunks));
    bytes = 0;
    for (const TokenSum& s : sums) {
      const int64_t r = s.b.cols, own = divide_up(s.a.cols, 16 * tiles);
      const int64_t floats =
          (s.w ? own * tokens * r : 0) + (chunks > 1 ? chunks * s.a.cols * r : 0);
      bytes += static_cast<size_t>(floats) * sizeof(float);
    }
  }
};

template <int NT, bool kBoth>
bool launch_sums(const Queue& queue, std::span<const TokenSum> sums, void* scratch) {
  Shares shares;
  int64_t columns = 0;
  for (const TokenSum& s : sums) columns += s.a.cols;
  shares.tiles = static_cast<int>(std::clamp<int64_t>(divide_up(divide_up(columns, 16), queue.sms),
                                                      kLeastTiles, kOwn * kWarps));
  auto shared = [&] { return Layout<NT>(16 * shares.tiles).bytes(kBoth); };
  auto count = [&] {
    const bool two = kBeside<NT> == 2 && 2 * (shared() + kReserved) <= kMostShared;
    shares.count(sums, (two ? 2 : 1) * queue.sms);
  };
  count();
  while (shares.bytes > kTokenSumsScratch && shares.tiles < kOwn * kWarps) {
    ++shares.tiles;
    count();
  }
  auto* kernel = token_sums_kernel<NT, kBoth>;
  if (shares.bytes > kTokenSumsScratch || shared() > kMostShared || !allow_shared(kernel, shared()))
    return false;
  flush(queue);  // what waits there may read what lies in the scratch
  const int64_t tokens = sums[0].a.rows;
  Sums all{.count = static_cast<int>(sums.size()),
           .stripes = static_cast<int>(shares.stripes),
           .cols = 16 * shares.tiles,
           .tokens = static_cast<int>(tokens),
           .chunk = static_cast<int>(divide_up(divide_up(tokens, kRows), shares.chunks)) * kRows};
  AllParts parts{};
  auto* free = static_cast<float*>(scratch);
  int stripe = 0, blocks = 0;
  auto add = [&](Parts p) {
    p.first_block = blocks;
    blocks += static_cast<int>(divide_up(static_cast<int64_t>(p.rows) * p.r, 4 * kQuads));
    parts.at[parts.count++] = p;
    free += static_cast<int64_t>(p.parts) * p.rows * p.r;
  };
  for (size_t i = 0; i < sums.size(); ++i) {
    const TokenSum& s = sums[i];
    const int n = static_cast<int>(s.a.cols), r = static_cast<int>(s.b.cols);
    const int own = static_cast<int>(divide_up(n, all.cols)), ld = static_cast<int>(s.y.ld);
    Sum& p = all.at[i];
    p = {.a = s.a.as<const Bf16>(),
         .b = s.b.as<const Bf16>(),
         .w = s.w.as<const float>(),
         .y = s.y.as<float>(),
         .a_ld = static_cast<int>(s.a.ld),
         .b_ld = static_cast<int>(s.b.ld),
         .w_ld = static_cast<int>(s.w.ld),
         .column_step = s.y_by_rank ? 1 : ld,
         .rank_step = s.y_by_rank ? ld : 1,
         .n = n,
         .r = r,
         .first_stripe = stripe,
         .alpha = s.alpha,
         .adds = s.y_adds};
    stripe += own;
    if (kBoth) {
      p.made_parts = free;
      add({.from = free,
           .y = s.made.data,
           .row_step = static_cast<int>(s.made.ld),
           .rank_step = 1,
           .parts = own,
           .rows = all.tokens,
           .r = r,
           .alpha = s.alpha,
           .adds = s.made_adds,
           .half = true});
    }
    if (shares.chunks > 1) {
      p.y_parts = free;
      add({.from = free,
           .y = s.y.data,
           .row_step = p.column_step,
           .rank_step = p.rank_step,
           .parts = static_cast<int>(shares.chunks),
           .rows = n,
           .r = r,
           .alpha = s.alpha,
           .adds = s.y_adds});
    }
  }
  launch(queue, kernel, static_cast<unsigned>(shares.stripes * shares.chunks), kThreads, shared(),
         all);
  if (parts.count > 0)
    launch(queue, add_parts_kernel, static_cast<unsigned>(blocks), kThreads, 0, parts);
  return true;
}

template <bool kBoth>
bool launch_for_rank(const Queue& queue, std::span<const TokenSum> sums, void* scratch) {
  int64_t rank = 0;
  for (const TokenSum& s : sums) rank = std::max(rank, s.b.cols);
  if (rank <= 8) return launch_sums<1, kBoth>(queue, sums, scratch);
  if (rank <= 16) return launch_sums<2, kBoth>(queue, sums, scratch);
  if (rank <= 32) return launch_sums<4, kBoth>(queue, sums, scratch);
  return launch_sums<8, kBoth>(queue, sums, scratch);
}

}  // namespace

bool token_sums(const Queue& queue, std::span<const TokenSum> sums, void* scratch) {
  if (queue.arch != Arch::kSm90 || sums.empty() || sums.size() > kMostSums || scratch == nullptr)
    return false;
  const int64_t tokens = sums[0].a.rows;
  const bool both = bool(sums[0].w);
  int64_t columns = 0;
  for (const TokenSum& s : sums) {
    if (!fits(s, tokens, both)) return false;
    columns += s.a.cols;
  }
  if (tokens < (both && columns >= kMany ? kFewTokens : kLeastTokens) || tokens > (1 << 24))
    return false;
  return both ? launch_for_rank<true>(queue, sums, scratch)
              : launch_for_rank<false>(queue, sums, scratch);
}

}  // namespace wick::cuda
