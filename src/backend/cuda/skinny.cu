// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/mma.cuh"
#include "backend/cuda/skinny.h"

namespace wick::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kRows = 16;

// Sums of the warps, each of its part of k, in the order of the warps; put(row, r, sum) by all
// threads.
template <int Tiles, typename Put>
__device__ void sum_warps(const float (&sums)[Tiles][4], float* shared, Put put) {
  constexpr int kCols = 8 * Tiles;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float* own = shared + warp * kRows * kCols;
  for (int j = 0; j < Tiles; ++j) {
    own[g * kCols + 8 * j + 2 * t] = sums[j][0];
    own[g * kCols + 8 * j + 2 * t + 1] = sums[j][1];
    own[(g + 8) * kCols + 8 * j + 2 * t] = sums[j][2];
    own[(g + 8) * kCols + 8 * j + 2 * t + 1] = sums[j][3];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kCols; i += kThreads) {
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += shared[w * kRows * kCols + i];
    put(i / kCols, i % kCols, total);
  }
}

// A block makes 16 rows; its warps share out k in pieces of 32. Within a piece a lane takes 8
// neighbours of k: which k meets which slot of the tensor core does not matter, as long as a and b
// agree.
template <int Tiles, bool ByRank>
__global__ void __launch_bounds__(kThreads)
    narrow(Rows<const Bf16> a, Rows<const float> b, Rows<Bf16> y, int64_t m, int64_t k, int r,
           float alpha, bool accumulate) {
  __shared__ float shared[kWarps * kRows * 8 * Tiles];
  begin_kernel();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t m0 = static_cast<int64_t>(blockIdx.x) * kRows;
  float sums[Tiles][4] = {};
  for (int64_t k0 = warp * 32; k0 < k; k0 += kWarps * 32) {
    const int64_t at = k0 + 8 * t;
    const bool inside = at < k;
    Pack<Bf16, 8> low{}, high{};
    if (inside && m0 + g < m) low = load<8>(a[m0 + g] + at);
    if (inside && m0 + g + 8 < m) high = load<8>(a[m0 + g + 8] + at);
    for (int j = 0; j < Tiles; ++j) {
      const int col = 8 * j + g;
      float w[8] = {};
      if (inside && col < r) {
        if constexpr (ByRank) {
          const Pack<float, 4> w0 = load<4>(b[col] + at), w1 = load<4>(b[col] + at + 4);
          for (int i = 0; i < 4; ++i) w[i] = w0.at[i], w[4 + i] = w1.at[i];
        } else {
          for (int i = 0; i < 8; ++i) w[i] = b[at + i][col];
        }
      }
      for (int half = 0; half < 2; ++half) {
        const int i = 4 * half;
        const uint32_t fa[4] = {
            pack_bf16(low.at[i], low.at[i + 1]), pack_bf16(high.at[i], high.at[i + 1]),
            pack_bf16(low.at[i + 2], low.at[i + 3]), pack_bf16(high.at[i + 2], high.at[i + 3])};
        const uint32_t fb[2] = {pack_bf16(w[i], w[i + 1]), pack_bf16(w[i + 2], w[i + 3])};
        mma_bf16(sums[j], fa, fb);
      }
    }
  }
  sum_warps<Tiles>(sums, shared, [&](int row, int col, float sum) {
    if (m0 + row >= m || col >= r) return;
    Bf16* at = y[m0 + row] + col;
    *at = from_f32<Bf16>(alpha * sum + (accumulate ? to_f32(*at) : 0.0f));
  });
}

constexpr int kTurnedDepth = 32, kTurnedLd = 24;  // of k at once; of a row in shared memory

