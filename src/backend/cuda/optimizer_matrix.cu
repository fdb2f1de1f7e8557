// SPDX-License-Identifier: Apache-2.0
// The optimizers that look at a whole matrix or block of parameters: muon, adafactor, adamw8. Every
// sum is one block's, in an order that depends on the group's sizes alone.
#include <algorithm>

#include "backend/accepts.h"
#include "backend/cuda/optimizer.cuh"

namespace wick::cuda {
namespace {

constexpr int kThreads = 256;

struct Arrays {
  const float *hyper, *norm;
  float *params, *m, *g;  // m: the moment, or adafactor's factors
};
Arrays arrays(const StepArgs& args) {
  return {.hyper = args.in[0].as<const float>(),
          .norm = args.in[1].as<const float>(),
          .params = args.out[0].as<float>(),
          .m = args.out[1].as<float>(),
          .g = args.out[2].as<float>()};
}

// muon, a launch per part of the groups and phase; blockIdx.y is the group. x and next hold each
// matrix [s, n] with s <= n at the group's place among the parameters; a and b its [s, s] at
// squares[group].
struct Matrices {
  Groups groups;
  int64_t squares[kGroups];
  __device__ int64_t rows(int g) const { return groups.at[g].rows; }
  __device__ int64_t cols(int g) const {
    return (groups.at[g].end - groups.at[g].begin) / groups.at[g].rows;
  }
  // Whether hyper asks for that Newton-Schulz step, from 0.
  __device__ bool takes(const Arrays& of, int g, int step) const {
    return static_cast<float>(step) < of.hyper[8 * groups.at[g].set + 3];
  }
};

int64_t short_side(const ParamGroup& g) { return g.rows > 0 ? std::min(g.rows, group_cols(g)) : 0; }

// Momentum; the step takes the gradients' place until it is done.
__global__ void __launch_bounds__(kThreads)
    muon_moment_kernel(const Arrays a, const __grid_constant__ Matrices all) {
  const ParamGroup& group = all.groups.at[blockIdx.y];
  const GroupHyper h(a.hyper, a.norm, group);
  for (int64_t i = group.begin + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < group.end; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const float g = a.g[i] * h.shrink;
    const float m = fmaf(h[1], a.m[i], (1.0f - h[1]) * g);
    a.m[i] = m;
    a.g[i] = h[2] != 0.0f ? fmaf(h[1], m, (1.0f - h[1]) * g) : m;
  }
}

// x = u / (norm + eps), turned so that its rows are few. One block per group.
__global__ void __launch_bounds__(kThreads)
    muon_start_kernel(const Arrays a, const __grid_constant__ Matrices all, float* x) {
  __shared__ float shared[33];
  const int at = blockIdx.y;
  const ParamGroup& group = all.groups.at[at];
  if (group.rows == 0) return;
  const int64_t rows = all.rows(at), cols = all.cols(at);
  float sum = 0;
  for (int64_t i = group.begin + threadIdx.x; i < group.end; i += kThreads)
    sum = fmaf(a.g[i], a.g[i], sum);
  const float by = 1.0f / (sqrtf(block_sum(sum, shared)) + kMuonEps);
  for (int64_t i = threadIdx.x; i < rows * cols; i += kThreads) {
    const int64_t r = i / cols, c = i % cols;
    x[group.begin + (rows > cols ? c * rows + r : i)] = a.g[group.begin + i] * by;
  }
}

// a = x xᵀ: a warp for each element of the lower half, and its mirror image.
__global__ void __launch_bounds__(kThreads)
    muon_gram_kernel(const Arrays of, const __grid_constant__ Matrices all, int step,
                     const float* x, float* a) {
  const int at = blockIdx.y, lane = threadIdx.x % 32;
  if (all.groups.at[at].rows == 0 || !all.takes(of, at, step)) return;
  const int64_t s = min(all.rows(at), all.cols(at)), n = max(all.rows(at), all.cols(at));
  const float* mine = x + all.groups.at[at].begin;
  float* to = a + all.squares[at];
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / 32);
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32; e < s * s;
       e += warps) {
    const int64_t i = e / s, j = e % s;
    if (j > i) continue;
    float sum = 0;
    for (int64_t k = lane; k < n; k += 32) sum = fmaf(mine[i * n + k], mine[j * n + k], sum);
    sum = warp_sum(sum);
    if (lane == 0) to[i * s + j] = to[j * s + i] = sum;
  }
}

