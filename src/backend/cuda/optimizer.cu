// SPDX-License-Identifier: Apache-2.0
// grad_norm and adamw over flat arrays of all parameters: bound by bytes.
#include <algorithm>

#include "backend/accepts.h"
#include "backend/cuda/device.cuh"

namespace wick::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;  // elements of a thread at once: 16 bytes
constexpr int64_t kMostParts = 1024;

// How many blocks share the sum of squares; depends on the number of elements alone.
int64_t norm_parts(int64_t count) {
  return std::clamp<int64_t>(divide_up(count, kThreads * kEach), 1, kMostParts);
}

__device__ inline bool starts_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

__global__ void __launch_bounds__(kThreads)
    grad_norm_parts_kernel(const float* g, int64_t count, double* parts) {
  __shared__ float shared[33];
  const bool aligned = starts_aligned(g);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kEach;
  float sum[kEach] = {};
#pragma unroll 2
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach; i < count;
       i += step) {
    if (aligned && i + kEach <= count) {
      const Pack<float, kEach> v = load<kEach>(g + i);
#pragma unroll
      for (int j = 0; j < kEach; ++j) sum[j] = fmaf(v.at[j], v.at[j], sum[j]);
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (i + j < count) sum[j] = fmaf(g[i + j], g[i + j], sum[j]);
    }
  }
  const float total = block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]), shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kMostParts)
    grad_norm_kernel(const double* parts, int count, float* y) {
  __shared__ double shared[kMostParts / 32];
  const int me = threadIdx.x;
  double sum = me < count ? parts[me] : 0.0;
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (me % 32 == 0) shared[me / 32] = sum;
  __syncthreads();
  if (me >= 32) return;
  sum = shared[me];
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (me == 0) *y = static_cast<float>(sqrt(sum));
}

void grad_norm_fwd(const StepArgs& args) {
  const int64_t count = args.in[0].elements(), parts = norm_parts(count);
  auto* sums = static_cast<double*>(args.scratch);
  grad_norm_parts_kernel<<<static_cast<unsigned>(parts), kThreads, 0, queue(args).stream>>>(
      args.in[0].as<const float>(), count, sums);
  grad_norm_kernel<<<1, kMostParts, 0, queue(args).stream>>>(sums, static_cast<int>(parts),
                                                             args.out[0].as<float>());
}
size_t grad_norm_scratch(const StepArgs& args, int) {
  return static_cast<size_t>(norm_parts(args.in[0].elements())) * sizeof(double);
}

constexpr int kGroups = 128;  // of parameters, that one launch carries in its arguments

struct Groups {
  ParamGroup at[kGroups];
  int count;
};
struct AdamwArgs {
  const float *hyper, *norm;
  float *params, *m, *v, *g;
  bool aligned;  // all four arrays
};

// What an update reads once.
struct Factors {
  float lr, beta1, beta2, eps, decay, shrink, correction1, correction2;
  __device__ Factors(const float* hyper, float norm)
      : lr(hyper[0]),
        beta1(hyper[1]),
        beta2(hyper[2]),
        eps(hyper[3]),
        decay(hyper[4]),
        shrink(hyper[5] > 0 && norm > hyper[5] ? hyper[5] / norm : 1.0f),
        correction1(hyper[6]),
        correction2(hyper[7]) {}

  __device__ void update(float lr_scale, float decay_scale, float& p, float& m, float& v,
                         float& g) const {
    g *= shrink;
    m = fmaf(beta1, m, (1.0f - beta1) * g);
    v = fmaf(beta2, v, (1.0f - beta2) * g * g);
    const float step = m / correction1 / (sqrtf(v / correction2) + eps);
    p -= lr * lr_scale * fmaf(decay * decay_scale, p, step);
    g = 0.0f;
  }
};

// Elements [groups.at[0].begin, end of the last), kEach of them per thread from a multiple of
// kEach on.
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const AdamwArgs a, const __grid_constant__ Groups groups) {
  const int64_t begin = groups.at[0].begin, end = groups.at[groups.count - 1].end;
  const int64_t i =
      (begin / kEach + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach;
  if (i >= end) return;
  const bool whole = a.aligned && i >= begin && i + kEach <= end;
  Pack<float, kEach> p, m, v, g;
  if (whole) {
    p = load<kEach>(a.params + i);
    m = load<kEach>(a.m + i);
    v = load<kEach>(a.v + i);
    g = load<kEach>(a.g + i);
  } else {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const bool mine = i + j >= begin && i + j < end;
      p.at[j] = mine ? a.params[i + j] : 0.0f;
      m.at[j] = mine ? a.m[i + j] : 0.0f;
      v.at[j] = mine ? a.v[i + j] : 0.0f;
      g.at[j] = mine ? a.g[i + j] : 0.0f;
    }
  }
  const Factors factors(a.hyper, *a.norm);
  // The first group that ends beyond the first element.
  int low = 0, high = groups.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (groups.at[middle].end > i)
      high = middle;
    else
      low = middle + 1;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    while (low + 1 < groups.count && groups.at[low].end <= i + j) ++low;
    factors.update(groups.at[low].lr_scale, groups.at[low].decay_scale, p.at[j], m.at[j], v.at[j],
                   g.at[j]);
  }
  if (whole) {
    store(a.params + i, p);
    store(a.m + i, m);
    store(a.v + i, v);
    store(a.g + i, g);
  } else {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (i + j < begin || i + j >= end) continue;
      a.params[i + j] = p.at[j];
      a.m[i + j] = m.at[j];
      a.v[i + j] = v.at[j];
      a.g[i + j] = g.at[j];
    }
  }
}

void adamw_fwd(const StepArgs& args) {
  AdamwArgs a{.hyper = args.in[0].as<const float>(),
              .norm = args.in[1].as<const float>(),
              .params = args.out[0].as<float>(),
              .m = args.out[1].as<float>(),
              .v = args.out[2].as<float>(),
              .g = args.out[3].as<float>(),
              .aligned = true};
  for (const Operand& o : args.out) a.aligned &= reinterpret_cast<uintptr_t>(o.data) % 16 == 0;
  const auto& all = attr<ParamGroups>(*args.step).groups;
  for (size_t first = 0; first < all.size(); first += kGroups) {
    Groups groups{};
    groups.count = static_cast<int>(std::min<size_t>(kGroups, all.size() - first));
    std::copy_n(all.begin() + static_cast<ptrdiff_t>(first), groups.count, groups.at);
    const int64_t begin = groups.at[0].begin / kEach * kEach, end = groups.at[groups.count - 1].end;
    if (end <= begin) continue;
    adamw_kernel<<<static_cast<unsigned>(divide_up(end - begin, kThreads * kEach)), kThreads, 0,
                   queue(args).stream>>>(a, groups);
  }
}

}  // namespace

Candidates optimizer_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kGradNorm, Dir::kForward, "grad_norm_fwd", grad_norm_fwd, nullptr, grad_norm_scratch},
      {Op::kAdamw, Dir::kForward, "adamw_fwd", adamw_fwd, nullptr, nullptr},
  };
  return kTable;
}

}  // namespace wick::cuda
