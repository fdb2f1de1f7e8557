// SPDX-License-Identifier: Apache-2.0
// rms_norm and add_rms_norm: bound by bytes, and by latency at a training step's sizes. A row has a
// team of threads (row_team.cuh), which asks for gains (no step of a forward or reverse pass writes
// them) before the kernel before is done. Gains' gradients are sums over rows (columns.cuh).
#include "backend/accepts.h"
#include "backend/cuda/columns.cuh"
#include "backend/cuda/row_team.cuh"

namespace wick::cuda {
namespace {

// A matrix [T, G * D] as T * G rows of D.
template <typename T>
struct Grouped {
  T* data;
  int64_t ld;
  uint32_t groups;
  int cols;
  __device__ T* operator[](int64_t row) const {
    if (groups == 1) return data + row * ld;
    const uint32_t t = static_cast<uint32_t>(row) / groups;
    return data + t * ld + static_cast<int64_t>(static_cast<uint32_t>(row) - t * groups) * cols;
  }
  __device__ explicit operator bool() const { return data != nullptr; }
};
template <typename T>
Grouped<T> grouped(const Operand& o, int64_t groups, int64_t cols) {
  return {static_cast<T*>(o.data), o.ld, static_cast<uint32_t>(groups), static_cast<int>(cols)};
}

// With `b`: x + b is rounded, kept in `sum` and normed. Without: x is.
template <typename T, typename W>
struct Forward {
  Grouped<const T> x;
  Rows<const T> b;
  const W* w;
  Rows<T> sum;
  Grouped<T> y;
  Grouped<float> rstd;  // of one column
  int64_t rows;
  int cols;
  float inverse, eps;  // 1 / cols
};

template <typename T, typename W, bool kAligned, bool kWarp, int kPacks>
__global__ void __launch_bounds__(kTeamThreads<T, kWarp>)
    rms_norm_fwd_kernel(const __grid_constant__ Forward<T, W> p) {
  __shared__ float shared[33];
  const Team<kWarp, kPacks> team;
  const bool whole = team.tile() >= p.cols;
  Kept<T> x[kPacks];
  Kept<W> w[kPacks];
  let_next_start();
  if (whole) load_packs<kAligned>(team, p.w, 0, p.cols, w);
  wait_for_previous();
  if (team.row >= p.rows) return;
  const T* from = p.x[team.row];
  auto read = [&](int base) {
    load_packs<kAligned>(team, from, base, p.cols, x);
    if (!whole) load_packs<kAligned>(team, p.w, base, p.cols, w);
    if (p.b) {
      Kept<T> b[kPacks];
      load_packs<kAligned>(team, p.b[team.row], base, p.cols, b);
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        Wide<T> sum;
#pragma unroll
        for (int j = 0; j < kWide; ++j) sum.set(j, x[i][j] + b[i][j]);
        x[i] = keep(sum);
      }
    }
  };
  float squares = 0;
  for (int base = 0; base < p.cols; base += team.tile()) {
    read(base);
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
#pragma unroll
      for (int j = 0; j < kWide; ++j) squares = fmaf(x[i][j], x[i][j], squares);
  }
  const float rstd = rsqrtf(fmaf(team.sum(squares, shared), p.inverse, p.eps));
  if (p.rstd && team.rank == 0) *p.rstd[team.row] = rstd;
  T* to = p.y[team.row];
  for (int base = 0; base < p.cols; base += team.tile()) {
    if (!whole) read(base);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = team.col(base, i);
      if (c >= p.cols) break;
      if (p.b) store_wide<kAligned>(p.sum[team.row] + c, p.cols - c, unkeep(x[i]));
      Wide<T> y;
#pragma unroll
      for (int j = 0; j < kWide; ++j) y.set(j, x[i][j] * rstd * w[i][j]);
      store_wide<kAligned>(to + c, p.cols - c, y);
    }
  }
}

// dx = rstd * (dy*w - x * rstd² * mean(dy*w*x)) + base, base being dx itself, another matrix or
// absent.
template <typename T, typename W>
struct Backward {
  Grouped<const T> dy, x;
  const W* w;
  Grouped<const float> rstd;  // of one column
  Grouped<const T> base;
  Grouped<T> dx;
  int64_t rows;
  int cols;
  float inverse;  // 1 / cols
};

