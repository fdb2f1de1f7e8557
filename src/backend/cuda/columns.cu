// SPDX-License-Identifier: Apache-2.0
// column_scale, column_norm: DoRA's magnitudes.
#include "backend/accepts.h"
#include "backend/cuda/columns.cuh"

namespace wick::cuda {
namespace {

template <typename T, bool kAligned>
struct ScaleColumns {
  Rows<const T> x;
  const float *m, *norm;
  Rows<T> y;
  bool add;
  __device__ void operator()(int64_t t, int c, int left) const {
    Wide<T> v = load_wide<kAligned>(x[t] + c, left), old;
    const Wide<float> top = load_wide<kAligned>(m + c, left);
    const Wide<float> bottom = load_wide<kAligned>(norm + c, left);
    if (add) old = load_wide<kAligned>(y[t] + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float scaled = i < left ? v[i] * (top[i] / bottom[i]) : 0.0f;
      v.set(i, add ? old[i] + scaled : scaled);
    }
    store_wide<kAligned>(y[t] + c, left, v);
  }
};

void scale_columns(const StepArgs& args, const Operand& x, const Operand& m, const Operand& norm) {
  const Operand& y = args.out[0];
  with_activation(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(x, m, norm, y), [&](auto aligned) {
      each_wide(
          queue(args), y.rows, y.cols,
          ScaleColumns<T, aligned()>{rows<const T>(x), m.as<const float>(), norm.as<const float>(),
                                     rows<T>(y), args.accumulates(0)});
    });
  });
}

void column_scale_fwd(const StepArgs& args) {
  scale_columns(args, args.in[0], args.in[1], args.in[2]);
}

template <typename T, bool kAligned>
struct MagnitudeTerm {
  Rows<const T> dy, x;
  const float* norm;
  __device__ void operator()(int64_t t, int c, int left, float (&sum)[kWide]) const {
    const Wide<T> g = load_wide<kAligned>(dy[t] + c, left), v = load_wide<kAligned>(x[t] + c, left);
    const Wide<float> bottom = load_wide<kAligned>(norm + c, left);
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      if (i < left) sum[i] += g[i] * v[i] / bottom[i];
  }
};

void column_scale_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &norm = args.in[3];
  if (args.out[0]) scale_columns(args, dy, args.in[2], norm);
  const Operand dm = operand_at(args.out, 1);
  if (!dm) return;
  with_activation(dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_bool(wide_aligned(dy, x, norm), [&](auto aligned) {
      column_sums(
          queue(args), dy.rows, dy.cols,
          MagnitudeTerm<T, aligned()>{rows<const T>(dy), rows<const T>(x), norm.as<const float>()},
          dm.as<float>(), args.accumulates(1), args.scratch);
    });
  });
}
size_t column_scale_bwd_scratch(const StepArgs& args, int) {
  return operand_at(args.out, 1) ? column_sums_scratch(args.in[0].rows, args.in[0].cols) : 0;
}

// gram[r, q] = a[r]·a[q], a warp each.
__global__ void __launch_bounds__(32)
    gram_kernel(const float* a, int64_t ld, int64_t cols, float* gram) {
  const int64_t r = blockIdx.y, q = blockIdx.x;
  float sum = 0;
  for (int64_t k = threadIdx.x; k < cols; k += 32) sum = fmaf(a[r * ld + k], a[q * ld + k], sum);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x == 0) gram[r * gridDim.x + q] = sum;
}

template <typename T>
__global__ void __launch_bounds__(128)
    column_norm_kernel(const float* base, Rows<const T> wa, Rows<const float> b, const float* gram,
                       int rank, int64_t cols, float s, float* y) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= cols) return;
  const float* bs = b[n];
  float cross = 0, square = 0;
  for (int r = 0; r < rank; ++r) {
    cross = fmaf(bs[r], to_f32(wa[r][n]), cross);
    float sum = 0;
    for (int q = 0; q < rank; ++q) sum = fmaf(gram[r * rank + q], bs[q], sum);
    square = fmaf(sum, bs[r], square);
  }
  y[n] = sqrtf(fmaxf(base[n] + 2 * s * cross + s * s * square, 0.0f));
}

void column_norm_fwd(const StepArgs& args) {
  const Operand &base = args.in[0], &wa = args.in[1], &a = args.in[2], &b = args.in[3];
  const Queue& q = queue(args);
  auto* gram = static_cast<float*>(args.scratch);
  const auto rank = static_cast<unsigned>(a.rows);
  gram_kernel<<<dim3(rank, rank), 32, 0, q.stream>>>(a.as<const float>(), a.ld, a.cols, gram);
  with_activation(wa.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    column_norm_kernel<T>
        <<<static_cast<unsigned>(divide_up(base.elements(), 128)), 128, 0, q.stream>>>(
            base.as<const float>(), rows<const T>(wa), rows<const float>(b), gram,
            static_cast<int>(a.rows), base.elements(), attr<ColumnNormAttr>(*args.step).scale,
            args.out[0].as<float>());
  });
}
size_t column_norm_scratch(const StepArgs& args, int) {
  return static_cast<size_t>(args.in[2].rows * args.in[2].rows) * sizeof(float);
}

}  // namespace

Candidates column_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kColumnScale, Dir::kForward, "column_scale_fwd", column_scale_fwd, accepts<0b1, 0, 0b1>,
       nullptr},
      {Op::kColumnScale, Dir::kBackward, "column_scale_bwd", column_scale_bwd,
       accepts<0b11, 0, 0b1>, column_scale_bwd_scratch},
      {Op::kColumnNorm, Dir::kForward, "column_norm_fwd", column_norm_fwd, accepts<0b10, 0, 0>,
       column_norm_scratch},
  };
  return kTable;
}

}  // namespace wick::cuda
