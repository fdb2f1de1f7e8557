// SPDX-License-Identifier: Apache-2.0
// sample: blocks look for the largest logit of stretches of a row, then one block of a row for the
// largest of those. Bound by the two launches.
#include "backend/cuda/device.cuh"

namespace wick::cuda {
namespace {

constexpr int kThreads = 256, kStretch = 4 * kThreads;

// The largest so far and the lowest index that has it; index -1: none above minus infinity.
struct Best {
  float value;
  int index;
};
__device__ inline Best better(Best a, Best b) {
  if (b.index < 0) return a;
  if (a.index < 0 || b.value > a.value) return b;
  return b.value == a.value && b.index < a.index ? b : a;
}
__device__ inline Best block_best(Best x) {
  __shared__ Best shared[kThreads / 32];
  auto of_warp = [](Best y) {
    for (int o = 16; o > 0; o >>= 1)
      y = better(
          y, {__shfl_xor_sync(0xffffffffu, y.value, o), __shfl_xor_sync(0xffffffffu, y.index, o)});
    return y;
  };
  x = of_warp(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x < 32)
    x = of_warp(threadIdx.x < kThreads / 32 ? shared[threadIdx.x] : Best{0.0f, -1});
  return x;
}

__global__ void __launch_bounds__(kThreads)
    best_of_stretch(Rows<const float> logits, int vocab, Best* found) {
  begin_kernel();
  const int row = blockIdx.y, first = blockIdx.x * kStretch + threadIdx.x;
  Best best{-INFINITY, -1};
#pragma unroll
  for (int i = 0; i < kStretch / kThreads; ++i) {
    const int v = first + i * kThreads;
    if (v >= vocab) break;
    const float x = logits[row][v];
    if (x > best.value) best = {x, v};
  }
  best = block_best(best);
  if (threadIdx.x == 0) found[row * gridDim.x + blockIdx.x] = best;
}

// Row r of place is at place + r * ld.
struct Walk {
  int32_t *place, *log;
  int64_t ld, log_ld;
  int log_rows;
};

__global__ void __launch_bounds__(kThreads)
    best_of_row(const Best* found, int stretches, int32_t* token, Walk walk) {
  begin_kernel();
  const int row = blockIdx.x;
  Best best{-INFINITY, -1};
  for (int i = threadIdx.x; i < stretches; i += kThreads)
    best = better(best, found[row * stretches + i]);
  best = block_best(best);
  if (threadIdx.x != 0) return;
  token[row] = best.index;
  if (walk.place == nullptr) return;
  int32_t* at = walk.place + row;
  if (at[3 * walk.ld] < 0) return;
  at[0] = max(best.index, 0);
  const int position = ++at[walk.ld];
  ++at[2 * walk.ld];
  ++at[3 * walk.ld];
  if (walk.log != nullptr) walk.log[position % walk.log_rows * walk.log_ld + row] = best.index;
}

int64_t stretches_of(const Operand& logits) { return divide_up(logits.cols, kStretch); }

void sample_fwd(const StepArgs& args) {
  const Operand &logits = args.in[0], &place = args.out[1], &log = args.out[2];
  if (logits.elements() == 0) return;
  auto* found = static_cast<Best*>(args.scratch);
  const auto stretches = static_cast<unsigned>(stretches_of(logits));
  const auto rows_of = static_cast<unsigned>(logits.rows);
  launch(queue(args), best_of_stretch, dim3(stretches, rows_of), kThreads, 0,
         rows<const float>(logits), static_cast<int>(logits.cols), found);
  const Walk walk{place.as<int32_t>(), log.as<int32_t>(), place.ld, log.ld,
                  static_cast<int>(log.rows)};
  launch(queue(args), best_of_row, dim3(rows_of), kThreads, 0, found, static_cast<int>(stretches),
         args.out[0].as<int32_t>(), walk);
}
bool sample_accepts(const StepArgs& args) { return args.in[0].dtype == DType::kF32; }
size_t sample_scratch(const StepArgs& args, int) {
  return static_cast<size_t>(args.in[0].rows * stretches_of(args.in[0])) * sizeof(Best);
}

}  // namespace

Candidates sample_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kSample, Dir::kForward, "sample_fwd", sample_fwd, sample_accepts, sample_scratch},
  };
  return kTable;
}

}  // namespace wick::cuda
