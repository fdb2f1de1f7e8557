// SPDX-License-Identifier: Apache-2.0
// gated.h's products by warp groups whose tiles come by the bulk copy engine. A block is a producer
// and two groups of 64 rows of a tile; blocks stay and take tile after tile, those of the same
// weights next to each other. The weights of a block's first stages are asked for before the kernel
// waits for the one before it.
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/gate.cuh"
#include "backend/cuda/gated.h"

namespace wick::cuda {
namespace {

constexpr int kTileRows = 128, kDepth = kBulkDepth, kGroups = 2, kThreads = 128 * (kGroups + 1);
constexpr int kLeftBytes = kTileRows * kDepth * 2, kPanelBytes = kDepth * 128;
constexpr int kMostShared = 226 << 10;
constexpr int64_t kFewRows = 256;  // the library splits the depth where tiles are few
constexpr int64_t kMostDepth =
    2048;  // beyond, what a pass over y costs is little beside the product

struct Args {
  int rows, half, depth;  // half: F
  Rows<Bf16> y;           // [M, 2F]: made, or in reverse read
  Rows<Bf16> made;        // [M, F], or in reverse [M, 2F]
};

template <int Cols, bool Back>
struct Shape {
  static constexpr int kCols = Back ? Cols : Cols / 2;  // of F, a tile's
  static constexpr int kRightBytes =
      Back ? (Cols + 63) / 64 * kPanelBytes : Cols * kDepth * static_cast<int>(sizeof(Bf16));
  static constexpr int kStageBytes = kLeftBytes + kRightBytes;
  static constexpr int kStages = (kMostShared - 2048) / kStageBytes;
  static constexpr size_t kBytes = kStages * kStageBytes + 2 * kStages * 8 + 1024;
};

template <int Cols, bool Deep>
__device__ __forceinline__ void multiply(float (&d)[Cols / 8][4], uint64_t left, uint64_t right,
                                         bool add) {
  if constexpr (Cols == 256)
    group_multiply_256<Deep>(d, left, right, add);
  else
    group_multiply_160<Deep>(d, left, right, add);
}

// W tiles of 8 columns, 4 or 2, a word of each: afterwards a lane has 2 W neighbouring columns,
// from first_column() on.
template <int W>
__device__ __forceinline__ void turn(uint32_t (&w)[W], int t) {
  if constexpr (W == 4) {
    turn_quad(w, t);
  } else {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, t % 2 ? w[0] : w[1], 1);
    (t % 2 ? w[0] : w[1]) = got;
  }
}
template <int W>
__device__ __forceinline__ int first_column(int tile, int t) {
  return W == 4 ? 8 * (tile + t) : 8 * (tile + t % 2) + 4 * (t / 2);
}

__device__ __forceinline__ float2 both(uint32_t word) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&word));
}

template <Act A, int W, int N>
__device__ __forceinline__ void leave_forward(const Args& a, const float (&d)[N][4], int tile,
                                              int half, int row, int n0) {
  const int t = threadIdx.x % 4;
  uint32_t gate[W], up[W];
#pragma unroll
  for (int c = 0; c < W; ++c) {
    gate[c] = pack2(d[tile + c][2 * half], d[tile + c][2 * half + 1]);
    up[c] = pack2(d[N / 2 + tile + c][2 * half], d[N / 2 + tile + c][2 * half + 1]);
  }
  turn(gate, t);
  turn(up, t);
  Pack<uint32_t, W> g, u, made;
#pragma unroll
  for (int c = 0; c < W; ++c) {
    g.at[c] = gate[c], u.at[c] = up[c];
    const float2 x = both(gate[c]), y = both(up[c]);
    made.at[c] = pack2(act<A, Bf16>(x.x).value * y.x, act<A, Bf16>(x.y).value * y.y);
  }
  const int col = n0 + first_column<W>(tile, t);
  if (row >= a.rows || col >= a.half) return;
  *reinterpret_cast<Pack<uint32_t, W>*>(a.y[row] + col) = g;
  *reinterpret_cast<Pack<uint32_t, W>*>(a.y[row] + a.half + col) = u;
  *reinterpret_cast<Pack<uint32_t, W>*>(a.made[row] + col) = made;
}