// b = B a + C a².
__global__ void __launch_bounds__(kThreads)
    muon_square_kernel(const Arrays of, const __grid_constant__ Matrices all, int step,
                       const float* a, float* b) {
  const int at = blockIdx.y;
  if (all.groups.at[at].rows == 0 || !all.takes(of, at, step)) return;
  const int64_t s = min(all.rows(at), all.cols(at));
  const float* from = a + all.squares[at];
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; e < s * s;
       e += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t i = e / s, j = e % s;
    float sum = 0;
    for (int64_t k = 0; k < s; ++k) sum = fmaf(from[i * s + k], from[k * s + j], sum);
    b[all.squares[at] + e] = fmaf(kMuonC, sum, kMuonB * from[e]);
  }
}

// next = A x + b x.
__global__ void __launch_bounds__(kThreads)
    muon_apply_kernel(const Arrays of, const __grid_constant__ Matrices all, int step,
                      const float* b, const float* x, float* next) {
  const int at = blockIdx.y;
  const ParamGroup& group = all.groups.at[at];
  if (group.rows == 0) return;
  const int64_t s = min(all.rows(at), all.cols(at)), n = max(all.rows(at), all.cols(at));
  const float *mine = x + group.begin, *by = b + all.squares[at];
  const bool takes = all.takes(of, at, step);
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; e < s * n;
       e += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t i = e / n, j = e % n;
    float sum = takes ? kMuonA * mine[e] : mine[e];
    for (int64_t k = 0; takes && k < s; ++k) sum = fmaf(by[i * s + k], mine[k * n + j], sum);
    next[group.begin + e] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    muon_finish_kernel(const Arrays a, const __grid_constant__ Matrices all, const float* x) {
  const int at = blockIdx.y;
  const ParamGroup& group = all.groups.at[at];
  const GroupHyper h(a.hyper, a.norm, group);
  const int64_t rows = group.rows, cols = rows > 0 ? all.cols(at) : 0;
  const bool tall = rows > cols;
  const float rate =
      tall ? h.rate * sqrtf(static_cast<float>(rows) / static_cast<float>(cols)) : h.rate;
  const int64_t count = group.end - group.begin;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    float u = a.g[group.begin + i];
    if (rows > 0) u = x[group.begin + (tall ? i % cols * rows + i / cols : i)];
    const float p = a.params[group.begin + i];
    a.params[group.begin + i] = fmaf(-rate, u, p * (1.0f - h.rate * h.decay));
    a.g[group.begin + i] = 0.0f;
  }
}

int64_t square_count(const std::vector<ParamGroup>& groups) {
  int64_t n = 0;
  for (const ParamGroup& g : groups) n += short_side(g) * short_side(g);
  return n;
}

// How many steps there are only the device knows, so all that there may be are launched; those
// beyond hyper's number pass x on.
void muon_fwd(const StepArgs& args) {
  const auto& groups = attr<ParamGroups>(*args.step).groups;
  const int64_t params = args.out[0].elements(), squares = square_count(groups);
  float* x = static_cast<float*>(args.scratch);
  float *next = x + params, *a = next + params, *b = a + squares;
  cudaStream_t stream = queue(args).stream;
  const Arrays of = arrays(args);
  int64_t square = 0;
  each_part(groups, [&](const Groups& part, size_t) {
    Matrices all{};
    all.groups = part;
    int64_t largest = 1, side = 0;
    for (int i = 0; i < part.count; ++i) {
      all.squares[i] = square;
      const int64_t s = short_side(part.at[i]);
      square += s * s;
      side = std::max(side, s);
      largest = std::max(largest, part.at[i].end - part.at[i].begin);
    }
    auto grid = [&](int64_t work, int each) {
      const int64_t blocks = std::clamp<int64_t>(divide_up(work, each), 1, 256);
      return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(part.count));
    };
    const dim3 wide = grid(largest, kThreads);
    muon_moment_kernel<<<wide, kThreads, 0, stream>>>(of, all);
    float *from = x, *to = next;
    if (side > 0) {
      muon_start_kernel<<<dim3(1, part.count), kThreads, 0, stream>>>(of, all, x);
      for (int step = 0; step < kMostMuonSteps; ++step) {
        muon_gram_kernel<<<grid(side * side, kThreads / 32), kThreads, 0, stream>>>(of, all, step,
                                                                                    from, a);
        muon_square_kernel<<<grid(side * side, kThreads), kThreads, 0, stream>>>(of, all, step, a,
                                                                                 b);
        muon_apply_kernel<<<wide, kThreads, 0, stream>>>(of, all, step, b, from, to);
        std::swap(from, to);
      }
    }
    muon_finish_kernel<<<wide, kThreads, 0, stream>>>(of, all, from);
  });
}
size_t muon_scratch(const StepArgs& args, int) {
  const auto& groups = attr<ParamGroups>(*args.step).groups;
  return static_cast<size_t>(2 * args.out[0].elements() + 2 * square_count(groups)) * sizeof(float);
}

