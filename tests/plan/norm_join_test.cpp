// SPDX-License-Identifier: Apache-2.0
// A device may make the norm of few rows in the product behind it, every part of that for itself,
// and with it the gated_act or the rope of the product: none of them may lie where another part
// still reads what is normed.
#include <gtest/gtest.h>

#include "plan/recorder.h"

namespace wick {
namespace {

constexpr int64_t kWidth = 64, kHalf = 96, kHead = 16;

bool is(const Plan& plan, size_t step, Op op) {
  return step < plan.steps.size() && plan.steps[step].op == op;
}

// Blocks of a decoder over a cache.
Plan decoder(int64_t rows, int64_t layers) {
  Plan plan;
  Recorder r(plan, false, DType::kBF16);
  auto matrix = [&](const char* name, int64_t n, int64_t k) {
    return r.weight(name, {n, k}, DType::kBF16);
  };
  const ValueId gain = r.weight("gain", {kWidth}, DType::kBF16),
                table = r.weight("table", {64, kHead}, DType::kF32),
                positions = r.feed("positions", {rows}, DType::kI32),
                begin = r.feed("begin", {rows}, DType::kI32),
                end = r.feed("end", {rows}, DType::kI32), at = r.feed("at", {rows}, DType::kI32);
  const ValueId k = r.state("k", {64, kHead}, DType::kBF16),
                v = r.state("v", {64, kHead}, DType::kBF16);
  ValueId x = r.embed(matrix("embed", 32, kWidth), r.feed("ids", {rows}, DType::kI32));
  const AttentionAttr attr{.heads = 4, .kv_heads = 1, .head_dim = kHead};
  for (int64_t i = 0; i < layers; ++i) {
    ValueId h = r.linear(r.rms_norm(x, gain, 1e-6f), matrix("qkv", kWidth + 2 * kHead, kWidth));
    const ValueId turned = r.rope(r.cols(h, 0, kWidth + kHead), table, positions, kHead);
    r.copy(r.cols(turned, kWidth, kWidth + kHead), at, k);
    r.copy(r.cols(h, kWidth + kHead, kWidth + 2 * kHead), at, v);
    h = r.attention(r.cols(turned, 0, kWidth), k, v, begin, end, attr);
    x = r.add(x, r.linear(h, matrix("o", kWidth, kWidth)));
    h = r.linear(r.rms_norm(x, gain, 1e-6f), matrix("gate_up", 2 * kHalf, kWidth));
    x = r.add(x, r.linear(r.gated_act(h, Act::kSilu), matrix("down", kWidth, kHalf)));
  }
  x = r.linear_f32(r.rms_norm(x, gain, 1e-6f), matrix("head", 48, kWidth));
  plan.results.push_back(x);
  fuse(plan);
  check(plan);
  return plan;
}

TEST(NormJoin, ReadsWhatNoPartWrites) {
  for (const int64_t rows : {1, 7, 16}) {
    const Plan plan = decoder(rows, 3);
    const std::vector<size_t> scratch(plan.steps.size(), 0);
    const Placement placement = place(plan, dtype_bytes, scratch);
    check_placement(plan, dtype_bytes, scratch, placement);
    auto from = [&](ValueId v) { return placement.offset[static_cast<size_t>(plan.root(v))]; };
    auto to = [&](ValueId v) {
      const Value& root = plan.value(plan.root(v));
      return from(v) + root.shape.elements() * static_cast<int64_t>(dtype_bytes(root.dtype));
    };
    int joined = 0;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const bool adds = is(plan, i, Op::kAddRmsNorm);
      if ((!adds && !is(plan, i, Op::kRmsNorm)) || !is(plan, i + 1, Op::kLinear)) continue;
      ++joined;
      std::vector<ValueId> made = {plan.steps[i + 1].outputs[0].value};
      for (const Op op : {Op::kGatedAct, Op::kRope})
        if (is(plan, i + 2, op)) made.push_back(plan.steps[i + 2].outputs[0].value);
      for (size_t j = 0; j < (adds ? 2 : 1); ++j)
        for (const ValueId out : made) {
          const ValueId in = plan.steps[i].inputs[j];
          EXPECT_TRUE(to(in) <= from(out) || to(out) <= from(in))
              << rows << " rows, step " << i << ": " << plan.value(in).name << " at " << from(in)
              << " to " << to(in) << ", " << plan.value(out).name << " at " << from(out) << " to "
              << to(out);
        }
    }
    EXPECT_EQ(joined, 7);
  }
}

}  // namespace
}  // namespace wick
