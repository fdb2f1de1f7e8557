// SPDX-License-Identifier: Apache-2.0
// gated.h's product by warp groups whose tiles come by the bulk copy engine. A block is a
// producer, two groups that multiply 64 rows each of a tile of 128, and a group that makes of a
// finished tile what leaves it while the next one is multiplied; blocks stay and take tile after
// tile, those of the same weights next to each other. The weights of a block's first stages are
// asked for before the kernel waits for the one before it.
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/gate.cuh"
#include "backend/cuda/gated.h"

namespace wick::cuda {
namespace {

constexpr int kTileRows = 128, kDepth = kBulkDepth, kThreads = 384;
constexpr int kLeavers = 96, kMeeters = kLeavers + 256;
constexpr int kLeftBytes = kTileRows * kDepth * 2;
constexpr int kMostShared = 226 << 10;
constexpr int64_t kFewRows = 256;     // the library splits the depth where tiles are few
constexpr int64_t kMostDepth = 2048;  // beyond, a pass over y costs little beside the product

struct Args {
  int rows, half, depth;  // half: F
  Rows<Bf16> y, made;
};

// Tiles of Cols columns of y, half of them gates.
template <int Cols>
struct Shape {
  static constexpr int kCols = Cols / 2;  // of F
  static constexpr int kRightBytes = Cols * kDepth * static_cast<int>(sizeof(Bf16));
  static constexpr int kStageBytes = kLeftBytes + kRightBytes;
  // Of a row of a finished tile: neighbours begin four banks apart.
  static constexpr int kRowBytes = Cols * static_cast<int>(sizeof(Bf16)) + 16;
  static constexpr int kTileBytes = kTileRows * kRowBytes;
  static constexpr int kStages = (kMostShared - 2048 - kTileBytes) / kStageBytes;
  static constexpr size_t kBytes = kStages * kStageBytes + kTileBytes + 2 * kStages * 8 + 1024;
};

// Barriers of the groups that multiply and the one that follows them: a tile is finished, its place
// is free again. All of a group wait or only say so.
enum : int { kFinished = 1, kFree = 2 };
__device__ inline void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void say(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

template <int Registers>
__device__ inline void keep_registers() {
#ifdef WICK_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Registers));
#endif
}
template <int Registers>
__device__ inline void get_registers() {
#ifdef WICK_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Registers));
#endif
}

template <int Cols>
__device__ __forceinline__ void multiply(float (&d)[Cols / 8][4], uint64_t left, uint64_t right,
                                         bool add) {
  if constexpr (Cols == 256)
    group_multiply_256(d, left, right, add);
  else
    group_multiply_160(d, left, right, add);
}

__device__ __forceinline__ float2 both(uint32_t word) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&word));
}
using Eight = Pack<uint32_t, 4>;  // neighbours of a row
__device__ __forceinline__ Eight& eight(Bf16* p) { return *reinterpret_cast<Eight*>(p); }
__device__ __forceinline__ const Eight& eight(const unsigned char* p) {
  return *reinterpret_cast<const Eight*>(p);
}

// A group's sums, in bf16, into the finished tile.
template <int Cols>
__device__ __forceinline__ void put(const float (&d)[Cols / 8][4], unsigned char* tile, int group) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  unsigned char* to =
      tile + (64 * group + threadIdx.x / 32 % 4 * 16 + g) * Shape<Cols>::kRowBytes + 4 * t;
#pragma unroll
  for (int j = 0; j < Cols / 8; ++j) {
    *reinterpret_cast<uint32_t*>(to + 16 * j) = pack2(d[j][0], d[j][1]);
    *reinterpret_cast<uint32_t*>(to + 8 * Shape<Cols>::kRowBytes + 16 * j) =
        pack2(d[j][2], d[j][3]);
  }
}

