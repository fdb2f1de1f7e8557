// SPDX-License-Identifier: Apache-2.0
// The cpu kernels against ref on odd sizes, on every rung that this machine has.
#include "backend/cpu/cpu.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/half.h"
#include "unit/backend/cpu_kernels.h"

namespace wick::test {
namespace {

using Modes = std::vector<OutMode>;
constexpr OutMode kWrite = OutMode::kWrite, kAdd = OutMode::kAccumulate, kChange = OutMode::kUpdate;

TEST(CpuLinear, Forward) {
  Rng rng(1);
  for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                         {1, 37, 65},
                         {3, 8, 130},
                         {8, 100, 33},
                         {9, 16, 300},
                         {17, 33, 5},
                         {64, 70, 129},
                         {130, 257, 600}}) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      for (OutMode mode : {kWrite, kAdd})
        check_call(cat("linear_fwd ", m, " ", n, " ", k, " ", dtype_name(dtype)),
                   {.op = Op::kLinear,
                    .attr = LinearAttr{0.75f},
                    .in = {normal(rng, m, k), normal(rng, n, k, 0.1f, dtype),
                           mode == kAdd ? absent() : normal(rng, 1, n, 1, dtype)},
                    .out = {normal(rng, m, n)},
                    .modes = {mode}});
  }
}

TEST(CpuLinear, Backward) {
  Rng rng(2);
  for (auto [m, n, k] :
       {std::array<int64_t, 3>{1, 1, 1}, {5, 7, 9}, {33, 16, 70}, {131, 67, 300}, {600, 8, 40}}) {
    for (OutMode mode : {kWrite, kAdd})
      check_call(cat("linear_bwd ", m, " ", n, " ", k),
                 {.op = Op::kLinear,
                  .dir = Dir::kBackward,
                  .attr = LinearAttr{2.0f},
                  .in = {normal(rng, m, n), normal(rng, m, k), normal(rng, n, k, 0.1f)},
                  .out = {normal(rng, m, k), normal(rng, n, k), normal(rng, 1, n)},
                  .modes = {mode, mode, mode}});
    check_call("linear_bwd dx only, bf16",
               {.op = Op::kLinear,
                .dir = Dir::kBackward,
                .attr = LinearAttr{},
                .in = {normal(rng, m, n), absent(), normal(rng, n, k, 0.1f, DType::kBF16)},
                .out = {normal(rng, m, k), absent(), absent()}});
  }
}

// What a row becomes does not depend on the rows beside it.
TEST(CpuLinear, RowsAreIndependent) {
  Rng rng(3);
  for (auto [dtype, rests] : {std::array{DType::kF32, DType::kF32},
                              {DType::kF32, DType::kBF16},
                              {DType::kBF16, DType::kF32}})
    for (int64_t k : {100, 700}) {
      const int64_t n = 70;
      Matrix x = normal(rng, 60, k, 1, dtype), w = normal(rng, n, k, 1, rests);
      for (cpu::Rung rung : working_rungs()) {
        Call call{.op = Op::kLinear,
                  .attr = LinearAttr{},
                  .in = {x, w, absent()},
                  .out = {normal(rng, 60, n, 1, dtype)}};
        Matrix all = run_cpu(call, rung, 2)[0];
        Matrix tail{23, k, dtype, {x.values.end() - 23 * k, x.values.end()}, {}};
        call.in[0] = tail;
        call.out[0] = normal(rng, 23, n, 1, dtype);
        Matrix some = run_cpu(call, rung, 1)[0];
        EXPECT_TRUE(std::equal(some.values.begin(), some.values.end(), all.values.end() - 23 * n));
      }
    }
}

// Every bit of an f32 takes part, beside weights in bf16 too, whatever its size.
TEST(CpuLinear, KeepsEveryBit) {
  Rng rng(13);
  const int64_t m = 40, k = 70, n = 66;
  Matrix x{m, k, DType::kF32, std::vector<float>(static_cast<size_t>(m * k)), {}};
  Matrix w{n, k, DType::kBF16, std::vector<float>(static_cast<size_t>(n * k), 0.5f), {}};
  for (int64_t i = 0; i < m; ++i)
    x.values[static_cast<size_t>(i * k + i)] =
        std::ldexp(1 + rng.uniform(), static_cast<int>(rng.below(220)) - 95);
  x.values[3 * k + 3] = -INFINITY;
  x.values[4 * k + 4] = 0x1.fffffep127f;
  for (cpu::Rung rung : working_rungs()) {
    const Matrix y = run_cpu({.op = Op::kLinear,
                              .attr = LinearAttr{},
                              .in = {x, w, absent()},
                              .out = {normal(rng, m, n)}},
                             rung, 2)[0];
    for (int64_t i = 0; i < m; ++i)
      EXPECT_EQ(y.values[static_cast<size_t>(i * n + i)],
                0.5f * x.values[static_cast<size_t>(i * k + i)])
          << cpu::rung_name(rung);
  }
}

