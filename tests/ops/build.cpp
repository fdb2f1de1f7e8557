// SPDX-License-Identifier: Apache-2.0
#include "ops/builder.h"

namespace wick::ops {

void Builder::build() {
  switch (c_.op) {
    case Op::kEmbed:
      embed();
      break;
    case Op::kLinear:
      linear();
      break;
    case Op::kRmsNorm:
      rms_norm();
      break;
    case Op::kAddRmsNorm:
      add_rms_norm();
      break;
    case Op::kLayerNorm:
      layer_norm();
      break;
    case Op::kSoftmax:
      softmax();
      break;
    case Op::kRope:
      rope();
      break;
    case Op::kAttention:
      attention();
      break;
    case Op::kGatedAct:
      gated_act();
      break;
    case Op::kAdd:
      add();
      break;
    case Op::kScale:
      scale();
      break;
    case Op::kBias:
      bias();
      break;
    case Op::kDropout:
      dropout();
      break;
    case Op::kGatherRows:
      gather_rows();
      break;
    case Op::kHead:
      head();
      break;
    case Op::kSegmentSum:
      segment_sum();
      break;
    case Op::kPreferenceLoss:
      preference_loss();
      break;
    case Op::kKlHead:
      kl_head();
      break;
    case Op::kColumnScale:
      column_scale();
      break;
    case Op::kColumnNorm:
      column_norm();
      break;
    case Op::kGradNorm:
      grad_norm();
      break;
    case Op::kAdamw:
      adamw();
      break;
    case Op::kSgd:
      sgd();
      break;
    case Op::kLion:
      lion();
      break;
    case Op::kMuon:
      muon();
      break;
    case Op::kAdafactor:
      adafactor();
      break;
    case Op::kAdamw8:
      adamw8();
      break;
    case Op::kSample:
      sample();
      break;
    case Op::kCopy:
      copy();
      break;
  }
  drop_absent();
  for (const auto& [key, value] : c_.keys) {
    if (std::find(used_.begin(), used_.end(), key) == used_.end()) {
      fail(ErrorCode::kInvalidArgument, "unknown key ", key, " of ", op_name(c_.op));
    }
  }
}

void build(Case& c, uint64_t seed) {
  build_operands(c, seed);
  run_forward(c);
}

void build_operands(Case& c, uint64_t seed) {
  // References into args must stay valid while operands are added.
  c.args.reserve(20);
  Builder(c, seed).build();
}

void run_forward(Case& c) {
  if (c.bwd_out.empty()) return;
  // In the precision it is kept in.
  auto made = run_reference(c, Dir::kForward);
  for (size_t i = 0; i < c.fwd_out.size(); ++i) {
    const std::string& name = c.fwd_out[i];
    if (name.empty() || c.arg(name).mode != OutMode::kWrite) continue;
    Arg& a = c.arg(name);
    for (double& x : made[i]) x = rounded(x, a.dtype);
    a.data = std::move(made[i]);
  }
}

}  // namespace wick::ops