// What leaves a finished tile, by `threads` threads of which this one is `thread`.
template <Act A, int Cols>
__device__ __forceinline__ void leave(const Args& a, const unsigned char* tile, int m0, int n0,
                                      int thread, int threads) {
  using S = Shape<Cols>;
  constexpr int kInRow = S::kCols / 8;
#pragma unroll 2
  for (int at = thread; at < kTileRows * kInRow; at += threads) {
    const int row = at / kInRow, col = at % kInRow * 8;
    if (m0 + row >= a.rows || n0 + col >= a.half) continue;
    const Eight gate = eight(tile + row * S::kRowBytes + 2 * col);
    const Eight up = eight(tile + row * S::kRowBytes + 2 * (S::kCols + col));
    Eight made;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float2 x = both(gate.at[c]), y = both(up.at[c]);
      made.at[c] = pack2(act<A, Bf16>(x.x).value * y.x, act<A, Bf16>(x.y).value * y.y);
    }
    Bf16* halves = a.y[m0 + row] + n0 + col;
    eight(halves) = gate;
    eight(halves + a.half) = up;
    eight(a.made[m0 + row] + n0 + col) = made;
  }
}

template <Act A, int Cols>
__global__ void __launch_bounds__(kThreads, 1)
    gated_kernel(const __grid_constant__ CUtensorMap left,
                 const __grid_constant__ CUtensorMap right, const Args a) {
  using S = Shape<Cols>;
  extern __shared__ unsigned char memory[];
  let_next_start();
  const uint32_t base = (shared_address(memory) + 1023) / 1024 * 1024;
  unsigned char* tile_at = memory + (base - shared_address(memory)) + S::kStages * S::kStageBytes;
  const uint32_t barriers = base + S::kStages * S::kStageBytes + S::kTileBytes;
  auto full = [&](int stage) { return barriers + 8 * stage; };
  auto empty = [&](int stage) { return barriers + 8 * (S::kStages + stage); };
  auto left_at = [&](int stage) { return base + stage * S::kStageBytes; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), 8);
    }
    barriers_ready();
  }
  __syncthreads();
  const int down = (a.rows + kTileRows - 1) / kTileRows;
  const int tiles = down * ((a.half + S::kCols - 1) / S::kCols);
  const int steps = (a.depth + kDepth - 1) / kDepth, blocks = static_cast<int>(gridDim.x);
  const int first = static_cast<int>(blockIdx.x), role = static_cast<int>(threadIdx.x) / 128;
  auto m_of = [&](int tile) { return tile % down * kTileRows; };
  auto n_of = [&](int tile) { return tile / down * S::kCols; };
  int stage = 0, phase = 0;
  auto next = [&] {
    if (++stage == S::kStages) {
      stage = 0;
      phase ^= 1;
    }
  };
  if (role == 0) {
    keep_registers<120>();
    if (threadIdx.x == 0) {
      auto copy_right = [&](int to, int k, int tile) {
        const uint32_t at = left_at(to) + kLeftBytes;
        const int n0 = n_of(tile);
        barrier_expect(full(to), S::kStageBytes);
        copy_box(at, right, k * kDepth, n0, full(to));
        copy_box(at + S::kRightBytes / 2, right, k * kDepth, a.half + n0, full(to));
      };
      const int early = min(S::kStages, steps);
      for (int k = 0; k < early; ++k) copy_right(k, k, first);
      wait_for_previous();
      for (int tile = first; tile < tiles; tile += blocks) {
        for (int k = 0; k < steps; ++k, next()) {
          if (tile != first || k >= early) {
            barrier_wait(empty(stage), phase ^ 1);
            copy_right(stage, k, tile);
          }
          copy_box(left_at(stage), left, k * kDepth, m_of(tile), full(stage));
        }
      }
    }
    if (threadIdx.x >= 32) {
      wait_for_previous();
      const int thread = static_cast<int>(threadIdx.x) - 32;
      for (int tile = first; tile < tiles; tile += blocks) {
        const bool last = tile + blocks >= tiles;
        meet(kFinished, kMeeters);
        leave<A, Cols>(a, tile_at, m_of(tile), n_of(tile), thread, last ? kMeeters : kLeavers);
        if (!last) say(kFree, kMeeters);
      }
    }
  } else {
    get_registers<192>();
    wait_for_previous();
    const int group = role - 1;
    const bool one = threadIdx.x % 32 == 0;
    for (int tile = first; tile < tiles; tile += blocks) {
      float d[Cols / 8][4] = {};
      int before = 0;
#pragma unroll 1
      for (int k = 0; k < steps; ++k, next()) {
        barrier_wait(full(stage), phase);
        const uint64_t rows_at = panel_at(left_at(stage) + group * 64 * kDepth * 2);
        const uint64_t cols_at = panel_at(left_at(stage) + kLeftBytes);
        group_begin();
#pragma unroll
        for (int i = 0; i < kDepth / 16; ++i)
          multiply<Cols>(d, rows_at + 2 * i, cols_at + 2 * i, k > 0 || i > 0);
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
      if (tile != first) meet(kFree, kMeeters);
      put<Cols>(d, tile_at, group);
      if (tile + blocks < tiles) {
        say(kFinished, kMeeters);
      } else {  // there is nothing else to do
        meet(kFinished, kMeeters);
        leave<A, Cols>(a, tile_at, m_of(tile), n_of(tile), static_cast<int>(threadIdx.x) - 32,
                       kMeeters);
      }
    }
  }
}

