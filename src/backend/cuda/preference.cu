// SPDX-License-Identifier: Apache-2.0
// preference_loss: a thread for each pair, in double.
#include "backend/cuda/wide.cuh"
#include "plan/preference.h"

namespace wick::cuda {
namespace {

constexpr int kThreads = 64;

__global__ void __launch_bounds__(kThreads)
    preference_loss_fwd_kernel(const PreferenceAttr attr, const float* logp, const float* reference,
                               const float* tokens, int pairs, float* loss, float* reward,
                               float* slope) {
  const int p = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (p >= pairs) return;
  double l[2], r[2], n[2];
  for (int i = 0; i < 2; ++i) {
    l[i] = static_cast<double>(logp[2 * p + i]);
    r[i] = static_cast<double>(reference[2 * p + i]);
    n[i] = static_cast<double>(tokens[2 * p + i]);
  }
  const PairCost<double> cost = preference_cost(attr, l, r, n);
  loss[p] = static_cast<float>(cost.loss);
  for (int i = 0; i < 2; ++i) {
    if (reward != nullptr) reward[2 * p + i] = static_cast<float>(cost.reward[i]);
    if (slope != nullptr) slope[2 * p + i] = static_cast<float>(cost.slope[i]);
  }
}

void preference_loss_fwd(const StepArgs& args) {
  const int pairs = static_cast<int>(args.out[0].elements());
  if (pairs == 0) return;
  preference_loss_fwd_kernel<<<static_cast<unsigned>(divide_up(pairs, kThreads)), kThreads, 0,
                               queue(args).stream>>>(
      attr<PreferenceAttr>(*args.step), args.in[0].as<const float>(), args.in[1].as<const float>(),
      args.in[2].as<const float>(), pairs, args.out[0].as<float>(),
      operand_at(args.out, 1).as<float>(), operand_at(args.out, 2).as<float>());
}

__global__ void __launch_bounds__(kThreads)
    preference_loss_bwd_kernel(const float* dloss, const float* slope, int count, float* dlogp) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) dlogp[i] = dloss[i / 2] * slope[i];
}

void preference_loss_bwd(const StepArgs& args) {
  const int count = static_cast<int>(args.out[0].elements());
  if (count == 0) return;
  preference_loss_bwd_kernel<<<static_cast<unsigned>(divide_up(count, kThreads)), kThreads, 0,
                               queue(args).stream>>>(
      args.in[0].as<const float>(), args.in[1].as<const float>(), count, args.out[0].as<float>());
}

}  // namespace

Candidates preference_candidates(Arch) {
  static constexpr Candidate kTable[] = {
      {Op::kPreferenceLoss, Dir::kForward, "preference_loss_fwd", preference_loss_fwd, nullptr,
       nullptr},
      {Op::kPreferenceLoss, Dir::kBackward, "preference_loss_bwd", preference_loss_bwd, nullptr,
       nullptr},
  };
  return kTable;
}

}  // namespace wick::cuda
