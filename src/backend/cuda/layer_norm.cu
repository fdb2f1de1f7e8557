// SPDX-License-Identifier: Apache-2.0
// layer_norm: a team of threads for each row (row_team.cuh), which asks for gains before the kernel
// before is done; gradients of gains and shifts are sums over rows (columns.cuh).
#include "backend/accepts.h"
#include "backend/cuda/columns.cuh"
#include "backend/cuda/row_team.cuh"

namespace wick::cuda {
namespace {

template <typename T, typename W, typename B>
struct Forward {
  Rows<const T> x;
  const W* w;
  const B* b;  // may be null
  Rows<T> y;
  Rows<float> stats;
  int64_t rows;
  int cols;
  float inverse, eps;  // 1 / cols
};

template <typename T, typename W, typename B, bool kAligned, bool kWarp, int kPacks>
__global__ void __launch_bounds__(kTeamThreads<T, kWarp>)
    layer_norm_fwd_kernel(const __grid_constant__ Forward<T, W, B> p) {
  __shared__ float shared[33];
  const Team<kWarp, kPacks> team;
  const bool kept = team.tile() >= p.cols;
  Kept<T> x[kPacks];
  Kept<W> w[kPacks];
  Kept<B> b[kPacks] = {};
  auto read_gains = [&](int base) {
    load_packs<kAligned>(team, p.w, base, p.cols, w);
    if (p.b != nullptr) load_packs<kAligned>(team, p.b, base, p.cols, b);
  };
  let_next_start();
  if (kept) read_gains(0);  // parameters: no kernel of the graph writes them
  wait_for_previous();
  if (team.row >= p.rows) return;
  const T* from = p.x[team.row];
  // Σ (x - pivot) and Σ (x - pivot)² of the row.
  struct Sums {
    float first, second;
  };
  auto sums_about = [&](float pivot, bool read) {
    float first[2] = {}, second[2] = {};
    for (int base = 0; base < p.cols; base += team.tile()) {
      if (read || !kept) load_packs<kAligned>(team, from, base, p.cols, x);
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const int left = p.cols - team.col(base, i);
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          const float d = (kAligned ? 0 : j) < left ? x[i][j] - pivot : 0.0f;
          first[j % 2] += d;
          second[j % 2] = fmaf(d, d, second[j % 2]);
        }
      }
    }
    return Sums{team.sum(first[0] + first[1], shared), team.sum(second[0] + second[1], shared)};
  };
  float mean, variance;
  if constexpr (sizeof(T) == 2) {
    // One pass: about any element of the row, what cancels is at most cols times the variance, and
    // cols roundings of f32 are less than one of a half.
    const float pivot = to_f32(from[0]);
    const Sums about = sums_about(pivot, true);
    const float from_pivot = about.first * p.inverse;
    mean = pivot + from_pivot;
    variance = fmaxf(fmaf(about.second, p.inverse, -from_pivot * from_pivot), 0.0f);
  } else {
    mean = sums_about(0.0f, true).first * p.inverse;
    variance = sums_about(mean, false).second * p.inverse;
  }
  const float rstd = rsqrtf(variance + p.eps), shift = -mean * rstd;
  if (p.stats && team.rank == 0) {
    p.stats[team.row][0] = mean;
    p.stats[team.row][1] = rstd;
  }
  T* to = p.y[team.row];
  for (int base = 0; base < p.cols; base += team.tile()) {
    if (!kept) {
      load_packs<kAligned>(team, from, base, p.cols, x);
      read_gains(base);
    }
    store_packs<kAligned>(team, to, base, p.cols, [&](int i, int j) {
      const float normed = sizeof(T) == 2 ? fmaf(x[i][j], rstd, shift) : (x[i][j] - mean) * rstd;
      return fmaf(normed, w[i][j], b[i][j]);
    });
  }
}

// dx = rstd * (g - mean g - n * mean(g*n)) + base, with g = dy*w and n = (x - mean) * rstd.
template <typename T, typename W>
struct Backward {
  Rows<const T> dy, x;
  const W* w;
  Rows<const float> stats;
  Rows<T> dx;
  bool add;
  int64_t rows;
  int cols;
  float inverse;  // 1 / cols
};

template <typename T, typename W, bool kAligned, bool kWarp, int kPacks>
__global__ void __launch_bounds__(kTeamThreads<T, kWarp>)
    layer_norm_bwd_kernel(const __grid_constant__ Backward<T, W> p) {
  __shared__ float shared[33];
  begin_kernel();
  const Team<kWarp, kPacks> team;
  if (team.row >= p.rows) return;
  const float mean = p.stats[team.row][0], rstd = p.stats[team.row][1];
  T* to = p.dx[team.row];
  Kept<T> x[kPacks], dy[kPacks], before[kPacks];
  Kept<W> w[kPacks];
  auto read = [&](int base) {
    load_packs<kAligned>(team, p.x[team.row], base, p.cols, x);
    load_packs<kAligned>(team, p.dy[team.row], base, p.cols, dy);
    load_packs<kAligned>(team, p.w, base, p.cols, w);
    if (p.add) load_packs<kAligned>(team, static_cast<const T*>(to), base, p.cols, before);
  };
  float sum = 0, dot = 0;
  for (int base = 0; base < p.cols; base += team.tile()) {
    read(base);
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        // Beyond the row dy is 0. Rounded here as below, so that what cancels does so to the bit.
        const float g = __fmul_rn(dy[i][j], w[i][j]);
        sum += g;
        dot = fmaf(g, (x[i][j] - mean) * rstd, dot);
      }
  }
  const float sum_mean = team.sum(sum, shared) * p.inverse;
  const float dot_mean = team.sum(dot, shared) * p.inverse;
  for (int base = 0; base < p.cols; base += team.tile()) {
    if (team.tile() < p.cols) read(base);
    store_packs<kAligned>(team, to, base, p.cols, [&](int i, int j) {
      const float n = (x[i][j] - mean) * rstd;
      const float d = rstd * fmaf(-n, dot_mean, __fmul_rn(dy[i][j], w[i][j]) - sum_mean);
      return p.add ? d + before[i][j] : d;
    });
  }
}