// A store in bf16 is to_bf16() to the bit: ties to even, subnormals, infinities, NaN.
TEST(CpuStore, RoundsToNearestEven) {
  Rng rng(12);
  const int64_t cols = 16 * 16 + 7;
  Matrix table{1, cols, DType::kF32, {}, {}};
  for (uint32_t bits :
       {0x00000000u, 0x80000000u, 0x3f808000u, 0x3f818000u, 0x3f808001u, 0x3f807fffu, 0x00008000u,
        0x00018000u, 0x007fffffu, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u, 0x7f800001u,
        0xffc12345u, 0x7fffffffu})
    table.values.push_back(std::bit_cast<float>(bits));
  while (table.values.size() < static_cast<size_t>(cols))
    table.values.push_back(std::bit_cast<float>(rng.next_u32()));
  Matrix y{1, cols, DType::kBF16, std::vector<float>(static_cast<size_t>(cols)), {}};
  for (cpu::Rung rung : working_rungs()) {
    Call call{.op = Op::kEmbed, .in = {table, integers({0})}, .out = {y}};
    const std::vector<float> got = run_cpu(call, rung, 1)[0].values;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(same_bits(got[i], to_float(to_bf16(table.values[i]))))
          << cpu::rung_name(rung) << ": " << table.values[i] << " became " << got[i];
  }
}

TEST(CpuNorm, BothWays) {
  Rng rng(4);
  for (auto [t, d, g] : {std::array<int64_t, 3>{1, 1, 1}, {5, 37, 1}, {7, 64, 3}, {70, 130, 2}}) {
    NormAttr a{1e-5f, g};
    check_call("rms_norm_fwd", {.op = Op::kRmsNorm,
                                .attr = a,
                                .in = {normal(rng, t, d * g), normal(rng, 1, d, 1, DType::kBF16)},
                                .out = {normal(rng, t, d * g), normal(rng, t, g)}});
    Matrix rstd = normal(rng, t, g, 0.1f);
    for (float& r : rstd.values) r = 1 + std::abs(r);
    for (OutMode mode : {kWrite, kAdd})
      check_call("rms_norm_bwd",
                 {.op = Op::kRmsNorm,
                  .dir = Dir::kBackward,
                  .attr = a,
                  .in = {normal(rng, t, d * g), normal(rng, t, d * g), normal(rng, 1, d), rstd},
                  .out = {normal(rng, t, d * g), normal(rng, 1, d)},
                  .modes = {mode, mode}});
    a.groups = 1;
    check_call("add_rms_norm_fwd",
               {.op = Op::kAddRmsNorm,
                .attr = a,
                .in = {normal(rng, t, d), normal(rng, t, d), normal(rng, 1, d)},
                .out = {normal(rng, t, d), normal(rng, t, d), normal(rng, t, 1)}});
    for (bool with_dsum : {false, true})
      check_call("add_rms_norm_bwd",
                 {.op = Op::kAddRmsNorm,
                  .dir = Dir::kBackward,
                  .attr = a,
                  .in = {normal(rng, t, d), with_dsum ? normal(rng, t, d) : absent(),
                         normal(rng, t, d), normal(rng, 1, d), normal(rng, t, 1, 0.5f)},
                  .out = {normal(rng, t, d), normal(rng, 1, d)},
                  .modes = {kWrite, kAdd}});
  }
}

