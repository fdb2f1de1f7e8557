// SPDX-License-Identifier: Apache-2.0
// The example of docs/plan.md, recorded: what it shows is what print gives.
#include <gtest/gtest.h>

#include "base/file.h"
#include "plan/recorder.h"

namespace wick {
namespace {

constexpr int64_t kTokens = 256, kTargets = 192, kHidden = 64, kFfn = 160, kVocab = 512, kRank = 8;
constexpr float kEps = 1e-6f, kAlpha = 16.0f;

Plan example() {
  Plan plan;
  Recorder r(plan, true);
  const int64_t of_a = kRank * kHidden, of_b = 2 * kFfn * kRank;
  ValueId params = r.state("params", {of_a + of_b}, DType::kF32);
  ValueId grads = r.state("grads", {of_a + of_b}, DType::kF32);
  ValueId lora_a = r.flat(params, 0, {kRank, kHidden}, "lora_a");
  ValueId lora_b = r.flat(params, of_a, {2 * kFfn, kRank}, "lora_b");
  ValueId table = r.weight("embed", {kVocab, kHidden}, DType::kF32);
  ValueId gate_up = r.weight("gate_up", {2 * kFfn, kHidden}, DType::kF32);
  ValueId down = r.weight("down", {kHidden, kFfn}, DType::kF32);
  ValueId norm = r.weight("norm", {kHidden}, DType::kF32);
  ValueId final_norm = r.weight("final_norm", {kHidden}, DType::kF32);
  ValueId ids = r.feed("ids", {kTokens}, DType::kI32);
  ValueId rows = r.feed("rows", {kTargets}, DType::kI32);
  ValueId targets = r.feed("targets", {kTargets}, DType::kI32);
  ValueId weight = r.feed("weight", {kTargets}, DType::kF32);
  ValueId segment = r.feed("segment", {kTargets}, DType::kI32);

  ValueId x = r.embed(table, ids);
  ValueId h = r.rms_norm(x, norm, kEps);
  ValueId y = r.linear(h, gate_up);
  ValueId a = r.linear(h, lora_a);
  r.linear_into(y, a, lora_b, kAlpha / kRank);
  ValueId mlp = r.linear(r.gated_act(y, Act::kSilu), down);
  ValueId last = r.rms_norm(r.add(x, mlp), final_norm, kEps);
  ValueId logp = r.head(r.gather_rows(last, rows), table, targets);
  ValueId loss = r.segment_sum(logp, weight, segment, 1);
  fuse(plan);
  backward(r, loss, params, grads);
  check(plan);
  return plan;
}

TEST(PlanExample, TheDocumentShowsWhatIsPrinted) {
  const std::string document = read_file(std::string(WICK_SOURCE_DIR) + "/docs/plan.md");
  const std::string shown = print(example());
  EXPECT_NE(document.find("\n```\n" + shown + "```\n"), std::string::npos)
      << "the example of docs/plan.md is now\n"
      << shown;
}

}  // namespace
}  // namespace wick
