// SPDX-License-Identifier: Apache-2.0
// A block takes a stripe of columns of the wide side, and a stretch of its rows, through shared
// memory, 16 rows at a time. A warp has tiles of 16 columns: what is summed over rows stays in its
// registers, and so do its rows of w; what is summed over columns is added up by warps for each
// stage, and is a part of `made`. A second kernel adds the parts (parts.h).
//
// Stripes are as wide, and stretches as long, as makes the parts fewest: the wider, the more of a
// page of memory is read at once.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/parts.h"
#include "backend/cuda/skinny.h"
#include "backend/cuda/token_sums.h"

namespace wick::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kStages = 6;
constexpr int kRows = 16;  // of a stage
constexpr int kMostSums = static_cast<int>(kMostTokenSums);
static_assert(2 * kMostSums <= AllParts::kMost);  // dA and dB of each
constexpr int kLeastTiles = 4;                     // of 16 columns, of a stripe
constexpr int kLeastStages = 4;                    // of a block
constexpr int64_t kLeastTokens = 2048;             // fewer: what starts and adds costs more,
constexpr int64_t kFewTokens = 512, kMany = 4096;  // but for many columns that are read twice
constexpr size_t kMostShared = size_t{227} << 10;
constexpr size_t kReserved = 1024;  // by the system, of each block

// Tiles of 16 columns of a warp, at most, for 8 * NT ranks.
template <int NT>
constexpr int kOwn = NT == 1 ? 8 : 16 / NT;
// Blocks on a multiprocessor.
template <int NT, bool kBoth>
constexpr int kBeside = NT == 1 || !kBoth ? 2 : 1;

struct Sum {
  const Bf16 *a = nullptr, *b = nullptr;
  const float* w = nullptr;
  float *made_parts = nullptr, *y_parts = nullptr;  // [stripes, M, R], [chunks, N, R]
  int a_ld = 0, b_ld = 0, w_ld = 0;
  int n = 0, r = 0, first_stripe = 0;
};

struct Sums {
  Sum at[kMostSums] = {};
  int count = 0, stripes = 0, cols = 0;  // of all; of a stripe
  int tokens = 0, chunk = 0;             // rows; of a block, a multiple of kRows
};

template <int NT>
struct Layout {
  static constexpr int kBLd = 8 * NT + 8, kMade = kRows * 8 * NT;
  int ld;  // of a's stages: an odd multiple of 16 bytes
  __host__ __device__ explicit Layout(int cols) : ld(cols + 8) {}
  __host__ __device__ int stage() const { return kRows * (ld + kBLd); }
  size_t bytes(bool both) const {
    return sizeof(Bf16) * static_cast<size_t>(kStages * stage()) +
           (both ? sizeof(float) * static_cast<size_t>(2 * kWarps * kMade) : 0);
  }
};

