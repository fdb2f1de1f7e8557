// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/device.cuh"
#include "backend/cuda/parts.h"

namespace wick::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSharers = 8;  // where parts are many

__global__ void __launch_bounds__(kThreads) add_parts_kernel(const __grid_constant__ AllParts all) {
  __shared__ Pack<float, 4> shared[kThreads];
  begin_kernel();
  int at = all.count - 1;
  while (all.at[at].first_block > static_cast<int>(blockIdx.x)) --at;
  const Parts& p = all.at[at];
  const int sharers = p.sharers, quads = kThreads / sharers;
  const int quad = static_cast<int>(threadIdx.x) % quads,
            sharer = static_cast<int>(threadIdx.x) / quads;
  const int64_t e =
      4 * (static_cast<int64_t>(static_cast<int>(blockIdx.x) - p.first_block) * quads + quad);
  const int64_t size = static_cast<int64_t>(p.rows) * p.r;
  const int each = (p.parts + sharers - 1) / sharers;
  const int first = sharer * each, last = min(p.parts, first + each);
  Pack<float, 4> sum{};
  if (e < size) {
#pragma unroll 8
    for (int i = first; i < last; ++i) {
      const Pack<float, 4> x = load<4>(p.from + i * size + e);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.at[j] += x.at[j];
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (sharer > 0 || e >= size) return;
  for (int i = 1; i < sharers; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.at[j] += shared[i * quads + quad].at[j];
  const int64_t row = e / p.r;
  const int rank = static_cast<int>(e - row * p.r);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t to = row * p.row_step + static_cast<int64_t>(rank + j) * p.rank_step;
    if (p.half) {
      Bf16* y = static_cast<Bf16*>(p.y) + to;
      *y = from_f32<Bf16>(fmaf(p.alpha, sum.at[j], p.adds ? to_f32(*y) : 0.0f));
    } else {
      float* y = static_cast<float*>(p.y) + to;
      *y = fmaf(p.alpha, sum.at[j], p.adds ? *y : 0.0f);
    }
  }
}

}  // namespace

void AllParts::add(Parts p) {
  p.sharers = p.parts > kSharers ? kSharers : 1;
  p.first_block = blocks;
  blocks +=
      static_cast<int>(divide_up(static_cast<int64_t>(p.rows) * p.r, 4 * kThreads / p.sharers));
  at[count++] = p;
}

void add_parts(const Queue& queue, const AllParts& all) {
  launch(queue, add_parts_kernel, static_cast<unsigned>(all.blocks), kThreads, 0, all);
}

}  // namespace wick::cuda