void layer_norm_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &y = args.out[0];
  const Operand b = operand_at(args.in, 2), stats = operand_at(args.out, 1);
  const bool aligned = wide_aligned(x, w, b, y);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_float(w.dtype, [&](auto* gain) {
      using W = std::remove_pointer_t<decltype(gain)>;
      with_float(b ? b.dtype : w.dtype, [&](auto* shift) {
        using B = std::remove_pointer_t<decltype(shift)>;
        const Forward<T, W, B> p{.x = cuda::rows<const T>(x),
                                 .w = w.as<const W>(),
                                 .b = b ? b.as<const B>() : nullptr,
                                 .y = cuda::rows<T>(y),
                                 .stats = cuda::rows<float>(stats),
                                 .rows = x.rows,
                                 .cols = static_cast<int>(x.cols),
                                 .inverse = 1.0f / static_cast<float>(x.cols),
                                 .eps = attr<NormAttr>(*args.step).eps};
        with_team<T>(aligned, x.rows, x.cols,
                     [&](auto is_aligned, auto warp, auto packs, unsigned blocks, int threads) {
                       auto* kernel = layer_norm_fwd_kernel<T, W, B, is_aligned(), warp(), packs()>;
                       prefer_shared(kernel);
                       launch(queue(args), kernel, blocks, threads, 0, p);
                     });
      });
    });
  });
}

// dy * n, or dy alone.
template <typename T, bool kAligned, bool kNormed>
struct GainTerm {
  Rows<const T> dy, x;
  Rows<const float> stats;
  __device__ void operator()(int64_t row, int col, int left, float (&sum)[kWide]) const {
    const Wide<T> g = load_wide<kAligned>(dy[row] + col, left);
    if constexpr (kNormed) {
      const Wide<T> v = load_wide<kAligned>(x[row] + col, left);
      const float mean = stats[row][0], rstd = stats[row][1];
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum[i] = fmaf(g[i], (v[i] - mean) * rstd, sum[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum[i] += g[i];
    }
  }
};

void layer_norm_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &w = args.in[2], &stats = args.in[3];
  const Operand &dx = args.out[0], dw = operand_at(args.out, 1), db = operand_at(args.out, 2);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (dx)
      with_float(w.dtype, [&](auto* gain) {
        using W = std::remove_pointer_t<decltype(gain)>;
        const Backward<T, W> p{.dy = cuda::rows<const T>(dy),
                               .x = cuda::rows<const T>(x),
                               .w = w.as<const W>(),
                               .stats = cuda::rows<const float>(stats),
                               .dx = cuda::rows<T>(dx),
                               .add = args.accumulates(0),
                               .rows = x.rows,
                               .cols = static_cast<int>(x.cols),
                               .inverse = 1.0f / static_cast<float>(x.cols)};
        with_team<T>(wide_aligned(dy, x, w, dx), x.rows, x.cols,
                     [&](auto is_aligned, auto warp, auto packs, unsigned blocks, int threads) {
                       auto* kernel = layer_norm_bwd_kernel<T, W, is_aligned(), warp(), packs()>;
                       prefer_shared(kernel);
                       launch(queue(args), kernel, blocks, threads, 0, p);
                     });
      });
    with_bool(wide_aligned(dy, x), [&](auto aligned) {
      auto sums = [&](auto normed, const Operand& to, int out) {
        column_sums(
            queue(args), x.rows, x.cols,
            GainTerm<T, aligned(), normed()>{cuda::rows<const T>(dy), cuda::rows<const T>(x),
                                             cuda::rows<const float>(stats)},
            to.as<float>(), args.accumulates(out), args.scratch);
      };
      if (dw) sums(std::true_type{}, dw, 1);
      if (db) sums(std::false_type{}, db, 2);
    });
  });
}

size_t bwd_scratch(const StepArgs& args, int) {
  const bool sums = operand_at(args.out, 1) || operand_at(args.out, 2);
  return sums ? column_sums_scratch(args.in[1].rows, args.in[1].cols) : 0;
}

}  // namespace

Candidates layer_norm_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kLayerNorm, Dir::kForward, "layer_norm_fwd", layer_norm_fwd, accepts<0b1, 0b110, 0b1>,
       nullptr},
      {Op::kLayerNorm, Dir::kBackward, "layer_norm_bwd", layer_norm_bwd, accepts<0b11, 0b100, 0b1>,
       bwd_scratch},
  };
  return kTable;
}

}  // namespace wick::cuda