TEST(CpuElementwise, All) {
  Rng rng(5);
  for (auto [t, d] : {std::array<int64_t, 2>{1, 2}, {3, 34}, {65, 118}}) {
    for (Act act : {Act::kSilu, Act::kGeluTanh}) {
      check_call("gated_act_fwd", {.op = Op::kGatedAct,
                                   .attr = GatedActAttr{act},
                                   .in = {normal(rng, t, 2 * d, 4)},
                                   .out = {normal(rng, t, d)}});
      check_call("gated_act_bwd", {.op = Op::kGatedAct,
                                   .dir = Dir::kBackward,
                                   .attr = GatedActAttr{act},
                                   .in = {normal(rng, t, d), normal(rng, t, 2 * d, 4)},
                                   .out = {normal(rng, t, 2 * d)}});
    }
    std::vector<int32_t> positions, keys;
    for (int64_t i = 0; i < t; ++i) {
      positions.push_back(static_cast<int32_t>(rng.below(9)));
      keys.push_back(static_cast<int32_t>(rng.next_u32()));
      keys.push_back(static_cast<int32_t>(rng.next_u32()));
    }
    for (Dir dir : {Dir::kForward, Dir::kBackward})
      for (OutMode mode : {kWrite, kAdd}) {
        if (dir == Dir::kForward && mode == kAdd) continue;
        check_call("rope", {.op = Op::kRope,
                            .dir = dir,
                            .attr = RopeAttr{d},
                            .in = {normal(rng, t, 3 * d), normal(rng, 9, d), integers(positions)},
                            .out = {normal(rng, t, 3 * d)},
                            .modes = {mode}});
        check_call("dropout", {.op = Op::kDropout,
                               .dir = dir,
                               .attr = DropoutAttr{0.3f, 77},
                               .in = {normal(rng, t, d), integer_rows(2, keys)},
                               .out = {normal(rng, t, d)},
                               .modes = {mode}});
        check_call("scale", {.op = Op::kScale,
                             .dir = dir,
                             .attr = ScaleAttr{-1.5f},
                             .in = {normal(rng, t, d)},
                             .out = {normal(rng, t, d)},
                             .modes = {mode}});
      }
    check_call(
        "add",
        {.op = Op::kAdd, .in = {normal(rng, t, d), normal(rng, t, d)}, .out = {normal(rng, t, d)}});
    check_call("bias_fwd", {.op = Op::kBias,
                            .in = {normal(rng, t, d), normal(rng, 1, d, 1, DType::kF16)},
                            .out = {normal(rng, t, d)}});
    check_call("bias_bwd", {.op = Op::kBias,
                            .dir = Dir::kBackward,
                            .in = {normal(rng, t, d)},
                            .out = {normal(rng, 1, d)},
                            .modes = {kAdd}});
  }
}

TEST(CpuRows, All) {
  Rng rng(6);
  const int64_t d = 45;
  Matrix ids = integers({4, 0, 4, 6, 4});
  check_call("embed_fwd", {.op = Op::kEmbed,
                           .in = {normal(rng, 7, d, 1, DType::kBF16), ids},
                           .out = {normal(rng, 5, d)}});
  for (OutMode mode : {kWrite, kAdd})
    for (int64_t untrained : {-1, 4})
      check_call("embed_bwd", {.op = Op::kEmbed,
                               .dir = Dir::kBackward,
                               .attr = EmbedAttr{untrained},
                               .in = {normal(rng, 5, d), ids},
                               .out = {normal(rng, 7, d)},
                               .modes = {mode}});
  Matrix rows = integers({3, -1, 0, 6});
  check_call("gather_rows_fwd",
             {.op = Op::kGatherRows, .in = {normal(rng, 7, d), rows}, .out = {normal(rng, 4, d)}});
  check_call("gather_rows_bwd", {.op = Op::kGatherRows,
                                 .dir = Dir::kBackward,
                                 .in = {normal(rng, 4, d), rows},
                                 .out = {normal(rng, 7, d)}});
  check_call("copy", {.op = Op::kCopy,
                      .in = {normal(rng, 4, d), rows},
                      .out = {normal(rng, 7, d)},
                      .modes = {kChange}});
  Matrix segment = integers({1, -1, 0, 1, 1});
  check_call("segment_sum_fwd", {.op = Op::kSegmentSum,
                                 .in = {normal(rng, 1, 5), normal(rng, 1, 5), segment},
                                 .out = {normal(rng, 1, 3)}});
  for (bool given : {false, true})
    check_call("segment_sum_bwd",
               {.op = Op::kSegmentSum,
                .dir = Dir::kBackward,
                .in = {given ? normal(rng, 1, 3) : absent(), normal(rng, 1, 5), segment},
                .out = {normal(rng, 1, 5)}});
}

// Segments of given lengths; `shift` rows of begin.
std::vector<int32_t> begins(const std::vector<int>& lengths) {
  std::vector<int32_t> begin;
  for (int n : lengths)
    begin.insert(begin.end(), static_cast<size_t>(n), static_cast<int32_t>(begin.size()));
  return begin;
}
std::vector<int32_t> causal_ends(size_t tokens) {
  std::vector<int32_t> end;
  for (size_t t = 0; t < tokens; ++t) end.push_back(static_cast<int32_t>(t) + 1);
  return end;
}

struct AttentionCase {
  int64_t heads, kv_heads, e, window;
  std::vector<int> lengths;
};

