// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numeric>

#include "bench/plan_case.h"
#include "nn/linear.h"

namespace wick {

namespace {

// Heads of Qwen2.5-0.5B, which the peers' figures are for.
constexpr int64_t kHeads = 14, kKvHeads = 2, kHeadDim = 64;

struct Row {
  const char* bench;
  std::string what;
  int64_t batch = 1, seq = 0, rank = 0;
  Json more = Json::object();
};

void time_case(const BenchContext& c, PlanCase& op, Row row) {
  op.compile();
  BenchResult r;
  r.bench = row.bench;
  r.what = std::move(row.what);
  r.batch = row.batch;
  r.seq = row.seq;
  r.rank = row.rank;
  r.more = std::move(row.more);
  Effort effort = c.options.effort;
  effort.seconds = std::min(effort.seconds, 0.5);
  r.ms = summarize(measure(effort, [&] { op.run(); }));
  r.gflop = plan_flops(op.plan()) * 1e-9;
  r.more["kernels"] = op.plan().steps.size();
  c.emit(std::move(r), 0, weight_traffic(op.plan(), c.backend()));
}

std::vector<int32_t> counted(int64_t n, int32_t first) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// One segment of T tokens, causal.
ValueId record_attention(PlanCase& op, int64_t tokens) {
  AttentionAttr attr;
  attr.heads = kHeads;
  attr.kv_heads = kKvHeads;
  attr.head_dim = kHeadDim;
  attr.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  attr.causal_self = true;
  ValueId q = op.input("q", {tokens, kHeads * kHeadDim});
  ValueId k = op.input("k", {tokens, kKvHeads * kHeadDim});
  ValueId v = op.input("v", {tokens, kKvHeads * kHeadDim});
  ValueId begin = op.integers("begin", std::vector<int32_t>(static_cast<size_t>(tokens), 0));
  return op.recorder().attention(q, k, v, begin, op.integers("end", counted(tokens, 1)), attr);
}

void lora_row(const BenchContext& c, int64_t size, int64_t rank) {
  LoraOptions options;
  options.rank = rank;
  const LinearInfo linear{"linear", size, size, 0, 0};
  const Adapter adapter = Adapter::create(options, {&linear, 1});
  PlanCase op(c);
  nn::Linear l;
  l.w = op.weight("w", {size, size});
  l.parts = {{"linear", size}};
  const nn::AdapterBinding binding{&adapter, op.params(adapter.param_count()), kNone};
  op.result(nn::linear(op.recorder(), binding, l, op.input("x", {size, size})));
  time_case(c, op, {"lora", cat("forward ", size, " x ", size, ", rank ", rank), 1, size, rank});
}

}  // namespace

void bench_lora(const BenchContext& c) {
  for (int64_t size : {512, 1024, 2048}) lora_row(c, size, 8);
  for (int64_t rank : {4, 16, 32, 64}) lora_row(c, 1024, rank);
}

void bench_ops(const BenchContext& c) {
  constexpr int64_t kSize = 1024;
  auto time = [&](const std::string& what, auto&& record, const char* note = nullptr) {
    PlanCase op(c);
    op.result(record(op));
    Row row{"ops", what, 1, kSize, 0};
    if (note) row.more["note"] = note;
    time_case(c, op, std::move(row));
  };
  time(
      "rms_norm 1024 x 1024",
      [&](PlanCase& op) {
        return op.recorder().rms_norm(op.input("x", {kSize, kSize}), op.gain("w", kSize), 1e-6f);
      },
      "softmax has no op of its own (it is inside attention and head), layer norm none at all");
  time("add_rms_norm 1024 x 1024", [&](PlanCase& op) {
    return op.recorder()
        .add_rms_norm(op.input("a", {kSize, kSize}), op.input("b", {kSize, kSize}),
                      op.gain("w", kSize), 1e-6f)
        .normed;
  });
  time("matmul 1024 x 1024 x 1024", [&](PlanCase& op) {
    return op.recorder().linear(op.input("x", {kSize, kSize}), op.weight("w", {kSize, kSize}));
  });
  time("attention 1024, 14/2 heads of 64, causal",
       [&](PlanCase& op) { return record_attention(op, kSize); });
  time("gated_act 1024 x 2048", [&](PlanCase& op) {
    return op.recorder().gated_act(op.input("x", {kSize, 2 * kSize}), Act::kSilu);
  });
  time("rope 1024 x 896", [&](PlanCase& op) {
    ValueId table = op.recorder().feed("table", {kSize, kHeadDim}, DType::kF32);
    return op.recorder().rope(op.input("x", {kSize, kHeads * kHeadDim}), table,
                              op.integers("positions", counted(kSize, 0)), kHeadDim);
  });
}

void bench_attention(const BenchContext& c) {
  for (int64_t tokens : {512, 1024, 2048}) {
    {
      PlanCase op(c);
      op.result(record_attention(op, tokens));
      time_case(c, op, {"attention", cat("flash, ", tokens, " tokens"), 1, tokens, 0});
    }
    // What plain attention cannot do without: both products of every head over whole T x T.
    PlanCase op(c);
    for (int64_t h = 0; h < kHeads; ++h) {
      ValueId scores = op.recorder().linear(op.input(cat("q", h), {tokens, kHeadDim}),
                                            op.weight(cat("k", h), {tokens, kHeadDim}));
      op.result(op.recorder().linear(scores, op.weight(cat("v", h), {kHeadDim, tokens})));
    }
    Row row{"attention", cat("plain, ", tokens, " tokens"), 1, tokens, 0};
    row.more["note"] = "the two products over T x T alone: softmax and masking would come on top";
    time_case(c, op, std::move(row));
  }
}

}  // namespace wick
