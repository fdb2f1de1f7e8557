// SPDX-License-Identifier: Apache-2.0
// Attention in tiles of bf16 against plain loops in double, inside guard bytes, with several thread
// counts, on each rung that has them.
#include "backend/cpu/tile_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/half.h"
#include "base/rng.h"
#include "base/threads.h"

namespace wick::test {
namespace {

constexpr int64_t kPad = 5;
constexpr unsigned char kGuard = 0xA5;

// rows x cols halves inside a wider matrix of guard bytes.
struct Halves {
  int64_t rows, cols;
  std::vector<bf16> memory;
  Halves(int64_t rows, int64_t cols)
      : rows(rows),
        cols(cols),
        memory(static_cast<size_t>((rows + 2) * ld()), bf16{kGuard * 257}) {}
  Halves(Rng& rng, int64_t rows, int64_t cols) : Halves(rows, cols) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) *at(r, c) = to_bf16(rng.normal());
  }
  int64_t ld() const { return cols + 2 * kPad; }
  bf16* at(int64_t r, int64_t c) { return memory.data() + (r + 1) * ld() + kPad + c; }
  double get(int64_t r, int64_t c) { return to_float(*at(r, c)); }
  Operand operand() { return {at(0, 0), rows, cols, ld(), DType::kBF16}; }
  std::vector<uint16_t> bits() {
    std::vector<uint16_t> all;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) all.push_back(at(r, c)->bits);
    return all;
  }
  void expect_guards(const std::string& what) {
    for (size_t i = 0; i < memory.size(); ++i) {
      const int64_t r = static_cast<int64_t>(i) / ld() - 1,
                    c = static_cast<int64_t>(i) % ld() - kPad;
      if (r >= 0 && r < rows && c >= 0 && c < cols) continue;
      ASSERT_EQ(memory[i].bits, kGuard * 257) << what << " writes outside, at " << r << ", " << c;
    }
  }
};

struct Case {
  int64_t heads, kv_heads, e, window = 0;
  std::vector<int32_t> begin = {}, end = {};
  int64_t keys = 0;  // 0: causal_self
};

Case packed(int64_t heads, int64_t kv_heads, int64_t e, std::vector<int> lengths,
            int64_t window = 0) {
  Case c{heads, kv_heads, e, window};
  for (int length : lengths) {
    const int32_t start = static_cast<int32_t>(c.begin.size());
    for (int i = 0; i < length; ++i) {
      c.begin.push_back(start);
      c.end.push_back(start + i + 1);
    }
  }
  return c;
}

// One step's operands and results.
class Attention {
 public:
  Attention(Rng& rng, Case given, cpu::Rung rung)
      : rung_(rung),
        c_(std::move(given)),
        tokens_(static_cast<int64_t>(c_.begin.size())),
        keys_(c_.keys > 0 ? c_.keys : tokens_),
        q(rng, tokens_, c_.heads * c_.e),
        k(rng, keys_, c_.kv_heads * c_.e),
        v(rng, keys_, c_.kv_heads * c_.e),
        dy(rng, tokens_, c_.heads * c_.e),
        y(tokens_, c_.heads * c_.e),
        dq(tokens_, c_.heads * c_.e),
        dk(keys_, c_.kv_heads * c_.e),
        dv(keys_, c_.kv_heads * c_.e),
        lse(static_cast<size_t>(tokens_ * c_.heads)) {}

  void run(Dir dir, int threads, bool all = true) {
    ThreadPool pool(threads);
    Step step{Op::kAttention, dir, {}, {}, attr()};
    const Operand sums{lse.data(), tokens_, c_.heads, c_.heads, DType::kF32};
    const Operand begin{c_.begin.data(), 1, tokens_, tokens_, DType::kI32};
    const Operand end{c_.end.data(), 1, tokens_, tokens_, DType::kI32};
    std::vector<Operand> in, out;
    if (dir == Dir::kForward) {
      in = {q.operand(), k.operand(), v.operand(), begin, end};
      out = {y.operand(), all ? sums : Operand{}};
    } else {
      in = {dy.operand(), q.operand(), k.operand(), v.operand(), y.operand(), sums, begin, end};
      out = {dq.operand(), all ? dk.operand() : Operand{}, dv.operand()};
    }
    for (size_t i = 0; i < out.size(); ++i) step.outputs.push_back({kNone, OutMode::kWrite});
    StepArgs args{.step = &step, .in = in, .out = out, .scratch = nullptr, .pool = &pool};
    for (const Candidate& kernel : cpu::tile_attention_candidates(rung_)) {
      if (kernel.dir != dir) continue;
      ASSERT_TRUE(kernel.accepts(args));
      const size_t bytes = kernel.scratch(args, threads);
      std::vector<unsigned char> scratch(bytes + 64, kGuard);
      args.scratch = scratch.data();
      kernel.fn(args);
      EXPECT_TRUE(std::all_of(scratch.begin() + static_cast<int64_t>(bytes), scratch.end(),
                              [](unsigned char b) { return b == kGuard; }))
          << kernel.name << " leaves its scratch";
    }
    for (Halves* made : {&y, &dq, &dk, &dv}) made->expect_guards("attention");
  }

