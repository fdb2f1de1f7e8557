// SPDX-License-Identifier: Apache-2.0
// A product and the gated_act of what it makes, and their reverse: a device may make the two in one
// kernel, with tiles that end within rows and columns.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/backend.h"
#include "base/half.h"
#include "base/rng.h"
#include "plan/recorder.h"

namespace wick {
namespace {

struct Sizes {
  int64_t rows, depth, half;
};

std::vector<float> random(int64_t count, uint64_t seed, float scale) {
  Rng rng(seed);
  std::vector<float> made;
  for (int64_t i = 0; i < count; ++i) made.push_back(to_float(to_bf16(scale * rng.normal())));
  return made;
}
std::vector<bf16> narrow(const std::vector<float>& x) {
  std::vector<bf16> made;
  for (float v : x) made.push_back(to_bf16(v));
  return made;
}

double act(Act a, double x, double& slope) {
  if (a == Act::kSilu) {
    const double s = 1 / (1 + std::exp(-x));
    slope = s + x * s * (1 - s);
    return x * s;
  }
  const double c = std::sqrt(2 / 3.14159265358979323846);
  const double t = std::tanh(c * (x + 0.044715 * x * x * x));
  slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
  return 0.5 * x * (1 + t);
}

void expect_near(const std::vector<bf16>& got, const std::vector<double>& wanted,
                 const char* what) {
  ASSERT_EQ(got.size(), wanted.size());
  double most = 0;
  for (double w : wanted) most = std::max(most, std::abs(w));
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(to_float(got[i]), wanted[i], 0.01 * most) << what << "[" << i << "]";
}

void run(Backend& backend, const Sizes& s, Act activation) {
  Plan plan;
  Recorder r(plan, true, DType::kBF16);
  const ValueId x = r.feed("x", {s.rows, s.depth}, DType::kBF16);
  const ValueId w = r.weight("w", {2 * s.half, s.depth}, DType::kBF16);
  const ValueId y = r.linear(x, w), made = r.gated_act(y, activation);
  const ValueId dy = r.feed("dy", {s.rows, s.depth}, DType::kBF16);
  const ValueId v = r.weight("v", {s.depth, s.half}, DType::kBF16);
  const ValueId dmade = r.temp("dmade", {s.rows, s.half}, DType::kBF16);
  const ValueId back = r.temp("back", {s.rows, 2 * s.half}, DType::kBF16);
  r.append({Op::kLinear, Dir::kBackward, {dy, kNone, v}, {{dmade}, {}, {}}, LinearAttr{}});
  r.append({Op::kGatedAct, Dir::kBackward, {dmade, y}, {{back}}, GatedActAttr{activation}});
  plan.results = {y, made, back};

  const auto xs = random(s.rows * s.depth, 1, 1.0f), ds = random(s.rows * s.depth, 2, 1.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.depth));
  const auto ws = random(2 * s.half * s.depth, 3, scale), vs = random(s.depth * s.half, 4, scale);
  Bindings bindings(plan.values.size());
  for (const auto& [id, data] : {std::pair{w, &ws}, std::pair{v, &vs}}) {
    BufferPtr buffer = backend.allocate(DType::kBF16, static_cast<int64_t>(data->size()));
    backend.upload(*buffer, DType::kBF16, 0, static_cast<int64_t>(data->size()),
                   narrow(*data).data());
    bindings[static_cast<size_t>(id)] = buffer;
  }
  const std::unique_ptr<Program> program = backend.compile(plan, bindings, nullptr);
  program->feed(x, narrow(xs).data(), 2 * xs.size());
  program->feed(dy, narrow(ds).data(), 2 * ds.size());
  program->run();
  program->wait();
  auto read = [&](ValueId id) {
    std::vector<bf16> data(static_cast<size_t>(plan.value(id).shape.elements()));
    program->read(id, data.data(), 2 * data.size());
    return data;
  };
  const std::vector<bf16> got_y = read(y);

  std::vector<double> want_y, want_made, want_back(got_y.size());
  for (int64_t m = 0; m < s.rows; ++m)
    for (int64_t n = 0; n < 2 * s.half; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < s.depth; ++k)
        sum += double{xs[static_cast<size_t>(m * s.depth + k)]} *
               ws[static_cast<size_t>(n * s.depth + k)];
      want_y.push_back(sum);
    }
  for (int64_t m = 0; m < s.rows; ++m)
    for (int64_t n = 0; n < s.half; ++n) {
      double slope = 0, d = 0;
      const auto at = static_cast<size_t>(m * 2 * s.half + n),
                 other = at + static_cast<size_t>(s.half);
      const double up = to_float(got_y[other]), value = act(activation, to_float(got_y[at]), slope);
      for (int64_t k = 0; k < s.depth; ++k)
        d += double{ds[static_cast<size_t>(m * s.depth + k)]} *
             vs[static_cast<size_t>(k * s.half + n)];
      want_made.push_back(value * up);
      want_back[at] = d * up * slope;
      want_back[other] = d * value;
    }
  expect_near(got_y, want_y, "y");
  expect_near(read(made), want_made, "made");
  expect_near(read(back), want_back, "back");
}

TEST(Gated, AProductAndItsGateAreTheTwoSteps) {
  const std::vector<std::string> names = backend_names();
  if (std::find(names.begin(), names.end(), "cuda") == names.end()) GTEST_SKIP() << "no CUDA";
  const std::unique_ptr<Backend> backend = open_backend({.device = "cuda"});
  for (const Sizes& s : {Sizes{256, 64, 80}, Sizes{300, 72, 136}, Sizes{391, 136, 264},
                         Sizes{520, 72, 344}, Sizes{100, 64, 80}})
    for (Act a : {Act::kSilu, Act::kGeluTanh}) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.depth << " x " << s.half);
      run(*backend, s, a);
    }
}

}  // namespace
}  // namespace wick