// A block makes 16 rows of the product, that is 16 columns of a, which its warps read in pieces of
// 32 rows and turn through shared memory.
template <int Tiles>
__global__ void __launch_bounds__(kThreads)
    narrow_turned(Rows<const Bf16> a, Rows<const Bf16> b, Rows<float> y, int64_t m, int64_t k,
                  int r, float alpha, bool accumulate, bool y_by_rank) {
  constexpr int kPieces = kWarps * kTurnedDepth * kTurnedLd * static_cast<int>(sizeof(Bf16));
  constexpr int kSums = kWarps * kRows * 8 * Tiles * static_cast<int>(sizeof(float));
  __shared__ __align__(16) char shared[kPieces > kSums ? kPieces : kSums];
  begin_kernel();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t m0 = static_cast<int64_t>(blockIdx.x) * kRows;
  Bf16* piece = reinterpret_cast<Bf16*>(shared) + warp * kTurnedDepth * kTurnedLd;
  float sums[Tiles][4] = {};
  for (int64_t k0 = warp * kTurnedDepth; k0 < k; k0 += kWarps * kTurnedDepth) {
    Pack<Bf16, 8> left{}, right{};
    if (k0 + lane < k) {
      left = load<8>(a[k0 + lane] + m0);
      if (m0 + 8 < m) right = load<8>(a[k0 + lane] + m0 + 8);
    }
    __syncwarp();
    store(piece + lane * kTurnedLd, left);
    store(piece + lane * kTurnedLd + 8, right);
    __syncwarp();
    for (int half = 0; half < 2; ++half) {
      uint32_t fa[4];
      const int matrix = lane / 8;
      load_turned(fa,
                  piece + (16 * half + 8 * (matrix / 2) + lane % 8) * kTurnedLd + 8 * (matrix % 2));
      for (int j = 0; j < Tiles; ++j) {
        const int col = 8 * j + g;
        auto value = [&](int i) {
          const int64_t row = k0 + 16 * half + i;
          return row < k && col < r ? b[row][col] : Bf16(0.0f);
        };
        const uint32_t fb[2] = {pack_bf16(value(2 * t), value(2 * t + 1)),
                                pack_bf16(value(2 * t + 8), value(2 * t + 9))};
        mma_bf16(sums[j], fa, fb);
      }
    }
  }
  __syncthreads();
  sum_warps<Tiles>(sums, reinterpret_cast<float*>(shared), [&](int row, int col, float sum) {
    if (m0 + row >= m || col >= r) return;
    float* at = y_by_rank ? y[col] + m0 + row : y[m0 + row] + col;
    *at = alpha * sum + (accumulate ? *at : 0.0f);
  });
}

constexpr int kWideThreads = 128, kWideRows = 4;

// A thread makes 8 columns of 4 rows, 8 ranks at a time.
template <bool ByRank>
__global__ void __launch_bounds__(kWideThreads)
    wide(Rows<const Bf16> a, Rows<const float> b, Rows<Bf16> y, int64_t m, int64_t n, int r,
         float alpha, bool accumulate) {
  begin_kernel();
  const int64_t n0 = (static_cast<int64_t>(blockIdx.x) * kWideThreads + threadIdx.x) * 8;
  const int64_t m0 = static_cast<int64_t>(blockIdx.y) * kWideRows;
  if (n0 >= n) return;
  float sums[kWideRows][8] = {};
  for (int r0 = 0; r0 < r; r0 += 8) {
    float w[8][8];  // rank, column
    for (int i = 0; i < 8; ++i) {
      if constexpr (ByRank) {
        const bool inside = r0 + i < r;
        const Pack<float, 4> w0 = inside ? load<4>(b[r0 + i] + n0) : Pack<float, 4>{};
        const Pack<float, 4> w1 = inside ? load<4>(b[r0 + i] + n0 + 4) : Pack<float, 4>{};
        for (int j = 0; j < 4; ++j) w[i][j] = w0.at[j], w[i][4 + j] = w1.at[j];
      } else {
        for (int j = 0; j < 8; ++j) w[i][j] = r0 + i < r ? b[n0 + j][r0 + i] : 0.0f;
      }
    }
    for (int row = 0; row < kWideRows; ++row) {
      if (m0 + row >= m) break;
      for (int i = 0; i < 8 && r0 + i < r; ++i) {
        const float h = to_f32(a[m0 + row][r0 + i]);
        for (int j = 0; j < 8; ++j) sums[row][j] = fmaf(h, w[i][j], sums[row][j]);
      }
    }
  }
  for (int row = 0; row < kWideRows && m0 + row < m; ++row) {
    Bf16* at = y[m0 + row] + n0;
    Pack<Bf16, 8> old{};
    if (accumulate) old = load<8>(at);
    for (int j = 0; j < 8; ++j)
      old.at[j] = from_f32<Bf16>(alpha * sums[row][j] + (accumulate ? to_f32(old.at[j]) : 0.0f));
    store(at, old);
  }
}

