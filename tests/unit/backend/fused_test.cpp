// SPDX-License-Identifier: Apache-2.0
// A product, the adapters that add to it and the gated_act of what it makes, and their reverse: a
// device may make them in one kernel, with tiles that end within rows, columns and adapters.
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

TEST(Fused, AProductAndItsGateAreTheTwoSteps) {
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

struct Part {
  int64_t first, cols, rank;
};
struct Adapted {
  int64_t rows, depth, cols;
  bool bias, gated;
  std::vector<Part> parts;
  int64_t turned = 0, head = 64;  // columns that rope turns
  int64_t lanes = 1;              // equal ranges of rows, each with parameters of its own
};

// y = x wᵀ + bias + scale (x aᵀ) bᵀ per part, and the gate of it, or the rope of its first columns.
void run(Backend& backend, const Adapted& s) {
  constexpr float kScale = 1.5f;
  int64_t ranks = 0, count = 0;
  for (const Part& p : s.parts) ranks += p.rank;
  Plan plan;
  Recorder r(plan, true, DType::kBF16);
  const ValueId x = r.feed("x", {s.rows, s.depth}, DType::kBF16);
  const ValueId w = r.weight("w", {s.cols, s.depth}, DType::kBF16);
  const ValueId bias = r.weight("bias", {s.cols}, DType::kBF16);
  for (const Part& p : s.parts) count += p.cols * p.rank;
  const int64_t each = ranks * s.depth + count, rows = s.rows / s.lanes;
  const ValueId params = r.state("params", {s.lanes * each}, DType::kF32);
  ValueId y = r.linear(x, w);
  if (s.bias) y = r.bias(y, bias);
  const ValueId h = r.temp("h", {s.rows, ranks}, DType::kBF16);
  auto own = [&](ValueId v, int64_t lane) {
    return s.lanes > 1 ? r.rows(v, lane * rows, (lane + 1) * rows) : v;
  };
  for (int64_t lane = 0; lane < s.lanes; ++lane)
    r.append({Op::kLinear,
              Dir::kForward,
              {own(x, lane), r.flat(params, lane * each, {ranks, s.depth}, "a"), kNone},
              {{own(h, lane)}},
              LinearAttr{}});
  for (int64_t lane = 0; lane < s.lanes; ++lane) {
    int64_t rank = 0, at = lane * each + ranks * s.depth;
    for (const Part& p : s.parts) {
      r.linear_into(r.cols(own(y, lane), p.first, p.first + p.cols),
                    r.cols(own(h, lane), rank, rank + p.rank),
                    r.flat(params, at, {p.cols, p.rank}, "b"), kScale);
      rank += p.rank;
      at += p.cols * p.rank;
    }
  }
  plan.results = {y, h};
  const ValueId made = s.gated ? r.gated_act(y, Act::kSilu) : kNone;
  if (s.gated) plan.results.push_back(made);
  const ValueId table = r.feed("table", {s.rows, s.head}, DType::kF32);
  const ValueId positions = r.feed("positions", {s.rows}, DType::kI32);
  const ValueId turned =
      s.turned > 0 ? r.rope(r.cols(y, 0, s.turned), table, positions, s.head) : kNone;
  if (s.turned > 0) plan.results.push_back(turned);
  fuse(plan);

  const auto xs = random(s.rows * s.depth, 1, 1.0f), bs = random(s.cols, 2, 1.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.depth));
  const auto ws = random(s.cols * s.depth, 3, scale), ps = random(s.lanes * each, 4, scale);
  Bindings bindings(plan.values.size());
  for (const auto& [id, data] : {std::pair{w, &ws}, std::pair{bias, &bs}}) {
    BufferPtr buffer = backend.allocate(DType::kBF16, static_cast<int64_t>(data->size()));
    backend.upload(*buffer, DType::kBF16, 0, static_cast<int64_t>(data->size()),
                   narrow(*data).data());
    bindings[static_cast<size_t>(id)] = buffer;
  }
  BufferPtr buffer = backend.allocate(DType::kF32, static_cast<int64_t>(ps.size()));
  backend.upload(*buffer, DType::kF32, 0, static_cast<int64_t>(ps.size()), ps.data());
  bindings[static_cast<size_t>(params)] = buffer;
  const std::unique_ptr<Program> program = backend.compile(plan, bindings, nullptr);
  program->feed(x, narrow(xs).data(), 2 * xs.size());
  const std::vector<float> angles = random(s.rows * s.head, 5, 1.0f);
  std::vector<int32_t> places;
  for (int64_t m = 0; m < s.rows; ++m) places.push_back(static_cast<int32_t>(m * 7 % s.rows));
  program->feed(table, angles.data(), 4 * angles.size());
  program->feed(positions, places.data(), 4 * places.size());
  program->run();
  program->wait();
  auto read = [&](ValueId id) {
    std::vector<bf16> data(static_cast<size_t>(plan.value(id).shape.elements()));
    program->read(id, data.data(), 2 * data.size());
    return data;
  };
  const std::vector<bf16> got_y = read(y), got_h = read(h);
  auto dot = [&](int64_t m, const std::vector<float>& from, int64_t n, int64_t first = 0) {
    double sum = 0;
    for (int64_t k = 0; k < s.depth; ++k)
      sum += double{xs[static_cast<size_t>(m * s.depth + k)]} *
             from[static_cast<size_t>(first + n * s.depth + k)];
    return sum;
  };
  std::vector<double> want_h, want_y, want_made;
  for (int64_t m = 0; m < s.rows; ++m) {
    const int64_t first = m / rows * each;
    for (int64_t i = 0; i < ranks; ++i) want_h.push_back(dot(m, ps, i, first));
    for (int64_t n = 0; n < s.cols; ++n) {
      double sum = dot(m, ws, n) + (s.bias ? bs[static_cast<size_t>(n)] : 0.0f);
      int64_t first_rank = 0, b_at = first + ranks * s.depth;
      for (const Part& p : s.parts) {
        for (int64_t i = 0; i < p.rank && n >= p.first && n < p.first + p.cols; ++i)
          sum += kScale * to_float(got_h[static_cast<size_t>(m * ranks + first_rank + i)]) *
                 ps[static_cast<size_t>(b_at + (n - p.first) * p.rank + i)];
        first_rank += p.rank;
        b_at += p.cols * p.rank;
      }
      want_y.push_back(sum);
    }
  }
  expect_near(got_h, want_h, "h");
  expect_near(got_y, want_y, "y");
  std::vector<double> want_turned;
  for (int64_t m = 0; m < s.rows; ++m)
    for (int64_t n = 0; n < s.turned; ++n) {
      const int64_t half = s.head / 2, local = n % s.head;
      const auto at = static_cast<size_t>(m * s.cols + n);
      const float* angle = &angles[static_cast<size_t>(places[static_cast<size_t>(m)] * s.head)];
      const double cosine = angle[local % half], sine = angle[half + local % half];
      want_turned.push_back(local < half
                                ? to_float(got_y[at]) * cosine -
                                      to_float(got_y[at + static_cast<size_t>(half)]) * sine
                                : to_float(got_y[at]) * cosine +
                                      to_float(got_y[at - static_cast<size_t>(half)]) * sine);
    }
  if (s.turned > 0) expect_near(read(turned), want_turned, "turned");
  if (!s.gated) return;
  for (int64_t m = 0; m < s.rows; ++m)
    for (int64_t n = 0; n < s.cols / 2; ++n) {
      double slope = 0;
      const auto i = static_cast<size_t>(m * s.cols + n);
      want_made.push_back(act(Act::kSilu, to_float(got_y[i]), slope) *
                          to_float(got_y[i + static_cast<size_t>(s.cols / 2)]));
    }
  expect_near(read(made), want_made, "made");
}