template <Act A, int Cols>
bool start(const Queue& queue, const Operand& x, const Operand& w, const Args& a) {
  using S = Shape<Cols>;
  CUtensorMap left, right;
  if (!make_map(x, kDepth, kTileRows, left) || !make_map(w, kDepth, S::kCols, right) ||
      !allow_shared(gated_kernel<A, Cols>, S::kBytes))
    return false;
  const int64_t tiles = divide_up(x.rows, kTileRows) * divide_up(a.half, S::kCols);
  launch(queue, gated_kernel<A, Cols>, static_cast<unsigned>(std::min<int64_t>(tiles, queue.sms)),
         kThreads, S::kBytes, left, right, a);
  return true;
}

// In tiles of how many columns the busiest multiprocessor has least to do.
bool prefers_160(const Queue& queue, int64_t rows, int64_t half) {
  constexpr int64_t kEnds = 40;  // what a tile costs beside its product, in columns
  auto cost = [&](int64_t cols) {
    return divide_up(divide_up(rows, kTileRows) * divide_up(half, cols / 2), queue.sms) *
           (cols + kEnds);
  };
  return cost(160) < cost(256);
}

}  // namespace

bool gated_product(const Queue& queue, Act act, const Operand& x, const Operand& w,
                   const Operand& y, const Operand& made) {
  auto fits = [](const Operand& o) {
    return o.dtype == DType::kBF16 && aligned16(o) && o.rows < (1 << 30) && o.cols < (1 << 30);
  };
  if (queue.arch != Arch::kSm90 || x.rows < kFewRows || x.cols > kMostDepth || !fits(x) ||
      !fits(w) || !fits(y) || !fits(made))
    return false;
  const Args a{.rows = static_cast<int>(x.rows),
               .half = static_cast<int>(made.cols),
               .depth = static_cast<int>(x.cols),
               .y = rows<Bf16>(y),
               .made = rows<Bf16>(made)};
  const bool narrow = prefers_160(queue, x.rows, a.half);
  if (act == Act::kSilu)
    return narrow ? start<Act::kSilu, 160>(queue, x, w, a) : start<Act::kSilu, 256>(queue, x, w, a);
  return narrow ? start<Act::kGeluTanh, 160>(queue, x, w, a)
                : start<Act::kGeluTanh, 256>(queue, x, w, a);
}

}  // namespace wick::cuda