// Quads of tiles whose gates are on their way at once.
template <Act A, int Quads, int N>
__device__ __forceinline__ void leave_backward(const Args& a, const float (&d)[N][4], int tile,
                                               int half, int row, int n0) {
  const int t = threadIdx.x % 4;
  Pack<uint32_t, 4> gate[Quads], up[Quads];
#pragma unroll
  for (int q = 0; q < Quads; ++q) {
    const int col = n0 + first_column<4>(tile + 4 * q, t);
    gate[q] = up[q] = Pack<uint32_t, 4>{};
    if (row < a.rows && col < a.half) {
      gate[q] = *reinterpret_cast<const Pack<uint32_t, 4>*>(a.y[row] + col);
      up[q] = *reinterpret_cast<const Pack<uint32_t, 4>*>(a.y[row] + a.half + col);
    }
  }
#pragma unroll
  for (int q = 0; q < Quads; ++q) {
    uint32_t dy[4];
#pragma unroll
    for (int c = 0; c < 4; ++c)
      dy[c] = pack2(d[tile + 4 * q + c][2 * half], d[tile + 4 * q + c][2 * half + 1]);
    turn(dy, t);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float2 g = both(dy[c]), x = both(gate[q].at[c]), y = both(up[q].at[c]);
      const ValueAndSlope low = act<A, Bf16>(x.x), high = act<A, Bf16>(x.y);
      gate[q].at[c] = pack2(g.x * y.x * low.slope, g.y * y.y * high.slope);
      up[q].at[c] = pack2(g.x * low.value, g.y * high.value);
    }
    const int col = n0 + first_column<4>(tile + 4 * q, t);
    if (row < a.rows && col < a.half) {
      *reinterpret_cast<Pack<uint32_t, 4>*>(a.made[row] + col) = gate[q];
      *reinterpret_cast<Pack<uint32_t, 4>*>(a.made[row] + a.half + col) = up[q];
    }
  }
}

// What a group of rows will read when its product is done.
template <int Cols>
__device__ __forceinline__ void ask_for_gates(const Args& a, int m0, int n0) {
  constexpr int kLines = (Cols + 63) / 64;  // of 128 bytes, a row's half
#pragma unroll 1
  for (int i = threadIdx.x % 128; i < 64 * 2 * kLines; i += 128) {
    const int row = m0 + i / (2 * kLines), col = n0 + i % kLines * 64;
    if (row < a.rows && col < a.half)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(a.y[row] + i / kLines % 2 * a.half + col));
  }
}

template <Act A, int Cols, bool Back>
__global__ void __launch_bounds__(kThreads, 1)
    gated_kernel(const __grid_constant__ CUtensorMap left,
                 const __grid_constant__ CUtensorMap right, const Args a) {
  using S = Shape<Cols, Back>;
  extern __shared__ unsigned char memory[];
  let_next_start();
  const uint32_t base = (shared_address(memory) + 1023) / 1024 * 1024;
  const uint32_t barriers = base + S::kStages * S::kStageBytes;
  auto full = [&](int stage) { return barriers + 8 * stage; };
  auto empty = [&](int stage) { return barriers + 8 * (S::kStages + stage); };
  auto left_at = [&](int stage) { return base + stage * S::kStageBytes; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), 4 * kGroups);
    }
    barriers_ready();
  }
  __syncthreads();
  const int down = (a.rows + kTileRows - 1) / kTileRows;
  const int tiles = down * ((a.half + S::kCols - 1) / S::kCols);
  const int steps = (a.depth + kDepth - 1) / kDepth;
  int stage = 0, phase = 0;
  auto next = [&] {
    if (++stage == S::kStages) {
      stage = 0;
      phase ^= 1;
    }
  };
  if (threadIdx.x < 128) {
    give_registers();
    if (threadIdx.x == 0) {
      auto copy_right = [&](int to, int k, int tile) {
        const uint32_t at = left_at(to) + kLeftBytes;
        const int n0 = tile / down * S::kCols;
        barrier_expect(full(to), S::kStageBytes);
        if constexpr (Back) {
#pragma unroll
          for (int i = 0; i < S::kRightBytes / kPanelBytes; ++i)
            copy_box(at + i * kPanelBytes, right, n0 + 64 * i, k * kDepth, full(to));
        } else {
          copy_box(at, right, k * kDepth, n0, full(to));
          copy_box(at + S::kRightBytes / 2, right, k * kDepth, a.half + n0, full(to));
        }
      };
      const int early = min(S::kStages, steps), first = static_cast<int>(blockIdx.x);
      for (int k = 0; k < early; ++k) copy_right(k, k, first);
      wait_for_previous();
      for (int tile = first; tile < tiles; tile += static_cast<int>(gridDim.x))
        for (int k = 0; k < steps; ++k, next()) {
          if (tile != first || k >= early) {
            barrier_wait(empty(stage), phase ^ 1);
            copy_right(stage, k, tile);
          }
          copy_box(left_at(stage), left, k * kDepth, tile % down * kTileRows, full(stage));
        }
    }
  } else {
    take_registers();
    wait_for_previous();
    const int group = threadIdx.x / 128 - 1;
    const bool one = threadIdx.x % 32 == 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int m0 = tile % down * kTileRows + 64 * group, n0 = tile / down * S::kCols;
      if constexpr (Back) ask_for_gates<Cols>(a, m0, n0);
      float d[Cols / 8][4] = {};
      int before = 0;
#pragma unroll 1
      for (int k = 0; k < steps; ++k, next()) {
        barrier_wait(full(stage), phase);
        const uint64_t rows_at = panel_at(left_at(stage) + group * 64 * kDepth * 2);
        const uint32_t right_at = left_at(stage) + kLeftBytes;
        const uint64_t cols_at = Back ? panel_across(right_at) : panel_at(right_at);
        group_begin();
#pragma unroll
        for (int i = 0; i < kDepth / 16; ++i)
          multiply<Cols, Back>(d, rows_at + 2 * i, cols_at + (Back ? 128 : 2) * i, k > 0 || i > 0);
        group_commit();
        if (k > 0) {
          group_wait<1>();
          if (one) barrier_arrive(empty(before));
        }
        before = stage;
      }
      group_wait<0>();
      group_done(d);
      if (one) barrier_arrive(empty(before));
      const int row =
          m0 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (Back) {
          constexpr int kQuads = Cols == 256 ? 4 : 5;
#pragma unroll
          for (int j = 0; j < Cols / 8; j += 4 * kQuads)
            leave_backward<A, kQuads>(a, d, j, half, row + 8 * half, n0);
        } else {
          constexpr int kTiles = Cols / 16, kInQuads = kTiles / 4 * 4;
#pragma unroll
          for (int j = 0; j < kInQuads; j += 4)
            leave_forward<A, 4>(a, d, j, half, row + 8 * half, n0);
          if constexpr (kInQuads < kTiles)
            leave_forward<A, 2>(a, d, kInQuads, half, row + 8 * half, n0);
        }
      }
    }
  }
}

