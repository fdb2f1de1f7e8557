// SPDX-License-Identifier: Apache-2.0
// linear: each product goes to the kernel that its sizes ask for: a few rows to matvec, LoRA's to
// the skinny kernels, the rest to product().
#include "backend/accepts.h"
#include "backend/cuda/codes.cuh"
#include "backend/cuda/matvec.h"
#include "backend/cuda/skinny.h"
#include "backend/cuda/small_product.h"
#include "backend/cuda/token_sums.h"
#include "plan/sums_last.h"

namespace wick::cuda {
namespace {

bool is_matrix(const Operand& o) { return o.form == WeightForm::kTiles || is_weight(o); }

bool linear_fwd_accepts(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &bias = args.in[2], &y = args.out[0];
  return is_activation(x) && is_matrix(w) && is_weight(bias) &&
         (y.dtype == x.dtype || y.dtype == DType::kF32);
}

bool linear_bwd_accepts(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &w = args.in[2];
  return is_activation(dy) && is_activation(x) && (!w || is_matrix(w)) &&
         (!args.out[0] || args.out[0].dtype == dy.dtype) && is_f32(args.out[1]) &&
         is_f32(args.out[2]);
}

Product product_of(const StepArgs& args, Trans trans, int output) {
  return {trans, attr<LinearAttr>(*args.step).scale, args.accumulates(output)};
}

// ---- dbias: a block sums 32 columns, 8 threads to a column, in an order that rows alone decide

constexpr int kBiasCols = 32, kBiasLanes = 8;

template <typename T>
__global__ void __launch_bounds__(kBiasCols* kBiasLanes)
    column_sums(Rows<const T> dy, int64_t rows, int64_t cols, float* out, bool accumulate) {
  __shared__ float parts[kBiasLanes][kBiasCols];
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kBiasCols + threadIdx.x;
  float sum = 0;
  if (col < cols)
    for (int64_t r = threadIdx.y; r < rows; r += kBiasLanes) sum += to_f32(dy[r][col]);
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  sum = 0;
  for (int i = 0; i < kBiasLanes; ++i) sum += parts[i][threadIdx.x];
  out[col] = sum + (accumulate ? out[col] : 0.0f);
}

// ---- steps

void linear_fwd(const StepArgs& args) {
  const Queue& q = queue(args);
  const Operand &x = args.in[0], &w = args.in[1], &bias = args.in[2], &y = args.out[0];
  const Product p = product_of(args, Trans::kNT, 0);
  if (y.elements() == 0) return;
  if (!bias && w.cols <= kSkinny && wide_product(q, p.alpha, p.accumulate, false, x, w, y)) return;
  if (!bias && x.rows > kMatvecRows && w.rows <= kSkinny &&
      narrow_product(q, p.alpha, p.accumulate, true, x, w, y))
    return;
  if (defer_product(q, p, x, w, y, bias)) return;
  flush(q);
  if (matvec(q, p.alpha, p.accumulate, x, w, bias, y)) return;
  if (!bias && small_product(q, {.how = p, .a = x, .b = w, .y = y})) return;
  product(q, p, x, w, y, args.scratch, bias);
}

size_t linear_fwd_scratch(const StepArgs& args, int sms) {
  return product_scratch({}, args.in[0], args.in[1], args.out[0], sms);
}

void linear_bwd(const StepArgs& args) {
  const Queue& q = queue(args);
  const Operand &dy = args.in[0], &x = args.in[1], &w = args.in[2];
  const Operand &dx = args.out[0], &dw = args.out[1], &dbias = args.out[2];
  if (dx && dx.elements() > 0) {
    const Product p = product_of(args, Trans::kNN, 0);
    const bool done =
        (w.cols <= kSkinny && narrow_product(q, p.alpha, p.accumulate, false, dy, w, dx)) ||
        (w.rows <= kSkinny && wide_product(q, p.alpha, p.accumulate, true, dy, w, dx));
    if (!done) {
      flush(q);
      if (!small_product(q, {.how = p, .a = dy, .b = w, .y = dx}))
        product(q, p, dy, w, dx, args.scratch);
    }
  }
  if (dw && dw.elements() > 0) {
    const Product p = product_of(args, Trans::kTN, 1);
    // The wide side, and the other one.
    auto sum = [&](const Operand& a, const Operand& b, bool by_rank) {
      const TokenSum tall{
          .a = a, .b = b, .y = dw, .y_by_rank = by_rank, .y_adds = p.accumulate, .alpha = p.alpha};
      // Those that come last (plan/sums_last.h) are started together.
      const bool late = !dx && a.rows <= kLateTokens;
      return (!late && token_sums(q, {&tall, 1}, args.scratch)) ||
             narrow_product_turned(q, p.alpha, p.accumulate, by_rank, a, b, dw);
    };
    const bool done =
        (dw.cols <= kSkinny && sum(dy, x, false)) || (dw.rows <= kSkinny && sum(x, dy, true));
    if (!done) {
      flush(q);
      product(q, p, dy, x, dw, args.scratch);
    }
  }
  if (dbias && dbias.cols > 0) {
    flush(q);
    const auto blocks = static_cast<unsigned>(divide_up(dbias.cols, kBiasCols));
    with_activation(dy.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      column_sums<T><<<blocks, dim3(kBiasCols, kBiasLanes), 0, q.stream>>>(
          rows<const T>(dy), dy.rows, dy.cols, dbias.as<float>(), args.accumulates(2));
    });
  }
}

size_t linear_bwd_scratch(const StepArgs& args, int sms) {
  size_t bytes = 0;
  if (args.out[0]) bytes = product_scratch({}, args.in[0], args.in[2], args.out[0], sms);
  if (args.out[1])
    bytes = std::max(bytes, product_scratch({}, args.in[0], args.in[1], args.out[1], sms));
  return bytes;
}

}  // namespace

Candidates linear_candidates(Arch) {
  static constexpr Candidate kList[] = {
      {Op::kLinear, Dir::kForward, "linear_fwd", linear_fwd, linear_fwd_accepts,
       linear_fwd_scratch},
      {Op::kLinear, Dir::kBackward, "linear_bwd", linear_bwd, linear_bwd_accepts,
       linear_bwd_scratch},
  };
  return kList;
}

}  // namespace wick::cuda
