// SPDX-License-Identifier: Apache-2.0
// A product that makes the gated_act beside it gives the bits of the two steps.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "base/half.h"
#include "plan/recorder.h"
#include "quant/rows.h"

namespace wick {
namespace {

struct Sizes {
  int64_t rows, width, half;
  DType weights;
  bool trains;
  DType activations = DType::kBF16;
  bool adapted = false;  // both halves, rank 8
  bool drops = false;    // x before each adapter, so that nothing reads it behind the product
};
constexpr int64_t kRank = 8;

// head(linear(gated_act(linear(x + b)))), with scales of 1 around the gate that keep it apart.
struct Net {
  Plan plan;
  ValueId x, params, keys = kNone, grads = kNone, target, weight, segment, loss;
  std::vector<ValueId> weights;

  static int64_t params_of(const Sizes& s) {
    return s.width + (s.adapted ? 2 * kRank * (s.width + s.half) : 0);
  }

  Net(const Sizes& s, bool apart) {
    Recorder r(plan, s.trains, s.activations);
    x = r.feed("x", {s.rows, s.width}, s.activations);
    params = r.state("params", {params_of(s)}, DType::kF32);
    auto matrix = [&](const char* name, int64_t n, int64_t k, DType dtype) {
      return weights.emplace_back(r.weight(name, {n, k}, dtype));
    };
    if (!s.trains) r.narrow_linears();
    ValueId h = s.trains || s.drops ? r.bias(x, r.flat(params, 0, {s.width}, "b")) : x;
    const ValueId from = h;
    h = r.linear(h, matrix("gate_up", 2 * s.half, s.width, s.weights));
    if (s.drops) keys = r.feed("keys", {s.rows, 2}, DType::kI32);
    auto sums_of = [&](ValueId in, int64_t i, int64_t count) {
      return r.linear(in,
                      r.flat(params, s.width + i * kRank * s.width, {count * kRank, s.width}, "a"));
    };
    if (s.adapted) {
      const ValueId sums = s.drops ? kNone : sums_of(from, 0, 2);
      for (int64_t i = 0; i < 2; ++i)
        r.linear_into(
            r.cols(h, i * s.half, (i + 1) * s.half),
            s.drops ? sums_of(r.dropout(from, keys, 0.25f, static_cast<uint64_t>(i)), i, 1)
                    : r.cols(sums, i * kRank, (i + 1) * kRank),
            r.flat(params, s.width + kRank * (2 * s.width + i * s.half), {s.half, kRank}, "b"),
            2.0f);
    }
    if (apart) h = r.scale(h, 1.0f);
    h = r.gated_act(h, Act::kSilu);
    if (apart) h = r.scale(h, 1.0f);
    h = r.linear(h, matrix("down", s.width, s.half, s.weights));
    target = r.feed("target", {s.rows}, DType::kI32);
    weight = r.feed("weight", {s.rows}, DType::kF32);
    segment = r.feed("segment", {s.rows}, DType::kI32);
    loss = r.segment_sum(r.head(h, matrix("words", 40, s.width, DType::kBF16), target), weight,
                         segment, 1);
    plan.results.push_back(loss);
    if (s.trains) {
      grads = r.state("grads", {params_of(s)}, DType::kF32);
      backward(r, loss, params, grads);
    }
    check(plan);
  }
};

float number(uint64_t seed, int64_t i) {
  return static_cast<float>((static_cast<uint64_t>(i) * 2654435761u + seed * 40503u) % 2001) /
             1000.0f -
         1.0f;
}

std::vector<std::byte> made_weight(const Value& v, uint64_t seed) {
  const int64_t n = v.shape[0], k = v.shape[1];
  const size_t row = row_bytes(v.dtype, k);
  std::vector<std::byte> rows(static_cast<size_t>(n) * row);
  std::vector<float> wide(static_cast<size_t>(k));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) wide[static_cast<size_t>(j)] = 0.2f * number(seed, i * k + j);
    std::byte* to = rows.data() + static_cast<size_t>(i) * row;
    if (dtype_is_quantized(v.dtype))
      quantize_row(v.dtype, wide.data(), k, to);
    else
      for (int64_t j = 0; j < k; ++j)
        reinterpret_cast<bf16*>(to)[j] = to_bf16(wide[static_cast<size_t>(j)]);
  }
  return rows;
}

