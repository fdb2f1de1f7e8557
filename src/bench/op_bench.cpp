// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "bench/plan_case.h"
#include "nn/linear.h"

namespace wick {

namespace {

// Heads of Qwen2.5-0.5B, which the peers' figures are for.
constexpr int64_t kHeads = 14, kKvHeads = 2, kHeadDim = 64;
constexpr int64_t kSize = 1024;  // of the single ops

struct Row {
  const char* bench;
  std::string what;
  int64_t batch = 1, seq = 0, rank = 0;
  Json more = Json::object();
};

// Declares operands, and gives back what records one call on them.
using Declare = std::function<std::function<ValueId()>(PlanCase&)>;

// Milliseconds of runs of `calls` calls on the same operands, of which only the last is copied out.
std::vector<double> time_calls(const BenchContext& c, const Declare& declare, int calls,
                               BenchResult& r, double& bytes) {
  PlanCase op(c);
  const auto record = declare(op);
  for (int i = 1; i < calls; ++i) record();
  op.result(record());
  op.compile();
  r.gflop = plan_flops(op.plan()) * 1e-9 / calls;
  bytes = weight_traffic(op.plan(), c.backend(), *c.model.weights) / calls;
  r.more["kernels"] = op.plan().steps.size() / static_cast<size_t>(calls);
  Effort effort = c.options.effort;
  effort.seconds = std::min(effort.seconds, 0.5);
  return measure(effort, [&] { op.run(); });
}

void time_case(const BenchContext& c, const Declare& declare, Row row) {
  BenchResult r;
  r.bench = row.bench;
  r.what = std::move(row.what);
  r.batch = row.batch;
  r.seq = row.seq;
  r.rank = row.rank;
  r.more = std::move(row.more);
  // Where the host launches and a device computes, a call is what a hundred more of them add to a
  // run: neither the launch nor the copies of operands and results belong to the op.
  constexpr int kFew = 10, kMore = 100;
  double bytes = 0;
  const bool ahead = c.backend().runs_ahead();
  const double before = ahead ? summarize(time_calls(c, declare, kFew, r, bytes)).median : 0;
  std::vector<double> samples = time_calls(c, declare, ahead ? kFew + kMore : 1, r, bytes);
  if (ahead)
    for (double& ms : samples) ms = std::max(0.0, ms - before) / kMore;
  r.ms = summarize(samples);
  c.emit(std::move(r), 0, bytes);
}

std::vector<int32_t> counted(int64_t n, int32_t first) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// One segment of T tokens, causal.
Declare attention_of(int64_t tokens) {
  return [tokens](PlanCase& op) {
    AttentionAttr attr;
    attr.heads = kHeads;
    attr.kv_heads = kKvHeads;
    attr.head_dim = kHeadDim;
    attr.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
    attr.causal_self = true;
    const ValueId q = op.input("q", {tokens, kHeads * kHeadDim});
    const ValueId k = op.input("k", {tokens, kKvHeads * kHeadDim});
    const ValueId v = op.input("v", {tokens, kKvHeads * kHeadDim});
    const ValueId begin =
        op.integers("begin", std::vector<int32_t>(static_cast<size_t>(tokens), 0));
    const ValueId end = op.integers("end", counted(tokens, 1));
    return [=, &op] { return op.recorder().attention(q, k, v, begin, end, attr); };
  };
}

// What plain attention cannot do without: both products of every head over whole T x T.
Declare plain_products(int64_t tokens) {
  return [tokens](PlanCase& op) {
    struct Head {
      ValueId q, k, v;
    };
    std::vector<Head> heads;
    for (int64_t h = 0; h < kHeads; ++h)
      heads.push_back({op.input(cat("q", h), {tokens, kHeadDim}),
                       op.weight(cat("k", h), {tokens, kHeadDim}),
                       op.weight(cat("v", h), {kHeadDim, tokens})});
    return [heads, &op] {
      ValueId y = kNone;
      for (const Head& h : heads) y = op.recorder().linear(op.recorder().linear(h.q, h.k), h.v);
      return y;
    };
  };
}

void lora_row(const BenchContext& c, int64_t size, int64_t rank) {
  LoraOptions options;
  options.rank = rank;
  const LinearInfo linear{"linear", size, size, 0, 0};
  const Adapter adapter = Adapter::create(options, {&linear, 1});
  const Declare declare = [&](PlanCase& op) {
    nn::Linear l;
    l.w = op.weight("w", {size, size});
    l.parts = {{"linear", size}};
    const nn::AdapterBinding binding{&adapter, op.params(adapter.param_count()), kNone};
    const ValueId x = op.input("x", {size, size});
    return [=, &op] { return nn::linear(op.recorder(), binding, l, x); };
  };
  time_case(c, declare,
            {"lora", cat("forward ", size, " x ", size, ", rank ", rank), 1, size, rank});
}

}  // namespace

void bench_lora(const BenchContext& c) {
  for (int64_t size : {512, 1024, 2048}) lora_row(c, size, 8);
  for (int64_t rank : {4, 16, 32, 64}) lora_row(c, 1024, rank);
}

void bench_ops(const BenchContext& c) {
  auto time = [&](const std::string& what, const Declare& declare, int64_t tokens = kSize) {
    time_case(c, declare, {"ops", what, 1, tokens, 0});
  };
  time("softmax 1024 x 1024", [&](PlanCase& op) {
    const ValueId x = op.input("x", {kSize, kSize});
    return [=, &op] { return op.recorder().softmax(x); };
  });
  time("layer_norm 1024 x 1024", [&](PlanCase& op) {
    const ValueId x = op.input("x", {kSize, kSize});
    const ValueId w = op.gain("w", kSize), b = op.gain("b", kSize);
    return [=, &op] { return op.recorder().layer_norm(x, w, b, 1e-5f); };
  });
  time("rms_norm 1024 x 1024", [&](PlanCase& op) {
    const ValueId x = op.input("x", {kSize, kSize}), w = op.gain("w", kSize);
    return [=, &op] { return op.recorder().rms_norm(x, w, 1e-6f); };
  });
  time("add_rms_norm 1024 x 1024", [&](PlanCase& op) {
    const ValueId a = op.input("a", {kSize, kSize}), b = op.input("b", {kSize, kSize});
    const ValueId w = op.gain("w", kSize);
    return [=, &op] { return op.recorder().add_rms_norm(a, b, w, 1e-6f).normed; };
  });
  time("matmul 1024 x 1024 x 1024", [&](PlanCase& op) {
    const ValueId x = op.input("x", {kSize, kSize}), w = op.weight("w", {kSize, kSize});
    return [=, &op] { return op.recorder().linear(x, w); };
  });
  time("attention 512, 14/2 heads of 64, causal", attention_of(512), 512);
  time("attention 1024, 14/2 heads of 64, causal", attention_of(kSize));
  time("gated_act 1024 x 2048", [&](PlanCase& op) {
    const ValueId x = op.input("x", {kSize, 2 * kSize});
    return [=, &op] { return op.recorder().gated_act(x, Act::kSilu); };
  });
  time("rope 1024 x 896", [&](PlanCase& op) {
    const ValueId table = op.recorder().feed("table", {kSize, kHeadDim}, DType::kF32);
    const ValueId x = op.input("x", {kSize, kHeads * kHeadDim});
    const ValueId positions = op.integers("positions", counted(kSize, 0));
    return [=, &op] { return op.recorder().rope(x, table, positions, kHeadDim); };
  });
}

void bench_attention(const BenchContext& c) {
  for (int64_t tokens : {512, 1024, 2048}) {
    time_case(c, attention_of(tokens),
              {"attention", cat("flash, ", tokens, " tokens"), 1, tokens, 0});
    Row row{"attention", cat("plain, ", tokens, " tokens"), 1, tokens, 0};
    row.more["note"] = "the two products over T x T alone: softmax and masking would come on top";
    time_case(c, plain_products(tokens), std::move(row));
  }
}

}  // namespace wick