template <int NT, bool kBoth>
__global__ void __launch_bounds__(kThreads, kBeside<NT, kBoth>)
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
  // What the warps made of a stage, of two in turn: [warp][row][rank].
  auto* made_by = reinterpret_cast<float*>(stages + kStages * layout.stage());
  const int g = lane / 4, t = lane % 4;
  let_next_start();
  uint32_t w[kBoth ? kOwn<NT> : 1][NT][2];
  if constexpr (kBoth) {  // parameters, which no kernel of the graph writes
#pragma unroll
    for (int own = 0; own < kOwn<NT>; ++own)
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int col = c0 + 16 * (warp + kWarps * own) + 8 * i + 2 * t, rank = 8 * j + g;
          const bool real = warp + kWarps * own < tiles && col < n && rank < r;  // and col + 1
          const float* from = p.w + static_cast<int64_t>(col) * p.w_ld + rank;
          w[own][j][i] = real ? pack_bf16(from[0], from[p.w_ld]) : 0;
        }
  }
  wait_for_previous();

  const int steps = (end - begin + kRows - 1) / kRows;
  // Threads take stretches of 8 columns in turn, row after row: place and steps of a thread's own.
  const int stretches = sums.cols / 8, first_row = static_cast<int>(threadIdx.x) / stretches,
            first_col = static_cast<int>(threadIdx.x) % stretches, next_row = kThreads / stretches,
            next_col = kThreads % stretches;
  const int64_t a_ld = p.a_ld, a_first = first_row * a_ld + c0 + 8 * first_col,
                a_next = next_row * a_ld + 8 * next_col, a_wrap = a_ld - sums.cols;
  const int to_first = first_row * ld + 8 * first_col, to_next = next_row * ld + 8 * next_col,
            to_wrap = ld - sums.cols;
  auto fetch = [&](int step) {
    if (step < steps) {
      Bf16* to = stages + step % kStages * layout.stage();
      const int m0 = begin + step * kRows, rows = end - m0;
      const Bf16* from = p.a + m0 * a_ld + a_first;
      Bf16* at = to + to_first;
#pragma unroll 1
      for (int row = first_row, col = first_col; row < kRows; row += next_row) {
        const bool real = row < rows && c0 + 8 * col < n;
        copy16(at, real ? from : p.a, real);
        col += next_col;
        from += a_next;
        at += to_next;
        if (col >= stretches) {
          col -= stretches;
          from += a_wrap;
          at += to_wrap;
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

  // Adds up what the warps made of a stage; between them lies a barrier.
  auto finish = [&](int step) {
    const float* from = made_by + step % 2 * kWarps * Layout<NT>::kMade;
#pragma unroll 1
    for (int e = threadIdx.x; e < Layout<NT>::kMade; e += kThreads) {
      float total = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) total += from[i * Layout<NT>::kMade + e];
      const int row = begin + step * kRows + e / (8 * NT), rank = e % (8 * NT);
      if (row < end && rank < r)
        p.made_parts[(static_cast<int64_t>(stripe - p.first_stripe) * sums.tokens + row) * r +
                     rank] = total;
    }
  };
  float sum[kOwn<NT>][NT][4] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    copies_wait_but<kStages - 2>();
    __syncthreads();
    fetch(step + kStages - 1);
    if (kBoth && step > 0) finish(step - 1);
    const Bf16 *a = stages + step % kStages * layout.stage(), *b = a + kRows * ld;
    uint32_t fb[NT][2];
#pragma unroll
    for (int j = 0; j < NT; ++j) load_turned(fb[j], b + lane % 16 * kBLd + 8 * j);
    const Bf16* turned = a + (8 * (lane / 16) + lane % 8) * ld + 8 * (lane / 8 % 2) + 16 * warp;
    const Bf16* plain = a + lane % 16 * ld + 8 * (lane / 16) + 16 * warp;
    float made[2][NT][4] = {};  // two chains
#pragma unroll
    for (int own = 0; own < kOwn<NT>; ++own) {
      if (warp + kWarps * own >= tiles) break;
      uint32_t fa[4], fm[4];
      load_turned(fa, turned + 16 * kWarps * own);
      if constexpr (kBoth) load_matrices(fm, plain + 16 * kWarps * own);
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        mma_bf16(sum[own][j], fa, fb[j]);
        if constexpr (kBoth) mma_bf16(made[own % 2][j], fm, w[own][j]);
      }
    }
    if constexpr (kBoth) {
      float* to = made_by + (step % 2 * kWarps + warp) * Layout<NT>::kMade + g * 8 * NT + 2 * t;
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          *reinterpret_cast<float2*>(to + i * 64 * NT + 8 * j) = {
              made[0][j][2 * i] + made[1][j][2 * i], made[0][j][2 * i + 1] + made[1][j][2 * i + 1]};
    }
  }
  if constexpr (kBoth) {
    __syncthreads();
    if (steps > 0) finish(steps - 1);
  }
  float* to = p.y_parts + static_cast<int64_t>(chunk) * n * r + 2 * t;
#pragma unroll
  for (int own = 0; own < kOwn<NT>; ++own)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = c0 + 16 * (warp + kWarps * own) + g + 8 * half;
      if (warp + kWarps * own >= tiles || col >= n) continue;
      float* row = to + static_cast<int64_t>(col) * r;
#pragma unroll
      for (int j = 0; j < NT; ++j)
        if (8 * j < r)
          *reinterpret_cast<float2*>(row + 8 * j) = {sum[own][j][2 * half],
                                                     sum[own][j][2 * half + 1]};
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
      const int64_t floats = (s.w ? own * tokens * r : 0) + chunks * s.a.cols * r;
      bytes += static_cast<size_t>(floats) * sizeof(float);
    }
  }
};

template <int NT, bool kBoth>
bool launch_sums(const Queue& queue, std::span<const TokenSum> sums, void* scratch) {
  Shares shares;
  int64_t columns = 0;
  for (const TokenSum& s : sums) columns += s.a.cols;
  auto shared = [&] { return Layout<NT>(16 * shares.tiles).bytes(kBoth); };
  auto count = [&] {
    const bool two = kBeside<NT, kBoth> == 2 && 2 * (shared() + kReserved) <= kMostShared;
    shares.count(sums, (two ? 2 : 1) * queue.sms);
  };
  const double stripes = std::sqrt(static_cast<double>(queue.sms) * static_cast<double>(columns) /
                                   static_cast<double>(sums[0].a.rows));
  constexpr int kMostTiles = kWarps * kOwn<NT>;
  shares.tiles = std::clamp(static_cast<int>(static_cast<double>(columns) / (16 * stripes)),
                            kLeastTiles, kMostTiles);
  count();
  while (shares.bytes > kTokenSumsScratch && shares.tiles < kMostTiles) {
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
  int stripe = 0;
  auto add = [&](const Parts& p) {
    parts.add(p);
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
         .a_ld = static_cast<int>(s.a.ld),
         .b_ld = static_cast<int>(s.b.ld),
         .w_ld = static_cast<int>(s.w.ld),
         .n = n,
         .r = r,
         .first_stripe = stripe};
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
    p.y_parts = free;
    add({.from = free,
         .y = s.y.data,
         .row_step = s.y_by_rank ? 1 : ld,
         .rank_step = s.y_by_rank ? ld : 1,
         .parts = static_cast<int>(shares.chunks),
         .rows = n,
         .r = r,
         .alpha = s.alpha,
         .adds = s.y_adds});
  }
  launch(queue, kernel, static_cast<unsigned>(shares.stripes * shares.chunks), kThreads, shared(),
         all);
  add_parts(queue, parts);
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