TEST(CpuAttention, CausalBothWays) {
  Rng rng(7);
  for (const AttentionCase& c :
       {AttentionCase{1, 1, 1, 0, {1}}, AttentionCase{4, 2, 8, 0, {5, 1, 70}},
        AttentionCase{6, 2, 33, 0, {150}}, AttentionCase{3, 1, 64, 20, {90, 45}},
        AttentionCase{2, 2, 80, 3, {7, 7, 130}}, AttentionCase{130, 1, 4, 0, {3, 2}}}) {
    std::vector<int32_t> begin = begins(c.lengths);
    const int64_t t = static_cast<int64_t>(begin.size());
    AttentionAttr a{c.heads, c.kv_heads, c.e, 0.3f, c.window, true};
    Matrix q = normal(rng, t, c.heads * c.e), k = normal(rng, t, c.kv_heads * c.e),
           v = normal(rng, t, c.kv_heads * c.e), b = integers(begin),
           e = integers(causal_ends(begin.size()));
    Call forward{.op = Op::kAttention,
                 .attr = a,
                 .in = {q, k, v, b, e},
                 .out = {normal(rng, t, c.heads * c.e), normal(rng, t, c.heads)}};
    check_call(cat("attention_fwd E ", c.e), forward);
    std::vector<Matrix> y = run_ref(forward);
    Call backward{.op = Op::kAttention,
                  .dir = Dir::kBackward,
                  .attr = a,
                  .in = {normal(rng, t, c.heads * c.e), q, k, v, y[0], y[1], b, e},
                  .out = {normal(rng, t, c.heads * c.e), normal(rng, t, c.kv_heads * c.e),
                          normal(rng, t, c.kv_heads * c.e)}};
    check_call(cat("attention_bwd E ", c.e), backward, 5e-5);
    backward.out[1] = absent();
    check_call("attention_bwd without dk", backward, 5e-5);
  }
}

TEST(CpuAttention, RangesOfACache) {
  Rng rng(8);
  AttentionAttr a{4, 2, 20, 0.2f, 0, false};
  check_call("attention_fwd of ranges",
             {.op = Op::kAttention,
              .attr = a,
              .in = {normal(rng, 4, 80), normal(rng, 300, 40), normal(rng, 300, 40),
                     integers({100, 0, 30, 290}), integers({101, 200, 30, 300})},
              .out = {normal(rng, 4, 80), normal(rng, 4, 4)}});
}

// A segment's rows have the same bits wherever it lies in the pack.
TEST(CpuAttention, RowsAreIndependent) {
  Rng rng(9);
  const int64_t n = 100, before = 37, heads = 4, e = 16;
  Matrix q = normal(rng, n + before, heads * e), k = normal(rng, n + before, e),
         v = normal(rng, n + before, e);
  AttentionAttr a{heads, 1, e, 0.3f, 0, true};
  auto tail = [&](const Matrix& m) {
    return Matrix{n, m.cols, DType::kF32, {m.values.begin() + before * m.cols, m.values.end()}, {}};
  };
  for (cpu::Rung rung : working_rungs()) {
    auto both = [&](const Matrix& q, const Matrix& k, const Matrix& v, std::vector<int> lengths,
                    const Matrix& dy) {
      Matrix begin = integers(begins(lengths)), end = integers(causal_ends(begin.ints.size()));
      std::vector<Matrix> y =
          run_cpu({.op = Op::kAttention,
                   .attr = a,
                   .in = {q, k, v, begin, end},
                   .out = {normal(rng, q.rows, heads * e), normal(rng, q.rows, heads)}},
                  rung, 2);
      std::vector<Matrix> d = run_cpu(
          {.op = Op::kAttention,
           .dir = Dir::kBackward,
           .attr = a,
           .in = {dy, q, k, v, y[0], y[1], begin, end},
           .out = {normal(rng, q.rows, heads * e), normal(rng, q.rows, e), normal(rng, q.rows, e)}},
          rung, 2);
      return std::vector<Matrix>{y[0], d[0], d[1], d[2]};
    };
    Matrix dy = normal(rng, n + before, heads * e);
    std::vector<Matrix> packed = both(q, k, v, {before, n}, dy);
    std::vector<Matrix> alone = both(tail(q), tail(k), tail(v), {n}, tail(dy));
    for (size_t i = 0; i < packed.size(); ++i)
      EXPECT_EQ(tail(packed[i]).values, alone[i].values) << i << " " << cpu::rung_name(rung);
  }
}

