// SPDX-License-Identifier: Apache-2.0
// What adapters add to a product: which steps belong to it, and that on processors with units for
// bf16 their sum is rounded once, whatever kernel makes it.
#include "plan/added.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "base/half.h"
#include "base/rng.h"
#include "plan/recorder.h"
#include "quant/rows.h"

namespace wick {
namespace {

struct Sizes {
  int64_t rows, sum, width;  // y is three times as wide, the first and last third are adapted
  int64_t rank;
  DType weights = DType::kBF16;
  bool gate = false, lanes = false, drops = false;
};

struct Net {
  Plan plan;
  ValueId x, keys = kNone, w, params, y, h, made = kNone;

  explicit Net(const Sizes& s) {
    Recorder r(plan, s.drops, DType::kBF16);
    x = r.feed("x", {s.rows, s.sum}, DType::kBF16);
    w = r.weight("w", {3 * s.width, s.sum}, s.weights);
    params = r.state("params", {2 * s.rank * (s.sum + s.width)}, DType::kF32);
    if (s.drops) keys = r.feed("keys", {s.rows, 2}, DType::kI32);
    if (!s.drops) r.narrow_linears();
    const ValueId a = r.flat(params, 0, {2 * s.rank, s.sum}, "a");
    auto b = [&](int64_t i) {
      return r.flat(params, 2 * s.rank * s.sum + i * s.width * s.rank, {s.width, s.rank}, "b");
    };
    y = r.linear(x, w);
    const ValueId from = s.drops ? r.dropout(x, keys, 0.25f, 3) : x;
    h = r.linear(from, a);
    // The halves of the rows apart, as those of two adapters in one step are.
    const int64_t cut = s.lanes ? s.rows / 2 : s.rows;
    for (auto [begin, end] : {std::pair{int64_t{0}, cut}, std::pair{cut, s.rows}})
      for (int64_t i = 0; i < 2 && begin < end; ++i)
        r.linear_into(r.cols(r.rows(y, begin, end), 2 * i * s.width, (2 * i + 1) * s.width),
                      r.cols(r.rows(h, begin, end), i * s.rank, (i + 1) * s.rank), b(i), 0.5f);
    if (s.gate) {
      const ValueId two = r.linear(x, r.weight("words", {2 * s.width, s.sum}, DType::kBF16));
      made = r.gated_act(two, Act::kSilu);
      plan.results.push_back(made);
    }
    plan.results.push_back(h);
    plan.results.push_back(y);
    check(plan);
  }
};

TEST(Added, EndsBehindTheLastThatAdds) {
  EXPECT_EQ(added_end(Net({.rows = 4, .sum = 32, .width = 32, .rank = 2}).plan, 0), 4u);
  EXPECT_EQ(added_end(Net({.rows = 4, .sum = 32, .width = 32, .rank = 2, .lanes = true}).plan, 0),
            6u);
  EXPECT_EQ(added_end(Net({.rows = 4, .sum = 32, .width = 32, .rank = 2, .drops = true}).plan, 0),
            5u);
  // The next product of x is nobody's h.
  const Net gated({.rows = 4, .sum = 32, .width = 32, .rank = 2, .gate = true});
  EXPECT_EQ(added_end(gated.plan, 0), 4u);
  EXPECT_EQ(added_end(gated.plan, 4), 5u);
  // A long sum is no adapter's.
  EXPECT_EQ(added_end(Net({.rows = 4, .sum = 32, .width = 32, .rank = 65}).plan, 0), 1u);
}

std::vector<float> random(int64_t count, uint64_t seed, float scale) {
  Rng rng(seed);
  std::vector<float> made;
  for (int64_t i = 0; i < count; ++i) made.push_back(to_float(to_bf16(scale * rng.normal())));
  return made;
}

struct Result {
  std::vector<bf16> y, h;
  friend bool operator==(const Result& a, const Result& b) {
    auto same = [](const std::vector<bf16>& p, const std::vector<bf16>& q) {
      return std::equal(p.begin(), p.end(), q.begin(), q.end(),
                        [](bf16 u, bf16 v) { return to_float(u) == to_float(v); });
    };
    return same(a.y, b.y) && same(a.h, b.h);
  }
};

struct Numbers {
  std::vector<float> x, w, params;
  explicit Numbers(const Sizes& s)
      : x(random(s.rows * s.sum, 1, 1.0f)),
        w(random(3 * s.width * s.sum, 2, 0.1f)),
        params(random(2 * s.rank * (s.sum + s.width), 3, 0.02f)) {}
};

Result run(Backend* backend, const Sizes& s, const Numbers& numbers) {
  Net net(s);
  const std::vector<WeightForm> forms = backend->weight_forms(net.plan);
  Bindings bindings(net.plan.values.size());
  for (size_t id = 0; id < net.plan.values.size(); ++id) {
    const Value& v = net.plan.values[id];
    if (v.kind != Kind::kWeight || net.plan.is_view(static_cast<ValueId>(id))) continue;
    const int64_t n = v.shape[0];
    const size_t row = row_bytes(v.dtype, s.sum);
    std::vector<std::byte> rows(static_cast<size_t>(n) * row);
    for (int64_t i = 0; i < n; ++i) {
      const float* from = numbers.w.data() + i * s.sum;
      std::byte* to = rows.data() + static_cast<size_t>(i) * row;
      if (dtype_is_quantized(v.dtype)) quantize_row(v.dtype, from, s.sum, to);
      for (int64_t k = 0; k < s.sum && v.dtype == DType::kBF16; ++k)
        reinterpret_cast<bf16*>(to)[k] = to_bf16(from[k]);
    }
    bindings[id] = backend->prepare(v, forms[id], rows.data());
  }
  const auto count = static_cast<int64_t>(numbers.params.size());
  BufferPtr params = backend->allocate(DType::kF32, count);
  backend->upload(*params, DType::kF32, 0, count, numbers.params.data());
  bindings[static_cast<size_t>(net.params)] = params;
  const std::unique_ptr<Program> program = backend->compile(net.plan, bindings, nullptr);
  std::vector<bf16> x;
  for (float v : numbers.x) x.push_back(to_bf16(v));
  program->feed(net.x, x.data(), 2 * x.size());
  const std::vector<int32_t> keys(static_cast<size_t>(2 * s.rows), 5);
  if (net.keys != kNone) program->feed(net.keys, keys.data(), 4 * keys.size());
  program->run();
  program->wait();
  Result result{std::vector<bf16>(static_cast<size_t>(3 * s.rows * s.width)),
                std::vector<bf16>(static_cast<size_t>(2 * s.rows * s.rank))};
  program->read(net.y, result.y.data(), 2 * result.y.size());
  program->read(net.h, result.h.data(), 2 * result.h.size());
  return result;
}

// In double, from h as it was made.
struct Exact {
  double y, size, added;  // size: the sum of the terms' sizes
};
Exact exact(const Sizes& s, const Numbers& n, const Result& r, int64_t t, int64_t c) {
  double sum = 0, size = 0;
  auto term = [&](double v) {
    sum += v;
    size += std::abs(v);
  };
  for (int64_t k = 0; k < s.sum; ++k)
    term(double{n.x[static_cast<size_t>(t * s.sum + k)]} * n.w[static_cast<size_t>(c * s.sum + k)]);
  const double base = sum;
  const int64_t third = c / s.width, b = 2 * s.rank * s.sum + third / 2 * s.width * s.rank;
  for (int64_t k = 0; k < s.rank && third != 1; ++k)
    term(0.5 * to_float(r.h[static_cast<size_t>(t * 2 * s.rank + third / 2 * s.rank + k)]) *
         n.params[static_cast<size_t>(b + c % s.width * s.rank + k)]);
  return {sum, size, sum - base};
}

struct Unit {
  std::string name;
  std::unique_ptr<Backend> one, other;  // of two and three threads
};

std::vector<Unit> units() {
  std::vector<Unit> found;
  auto open = [](const std::string& isa, int threads) {
    return open_backend({.device = "cpu", .threads = threads, .cpu_isa = isa});
  };
  for (const std::string& isa : cpu_isas())
    if (isa == "amx" || isa == "avx512_bf16") found.push_back({isa, open(isa, 2), open(isa, 3)});
  return found;
}

TEST(Added, IsRoundedOnce) {
  for (const Unit& unit : units())
    for (const Sizes& s : {Sizes{.rows = 1, .sum = 96, .width = 64, .rank = 8},
                           {.rows = 7, .sum = 40, .width = 32, .rank = 3},
                           {.rows = 16, .sum = 300, .width = 96, .rank = 16},
                           {.rows = 40, .sum = 96, .width = 64, .rank = 33},
                           {.rows = 33, .sum = 2100, .width = 32, .rank = 64},
                           {.rows = 530, .sum = 64, .width = 160, .rank = 8},
                           {.rows = 70, .sum = 96, .width = 64, .rank = 8, .lanes = true},
                           {.rows = 9, .sum = 96, .width = 64, .rank = 8, .lanes = true},
                           {.rows = 50, .sum = 64, .width = 32, .rank = 8, .gate = true},
                           {.rows = 50, .sum = 64, .width = 32, .rank = 8, .drops = true}}) {
      SCOPED_TRACE(::testing::Message() << unit.name << " " << s.rows << " x " << s.sum << ", "
                                        << s.width << ", rank " << s.rank);
      const Numbers numbers(s);
      const Result two = run(unit.one.get(), s, numbers);
      EXPECT_TRUE(two == run(unit.other.get(), s, numbers));
      int64_t rounded_twice = 0;
      for (int64_t t = 0; t < s.rows; ++t)
        for (int64_t c = 0; c < 3 * s.width; ++c) {
          const Exact wanted = exact(s, numbers, two, t, c);
          const double got = to_float(two.y[static_cast<size_t>(t * 3 * s.width + c)]);
          const double half_step = std::ldexp(1.0, std::ilogb(wanted.y) - 8);
          rounded_twice += std::abs(got - wanted.y) > half_step + 4e-7 * wanted.size;
        }
      EXPECT_EQ(rounded_twice, 0) << "of " << 3 * s.rows * s.width;
    }
}

// Codes round on their way into a product, and so cannot be told to half a step; what is small
// beside y must still count.
TEST(Added, CountsBesideCodes) {
  for (const Unit& unit : units())
    for (const DType weights : {DType::kQ4G32, DType::kQ8G64})
      for (const int64_t rows : {1, 4, 12, 40, 530}) {
        SCOPED_TRACE(::testing::Message()
                     << unit.name << " " << rows << " " << dtype_name(weights));
        // As many numbers that the mean is known.
        const int64_t width = rows < 40 ? 2048 : 256;
        const Sizes s{.rows = rows, .sum = 128, .width = width, .rank = 8, .weights = weights};
        Numbers numbers(s);
        for (float& v : numbers.params) v *= 0.25f;
        Numbers without = numbers;
        std::fill(without.params.begin() + 2 * s.rank * s.sum, without.params.end(), 0.0f);
        const Result with = run(unit.one.get(), s, numbers), base = run(unit.one.get(), s, without);
        // How much of what is added arrives, by least squares.
        double given = 0, arrived = 0;
        for (int64_t t = 0; t < rows; ++t)
          for (int64_t c = 0; c < 3 * s.width; ++c) {
            const double added = exact(s, numbers, with, t, c).added;
            const auto at = static_cast<size_t>(t * 3 * s.width + c);
            given += added * added;
            arrived += added * (to_float(with.y[at]) - to_float(base.y[at]));
          }
        EXPECT_NEAR(arrived / given, 1.0, 0.25);
      }
}

}  // namespace
}  // namespace wick
