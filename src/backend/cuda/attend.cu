// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/attend.h"
#include "backend/cuda/attend_launch.cuh"

namespace wick::cuda {
namespace {

constexpr int64_t kMostPositions = 1 << 14;  // a longer range is better cut finer
constexpr int kMostGroup = 8;                // heads of a kv head

__global__ void sum_parts_fwd(const float* parts, int count, int64_t stride, Rows<Bf16> y,
                              int cols) {
  begin_kernel();
  const int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (c >= cols) return;
  float sum = parts[r * cols + c];
  for (int i = 1; i < count; ++i) sum += parts[i * stride + r * cols + c];
  y[r][c] = from_f32<Bf16>(sum);
}

}  // namespace

bool attend(const Queue& queue, const Attend& a) {
  const MatvecRotation& r = a.rotation;
  const Operand& x = a.in.a;
  if (queue.arch != Arch::kSm90 || x.rows < 1 || x.rows > kAttendRows || x.cols % 64 != 0 ||
      r.head_dim != 64 || r.kv_heads > kMostParts || r.heads / r.kv_heads > kMostGroup ||
      r.table.rows > kMostPositions || a.scale <= 0.0f || a.out.cols != r.heads * r.head_dim)
    return false;
  for (const Operand& o : {a.in.a, a.in.b, a.in.sum, r.cache_k, r.cache_v})
    if (o && (o.dtype != DType::kBF16 || !aligned16(o))) return false;
  if (a.in.normed || reinterpret_cast<uintptr_t>(a.in.gain.data) % 16 != 0 ||
      x.cols > kStretchColumns * kMostStretches || a.qkv.dtype != a.out.dtype || !has_codes(a.qkv))
    return false;
  return quant_bits(a.qkv.dtype) == 8 ? attend_codes<8>(queue, a) : attend_codes<4>(queue, a);
}

void sum_parts(const Queue& queue, const float* parts, int count, const Operand& y) {
  const dim3 grid(static_cast<unsigned>(divide_up(y.cols, 128)), static_cast<unsigned>(y.rows));
  launch(queue, sum_parts_fwd, grid, 128, 0, parts, count, y.rows * y.cols, rows<Bf16>(y),
         static_cast<int>(y.cols));
}

}  // namespace wick::cuda