TEST(Fused, AdaptersInTheirProductAreTheSteps) {
  const std::vector<std::string> names = backend_names();
  if (std::find(names.begin(), names.end(), "cuda") == names.end()) GTEST_SKIP() << "no CUDA";
  const std::unique_ptr<Backend> backend = open_backend({.device = "cuda"});
  const std::vector<Adapted> all = {
      {512, 512, 512, false, false, {{0, 512, 8}}},
      {129, 72, 40, true, false, {{0, 40, 1}}},
      {200, 136, 136, true, false, {{0, 136, 3}}},
      {200, 136, 136, false, false, {{0, 136, 4}}},
      {257, 328, 264, false, false, {{0, 264, 12}}},
      {140, 2312, 136, false, false, {{0, 136, 8}}},
      {256, 200, 256, true, false, {{0, 256, 24}}},
      {256, 200, 256, false, false, {{0, 256, 32}}},
      {333, 200, 512, false, false, {{0, 512, 64}}},
      {333, 200, 520, false, false, {{0, 520, 56}}},
      {300, 136, 1152, true, false, {{0, 896, 8}, {1024, 128, 8}}},
      {300, 136, 1152, true, false, {{0, 896, 4}, {1024, 128, 4}}},
      {300, 136, 1000, true, false, {{40, 200, 8}, {264, 136, 16}, {600, 400, 8}}},
      {300, 136, 1000, false, false, {{8, 16, 8}, {24, 16, 40}, {40, 8, 8}}},
      {2100, 136, 1096, true, false, {{0, 512, 8}, {512, 584, 8}}},
      {300, 136, 272, false, true, {{0, 136, 8}, {136, 136, 8}}},
      {391, 136, 528, false, true, {{0, 264, 16}, {264, 264, 16}}},
      {391, 136, 528, false, true, {{264, 264, 64}}},
      {391, 72, 528, false, true, {{0, 264, 4}, {264, 264, 8}}},
      {1100, 136, 1424, false, true, {{0, 712, 24}, {712, 712, 8}}},
      {1400, 136, 1424, false, true, {{0, 712, 8}, {712, 712, 8}}},
      {300, 136, 1152, true, false, {{0, 896, 8}, {1024, 128, 8}}, 1024},
      {2100, 136, 1152, true, false, {{0, 896, 8}, {1024, 128, 8}}, 1024},
      {2100, 136, 768, true, false, {{0, 512, 8}, {512, 256, 8}}, 512, 128},
      {300, 136, 96, false, false, {{0, 96, 8}}, 64, 32},
      {512, 264, 1152, true, false, {{0, 896, 8}, {1024, 128, 8}}, 1024},
      {500, 328, 576, false, false, {{0, 576, 16}}, 512},
      {449, 272, 640, true, false, {{64, 320, 16}, {448, 64, 8}}},
      {512, 136, 1152, true, false, {{0, 896, 8}, {1024, 128, 8}}, 0, 64, 4},
      {2048, 200, 1152, true, false, {{0, 896, 8}, {1024, 128, 8}}, 0, 64, 4},
      {768, 136, 136, false, false, {{0, 136, 12}}, 0, 64, 3},
      {1024, 200, 512, false, false, {{0, 512, 64}}, 0, 64, 2},
      {512, 136, 528, false, true, {{0, 264, 8}, {264, 264, 8}}, 0, 64, 2},
      {1280, 136, 1424, false, true, {{0, 712, 24}, {712, 712, 8}}, 0, 64, 5},
      {600, 136, 1152, true, false, {{0, 896, 8}, {1024, 128, 8}}, 0, 64, 4},
      {1960, 136, 1152, true, false, {{0, 896, 8}, {1024, 128, 8}}, 0, 64, 4},
      {1470, 136, 528, false, true, {{0, 264, 16}, {264, 264, 16}}, 0, 64, 3},
      {2048, 16, 16384, false, true, {{0, 8192, 8}, {8192, 8192, 8}}, 0, 64, 2},
  };
  for (const Adapted& s : all) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.depth << " x " << s.cols << ", rank "
                                    << s.parts.front().rank << ", lanes " << s.lanes);
    run(*backend, s);
  }
}

