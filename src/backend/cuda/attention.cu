// SPDX-License-Identifier: Apache-2.0
// attention: which family of kernels makes a step.
#include <vector>

#include "backend/accepts.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/attention_early.h"
#include "backend/cuda/attention_rope.h"
#include "base/check.h"

namespace wick::cuda {
namespace {

bool serves(const StepArgs& args) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  return a.head_dim <= kAttentionMostDim && args.in[0].rows <= INT32_MAX - kAttentionBlock &&
         args.in[1].rows <= INT32_MAX - kAttentionBlock;
}
bool aligned(const StepArgs& args) {
  for (const Operand& o : args.in)
    if (o.dtype == DType::kBF16 && !aligned16(o)) return false;
  for (const Operand& o : args.out)
    if (o.dtype == DType::kBF16 && !aligned16(o)) return false;
  return true;
}
bool by_mma(const StepArgs& args) {
  return attention_mma_serves(attr<AttentionAttr>(*args.step), args.in[0].dtype);
}

void attention_fwd(const StepArgs& args) {
  if (args.in[0].rows == 0) return;
  if (by_mma(args) && aligned(args) && attention_fwd_mma(args)) return;
  attention_fwd_exact(args);
}
void attention_bwd(const StepArgs& args) {
  WICK_CHECK(attr<AttentionAttr>(*args.step).causal_self, "attention_bwd without causal_self");
  if (args.in[1].rows == 0) return;
  if (by_mma(args) && aligned(args) && attention_bwd_mma(args)) return;
  attention_bwd_exact(args);
}

bool attention_fwd_accepts(const StepArgs& args) {
  return accepts<0b111, 0, 0b1>(args) && serves(args);
}
bool attention_bwd_accepts(const StepArgs& args) {
  return accepts<0b11111, 0, 0b111>(args) && serves(args);
}
template <Arch A>
size_t attention_fwd_scratch(const StepArgs& args, int) {
  if (!by_mma(args)) return 0;
  return attention_fwd_mma_scratch(attr<AttentionAttr>(*args.step), args.in[0].rows,
                                   args.in[1].rows, A);
}
template <Arch A>
size_t attention_bwd_scratch(const StepArgs& args, int sms) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  const size_t stats = AttentionStats::bytes(args.in[1].rows, a.heads);
  return by_mma(args) ? stats + attention_bwd_mma_scratch(a, args.in[1].rows, sms, A) : stats;
}

template <Arch A>
constexpr Candidate kTable[] = {
    {Op::kAttention, Dir::kForward, "attention_fwd", attention_fwd, attention_fwd_accepts,
     attention_fwd_scratch<A>},
    {Op::kAttention, Dir::kBackward, "attention_bwd", attention_bwd, attention_bwd_accepts,
     attention_bwd_scratch<A>},
};

}  // namespace

bool attention_fwd_early(const StepArgs& args, const Operand& new_rows) {
  return args.in[0].rows > 0 && by_mma(args) && aligned(args) &&
         attention_fwd_mma(args, new_rows.as<const int32_t>());
}

bool attention_rope_bwd(const StepArgs& attention, const StepArgs& rope, bool has_stats) {
  const AttentionAttr& a = attr<AttentionAttr>(*attention.step);
  const Operand &table = rope.in[1], &made = rope.out[0];
  std::vector<Operand> out(attention.out.begin(), attention.out.end());
  const int64_t width = a.heads * a.head_dim;
  auto columns = [&](int64_t first, const Operand& like) {
    Operand part = made;
    part.data = made.as<Bf16>() + first;
    part.cols = like.cols;
    return part;
  };
  out[0] = columns(0, out[0]);
  out[1] = columns(width, out[1]);
  StepArgs turned = attention;
  turned.out = out;
  if (turned.in[1].rows == 0 || made.dtype != DType::kBF16 || !by_mma(turned) || !aligned(turned) ||
      !attention_bulk_serves(a, queue(turned).arch) || !aligned16(table))
    return false;
  return attention_bwd_bulk(
      turned, {cuda::rows<const float>(table), rope.in[2].as<const int32_t>()}, has_stats);
}

Candidates attention_candidates(Arch arch) {
  return arch == Arch::kSm90 ? kTable<Arch::kSm90> : kTable<Arch::kSm80>;
}

}  // namespace wick::cuda
