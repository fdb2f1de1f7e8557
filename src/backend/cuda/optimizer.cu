// SPDX-License-Identifier: Apache-2.0
// grad_norm and the optimizers of one element at a time, over flat arrays of all parameters: bound
// by bytes.
#include <algorithm>

#include "backend/accepts.h"
#include "backend/cuda/optimizer.cuh"

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

// Several sets: blockIdx.y is a group, gridDim.x blocks share it. parts[i] belongs to set sets[i].
__global__ void __launch_bounds__(kThreads)
    grad_norm_group_kernel(const float* g, const __grid_constant__ Groups groups, double* parts,
                           int32_t* sets) {
  __shared__ float shared[33];
  const ParamGroup& group = groups.at[blockIdx.y];
  float sum = 0;
  for (int64_t i = group.begin + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < group.end; i += static_cast<int64_t>(gridDim.x) * kThreads)
    sum = fmaf(g[i], g[i], sum);
  sum = block_sum(sum, shared);
  if (threadIdx.x != 0) return;
  const int at = blockIdx.y * gridDim.x + blockIdx.x;
  parts[at] = sum;
  sets[at] = group.set;
}

// One block per set.
__global__ void __launch_bounds__(kThreads)
    grad_norm_sets_kernel(const double* parts, const int32_t* sets, int count, float* y) {
  __shared__ double shared[kThreads];
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads)
    if (sets[i] == static_cast<int32_t>(blockIdx.x)) sum += parts[i];
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads; ++i) sum += shared[i];
  y[blockIdx.x] = static_cast<float>(sqrt(sum));
}

constexpr int kSharers = 8;  // blocks of a group

void grad_norm_fwd(const StepArgs& args) {
  const int64_t count = args.in[0].elements(), parts = norm_parts(count);
  auto* sums = static_cast<double*>(args.scratch);
  cudaStream_t stream = queue(args).stream;
  const auto* g = args.in[0].as<const float>();
  auto* y = args.out[0].as<float>();
  const ParamGroups& all = attr<ParamGroups>(*args.step);
  if (all.sets == 1) {
    grad_norm_parts_kernel<<<static_cast<unsigned>(parts), kThreads, 0, stream>>>(g, count, sums);
    grad_norm_kernel<<<1, kMostParts, 0, stream>>>(sums, static_cast<int>(parts), y);
    return;
  }
  auto* sets = reinterpret_cast<int32_t*>(sums + all.groups.size() * kSharers);
  each_part(all.groups, [&](const Groups& groups, size_t first) {
    grad_norm_group_kernel<<<dim3(kSharers, groups.count), kThreads, 0, stream>>>(
        g, groups, sums + first * kSharers, sets + first * kSharers);
  });
  grad_norm_sets_kernel<<<static_cast<unsigned>(all.sets), kThreads, 0, stream>>>(
      sums, sets, static_cast<int>(all.groups.size() * kSharers), y);
}
size_t grad_norm_scratch(const StepArgs& args, int) {
  const ParamGroups& all = attr<ParamGroups>(*args.step);
  if (all.sets > 1) return all.groups.size() * kSharers * (sizeof(double) + sizeof(int32_t));
  return static_cast<size_t>(norm_parts(args.in[0].elements())) * sizeof(double);
}

// params, up to two moments, and the gradients, at which each rule looks element by element.
struct Arrays {
  const float *hyper, *norm;
  float *params, *m, *v, *g;
  bool aligned;  // all of them
};

struct AdamwRule {
  static constexpr bool kSecond = true;
  __device__ static void update(const GroupHyper& h, float& p, float& m, float& v, float g) {
    m = fmaf(h[1], m, (1.0f - h[1]) * g);
    v = fmaf(h[2], v, (1.0f - h[2]) * g * g);
    const float step = m / h[6] / (sqrtf(v / h[7]) + h[3]);
    p -= h.rate * fmaf(h.decay, p, step);
  }
};

struct SgdRule {
  static constexpr bool kSecond = false;
  __device__ static void update(const GroupHyper& h, float& p, float& m, float&, float g) {
    const float d = fmaf(h.decay, p, g);
    m = h[6] == 0.0f ? d : fmaf(h[1], m, (1.0f - h[2]) * d);
    p -= h.rate * (h[3] != 0.0f ? fmaf(h[1], m, d) : m);
  }
};