template <typename F>
void with_tiles(int64_t r, F&& f) {
  if (r <= 8)
    f(std::integral_constant<int, 1>());
  else if (r <= 16)
    f(std::integral_constant<int, 2>());
  else if (r <= 32)
    f(std::integral_constant<int, 4>());
  else
    f(std::integral_constant<int, 8>());
}

bool is(const Operand& o, DType dtype) { return o.dtype == dtype && o.form == WeightForm::kRows; }

}  // namespace

bool narrow_product(const Queue& queue, float alpha, bool accumulate, bool b_by_rank,
                    const Operand& a, const Operand& b, const Operand& y) {
  if (y.cols > kSkinny || !is(a, DType::kBF16) || !is(b, DType::kF32) || !is(y, DType::kBF16) ||
      !aligned16(a) || (b_by_rank && !aligned16(b)) || a.cols % 8 != 0)
    return false;
  const auto blocks = static_cast<unsigned>(divide_up(a.rows, kRows));
  with_tiles(y.cols, [&](auto tiles) {
    auto* kernel = b_by_rank ? narrow<tiles(), true> : narrow<tiles(), false>;
    launch(queue, kernel, blocks, kThreads, 0, rows<const Bf16>(a), rows<const float>(b),
           rows<Bf16>(y), a.rows, a.cols, static_cast<int>(y.cols), alpha, accumulate);
  });
  return true;
}

bool narrow_product_turned(const Queue& queue, float alpha, bool accumulate, bool y_by_rank,
                           const Operand& a, const Operand& b, const Operand& y) {
  if (b.cols > kSkinny || !is(a, DType::kBF16) || !is(b, DType::kBF16) || !is(y, DType::kF32) ||
      !aligned16(a))
    return false;
  const auto blocks = static_cast<unsigned>(divide_up(a.cols, kRows));
  with_tiles(b.cols, [&](auto tiles) {
    launch(queue, narrow_turned<tiles()>, blocks, kThreads, 0, rows<const Bf16>(a),
           rows<const Bf16>(b), rows<float>(y), a.cols, a.rows, static_cast<int>(b.cols), alpha,
           accumulate, y_by_rank);
  });
  return true;
}

bool wide_product(const Queue& queue, float alpha, bool accumulate, bool b_by_rank,
                  const Operand& a, const Operand& b, const Operand& y) {
  if (a.cols > kSkinny || !is(a, DType::kBF16) || !is(b, DType::kF32) || !is(y, DType::kBF16) ||
      !aligned16(y) || (b_by_rank && !aligned16(b)))
    return false;
  const dim3 grid(static_cast<unsigned>(divide_up(y.cols, kWideThreads * 8)),
                  static_cast<unsigned>(divide_up(y.rows, kWideRows)));
  if (grid.y > 65535) return false;
  auto* kernel = b_by_rank ? wide<true> : wide<false>;
  launch(queue, kernel, grid, kWideThreads, 0, rows<const Bf16>(a), rows<const float>(b),
         rows<Bf16>(y), y.rows, y.cols, static_cast<int>(a.cols), alpha, accumulate);
  return true;
}

}  // namespace wick::cuda