// In tiles that are one round of the card: of 64 columns, alone and in pairs that share ranks, of
// 128, and of 256; of 192 above.
TEST(Fused, AdaptersInOneRoundOfTilesAreTheSteps) {
  const std::vector<std::string> names = backend_names();
  if (std::find(names.begin(), names.end(), "cuda") == names.end()) GTEST_SKIP() << "no CUDA";
  const std::unique_ptr<Backend> backend = open_backend({.device = "cuda"});
  const std::vector<Adapted> all = {
      {300, 584, 520, true, false, {{0, 520, 8}}},
      {300, 584, 520, false, false, {{0, 520, 40}}},
      {200, 584, 200, true, false, {{0, 200, 64}}},
      {1100, 136, 1000, true, false, {{0, 1000, 8}}},
      {1100, 136, 1000, false, false, {{0, 400, 8}, {504, 496, 8}}},
      {2100, 136, 1500, true, false, {{0, 1500, 8}}},
      {2100, 136, 1500, false, false, {{0, 1500, 16}}},
  };
  for (const Adapted& s : all) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.depth << " x " << s.cols << ", rank "
                                    << s.parts.front().rank);
    run(*backend, s);
  }
}

// The gradient of what attention made, by a product; then the reverse of attention and of the rope
// before it.
struct Reversed {
  std::vector<bf16> d, gradient;  // [T, (H + 2K) E], of the product
};
// `ranks`: of an adapter that adds to the product; 0: none.
Reversed reverse_of(Backend& backend, int64_t rows, int64_t heads, int64_t kv_heads,
                    int64_t ranks) {
  constexpr int64_t kHead = 64;
  const int64_t q_cols = heads * kHead, k_cols = kv_heads * kHead;
  Plan plan;
  Recorder r(plan, true, DType::kBF16);
  const ValueId qkv = r.feed("qkv", {rows, q_cols + 2 * k_cols}, DType::kBF16);
  const ValueId table = r.feed("table", {rows, kHead}, DType::kF32);
  const ValueId positions = r.feed("positions", {rows}, DType::kI32);
  const ValueId begin = r.feed("begin", {rows}, DType::kI32);
  const ValueId end = r.feed("end", {rows}, DType::kI32);
  const ValueId dy = r.feed("dy", {rows, q_cols}, DType::kBF16);
  const ValueId w = r.weight("w", {q_cols, q_cols}, DType::kBF16);
  const ValueId turned = r.rope(r.cols(qkv, 0, q_cols + k_cols), table, positions, kHead);
  const ValueId q = r.cols(turned, 0, q_cols), k = r.cols(turned, q_cols, q_cols + k_cols);
  const ValueId v = r.cols(qkv, q_cols + k_cols, q_cols + 2 * k_cols);
  const AttentionAttr attr{.heads = heads,
                           .kv_heads = kv_heads,
                           .head_dim = kHead,
                           .scale = 0.125f,
                           .causal_self = true};
  const ValueId y = r.attention(q, k, v, begin, end, attr);
  const ValueId lse = plan.steps.back().outputs[1].value;
  const ValueId gradient = r.temp("gradient", {rows, q_cols}, DType::kBF16);
  const ValueId d_turned = r.temp("d_turned", {rows, q_cols + k_cols}, DType::kBF16);
  const ValueId d = r.temp("d", {rows, q_cols + 2 * k_cols}, DType::kBF16);
  const ValueId dh = r.feed("dh", {rows, std::max<int64_t>(ranks, 1)}, DType::kBF16);
  const ValueId a = r.state("a", {std::max<int64_t>(ranks, 1), q_cols}, DType::kF32);
  if (ranks > 0)
    r.append({Op::kLinear, Dir::kBackward, {dh, kNone, a}, {{gradient}, {}, {}}, LinearAttr{1.5f}});
  r.append({Op::kLinear,
            Dir::kBackward,
            {dy, kNone, w},
            {{gradient, ranks > 0 ? OutMode::kAccumulate : OutMode::kWrite}, {}, {}},
            LinearAttr{}});
  r.append({Op::kAttention,
            Dir::kBackward,
            {gradient, q, k, v, y, lse, begin, end},
            {{r.cols(d_turned, 0, q_cols)},
             {r.cols(d_turned, q_cols, q_cols + k_cols)},
             {r.cols(d, q_cols + k_cols, q_cols + 2 * k_cols)}},
            attr});
  r.append({Op::kRope,
            Dir::kBackward,
            {d_turned, table, positions},
            {{r.cols(d, 0, q_cols + k_cols)}},
            RopeAttr{kHead}});
  plan.results = {d, gradient};

  Bindings bindings(plan.values.size());
  const auto ws = random(q_cols * q_cols, 1, 1.0f / std::sqrt(static_cast<float>(q_cols)));
  bindings[static_cast<size_t>(w)] = backend.allocate(DType::kBF16, q_cols * q_cols);
  backend.upload(*bindings[static_cast<size_t>(w)], DType::kBF16, 0, q_cols * q_cols,
                 narrow(ws).data());
  const auto as = random(plan.value(a).shape.elements(), 5, 0.5f);
  bindings[static_cast<size_t>(a)] = backend.allocate(DType::kF32, plan.value(a).shape.elements());
  backend.upload(*bindings[static_cast<size_t>(a)], DType::kF32, 0, plan.value(a).shape.elements(),
                 as.data());
  const std::unique_ptr<Program> program = backend.compile(plan, bindings, nullptr);
  program->feed(dh, narrow(random(plan.value(dh).shape.elements(), 6, 0.5f)).data(),
                static_cast<size_t>(2 * plan.value(dh).shape.elements()));
  program->feed(qkv, narrow(random(rows * (q_cols + 2 * k_cols), 2, 1.0f)).data(),
                static_cast<size_t>(2 * rows * (q_cols + 2 * k_cols)));
  program->feed(dy, narrow(random(rows * q_cols, 3, 1.0f)).data(),
                static_cast<size_t>(2 * rows * q_cols));
  const std::vector<float> angles = random(rows * kHead, 4, 1.0f);
  program->feed(table, angles.data(), 4 * angles.size());
  std::vector<int32_t> places, begins, ends;
  for (int32_t t = 0; t < rows; ++t) {
    places.push_back(t);
    begins.push_back(t < 200 ? 0 : 200);
    ends.push_back(t + 1);
  }
  program->feed(positions, places.data(), 4 * places.size());
  program->feed(begin, begins.data(), 4 * begins.size());
  program->feed(end, ends.data(), 4 * ends.size());
  program->run();
  program->wait();
  Reversed made{std::vector<bf16>(static_cast<size_t>(rows * (q_cols + 2 * k_cols))),
                std::vector<bf16>(static_cast<size_t>(rows * q_cols))};
  program->read(d, made.d.data(), 2 * made.d.size());
  program->read(gradient, made.gradient.data(), 2 * made.gradient.size());
  return made;
}