  // Forward, and backward from its results.
  void expect_right(const std::string& what) {
    run(Dir::kForward, 1);
    std::vector<double> want_y(static_cast<size_t>(tokens_ * c_.heads * c_.e)), want_dq = want_y;
    std::vector<double> want_dk(static_cast<size_t>(keys_ * c_.kv_heads * c_.e)), want_dv = want_dk;
    const int64_t e = c_.e, group = c_.heads / c_.kv_heads;
    for (int64_t t = 0; t < tokens_; ++t)
      for (int64_t h = 0; h < c_.heads; ++h) {
        const int64_t kv = h / group * e, end = c_.end[static_cast<size_t>(t)];
        const int64_t begin = std::max<int64_t>(c_.begin[static_cast<size_t>(t)],
                                                c_.window > 0 ? end - c_.window : 0);
        auto at = [&](int64_t i) { return static_cast<size_t>((t * c_.heads + h) * e + i); };
        auto key = [&](int64_t j, int64_t i) {
          return static_cast<size_t>(j * c_.kv_heads * e + kv + i);
        };
        auto dot = [&](Halves& a, Halves& b, int64_t j) {
          double sum = 0;
          for (int64_t i = 0; i < e; ++i) sum += a.get(t, h * e + i) * b.get(j, kv + i);
          return sum;
        };
        double total = 0, delta = 0;
        for (int64_t j = begin; j < end; ++j) total += std::exp(attr().scale * dot(q, k, j));
        const float got = lse[static_cast<size_t>(t * c_.heads + h)];
        if (end <= begin)
          EXPECT_EQ(got, -INFINITY) << what;
        else
          EXPECT_NEAR(got, std::log(total), 2e-6 * (1 + std::abs(std::log(total)))) << what;
        for (int64_t i = 0; i < e; ++i) delta += dy.get(t, h * e + i) * y.get(t, h * e + i);
        for (int64_t j = begin; j < end; ++j) {
          const double p = std::exp(attr().scale * dot(q, k, j)) / total;
          const double ds = rounded(p * (dot(dy, v, j) - delta)) * attr().scale;
          for (int64_t i = 0; i < e; ++i) {
            want_y[at(i)] += p * v.get(j, kv + i);
            want_dq[at(i)] += ds * k.get(j, kv + i);
            want_dk[key(j, i)] += ds * q.get(t, h * e + i);
            want_dv[key(j, i)] += rounded(p) * dy.get(t, h * e + i);
          }
        }
      }
    expect_near(what + ", y", want_y, y);
    const std::vector<uint16_t> bits = y.bits();
    const std::vector<float> sums = lse;
    for (int threads : {2, 5}) {
      run(Dir::kForward, threads);
      EXPECT_EQ(y.bits(), bits) << what << ", " << threads << " threads";
      EXPECT_EQ(lse, sums) << what << ", " << threads << " threads";
    }
    if (c_.keys > 0) return;
    run(Dir::kBackward, 1);
    expect_near(what + ", dq", want_dq, dq);
    expect_near(what + ", dk", want_dk, dk);
    expect_near(what + ", dv", want_dv, dv);
    const std::vector<uint16_t> one[] = {dq.bits(), dk.bits(), dv.bits()};
    for (int threads : {2, 3, 8}) {
      run(Dir::kBackward, threads);
      EXPECT_TRUE(dq.bits() == one[0] && dk.bits() == one[1] && dv.bits() == one[2])
          << what << ", " << threads << " threads";
    }
  }

 private:
  AttentionAttr attr() const {
    return {c_.heads,  c_.kv_heads, c_.e, 1.5f / std::sqrt(static_cast<float>(c_.e)),
            c_.window, c_.keys == 0};
  }
  static double rounded(double x) { return to_float(to_bf16(static_cast<float>(x))); }
  // The rounding of the result, and a probability that fell on the other side of one.
  static void expect_near(const std::string& what, const std::vector<double>& want, Halves& got) {
    double mean = 0;
    for (double x : want) mean += std::abs(x) / static_cast<double>(want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const int64_t r = static_cast<int64_t>(i) / got.cols, c = static_cast<int64_t>(i) % got.cols;
      ASSERT_NEAR(got.get(r, c), want[i], 1.5e-2 * std::max(std::abs(want[i]), mean) + 1e-6)
          << what << " at " << r << ", " << c;
    }
  }

  cpu::Rung rung_;
  Case c_;
  int64_t tokens_, keys_;

 public:
  Halves q, k, v, dy, y, dq, dk, dv;
  std::vector<float> lse;
};

