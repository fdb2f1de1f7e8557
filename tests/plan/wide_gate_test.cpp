// SPDX-License-Identifier: Apache-2.0
// What a wide gated_act makes is not kept for the reverse pass but made again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/backend.h"
#include "plan/recorder.h"

namespace wick {
namespace {

constexpr int64_t kRank = 2, kWords = 3;

// How often the plan of the gradient of a head over gated_act(x + b) aᵀ makes the activation. The
// gradient of a's first row must be a multiple of what the gate makes.
int64_t activations(int64_t half) {
  Plan plan;
  Recorder r(plan, true);
  const ValueId x = r.feed("x", {1, 2 * half}, DType::kF32);
  const ValueId params = r.state("params", {(kRank + 2) * half}, DType::kF32);
  // So that the gate has a reverse.
  const ValueId biased = r.bias(x, r.flat(params, kRank * half, {2 * half}, "b"));
  const ValueId z =
      r.linear(r.gated_act(biased, Act::kSilu), r.flat(params, 0, {kRank, half}, "a"));
  const ValueId words = r.weight("words", {kWords, kRank}, DType::kF32);
  const ValueId target = r.feed("target", {1}, DType::kI32);
  const ValueId weight = r.feed("weight", {1}, DType::kF32);
  const ValueId segment = r.feed("segment", {1}, DType::kI32);
  const ValueId loss = r.segment_sum(r.head(z, words, target), weight, segment, 1);
  const ValueId grads = r.state("grads", {(kRank + 2) * half}, DType::kF32);
  backward(r, loss, params, grads);
  check(plan);

  const std::unique_ptr<Backend> backend = open_backend({.device = "ref"});
  Bindings bindings(plan.values.size());
  for (ValueId id : {params, grads, words})
    bindings[static_cast<size_t>(id)] =
        backend->allocate(DType::kF32, plan.value(id).shape.elements());
  const std::vector<float> table{1.0f, 2.0f, 3.0f, 5.0f, -1.0f, 4.0f};
  backend->upload(*bindings[static_cast<size_t>(words)], DType::kF32, 0, kWords * kRank,
                  table.data());
  const std::unique_ptr<Program> program = backend->compile(plan, bindings, nullptr);
  std::vector<float> xs(static_cast<size_t>(2 * half));
  for (size_t i = 0; i < xs.size(); ++i) xs[i] = static_cast<float>(i % 7) - 2.5f;
  const float one = 1.0f;
  const int32_t zero = 0;
  program->feed(x, xs.data(), 4 * xs.size());
  program->feed(target, &zero, 4);
  program->feed(weight, &one, 4);
  program->feed(segment, &zero, 4);
  program->run();
  program->wait();
  std::vector<float> made(static_cast<size_t>((kRank + 2) * half));
  program->read(grads, made.data(), 4 * made.size());
  auto gate = [&](size_t i) {
    return xs[i] / (1.0f + std::exp(-xs[i])) * xs[i + static_cast<size_t>(half)];
  };
  const float factor = made[0] / gate(0);
  EXPECT_NE(factor, 0.0f);
  for (size_t i = 0; i < static_cast<size_t>(half); ++i)
    EXPECT_NEAR(made[i], factor * gate(i), 1e-4f) << i;
  return std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& s) {
    return s.op == Op::kGatedAct && s.dir == Dir::kForward;
  });
}

TEST(WideGate, IsMadeAgain) {
  EXPECT_EQ(activations(16384), 2);
  EXPECT_EQ(activations(64), 1);
}

}  // namespace
}  // namespace wick