TEST(Fused, TheReverseOfAttentionBehindItsProductIsTheSteps) {
  const std::vector<std::string> names = backend_names();
  if (std::find(names.begin(), names.end(), "cuda") == names.end()) GTEST_SKIP() << "no CUDA";
  auto wide = [](const std::vector<bf16>& x) {
    std::vector<double> made;
    for (bf16 v : x) made.push_back(to_float(v));
    return made;
  };
  const auto own = open_backend({.device = "cuda"}),
             every = open_backend({.device = "cuda", .cuda_arch = "sm_80"});
  struct Case {
    int64_t rows, heads, kv_heads, ranks;
  };
  for (const Case& c : {Case{512, 14, 2, 0}, Case{512, 14, 2, 8}, Case{512, 14, 2, 12},
                        Case{512, 14, 2, 24}, Case{512, 14, 2, 40}, Case{512, 8, 8, 0},
                        Case{512, 8, 8, 8}, Case{500, 14, 2, 0}, Case{500, 14, 2, 8}}) {
    SCOPED_TRACE(testing::Message()
                 << c.rows << " rows, " << c.heads << " heads, rank " << c.ranks);
    const Reversed got = reverse_of(*own, c.rows, c.heads, c.kv_heads, c.ranks),
                   wanted = reverse_of(*every, c.rows, c.heads, c.kv_heads, c.ranks);
    expect_near(got.gradient, wide(wanted.gradient), "gradient");
    expect_near(got.d, wide(wanted.d), "d");
  }
}

}  // namespace
}  // namespace wick
