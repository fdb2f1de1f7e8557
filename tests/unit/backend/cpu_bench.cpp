// SPDX-License-Identifier: Apache-2.0
// What share of the peak the cpu kernels reach on one thread, in processor time, so that other work
// on the machine does not disturb it: cpu_test --gtest_also_run_disabled_tests
// --gtest_filter='*Bench*'.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "base/threads.h"
#include "unit/backend/cpu_kernels.h"

namespace wick::test {
namespace {

double processor_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename F>
double best_seconds(const F& f) {
  double best = 1e9, spent = 0;
  for (int i = 0; i < 200 && (i < 3 || spent < 0.15); ++i) {
    const double t0 = processor_seconds();
    f();
    best = std::min(best, processor_seconds() - t0);
    spent += best;
  }
  return best;
}

void bench(const std::string& what, double flops, const Call& call) {
  const cpu::Rung rung = working_rungs().front();
  const double peak = cpu::peak_loop(rung, 1000000) /
                      best_seconds([&] { static_cast<void>(cpu::peak_loop(rung, 1000000)); });
  const double seconds =
      call_seconds(call, rung, [](const auto& run) { return best_seconds(run); });
  std::printf("%-44s %9.3f ms %7.1f GFLOP/s %5.1f %%\n", what.c_str(), seconds * 1e3,
              flops / seconds * 1e-9, 100 * flops / seconds / peak);
}

TEST(CpuBench, DISABLED_Linear) {
  Rng rng(1);
  for (auto [m, n, k] : {std::array<int64_t, 3>{512, 896, 896},
                         {512, 4864, 896},
                         {512, 896, 4864},
                         {512, 256, 256},
                         {1024, 768, 256},
                         {2048, 256, 768},
                         {512, 16, 896},
                         {512, 896, 16},
                         {512, 8, 256},
                         {512, 256, 8},
                         {64, 896, 896},
                         {1, 4864, 896},
                         {8, 4864, 896}}) {
    const double flops = 2.0 * static_cast<double>(m * n * k);
    for (DType dtype : {DType::kF32, DType::kBF16})
      bench(cat("linear_fwd ", m, " x ", n, " x ", k, " ", dtype_name(dtype)), flops,
            {.op = Op::kLinear,
             .attr = LinearAttr{},
             .in = {normal(rng, m, k), normal(rng, n, k, 0.1f, dtype), absent()},
             .out = {normal(rng, m, n)}});
    if (m < 64) continue;
    bench("  dx", flops,
          {.op = Op::kLinear,
           .dir = Dir::kBackward,
           .attr = LinearAttr{},
           .in = {normal(rng, m, n), absent(), normal(rng, n, k)},
           .out = {normal(rng, m, k), absent(), absent()}});
    bench("  dw", flops,
          {.op = Op::kLinear,
           .dir = Dir::kBackward,
           .attr = LinearAttr{},
           .in = {normal(rng, m, n), normal(rng, m, k), absent()},
           .out = {absent(), normal(rng, n, k), absent()}});
  }
}

TEST(CpuBench, DISABLED_Attention) {
  Rng rng(2);
  for (auto [t, heads, kv, e] : {std::array<int64_t, 4>{512, 14, 2, 64},
                                 {2048, 4, 2, 64},
                                 {512, 8, 4, 32},
                                 {1024, 16, 8, 128}}) {
    const double pairs = static_cast<double>(t * (t + 1) / 2 * heads * e);
    std::vector<int32_t> begin(static_cast<size_t>(t), 0), end;
    for (int64_t i = 0; i < t; ++i) end.push_back(static_cast<int32_t>(i) + 1);
    const AttentionAttr a{heads, kv, e, 0.1f, 0, true};
    Matrix q = normal(rng, t, heads * e), k = normal(rng, t, kv * e), v = normal(rng, t, kv * e);
    Call forward{.op = Op::kAttention,
                 .attr = a,
                 .in = {q, k, v, integers(begin), integers(end)},
                 .out = {normal(rng, t, heads * e), normal(rng, t, heads)}};
    bench(cat("attention_fwd T ", t, " H ", heads, " K ", kv, " E ", e), 4 * pairs, forward);
    std::vector<Matrix> y = run_cpu(forward, working_rungs().front(), 1);
    bench("attention_bwd", 10 * pairs,
          {.op = Op::kAttention,
           .dir = Dir::kBackward,
           .attr = a,
           .in = {normal(rng, t, heads * e), q, k, v, y[0], y[1], integers(begin), integers(end)},
           .out = {q, k, v}});
  }
}

TEST(CpuBench, DISABLED_Head) {
  Rng rng(3);
  for (auto [m, v, d] : {std::array<int64_t, 3>{512, 2048, 256}, {128, 32000, 896}}) {
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < m; ++i) targets.push_back(static_cast<int32_t>(rng.below(v)));
    Matrix x = normal(rng, m, d), w = normal(rng, v, d, 0.1f);
    bench(cat("head_fwd M ", m, " V ", v, " D ", d), 4.0 * static_cast<double>(m * v * d),
          {.op = Op::kHead,
           .attr = HeadAttr{},
           .in = {x, w, integers(targets)},
           .out = {normal(rng, 1, m), normal(rng, 1, m), normal(rng, m, d)}});
  }
}

void bench_bytes(DType act) {
  Rng rng(4);
  const int64_t t = 512, d = 896, f = 4864;
  const std::string type = dtype_name(act);
  auto made = [&](int64_t rows, int64_t cols) { return normal(rng, rows, cols, 1, act); };
  bench("rms_norm_fwd 512 x 896 " + type, 0,
        {.op = Op::kRmsNorm,
         .attr = NormAttr{},
         .in = {made(t, d), normal(rng, 1, d)},
         .out = {made(t, d), normal(rng, t, 1)}});
  bench("rms_norm_bwd dx " + type, 0,
        {.op = Op::kRmsNorm,
         .dir = Dir::kBackward,
         .attr = NormAttr{},
         .in = {made(t, d), made(t, d), normal(rng, 1, d), normal(rng, t, 1)},
         .out = {made(t, d), absent()}});
  bench("add_rms_norm_fwd 512 x 896 " + type, 0,
        {.op = Op::kAddRmsNorm,
         .attr = NormAttr{},
         .in = {made(t, d), made(t, d), normal(rng, 1, d)},
         .out = {made(t, d), made(t, d), normal(rng, t, 1)}});
  bench("gated_act_fwd 512 x 4864 " + type, 0,
        {.op = Op::kGatedAct, .attr = GatedActAttr{}, .in = {made(t, 2 * f)}, .out = {made(t, f)}});
  bench("gated_act_bwd " + type, 0,
        {.op = Op::kGatedAct,
         .dir = Dir::kBackward,
         .attr = GatedActAttr{},
         .in = {made(t, f), made(t, 2 * f)},
         .out = {made(t, 2 * f)}});
  bench("rope_fwd 512 x 14 x 64 " + type, 0,
        {.op = Op::kRope,
         .attr = RopeAttr{64},
         .in = {made(t, d), normal(rng, t, 64),
                integers(std::vector<int32_t>(static_cast<size_t>(t), 5))},
         .out = {made(t, d)}});
  std::vector<int32_t> keys(static_cast<size_t>(2 * t), 7);
  bench("dropout_fwd 512 x 896 " + type, 0,
        {.op = Op::kDropout,
         .attr = DropoutAttr{0.1f, 3},
         .in = {made(t, d), integer_rows(2, keys)},
         .out = {made(t, d)}});
}

TEST(CpuBench, DISABLED_Bytes) {
  for (DType act : {DType::kF32, DType::kBF16}) bench_bytes(act);
}

}  // namespace
}  // namespace wick::test