template <typename T, typename W, bool kAligned, bool kWarp, int kPacks>
__global__ void __launch_bounds__(kTeamThreads<T, kWarp>)
    rms_norm_bwd_kernel(const __grid_constant__ Backward<T, W> p) {
  __shared__ float shared[33];
  const Team<kWarp, kPacks> team;
  const bool whole = team.tile() >= p.cols;
  Kept<T> x[kPacks], dy[kPacks], base[kPacks];
  Kept<W> w[kPacks];
  let_next_start();
  if (whole) load_packs<kAligned>(team, p.w, 0, p.cols, w);
  wait_for_previous();
  if (team.row >= p.rows) return;
  const float rstd = *p.rstd[team.row];
  auto read = [&](int first) {
    load_packs<kAligned>(team, p.x[team.row], first, p.cols, x);
    load_packs<kAligned>(team, p.dy[team.row], first, p.cols, dy);
    if (!whole) load_packs<kAligned>(team, p.w, first, p.cols, w);
    if (p.base) load_packs<kAligned>(team, p.base[team.row], first, p.cols, base);
  };
  float dot = 0;
  for (int first = 0; first < p.cols; first += team.tile()) {
    read(first);
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
#pragma unroll
      for (int j = 0; j < kWide; ++j) dot = fmaf(dy[i][j] * w[i][j], x[i][j], dot);
  }
  const float shift = team.sum(dot, shared) * p.inverse * rstd * rstd;
  T* to = p.dx[team.row];
  for (int first = 0; first < p.cols; first += team.tile()) {
    if (!whole) read(first);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = team.col(first, i);
      if (c >= p.cols) break;
      Wide<T> dx;
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        float d = rstd * fmaf(-x[i][j], shift, dy[i][j] * w[i][j]);
        if (p.base) d += base[i][j];
        dx.set(j, d);
      }
      store_wide<kAligned>(to + c, p.cols - c, dx);
    }
  }
}

// Whether stretches of every group's rows lie aligned.
template <typename... Operands>
bool groups_aligned(int64_t groups, int64_t cols, const Operands&... operands) {
  return (groups == 1 || cols % kWide == 0) && wide_aligned(operands...);
}

// The norm of x or, where `b` is given, of x + b.
void norm_fwd(const StepArgs& args, const Operand& x, const Operand& b, const Operand& w,
              const Operand& sum, const Operand& y, const Operand& rstd) {
  const NormAttr& a = attr<NormAttr>(*args.step);
  const int64_t groups = b ? 1 : a.groups, cols = x.cols / groups, rows = x.rows * groups;
  const bool aligned = groups_aligned(groups, cols, x, b, w, sum, y);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_float(w.dtype, [&](auto* gain) {
      using W = std::remove_pointer_t<decltype(gain)>;
      const Forward<T, W> p{.x = grouped<const T>(x, groups, cols),
                            .b = cuda::rows<const T>(b),
                            .w = w.as<const W>(),
                            .sum = cuda::rows<T>(sum),
                            .y = grouped<T>(y, groups, cols),
                            .rstd = grouped<float>(rstd, groups, 1),
                            .rows = rows,
                            .cols = static_cast<int>(cols),
                            .inverse = 1.0f / static_cast<float>(cols),
                            .eps = a.eps};
      with_team<T>(aligned, rows, cols,
                   [&](auto is_aligned, auto warp, auto packs, unsigned blocks, int threads) {
                     auto* kernel = rms_norm_fwd_kernel<T, W, is_aligned(), warp(), packs()>;
                     prefer_shared(kernel);
                     launch(queue(args), kernel, blocks, threads, 0, p);
                   });
    });
  });
}

void norm_bwd(const StepArgs& args, const Operand& dy, const Operand& x, const Operand& w,
              const Operand& rstd, const Operand& base, const Operand& dx, int64_t groups) {
  const int64_t cols = x.cols / groups, rows = x.rows * groups;
  const bool aligned = groups_aligned(groups, cols, dy, x, w, base, dx);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_float(w.dtype, [&](auto* gain) {
      using W = std::remove_pointer_t<decltype(gain)>;
      const Backward<T, W> p{.dy = grouped<const T>(dy, groups, cols),
                             .x = grouped<const T>(x, groups, cols),
                             .w = w.as<const W>(),
                             .rstd = grouped<const float>(rstd, groups, 1),
                             .base = grouped<const T>(base, groups, cols),
                             .dx = grouped<T>(dx, groups, cols),
                             .rows = rows,
                             .cols = static_cast<int>(cols),
                             .inverse = 1.0f / static_cast<float>(cols)};
      with_team<T>(aligned, rows, cols,
                   [&](auto is_aligned, auto warp, auto packs, unsigned blocks, int threads) {
                     auto* kernel = rms_norm_bwd_kernel<T, W, is_aligned(), warp(), packs()>;
                     prefer_shared(kernel);
                     launch(queue(args), kernel, blocks, threads, 0, p);
                   });
    });
  });
}

