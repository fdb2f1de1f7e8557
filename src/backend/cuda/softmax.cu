// SPDX-License-Identifier: Apache-2.0
// softmax of rows: a team of threads for each (row_team.cuh).
#include "backend/accepts.h"
#include "backend/cuda/row_team.cuh"

namespace wick::cuda {
namespace {

// exp(x - top). Where the result is rounded to a half, a power of 2 of the processor is exact
// enough.
template <typename T>
__device__ inline float exponential(float x, float top) {
  if constexpr (sizeof(T) == 4) {
    return expf(x - top);
  } else {
    constexpr float kLog2E = 1.44269504f;
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaf(x, kLog2E, -top * kLog2E)));
    return y;
  }
}

template <typename T>
struct Forward {
  Rows<const T> x;
  Rows<T> y;
  int64_t rows;
  int cols;
};

template <typename T, bool kAligned, bool kWarp, int kPacks>
__global__ void __launch_bounds__(kTeamThreads<T, kWarp>)
    softmax_fwd_kernel(const __grid_constant__ Forward<T> p) {
  __shared__ float shared[33];
  begin_kernel();
  const Team<kWarp, kPacks> team;
  if (team.row >= p.rows) return;
  const T* from = p.x[team.row];
  const bool kept = team.tile() >= p.cols;
  float x[kPacks][kWide];
  // Beyond the row's end: nothing that counts. No branches, so that exponentials overlap.
  auto read = [&](int base) {
    Kept<T> as_stored[kPacks];
    load_packs<kAligned>(team, from, base, p.cols, as_stored);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int left = p.cols - team.col(base, i);
#pragma unroll
      for (int j = 0; j < kWide; ++j)
        x[i][j] = (kAligned ? 0 : j) < left ? as_stored[i][j] : -INFINITY;
    }
  };
  auto exponentials = [&](float top) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int j = 0; j < kWide; ++j) x[i][j] = exponential<T>(x[i][j], top);
      sum +=
          ((x[i][0] + x[i][1]) + (x[i][2] + x[i][3])) + ((x[i][4] + x[i][5]) + (x[i][6] + x[i][7]));
    }
    return sum;
  };
  T* to = p.y[team.row];
  if constexpr (kWarp && sizeof(T) == 2) {
    if (kept) {
      // Under the lane's own maximum, so that exponentials do not wait for the row's.
      read(0);
      float mine = -INFINITY;
#pragma unroll
      for (int i = 0; i < kPacks; ++i)
#pragma unroll
        for (int j = 0; j < kWide; ++j) mine = fmaxf(mine, x[i][j]);
      const bool none = mine == -INFINITY;
      const float top = warp_max(mine), own = exponentials(none ? 0.0f : mine);
      const float shrink = none ? 0.0f : exponential<T>(mine, top);
      const float scale = shrink / warp_sum(own * shrink);
      store_packs<kAligned>(team, to, 0, p.cols, [&](int i, int j) { return x[i][j] * scale; });
      return;
    }
  }
  float top = -INFINITY;
  for (int base = 0; base < p.cols; base += team.tile()) {
    read(base);
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
#pragma unroll
      for (int j = 0; j < kWide; ++j) top = fmaxf(top, x[i][j]);
  }
  top = team.most(top, shared);
  float sum = 0;
  for (int base = 0; base < p.cols; base += team.tile()) {
    if (!kept) read(base);
    sum += exponentials(top);
  }
  const float scale = 1.0f / team.sum(sum, shared);
  for (int base = 0; base < p.cols; base += team.tile()) {
    if (!kept) {
      read(base);
      exponentials(top);
    }
    store_packs<kAligned>(team, to, base, p.cols, [&](int i, int j) { return x[i][j] * scale; });
  }
}

// dx = y * (dy - Σ dy*y), added to dx where `add` says so.
template <typename T>
struct Backward {
  Rows<const T> dy, y;
  Rows<T> dx;
  bool add;
  int64_t rows;
  int cols;
};

template <typename T, bool kAligned, bool kWarp, int kPacks>
__global__ void __launch_bounds__(kTeamThreads<T, kWarp>)
    softmax_bwd_kernel(const __grid_constant__ Backward<T> p) {
  __shared__ float shared[33];
  begin_kernel();
  const Team<kWarp, kPacks> team;
  if (team.row >= p.rows) return;
  T* to = p.dx[team.row];
  Kept<T> y[kPacks], dy[kPacks], before[kPacks];
  auto read = [&](int base) {
    load_packs<kAligned>(team, p.y[team.row], base, p.cols, y);
    load_packs<kAligned>(team, p.dy[team.row], base, p.cols, dy);
    if (p.add) load_packs<kAligned>(team, static_cast<const T*>(to), base, p.cols, before);
  };
  float dot = 0;
  for (int base = 0; base < p.cols; base += team.tile()) {
    read(base);
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
#pragma unroll
      for (int j = 0; j < kWide; ++j) dot = fmaf(dy[i][j], y[i][j], dot);
  }
  dot = team.sum(dot, shared);
  for (int base = 0; base < p.cols; base += team.tile()) {
    if (team.tile() < p.cols) read(base);
    store_packs<kAligned>(team, to, base, p.cols, [&](int i, int j) {
      const float d = y[i][j] * (dy[i][j] - dot);
      return p.add ? d + before[i][j] : d;
    });
  }
}

void softmax_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Forward<T> p{cuda::rows<const T>(x), cuda::rows<T>(y), x.rows, static_cast<int>(x.cols)};
    with_team<T>(
        wide_aligned(x, y), x.rows, x.cols,
        [&](auto aligned, auto warp, auto packs, unsigned blocks, int threads) {
          auto* kernel = softmax_fwd_kernel<T, aligned(), warp(), packs()>;
          prefer_shared(kernel);
          launch(queue(args), kernel, blocks, threads, 0, p);
        },
        false);
  });
}

void softmax_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &y = args.in[1], &dx = args.out[0];
  if (!dx) return;
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Backward<T> p{cuda::rows<const T>(dy),
                        cuda::rows<const T>(y),
                        cuda::rows<T>(dx),
                        args.accumulates(0),
                        y.rows,
                        static_cast<int>(y.cols)};
    with_team<T>(wide_aligned(dy, y, dx), y.rows, y.cols,
                 [&](auto aligned, auto warp, auto packs, unsigned blocks, int threads) {
                   auto* kernel = softmax_bwd_kernel<T, aligned(), warp(), packs()>;
                   prefer_shared(kernel);
                   launch(queue(args), kernel, blocks, threads, 0, p);
                 });
  });
}

}  // namespace

Candidates softmax_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kSoftmax, Dir::kForward, "softmax_fwd", softmax_fwd, accepts<0b1, 0, 0b1>, nullptr},
      {Op::kSoftmax, Dir::kBackward, "softmax_bwd", softmax_bwd, accepts<0b11, 0, 0b1>, nullptr},
  };
  return kTable;
}

}  // namespace wick::cuda