TEST(CpuHead, BothWays) {
  Rng rng(10);
  for (auto [m, v, d] : {std::array<int64_t, 3>{1, 1, 1}, {5, 37, 9}, {40, 1500, 70}}) {
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < m; ++i)
      targets.push_back(i % 3 == 1 ? -1 : static_cast<int32_t>(rng.below(v)));
    Matrix x = normal(rng, m, d), t = integers(targets);
    for (DType dtype : {DType::kF32, DType::kF16}) {
      Matrix w = normal(rng, v, d, 0.5f, dtype);
      Call forward{.op = Op::kHead,
                   .attr = HeadAttr{},
                   .in = {x, w, t},
                   .out = {normal(rng, 1, m), normal(rng, 1, m), normal(rng, m, d)}};
      check_call("head_fwd", forward);
      std::vector<Matrix> y = run_ref(forward);
      forward.out[2] = absent();
      check_call("head_fwd without dlogp_dx", forward);
      for (bool with_slope : {false, true})
        for (OutMode mode : {kWrite, kAdd})
          check_call("head_bwd",
                     {.op = Op::kHead,
                      .dir = Dir::kBackward,
                      .attr = HeadAttr{},
                      .in = {normal(rng, 1, m), x, w, t, y[1], with_slope ? y[2] : absent()},
                      .out = {normal(rng, m, d), normal(rng, v, d)},
                      .modes = {kWrite, mode}});
    }
  }
  check_call("head_bwd with every row ignored",
             {.op = Op::kHead,
              .dir = Dir::kBackward,
              .attr = HeadAttr{},
              .in = {normal(rng, 1, 2), normal(rng, 2, 5), normal(rng, 7, 5), integers({-1, -1}),
                     normal(rng, 1, 2), absent()},
              .out = {normal(rng, 2, 5), normal(rng, 7, 5)}});
}

// In one stretch of the vocabulary no probability is kept beyond those that count.
TEST(CpuHead, WithoutSmallProbabilities) {
  Rng rng(11);
  for (auto [m, v, d] : {std::array<int64_t, 3>{5, 37, 9}, {40, 1000, 70}, {9, 513, 8}})
    for (float below : {0.001f, 0.05f, 0.9f}) {
      std::vector<int32_t> targets;
      for (int64_t i = 0; i < m; ++i)
        targets.push_back(i % 3 == 1 ? -1 : static_cast<int32_t>(rng.below(v)));
      Matrix x = normal(rng, m, d), t = integers(targets), w = normal(rng, v, d, 0.5f);
      Call forward{.op = Op::kHead,
                   .attr = HeadAttr{below},
                   .in = {x, w, t},
                   .out = {normal(rng, 1, m), normal(rng, 1, m), normal(rng, m, d)}};
      check_call("head_fwd", forward);
      std::vector<Matrix> y = run_ref(forward);
      check_call("head_bwd", {.op = Op::kHead,
                              .dir = Dir::kBackward,
                              .attr = HeadAttr{below},
                              .in = {normal(rng, 1, m), x, w, t, y[1], absent()},
                              .out = {normal(rng, m, d), normal(rng, v, d)}});
    }
}

TEST(CpuOptimizer, NormAndUpdate) {
  Rng rng(11);
  for (int64_t n : {int64_t{1}, int64_t{37}, int64_t{20000}}) {
    check_call("grad_norm",
               {.op = Op::kGradNorm,
                .attr = ParamGroups{},
                .in = {normal(rng, 1, n)},
                .out = {normal(rng, 1, 1)}});
    Matrix hyper = normal(rng, 1, 8), norm = normal(rng, 1, 1);
    hyper.values = {1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, 1.0f, 0.271f, 0.003f};
    norm.values = {3.0f};
    Matrix v = normal(rng, 1, n);
    for (float& x : v.values) x = x * x;
    ParamGroups a{{{0, n / 2, 1.0f, 1.0f}, {n / 2, n, 2.0f, 0.0f}}};
    check_call("adamw", {.op = Op::kAdamw,
                         .attr = a,
                         .in = {hyper, norm},
                         .out = {normal(rng, 1, n), normal(rng, 1, n), v, normal(rng, 1, n)},
                         .modes = {kChange, kChange, kChange, kChange}});
  }
}

TEST(CpuBackend, NamesItsRung) {
  ASSERT_FALSE(cpu_isas().empty());
  for (const std::string& isa : cpu_isas()) {
    auto backend = make_cpu_backend({.threads = 2, .cpu_isa = isa});
    DeviceInfo info = backend->info();
    EXPECT_EQ(info.isa, isa);
    EXPECT_EQ(info.threads, 2);
    EXPECT_GT(info.peak_gflops, 0);
  }
  EXPECT_THROW(make_cpu_backend({.cpu_isa = "mmx"}), Error);
}

}  // namespace
}  // namespace wick::test