// The loss, and the gradient of b.
std::vector<float> results(const std::string& isa, const Sizes& s, bool apart, int threads) {
  Net net(s, apart);
  const std::unique_ptr<Backend> backend =
      open_backend({.device = "cpu", .threads = threads, .cpu_isa = isa});
  Bindings bindings(net.plan.values.size());
  const std::vector<WeightForm> forms = backend->weight_forms(net.plan);
  uint64_t seed = 1;
  for (ValueId id : net.weights) {
    const Value& v = net.plan.value(id);
    const auto at = static_cast<size_t>(id);
    bindings[at] = backend->prepare(v, forms[at], made_weight(v, seed++).data());
  }
  std::vector<float> b(static_cast<size_t>(Net::params_of(s)), 0.01f);
  const auto count = static_cast<int64_t>(b.size());
  for (int64_t i = s.width; i < count; ++i) b[static_cast<size_t>(i)] = 0.1f * number(9, i);
  for (ValueId id : {net.params, net.grads})
    if (id != kNone) {
      bindings[static_cast<size_t>(id)] = backend->allocate(DType::kF32, count);
      backend->upload(*bindings[static_cast<size_t>(id)], DType::kF32, 0, count, b.data());
    }
  const std::unique_ptr<Program> program = backend->compile(net.plan, bindings, nullptr);
  std::vector<float> xs(static_cast<size_t>(s.rows * s.width));
  for (size_t i = 0; i < xs.size(); ++i) xs[i] = number(7, static_cast<int64_t>(i));
  std::vector<bf16> halves(xs.size());
  std::transform(xs.begin(), xs.end(), halves.begin(), [](float v) { return to_bf16(v); });
  std::vector<int32_t> targets(static_cast<size_t>(s.rows)), segments(targets.size(), 0);
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<int32_t>(i % 40);
  std::vector<float> ones(targets.size(), 1.0f);
  if (s.activations == DType::kBF16)
    program->feed(net.x, halves.data(), 2 * halves.size());
  else
    program->feed(net.x, xs.data(), 4 * xs.size());
  const std::vector<int32_t> keys(2 * targets.size(), 5);
  if (s.drops) program->feed(net.keys, keys.data(), 4 * keys.size());
  program->feed(net.target, targets.data(), 4 * targets.size());
  program->feed(net.weight, ones.data(), 4 * ones.size());
  program->feed(net.segment, segments.data(), 4 * segments.size());
  program->run();
  program->wait();
  std::vector<float> out(1);
  program->read(net.loss, out.data(), 4);
  if (net.grads != kNone) {
    std::vector<float> grads(b.size());
    program->read(net.grads, grads.data(), 4 * grads.size());
    out.insert(out.end(), grads.begin(), grads.end());
  }
  return out;
}

TEST(GateJoin, HasTheBitsOfTwoSteps) {
  for (const std::string& isa : cpu_isas())
    for (const Sizes& s : {Sizes{40, 96, 64, DType::kBF16, true},
                           {17, 64, 32, DType::kBF16, true},
                           {600, 64, 96, DType::kBF16, true},
                           {33, 1120, 1088, DType::kBF16, true},
                           {70, 192, 256, DType::kQ4G32, true},
                           {70, 192, 256, DType::kQ4G32, false},
                           {550, 1120, 96, DType::kQ4G64, false},
                           {40, 96, 48, DType::kBF16, true},
                           {40, 96, 64, DType::kBF16, true, DType::kBF16, true},
                           {600, 96, 64, DType::kBF16, false, DType::kBF16, true},
                           {600, 96, 96, DType::kBF16, false, DType::kBF16, true, true},
                           {70, 192, 192, DType::kQ8G32, false, DType::kBF16, true, true},
                           {70, 192, 256, DType::kQ4G32, false, DType::kBF16, true},
                           {33, 1120, 96, DType::kQ8G32, false, DType::kBF16, true},
                           {70, 96, 64, DType::kBF16, false},
                           {70, 96, 64, DType::kBF16, false, DType::kF32},
                           {600, 896, 288, DType::kBF16, false, DType::kF32},
                           {2100, 64, 1600, DType::kBF16, false, DType::kF32},
                           {40, 96, 72, DType::kBF16, false, DType::kF32},
                           {33, 1120, 96, DType::kBF16, false, DType::kF32}}) {
      // In bf16 only rungs that multiply it join; in f32 only AVX2 does, the others agree too.
      if (s.activations == DType::kBF16 && isa != "amx" && isa != "avx512_bf16") continue;
      SCOPED_TRACE(::testing::Message() << isa << " " << s.rows << " x " << s.width << ", "
                                        << s.half << ", " << dtype_name(s.weights));
      const std::vector<float> joined = results(isa, s, false, 2);
      EXPECT_EQ(joined, results(isa, s, true, 2));
      EXPECT_EQ(joined, results(isa, s, false, 3));
      EXPECT_TRUE(
          std::all_of(joined.begin(), joined.end(), [](float v) { return v == v && v != 0.01f; }));
    }
}

}  // namespace
}  // namespace wick