struct LionRule {
  static constexpr bool kSecond = false;
  __device__ static void update(const GroupHyper& h, float& p, float& m, float&, float g) {
    const float mixed = fmaf(h[1], m, (1.0f - h[1]) * g);
    const float step = mixed > 0.0f ? 1.0f : mixed < 0.0f ? -1.0f : 0.0f;
    p -= h.rate * fmaf(h.decay, p, step);
    m = fmaf(h[2], m, (1.0f - h[2]) * g);
  }
};

// Elements [groups.at[0].begin, end of the last), kEach of them per thread from a multiple of
// kEach on.
template <typename Rule>
__global__ void __launch_bounds__(kThreads)
    each_param_kernel(const Arrays a, const __grid_constant__ Groups groups) {
  const int64_t begin = groups.at[0].begin, end = groups.at[groups.count - 1].end;
  const int64_t i =
      (begin / kEach + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach;
  if (i >= end) return;
  const bool whole = a.aligned && i >= begin && i + kEach <= end;
  Pack<float, kEach> p, m, v{}, g;
  if (whole) {
    p = load<kEach>(a.params + i);
    m = load<kEach>(a.m + i);
    if (Rule::kSecond) v = load<kEach>(a.v + i);
    g = load<kEach>(a.g + i);
  } else {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const bool mine = i + j >= begin && i + j < end;
      p.at[j] = mine ? a.params[i + j] : 0.0f;
      m.at[j] = mine ? a.m[i + j] : 0.0f;
      if (Rule::kSecond) v.at[j] = mine ? a.v[i + j] : 0.0f;
      g.at[j] = mine ? a.g[i + j] : 0.0f;
    }
  }
  // The first group that ends beyond the first element.
  int low = 0, high = groups.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (groups.at[middle].end > i)
      high = middle;
    else
      low = middle + 1;
  }
  GroupHyper h(a.hyper, a.norm, groups.at[low]);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (low + 1 < groups.count && groups.at[low].end <= i + j) {
      while (low + 1 < groups.count && groups.at[low].end <= i + j) ++low;
      h = GroupHyper(a.hyper, a.norm, groups.at[low]);
    }
    Rule::update(h, p.at[j], m.at[j], v.at[j], g.at[j] * h.shrink);
    g.at[j] = 0.0f;
  }
  if (whole) {
    store(a.params + i, p);
    store(a.m + i, m);
    if (Rule::kSecond) store(a.v + i, v);
    store(a.g + i, g);
  } else {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (i + j < begin || i + j >= end) continue;
      a.params[i + j] = p.at[j];
      a.m[i + j] = m.at[j];
      if (Rule::kSecond) a.v[i + j] = v.at[j];
      a.g[i + j] = g.at[j];
    }
  }
}

template <typename Rule>
void each_param_fwd(const StepArgs& args) {
  Arrays a{.hyper = args.in[0].as<const float>(),
           .norm = args.in[1].as<const float>(),
           .params = args.out[0].as<float>(),
           .m = args.out[1].as<float>(),
           .v = Rule::kSecond ? args.out[2].as<float>() : nullptr,
           .g = args.out[args.out.size() - 1].as<float>(),
           .aligned = true};
  for (const Operand& o : args.out) a.aligned &= reinterpret_cast<uintptr_t>(o.data) % 16 == 0;
  each_part(attr<ParamGroups>(*args.step).groups, [&](const Groups& groups, size_t) {
    const int64_t begin = groups.at[0].begin / kEach * kEach, end = groups.at[groups.count - 1].end;
    if (end <= begin) return;
    each_param_kernel<Rule><<<static_cast<unsigned>(divide_up(end - begin, kThreads * kEach)),
                              kThreads, 0, queue(args).stream>>>(a, groups);
  });
}

}  // namespace

Candidates optimizer_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kGradNorm, Dir::kForward, "grad_norm_fwd", grad_norm_fwd, nullptr, grad_norm_scratch},
      {Op::kAdamw, Dir::kForward, "adamw_fwd", each_param_fwd<AdamwRule>, nullptr, nullptr},
      {Op::kSgd, Dir::kForward, "sgd_fwd", each_param_fwd<SgdRule>, nullptr, nullptr},
      {Op::kLion, Dir::kForward, "lion_fwd", each_param_fwd<LionRule>, nullptr, nullptr},
  };
  return kTable;
}

}  // namespace wick::cuda