// dy * x * rstd
template <typename T, bool kAligned>
struct GainTerm {
  Grouped<const T> dy, x;
  Grouped<const float> rstd;
  __device__ void operator()(int64_t row, int col, int left, float (&sum)[kWide]) const {
    const Wide<T> g = load_wide<kAligned>(dy[row] + col, left);
    const Wide<T> v = load_wide<kAligned>(x[row] + col, left);
    const float r = *rstd[row];
#pragma unroll
    for (int i = 0; i < kWide; ++i) sum[i] = fmaf(g[i], v[i] * r, sum[i]);
  }
};

void gain_bwd(const StepArgs& args, const Operand& dy, const Operand& x, const Operand& rstd,
              const Operand& dw, int64_t groups) {
  const int64_t cols = x.cols / groups;
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(groups_aligned(groups, cols, dy, x), [&](auto aligned) {
      column_sums(queue(args), x.rows * groups, cols,
                  GainTerm<T, aligned()>{grouped<const T>(dy, groups, cols),
                                         grouped<const T>(x, groups, cols),
                                         grouped<const float>(rstd, groups, 1)},
                  dw.as<float>(), args.accumulates(1), args.scratch);
    });
  });
}

void rms_norm_fwd(const StepArgs& args) {
  norm_fwd(args, args.in[0], {}, args.in[1], {}, args.out[0], operand_at(args.out, 1));
}
void add_rms_norm_fwd(const StepArgs& args) {
  norm_fwd(args, args.in[0], args.in[1], args.in[2], args.out[0], args.out[1],
           operand_at(args.out, 2));
}

void rms_norm_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &w = args.in[2], &rstd = args.in[3];
  const Operand &dx = args.out[0], dw = operand_at(args.out, 1);
  const int64_t groups = attr<NormAttr>(*args.step).groups;
  if (dx) norm_bwd(args, dy, x, w, rstd, args.accumulates(0) ? dx : Operand{}, dx, groups);
  if (dw) gain_bwd(args, dy, x, rstd, dw, groups);
}
void add_rms_norm_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &dsum = args.in[1], &sum = args.in[2], &w = args.in[3],
                &rstd = args.in[4];
  const Operand &d = args.out[0], dw = operand_at(args.out, 1);
  if (d) norm_bwd(args, dy, sum, w, rstd, dsum, d, 1);
  if (dw) gain_bwd(args, dy, sum, rstd, dw, 1);
}

// Of partial sums, where the gain's gradient is asked for. X is the input that is normed.
template <size_t X>
size_t bwd_scratch(const StepArgs& args, int) {
  if (!operand_at(args.out, 1)) return 0;
  const int64_t groups = attr<NormAttr>(*args.step).groups;
  return column_sums_scratch(args.in[X].rows * groups, args.in[X].cols / groups);
}

}  // namespace

Candidates norm_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kRmsNorm, Dir::kForward, "rms_norm_fwd", rms_norm_fwd, accepts<0b1, 0b10, 0b1>, nullptr},
      {Op::kRmsNorm, Dir::kBackward, "rms_norm_bwd", rms_norm_bwd, accepts<0b11, 0b100, 0b1>,
       bwd_scratch<1>},
      {Op::kAddRmsNorm, Dir::kForward, "add_rms_norm_fwd", add_rms_norm_fwd,
       accepts<0b11, 0b100, 0b11>, nullptr},
      {Op::kAddRmsNorm, Dir::kBackward, "add_rms_norm_bwd", add_rms_norm_bwd,
       accepts<0b111, 0b1000, 0b1>, bwd_scratch<2>},
  };
  return kTable;
}

}  // namespace wick::cuda
