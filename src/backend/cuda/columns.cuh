// SPDX-License-Identifier: Apache-2.0
// Sums over rows, a column each: gradients of gains and biases.
//
// Two stages: stripes of rows into partial sums in scratch, then these. The cut into stripes
// depends on the number of rows alone, so the bits do not depend on timing.
#pragma once

#include "backend/cuda/wide.cuh"

namespace wick::cuda {

constexpr int kColumnThreads = 64;
constexpr int64_t kMostStripes = 256, kLeastStripe = 16;

inline int64_t stripe_rows(int64_t rows) {
  const int64_t even = divide_up(rows, kMostStripes);
  return even < kLeastStripe ? kLeastStripe : even;
}
inline int64_t padded_columns(int64_t cols) { return divide_up(cols, kWide) * kWide; }
inline size_t column_sums_scratch(int64_t rows, int64_t cols) {
  return static_cast<size_t>(divide_up(rows, stripe_rows(rows)) * padded_columns(cols)) *
         sizeof(float);
}

// term(row, col, left, sum) adds the row's `left` columns from col on to sum.
template <typename Term>
__global__ void __launch_bounds__(kColumnThreads)
    column_stripes_kernel(int64_t rows, int cols, int64_t stripe, int64_t ld, float* partial,
                          Term term) {
  const int col = static_cast<int>(blockIdx.x * kColumnThreads + threadIdx.x) * kWide;
  if (col >= cols) return;
  const int64_t begin = blockIdx.y * stripe, end = begin + stripe < rows ? begin + stripe : rows;
  float sum[kWide] = {};
#pragma unroll 4
  for (int64_t r = begin; r < end; ++r) term(r, col, cols - col, sum);
  float* to = partial + blockIdx.y * ld + col;
  store(to, Pack<float, 4>{sum[0], sum[1], sum[2], sum[3]});
  store(to + 4, Pack<float, 4>{sum[4], sum[5], sum[6], sum[7]});
}

// A block owns 32 columns; each of its warps sums a stretch of the stripes in order, the first
// warp the stretches.
template <int kWarps>
__global__ void __launch_bounds__(32 * kWarps)
    column_totals_kernel(const float* partial, int64_t ld, int stripes, int cols, float* y,
                         bool add) {
  __shared__ float sums[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int col = static_cast<int>(blockIdx.x) * 32 + lane;
  const int each = (stripes + kWarps - 1) / kWarps;
  const int begin = warp * each, end = min(stripes, begin + each);
  float sum = 0;
  if (col < cols) {
#pragma unroll 8
    for (int s = begin; s < end; ++s) sum += partial[s * ld + col];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= cols) return;
  float total = add ? y[col] : 0.0f;
  for (int w = 0; w < kWarps; ++w) total += sums[w][lane];
  y[col] = total;
}

// y[c] = Σ_r term, or added to y. `scratch` holds column_sums_scratch() bytes.
template <typename Term>
void column_sums(const Queue& queue, int64_t rows, int64_t cols, const Term& term, float* y,
                 bool add, void* scratch) {
  if (cols == 0) return;
  const int64_t stripe = stripe_rows(rows), stripes = divide_up(rows, stripe);
  const int64_t ld = padded_columns(cols);
  auto* partial = static_cast<float*>(scratch);
  if (stripes > 0) {
    const dim3 grid(static_cast<unsigned>(divide_up(cols, kColumnThreads * kWide)),
                    static_cast<unsigned>(stripes));
    column_stripes_kernel<<<grid, kColumnThreads, 0, queue.stream>>>(rows, static_cast<int>(cols),
                                                                     stripe, ld, partial, term);
  }
  constexpr int kWarps = 8;
  column_totals_kernel<kWarps>
      <<<static_cast<unsigned>(divide_up(cols, 32)), 32 * kWarps, 0, queue.stream>>>(
          partial, ld, static_cast<int>(stripes), static_cast<int>(cols), y, add);
}

}  // namespace wick::cuda