// adafactor, one block per group.
struct Factors {
  Groups groups;
  int64_t kept[kGroups];  // where the group's factors begin
};

__global__ void __launch_bounds__(kThreads)
    adafactor_kernel(const Arrays a, const __grid_constant__ Factors all) {
  __shared__ float shared[33];
  const ParamGroup& group = all.groups.at[blockIdx.x];
  const GroupHyper h(a.hyper, a.norm, group);
  const int64_t count = group.end - group.begin;
  const bool matrix = group.rows > 0;
  const int64_t rows = matrix ? group.rows : 1, cols = count / rows;
  float *p = a.params + group.begin, *g = a.g + group.begin;
  float* row = a.m + all.kept[blockIdx.x];
  float* column = matrix ? row + rows : row;
  const float beta2 = h[1], eps1 = h[2];
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    float sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const float x = g[r * cols + c] * h.shrink;
      sum = fmaf(x, x, sum);
    }
    const float mean = sum / static_cast<float>(rows) + eps1;
    column[c] = fmaf(beta2, column[c], (1.0f - beta2) * mean);
  }
  float mean = 1.0f;
  if (matrix) {
    const int lane = threadIdx.x % 32;
    for (int64_t r = threadIdx.x / 32; r < rows; r += kThreads / 32) {
      float sum = 0;
      for (int64_t c = lane; c < cols; c += 32) {
        const float x = g[r * cols + c] * h.shrink;
        sum = fmaf(x, x, sum);
      }
      sum = warp_sum(sum);
      if (lane == 0)
        row[r] = fmaf(beta2, row[r], (1.0f - beta2) * (sum / static_cast<float>(cols) + eps1));
    }
    __syncthreads();
    float sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += kThreads) sum += row[r];
    mean = block_sum(sum, shared) / static_cast<float>(rows);
  }
  __syncthreads();
  float squares = 0, sizes = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const float under = (matrix ? row[i / cols] / mean : 1.0f) * column[i % cols];
    const float u = g[i] * h.shrink / sqrtf(under);
    g[i] = u;
    squares = fmaf(u, u, squares);
    sizes = fmaf(p[i], p[i], sizes);
  }
  squares = block_sum(squares, shared);
  sizes = block_sum(sizes, shared);
  const float over = sqrtf(squares / static_cast<float>(count)) / h[6];
  const float shrink = over > 1.0f ? 1.0f / over : 1.0f;
  float rate = h.rate;
  if (h[7] != 0.0f) rate *= fmaxf(h[3], sqrtf(sizes / static_cast<float>(count)));
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    p[i] = fmaf(-rate, fmaf(h.decay, p[i], shrink * g[i]), p[i]);
    g[i] = 0.0f;
  }
}

void adafactor_fwd(const StepArgs& args) {
  int64_t kept = 0;
  each_part(attr<ParamGroups>(*args.step).groups, [&](const Groups& part, size_t) {
    Factors all{};
    all.groups = part;
    for (int i = 0; i < part.count; ++i) {
      all.kept[i] = kept;
      kept += factor_count(part.at[i]);
    }
    adafactor_kernel<<<static_cast<unsigned>(part.count), kThreads, 0, queue(args).stream>>>(
        arrays(args), all);
  });
}

// adamw8: a block of threads for each block of codes, blockIdx.y being the group.
struct Codes {
  Groups groups;
  int64_t block[kGroups];  // the group's first
};
struct CodeArrays {
  const float *hyper, *norm;
  float* params;
  int8_t* m;
  uint8_t* v;
  float *scales, *g;
  int64_t ld;  // of scales
};
static_assert(kThreads == kCodeBlock);

