// SPDX-License-Identifier: Apache-2.0
// sample: blocks look for the largest logit of stretches of a row, then one block of a row for the
// largest of those. Bound by the two launches. Where a token is drawn (backend/draw.h), the one
// launch is sample_draw.cu's.
#include "backend/cuda/sample.cuh"

namespace wick::cuda {
namespace {

constexpr int kThreads = 256, kStretch = 4 * kThreads;

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
  best = block_best<kThreads>(best);
  if (threadIdx.x == 0) found[row * gridDim.x + blockIdx.x] = best;
}

__global__ void __launch_bounds__(kThreads)
    best_of_row(const Best* found, int stretches, int32_t* token, Walk walk) {
  begin_kernel();
  const int row = blockIdx.x;
  Best best{-INFINITY, -1};
  for (int i = threadIdx.x; i < stretches; i += kThreads)
    best = better(best, found[row * stretches + i]);
  best = block_best<kThreads>(best);
  if (threadIdx.x == 0) take_token(best.index, row, token, walk);
}

int64_t stretches_of(const Operand& logits) { return divide_up(logits.cols, kStretch); }

void sample_fwd(const StepArgs& args) {
  const Operand &logits = args.in[0], &how = args.in[1], &place = args.out[1], &log = args.out[2];
  if (logits.elements() == 0) return;
  const Walk walk{place.as<int32_t>(), log.as<int32_t>(), place.ld, log.ld,
                  static_cast<int>(log.rows)};
  auto* token = args.out[0].as<int32_t>();
  if (how) return draw_rows(queue(args), logits, how, token, walk);
  auto* found = static_cast<Best*>(args.scratch);
  const auto stretches = static_cast<unsigned>(stretches_of(logits));
  const auto rows_of = static_cast<unsigned>(logits.rows);
  launch(queue(args), best_of_stretch, dim3(stretches, rows_of), kThreads, 0,
         rows<const float>(logits), static_cast<int>(logits.cols), found);
  launch(queue(args), best_of_row, dim3(rows_of), kThreads, 0, found, static_cast<int>(stretches),
         token, walk);
}
bool sample_accepts(const StepArgs& args) { return args.in[0].dtype == DType::kF32; }
size_t sample_scratch(const StepArgs& args, int) {
  const Operand& logits = args.in[0];
  return args.in[1] ? 0 : static_cast<size_t>(logits.rows * stretches_of(logits)) * sizeof(Best);
}

}  // namespace

Candidates sample_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kSample, Dir::kForward, "sample_fwd", sample_fwd, sample_accepts, sample_scratch},
  };
  return kTable;
}

}  // namespace wick::cuda