template <Act A, int Cols, bool Back>
bool start(const Queue& queue, const Operand& x, const Operand& w, const Args& a) {
  using S = Shape<Cols, Back>;
  CUtensorMap left, right;
  if (!make_map(x, kDepth, kTileRows, left) ||
      !make_map(w, kDepth, Back ? kDepth : S::kCols, right) ||
      !allow_shared(gated_kernel<A, Cols, Back>, S::kBytes))
    return false;
  const int64_t tiles = divide_up(x.rows, kTileRows) * divide_up(a.half, S::kCols);
  launch(queue, gated_kernel<A, Cols, Back>,
         static_cast<unsigned>(std::min<int64_t>(tiles, queue.sms)), kThreads, S::kBytes, left,
         right, a);
  return true;
}

// In tiles of how many columns the busiest multiprocessor has least to do.
template <bool Back>
bool prefers_160(const Queue& queue, int64_t rows, int64_t half) {
  constexpr int64_t kEnds = 40;  // what a tile costs beside its product, in columns
  auto cost = [&](int64_t cols, int64_t of_half) {
    return divide_up(divide_up(rows, kTileRows) * divide_up(half, of_half), queue.sms) *
           (cols + kEnds);
  };
  return cost(160, Shape<160, Back>::kCols) < cost(256, Shape<256, Back>::kCols);
}

template <bool Back>
bool start_any(const Queue& queue, Act act, const Operand& x, const Operand& w, const Operand& y,
               const Operand& made) {
  auto fits = [](const Operand& o) {
    return o.dtype == DType::kBF16 && aligned16(o) && o.rows < (1 << 30) && o.cols < (1 << 30);
  };
  if (queue.arch != Arch::kSm90 || x.rows < kFewRows || x.cols > kMostDepth || !fits(x) ||
      !fits(w) || !fits(y) || !fits(made))
    return false;
  const Args a{.rows = static_cast<int>(x.rows),
               .half = static_cast<int>(y.cols / 2),
               .depth = static_cast<int>(x.cols),
               .y = rows<Bf16>(y),
               .made = rows<Bf16>(made)};
  if (a.half % 8 != 0) return false;
  const bool narrow = prefers_160<Back>(queue, x.rows, a.half);
  if (act == Act::kSilu)
    return narrow ? start<Act::kSilu, 160, Back>(queue, x, w, a)
                  : start<Act::kSilu, 256, Back>(queue, x, w, a);
  return narrow ? start<Act::kGeluTanh, 160, Back>(queue, x, w, a)
                : start<Act::kGeluTanh, 256, Back>(queue, x, w, a);
}

}  // namespace

bool gated_product(const Queue& queue, Act act, const Operand& x, const Operand& w,
                   const Operand& y, const Operand& made) {
  return start_any<false>(queue, act, x, w, y, made);
}

bool gated_product_back(const Queue& queue, Act act, const Operand& dy, const Operand& w,
                        const Operand& y, const Operand& dx) {
  return start_any<true>(queue, act, dy, w, y, dx);
}

}  // namespace wick::cuda