__global__ void __launch_bounds__(kThreads)
    adamw8_kernel(const CodeArrays a, const __grid_constant__ Codes all) {
  __shared__ float shared[33];
  const ParamGroup& group = all.groups.at[blockIdx.y];
  const GroupHyper h(a.hyper, a.norm, group);
  for (int64_t b = blockIdx.x; group.begin + b * kCodeBlock < group.end; b += gridDim.x) {
    const int64_t i = group.begin + b * kCodeBlock + threadIdx.x;
    const bool mine = i < group.end;
    float& m_scale = a.scales[all.block[blockIdx.y] + b];
    float& v_scale = a.scales[a.ld + all.block[blockIdx.y] + b];
    float m = 0, v = 0;
    if (mine) {
      const float mc = static_cast<float>(a.m[i]) * (1.0f / 127.0f);
      const float vc = static_cast<float>(a.v[i]) * (1.0f / 255.0f);
      const float g = a.g[i] * h.shrink, p = a.params[i];
      m = fmaf(h[1], m_scale * (mc < 0 ? -mc * mc : mc * mc), (1.0f - h[1]) * g);
      v = fmaf(h[2], v_scale * ((vc * vc) * (vc * vc)), (1.0f - h[2]) * g * g);
      const float step = m / h[6] / (sqrtf(v / h[7]) + h[3]);
      a.params[i] = p - h.rate * fmaf(h.decay, p, step);
      a.g[i] = 0.0f;
    }
    const float m_most = block_max(fabsf(m), shared), v_most = block_max(v, shared);
    if (mine) {
      const float share = v_most > 0 ? v / v_most : 0.0f;
      const int mc = static_cast<int>(127.0f * sqrtf(m_most > 0 ? fabsf(m) / m_most : 0.0f) + 0.5f);
      const int vc = static_cast<int>(255.0f * sqrtf(sqrtf(share)) + 0.5f);
      a.m[i] = static_cast<int8_t>(m < 0 ? -mc : mc);
      a.v[i] = static_cast<uint8_t>(v > 0 && vc == 0 ? 1 : vc);
    }
    if (threadIdx.x == 0) {
      m_scale = m_most;
      v_scale = v_most;
    }
  }
}

void adamw8_fwd(const StepArgs& args) {
  const CodeArrays a{.hyper = args.in[0].as<const float>(),
                     .norm = args.in[1].as<const float>(),
                     .params = args.out[0].as<float>(),
                     .m = args.out[1].as<int8_t>(),
                     .v = args.out[2].as<uint8_t>(),
                     .scales = args.out[3].as<float>(),
                     .g = args.out[4].as<float>(),
                     .ld = args.out[3].ld};
  int64_t block = 0;
  each_part(attr<ParamGroups>(*args.step).groups, [&](const Groups& part, size_t) {
    Codes all{};
    all.groups = part;
    int64_t most = 1;
    for (int i = 0; i < part.count; ++i) {
      all.block[i] = block;
      block += code_blocks(part.at[i]);
      most = std::max(most, code_blocks(part.at[i]));
    }
    const dim3 grid(static_cast<unsigned>(std::min<int64_t>(most, 65535)),
                    static_cast<unsigned>(part.count));
    adamw8_kernel<<<grid, kThreads, 0, queue(args).stream>>>(a, all);
  });
}

bool takes_codes(const StepArgs& args) {
  return is_f32(args.in[0]) && is_f32(args.in[1]) && is_f32(args.out[0]) &&
         args.out[1].dtype == DType::kU8 && args.out[2].dtype == DType::kU8 &&
         is_f32(args.out[3]) && is_f32(args.out[4]);
}

}  // namespace

Candidates matrix_optimizer_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kMuon, Dir::kForward, "muon_fwd", muon_fwd, nullptr, muon_scratch},
      {Op::kAdafactor, Dir::kForward, "adafactor_fwd", adafactor_fwd, nullptr, nullptr},
      {Op::kAdamw8, Dir::kForward, "adamw8_fwd", adamw8_fwd, takes_codes, nullptr},
  };
  return kTable;
}

}  // namespace wick::cuda