class TileAttention : public testing::TestWithParam<cpu::Rung> {
 protected:
  void SetUp() override {
    if (!cpu::rung_works(GetParam())) GTEST_SKIP() << "not on this machine";
  }
  static Attention attention(Rng& rng, const Case& c) { return {rng, c, GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(Rungs, TileAttention,
                         testing::Values(cpu::Rung::kAmx, cpu::Rung::kAvx512Bf16),
                         [](const auto& info) { return cpu::rung_name(info.param); });

TEST_P(TileAttention, PackedBothWays) {
  Rng rng(1);
  for (const Case& c :
       {packed(1, 1, 1, {1}), packed(4, 2, 8, {5, 1, 70}), packed(7, 1, 64, {17}),
        packed(3, 1, 40, {129}), packed(6, 2, 80, {60, 1, 1, 1, 68}), packed(2, 2, 128, {300}),
        packed(14, 2, 64, {100, 29, 1, 1, 33}), packed(2, 1, 256, {40, 7}),
        packed(130, 1, 4, {3, 2}), packed(1, 1, 16, {1100})})
    attention(rng, c).expect_right(
        cat("H ", c.heads, " K ", c.kv_heads, " E ", c.e, " T ", c.begin.size()));
}

TEST_P(TileAttention, Windows) {
  Rng rng(2);
  for (const Case& c : {packed(7, 1, 64, {200, 100}, 70), packed(2, 2, 80, {7, 7, 130}, 3),
                        packed(3, 1, 20, {50}, 1), packed(1, 1, 32, {700}, 20)})
    attention(rng, c).expect_right(cat("window ", c.window, " T ", c.begin.size()));
}

// begin never decreases, but segments share keys; and rows that see nothing.
TEST_P(TileAttention, RangesOfEveryKind) {
  Rng rng(3);
  Case shared = packed(4, 2, 16, {90});
  for (int32_t t = 0; t < 90; ++t) shared.begin[static_cast<size_t>(t)] = t / 3;
  attention(rng, shared).expect_right("shared keys");
  Case cache{14, 2, 64, 0, {0, 3, 700, 700, 100, 1499}, {1300, 3, 1500, 1499, 101, 1500}, 1500};
  attention(rng, cache).expect_right("ranges of a cache");
  cache.window = 100;
  attention(rng, cache).expect_right("ranges of a cache, window");
  Case prefill{4, 2, 48, 0, {}, {}, 1300};
  for (int32_t t = 0; t < 20; ++t) {
    prefill.begin.push_back(7);
    prefill.end.push_back(1200 + t);
  }
  attention(rng, prefill).expect_right("prefill behind a cache");
  attention(rng, Case{14, 2, 64, 0, {0}, {2100}, 2100}).expect_right("decode");
}

// Without lse, without dk.
TEST_P(TileAttention, AbsentOutputs) {
  Rng rng(4);
  Attention a = attention(rng, packed(6, 2, 32, {50, 20}));
  a.run(Dir::kForward, 1);
  const std::vector<uint16_t> y = a.y.bits();
  a.run(Dir::kBackward, 1);
  const std::vector<uint16_t> dq = a.dq.bits(), dv = a.dv.bits();
  for (int threads : {1, 8}) {
    a.run(Dir::kForward, threads, false);
    a.run(Dir::kBackward, threads, false);
    EXPECT_TRUE(a.y.bits() == y && a.dq.bits() == dq && a.dv.bits() == dv);
  }
}

// A segment's rows have the same bits wherever it lies, and in any batch of decoded rows.
TEST_P(TileAttention, RowsAreIndependent) {
  Rng rng(5);
  const int64_t before = 37, n = 150, heads = 6, kv_heads = 2, e = 40;
  Attention both = attention(rng, packed(heads, kv_heads, e, {before, n}));
  Attention alone = attention(rng, packed(heads, kv_heads, e, {n}));
  for (auto [from, to] : {std::pair{&both.q, &alone.q},
                          {&both.k, &alone.k},
                          {&both.v, &alone.v},
                          {&both.dy, &alone.dy}})
    for (int64_t t = 0; t < n; ++t) std::copy_n(from->at(before + t, 0), to->cols, to->at(t, 0));
  for (Attention* a : {&both, &alone}) {
    a->run(Dir::kForward, 2);
    a->run(Dir::kBackward, 2);
  }
  for (auto [packed, one] : {std::pair{&both.y, &alone.y},
                             {&both.dq, &alone.dq},
                             {&both.dk, &alone.dk},
                             {&both.dv, &alone.dv}}) {
    const std::vector<uint16_t> all = packed->bits(), some = one->bits();
    EXPECT_TRUE(
        std::equal(some.begin(), some.end(), all.end() - static_cast<int64_t>(some.size())));
  }
  Case many{heads, kv_heads, e, 0, {0, 900, 100}, {1000, 2000, 650}, 2000};
  Attention batch = attention(rng, many);
  batch.run(Dir::kForward, 2);
  for (int64_t t = 0; t < 3; ++t) {
    const size_t i = static_cast<size_t>(t);
    Attention row = attention(rng, {heads, kv_heads, e, 0, {many.begin[i]}, {many.end[i]}, 2000});
    row.k = batch.k;
    row.v = batch.v;
    std::copy_n(batch.q.at(t, 0), heads * e, row.q.at(0, 0));
    row.run(Dir::kForward, 1);
    for (int64_t c = 0; c < heads * e; ++c)
      ASSERT_EQ(row.y.at(0, c)->bits, batch.y.at(t, c)->bits) << t << ", " << c;
  }
}

}  // namespace
}  // namespace wick::test
