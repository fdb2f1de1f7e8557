// SPDX-License-Identifier: Apache-2.0
// Products: cuBLASLt where the operands lie as it wants them, an exact kernel of plain loops for
// everything else. Operands of different types are brought to one in scratch first.
#include "backend/cuda/blas.h"
#include "backend/cuda/codes.cuh"
#include "backend/cuda/widen.h"
#include "base/check.h"

namespace wick::cuda {
namespace {

// ---- elements whose type is known at run time only

__device__ float element(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kBF16:
      return to_f32(static_cast<const Bf16*>(data)[i]);
    case DType::kF16:
      return to_f32(static_cast<const F16*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}
__device__ void put(void* data, DType dtype, int64_t i, float x) {
  switch (dtype) {
    case DType::kBF16:
      static_cast<Bf16*>(data)[i] = from_f32<Bf16>(x);
      break;
    case DType::kF16:
      static_cast<F16*>(data)[i] = from_f32<F16>(x);
      break;
    default:
      static_cast<float*>(data)[i] = x;
  }
}

// ---- any strides, any types

struct Strided {
  const void* data;
  DType dtype;
  int64_t along_k, across_k;
};

constexpr int kTile = 64, kDepth = 16, kThreads = 256;

// A block makes 64 x 64 elements of y, a thread 4 x 4 of them; k is summed in order.
__global__ void __launch_bounds__(kThreads)
    product_any(Strided a, Strided b, void* y, DType y_dtype, int64_t y_ld, const void* bias,
                DType bias_dtype, int64_t m, int64_t n, int64_t k, float alpha, bool accumulate) {
  __shared__ float as[kDepth][kTile + 1], bs[kDepth][kTile + 1];
  const int64_t m0 = static_cast<int64_t>(blockIdx.y) * kTile,
                n0 = static_cast<int64_t>(blockIdx.x) * kTile;
  const int row = threadIdx.x / 16, col = threadIdx.x % 16;
  float sums[4][4] = {};
  for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      const int r = i / kDepth, d = i % kDepth;
      const bool deep = k0 + d < k;
      as[d][r] = deep && m0 + r < m
                     ? element(a.data, a.dtype, (m0 + r) * a.across_k + (k0 + d) * a.along_k)
                     : 0.0f;
      bs[d][r] = deep && n0 + r < n
                     ? element(b.data, b.dtype, (n0 + r) * b.across_k + (k0 + d) * b.along_k)
                     : 0.0f;
    }
    __syncthreads();
    for (int d = 0; d < kDepth; ++d)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
          sums[i][j] = fmaf(as[d][row + 16 * i], bs[d][col + 16 * j], sums[i][j]);
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const int64_t r = m0 + row + 16 * i, c = n0 + col + 16 * j;
      if (r >= m || c >= n) continue;
      float x = alpha * sums[i][j];
      if (bias != nullptr) x += element(bias, bias_dtype, c);
      if (accumulate) x += element(y, y_dtype, r * y_ld + c);
      put(y, y_dtype, r * y_ld + c, x);
    }
}

// ---- bringing an operand to another type: rows x cols, dense in `to`

__global__ void cast_rows(const void* from, DType from_dtype, int64_t ld, void* to, DType to_dtype,
                          int64_t rows, int64_t cols) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < rows * cols;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    put(to, to_dtype, i, element(from, from_dtype, i / cols * ld + i % cols));
}

unsigned blocks_for(int64_t work, int sms) {
  return static_cast<unsigned>(
      std::max<int64_t>(1, std::min<int64_t>(divide_up(work, kThreads), int64_t{16} * sms)));
}

Operand cast(const Queue& queue, const Operand& from, DType to, void* scratch) {
  Operand made{.data = scratch, .rows = from.rows, .cols = from.cols, .ld = from.cols, .dtype = to};
  if (has_codes(from)) {
    widen(queue, from, made);
    return made;
  }
  cast_rows<<<blocks_for(from.elements(), queue.sms), kThreads, 0, queue.stream>>>(
      from.data, from.dtype, from.ld, scratch, to, from.rows, from.cols);
  return made;
}

// The type that b is brought to: a's. a is an activation or a gradient, so f32 stays exact.
bool needs_cast(const Operand& a, const Operand& b) { return has_codes(b) || a.dtype != b.dtype; }

}  // namespace

size_t widened_bytes(const Operand& a, const Operand& b) {
  if (!needs_cast(a, b)) return 0;
  return static_cast<size_t>(divide_up(b.elements(), 256) * 256) * dtype_bytes(a.dtype);
}

size_t product_scratch(const Product&, const Operand& a, const Operand& b, const Operand&, int) {
  return widened_bytes(a, b) + Blas::kWorkspace;
}

void product(const Queue& queue, const Product& p, const Operand& a, const Operand& b,
             const Operand& y, void* scratch, const Operand& bias) {
  if (y.elements() == 0) return;
  const int64_t k = p.trans == Trans::kTN ? a.rows : a.cols;
  WICK_CHECK(!p.bare || !needs_cast(a, b), "a product without scratch has operands of two types");
  auto* workspace = p.bare ? nullptr : static_cast<std::byte*>(scratch) + widened_bytes(a, b);
  const Operand right = needs_cast(a, b) && k > 0 ? cast(queue, b, a.dtype, scratch) : b;
  const bool library = queue.blas != nullptr && k > 0 && aligned16(a) && aligned16(right) &&
                       aligned16(y) && (!bias || bias.dtype == y.dtype) &&
                       (y.dtype == a.dtype || y.dtype == DType::kF32);
  if (library && queue.blas->multiply(queue, p, a, right, y, bias, workspace)) return;
  const bool a_turned = p.trans == Trans::kTN, b_turned = p.trans != Trans::kNT;
  const Strided left{a.data, a.dtype, a_turned ? a.ld : 1, a_turned ? 1 : a.ld};
  const Strided other{right.data, right.dtype, b_turned ? right.ld : 1, b_turned ? 1 : right.ld};
  const dim3 grid(static_cast<unsigned>(divide_up(y.cols, kTile)),
                  static_cast<unsigned>(divide_up(y.rows, kTile)));
  product_any<<<grid, kThreads, 0, queue.stream>>>(left, other, y.data, y.dtype, y.ld, bias.data,
                                                   bias.dtype, y.rows, y.cols, k, p.alpha,
                                                   p.accumulate);
}

}  // namespace wick::cuda
