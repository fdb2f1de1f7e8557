// SPDX-License-Identifier: Apache-2.0
// grad_norm and the optimizers of one element at a time, over flat arrays of all parameters: bound
// by bytes.
#include <algorithm>

#include "backend/accepts.h"
#include "backend/cuda/optimizer.cuh"

namespace wick::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;  // elements of a thread at once: 16 bytes
constexpr int kMostParts = 1024;

// How many blocks share the sum of squares of a group; depends on its size alone, so that a run has
// the same norm whether other sets are beside it or not.
__host__ __device__ inline int64_t norm_parts(int64_t count) {
  const int64_t parts = (count + kThreads * kEach - 1) / (kThreads * kEach);
  return parts < 1 ? 1 : parts > kMostParts ? kMostParts : parts;
}
int64_t norm_parts(const ParamGroup* groups, int64_t count) {
  int64_t parts = 0;
  for (int64_t i = 0; i < count; ++i) parts += norm_parts(groups[i].end - groups[i].begin);
  return parts;
}

__device__ inline bool starts_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// parts[i] belongs to set sets[i].
__global__ void __launch_bounds__(kThreads)
    grad_norm_parts_kernel(const float* all, const __grid_constant__ Groups groups, double* parts,
                           int32_t* sets) {
  __shared__ float shared[33];
  begin_kernel();
  int at = 0;
  int64_t block = blockIdx.x, sharers = 0;
  for (;; ++at) {
    sharers = norm_parts(groups.at[at].end - groups.at[at].begin);
    if (block < sharers) break;
    block -= sharers;
  }
  const ParamGroup& group = groups.at[at];
  const float* g = all + group.begin;
  const int64_t count = group.end - group.begin;
  const bool aligned = starts_aligned(g);
  const int64_t step = sharers * kThreads * kEach;
  float sum[kEach] = {};
#pragma unroll 2
  for (int64_t i = (block * kThreads + threadIdx.x) * kEach; i < count; i += step) {
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
  if (threadIdx.x > 0) return;
  parts[blockIdx.x] = total;
  sets[blockIdx.x] = group.set;
}

// One block per set.
__global__ void __launch_bounds__(kMostParts)
    grad_norm_kernel(const double* parts, const int32_t* sets, int64_t count, float* y) {
  __shared__ double shared[kMostParts / 32];
  begin_kernel();
  const int me = threadIdx.x;
  double sum = 0;
  for (int64_t i = me; i < count; i += kMostParts)
    if (sets[i] == static_cast<int32_t>(blockIdx.x)) sum += parts[i];
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (me % 32 == 0) shared[me / 32] = sum;
  __syncthreads();
  if (me >= 32) return;
  sum = shared[me];
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (me == 0) y[blockIdx.x] = static_cast<float>(sqrt(sum));
}

// Without groups there is one.
std::vector<ParamGroup> groups_of(const StepArgs& args) {
  std::vector<ParamGroup> groups = attr<ParamGroups>(*args.step).groups;
  if (groups.empty()) groups.push_back({.end = args.in[0].elements()});
  return groups;
}

void grad_norm_fwd(const StepArgs& args) {
  const std::vector<ParamGroup> all = groups_of(args);
  const int64_t parts = norm_parts(all.data(), static_cast<int64_t>(all.size()));
  auto* sums = static_cast<double*>(args.scratch);
  auto* sets = reinterpret_cast<int32_t*>(sums + parts);
  int64_t done = 0;
  each_part(all, [&](const Groups& groups, size_t) {
    const int64_t own = norm_parts(groups.at, groups.count);
    launch(queue(args), grad_norm_parts_kernel, static_cast<unsigned>(own), kThreads, 0,
           args.in[0].as<const float>(), groups, sums + done, sets + done);
    done += own;
  });
  launch(queue(args), grad_norm_kernel, static_cast<unsigned>(attr<ParamGroups>(*args.step).sets),
         kMostParts, 0, sums, sets, parts, args.out[0].as<float>());
}
size_t grad_norm_scratch(const StepArgs& args, int) {
  const std::vector<ParamGroup> groups = groups_of(args);
  return static_cast<size_t>(norm_parts(groups.data(), static_cast<int64_t>(groups.size()))) *
         (sizeof(double) + sizeof(int32_t));
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
  begin_kernel();
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
    launch(queue(args), each_param_kernel<Rule>,
           static_cast<unsigned>(divide_up(end - begin, kThreads * kEach)), kThreads, 0, a, groups);
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
