// SPDX-License-Identifier: Apache-2.0
// Steps of a reverse pass that a device may make in one kernel, against the same steps on the code
// path of every card, which makes them one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/backend.h"
#include "base/half.h"
#include "base/rng.h"
#include "plan/recorder.h"
#include "quant/rows.h"

namespace wick {
namespace {

using Values = std::vector<std::pair<ValueId, std::vector<float>>>;

struct Reversed {
  Plan plan;
  Values feeds, states, weights;                               // bf16 and f32; f32; bf16 or codes
  std::vector<std::pair<ValueId, std::vector<int32_t>>> ints;  // feeds
};

std::vector<float> random(int64_t count, uint64_t seed, float scale) {
  Rng rng(seed);
  std::vector<float> made;
  for (int64_t i = 0; i < count; ++i) made.push_back(to_float(to_bf16(scale * rng.normal())));
  return made;
}

std::vector<std::vector<float>> run(const std::unique_ptr<Backend>& backend, const Reversed& r) {
  Bindings bindings(r.plan.values.size());
  for (const auto& [id, data] : r.states) {
    BufferPtr buffer = backend->allocate(DType::kF32, static_cast<int64_t>(data.size()));
    backend->upload(*buffer, DType::kF32, 0, static_cast<int64_t>(data.size()), data.data());
    bindings[static_cast<size_t>(id)] = buffer;
  }
  const std::vector<WeightForm> forms = backend->weight_forms(r.plan);
  for (const auto& [id, data] : r.weights) {
    const Value& weight = r.plan.value(id);
    const int64_t rows = weight.shape.rows(), cols = weight.shape.cols();
    const size_t bytes = row_bytes(weight.dtype, cols);
    std::vector<std::byte> made(static_cast<size_t>(rows) * bytes);
    for (int64_t row = 0; row < rows; ++row) {
      const float* from = data.data() + row * cols;
      std::byte* to = made.data() + static_cast<size_t>(row) * bytes;
      if (dtype_is_quantized(weight.dtype)) {
        quantize_row(weight.dtype, from, cols, to);
        continue;
      }
      for (int64_t c = 0; c < cols; ++c) {
        const bf16 half = to_bf16(from[c]);
        std::memcpy(to + 2 * c, &half, 2);
      }
    }
    bindings[static_cast<size_t>(id)] =
        backend->prepare(weight, forms[static_cast<size_t>(id)], made.data());
  }
  const std::unique_ptr<Program> program = backend->compile(r.plan, bindings, nullptr);
  for (const auto& [id, data] : r.feeds) {
    std::vector<bf16> halves;
    for (float v : data) halves.push_back(to_bf16(v));
    if (r.plan.value(id).dtype == DType::kBF16)
      program->feed(id, halves.data(), 2 * halves.size());
    else
      program->feed(id, data.data(), 4 * data.size());
  }
  for (const auto& [id, data] : r.ints) program->feed(id, data.data(), 4 * data.size());
  program->run();
  program->wait();
  std::vector<std::vector<float>> made;
  for (ValueId id : r.plan.results) {
    const auto count = static_cast<size_t>(r.plan.value(id).shape.elements());
    std::vector<float> floats(count);
    std::vector<bf16> halves(count);
    if (r.plan.value(id).dtype == DType::kF32) {
      program->read(id, floats.data(), 4 * count);
    } else {
      program->read(id, halves.data(), 2 * count);
      for (size_t i = 0; i < count; ++i) floats[i] = to_float(halves[i]);
    }
    made.push_back(std::move(floats));
  }
  return made;
}

// The same with its frozen matrices in codes.
Reversed in_codes(Reversed r, DType dtype) {
  for (const auto& weight : r.weights)
    r.plan.values[static_cast<size_t>(weight.first)].dtype = dtype;
  return r;
}

class Reverse : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> names = backend_names();
    if (std::find(names.begin(), names.end(), "cuda") == names.end()) GTEST_SKIP() << "no CUDA";
    best_ = open_backend({.device = "cuda"});
    plain_ = open_backend({.device = "cuda", .cuda_arch = "sm_80"});
  }
  void expect_same(const Reversed& r) const {
    const auto got = run(best_, r), again = run(best_, r), want = run(plain_, r);
    for (size_t v = 0; v < want.size(); ++v) {
      double most = 0, worst = 0;
      for (size_t i = 0; i < want[v].size(); ++i) {
        ASSERT_TRUE(std::isfinite(want[v][i])) << "result " << v;
        most = std::max(most, std::abs(double{want[v][i]}));
        const double off = std::abs(double{got[v][i]} - want[v][i]);
        worst = std::isnan(off) ? INFINITY : std::max(worst, off);
      }
      EXPECT_GT(most, 0) << "result " << v;
      EXPECT_LE(worst, 0.01 * most) << "result " << v;
      EXPECT_TRUE(got[v] == again[v]) << "result " << v << " has other bits in another run";
    }
  }

 private:
  std::unique_ptr<Backend> best_, plain_;
};

struct Part {
  int64_t first, cols, rank;
};

// dh = s dy B and dB = s dyᵀ h of adapters side by side; then dA = dhᵀ x and dx = dh A.
Reversed adapters(int64_t rows, int64_t depth, int64_t cols, const std::vector<Part>& parts) {
  Reversed made;
  int64_t ranks = 0, count = 0;
  for (const Part& p : parts) {
    ranks += p.rank;
    count += p.cols * p.rank;
  }
  Recorder r(made.plan, true, DType::kBF16);
  const ValueId dy = r.feed("dy", {rows, cols}, DType::kBF16);
  const ValueId x = r.feed("x", {rows, depth}, DType::kBF16);
  const ValueId h = r.feed("h", {rows, ranks}, DType::kBF16);
  const ValueId params = r.state("params", {ranks * depth + count}, DType::kF32);
  const ValueId grads = r.temp("grads", {ranks * depth + count}, DType::kF32);
  const ValueId dh = r.temp("dh", {rows, ranks}, DType::kBF16);
  const ValueId dx = r.temp("dx", {rows, depth}, DType::kBF16);
  int64_t rank = 0, at = ranks * depth;
  for (const Part& p : parts) {
    const Shape shape{p.cols, p.rank};
    r.append({Op::kLinear,
              Dir::kBackward,
              {r.cols(dy, p.first, p.first + p.cols), r.cols(h, rank, rank + p.rank),
               r.flat(params, at, shape, "b")},
              {{r.cols(dh, rank, rank + p.rank)}, {r.flat(grads, at, shape, "db")}, {}},
              LinearAttr{1.5f}});
    rank += p.rank;
    at += p.cols * p.rank;
  }
  const Shape shape{ranks, depth};
  r.append({Op::kLinear,
            Dir::kBackward,
            {dh, x, r.flat(params, 0, shape, "a")},
            {{dx}, {r.flat(grads, 0, shape, "da")}, {}},
            LinearAttr{}});
  made.plan.results = {dh, grads, dx};
  made.feeds = {{dy, random(rows * cols, 1, 1.0f)},
                {x, random(rows * depth, 2, 1.0f)},
                {h, random(rows * ranks, 3, 1.0f)}};
  made.states = {{params, random(ranks * depth + count, 4, 0.1f)}};
  return made;
}

TEST_F(Reverse, AdaptersOfOneProductAreTheSteps) {
  expect_same(adapters(2100, 136, 136, {{0, 136, 8}}));
  expect_same(adapters(2048, 136, 640, {{0, 400, 16}, {512, 128, 16}}));
  expect_same(adapters(2051, 264, 1032, {{0, 520, 8}, {520, 512, 8}}));
  expect_same(adapters(520, 264, 4112, {{0, 2056, 8}, {2056, 2056, 8}}));
  expect_same(adapters(2304, 200, 768, {{0, 512, 16}, {512, 128, 16}, {640, 128, 16}}));
  expect_same(adapters(2100, 520, 1000, {{8, 400, 32}, {408, 592, 24}}));
  expect_same(adapters(2100, 264, 520, {{0, 520, 64}}));
  expect_same(adapters(2100, 136, 520, {{0, 520, 4}}));
  expect_same(adapters(9000, 136, 800, {{0, 400, 16}, {400, 400, 16}}));
}

Reversed attention_and_rope(int64_t tokens, const AttentionAttr& a, int64_t segment) {
  Reversed made;
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  Recorder r(made.plan, true, DType::kBF16);
  const ValueId qkv = r.feed("qkv", {tokens, q + 2 * kv}, DType::kBF16);
  const ValueId dy = r.feed("dy", {tokens, q}, DType::kBF16);
  const ValueId table = r.feed("table", {tokens, a.head_dim}, DType::kF32);
  const ValueId positions = r.feed("positions", {tokens}, DType::kI32);
  const ValueId begin = r.feed("begin", {tokens}, DType::kI32);
  const ValueId end = r.feed("end", {tokens}, DType::kI32);
  const ValueId turned = r.rope(r.cols(qkv, 0, q + kv), table, positions, a.head_dim);
  const ValueId y = r.attention(r.cols(turned, 0, q), r.cols(turned, q, q + kv),
                                r.cols(qkv, q + kv, q + 2 * kv), begin, end, a);
  const Step forward = made.plan.steps.back();
  const ValueId d = r.temp("d", {tokens, q + 2 * kv}, DType::kBF16);
  const ValueId dturned = r.temp("dturned", {tokens, q + kv}, DType::kBF16);
  r.append(
      {Op::kAttention,
       Dir::kBackward,
       {dy, forward.inputs[0], forward.inputs[1], forward.inputs[2], y, forward.outputs[1].value,
        begin, end},
       {{r.cols(dturned, 0, q)}, {r.cols(dturned, q, q + kv)}, {r.cols(d, q + kv, q + 2 * kv)}},
       a});
  r.append({Op::kRope,
            Dir::kBackward,
            {dturned, table, positions},
            {{r.cols(d, 0, q + kv)}},
            RopeAttr{a.head_dim}});
  made.plan.results = {d};
  made.feeds = {{qkv, random(tokens * (q + 2 * kv), 1, 1.0f)}, {dy, random(tokens * q, 2, 1.0f)}};
  std::vector<float> angles;
  std::vector<int32_t> places, first, last;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < a.head_dim; ++c) {
      const int64_t pair = c % (a.head_dim / 2);
      const double angle = static_cast<double>(t) / (1.0 + 0.5 * static_cast<double>(pair));
      angles.push_back(static_cast<float>(c < a.head_dim / 2 ? std::cos(angle) : std::sin(angle)));
    }
    places.push_back(static_cast<int32_t>(t % segment));
    first.push_back(static_cast<int32_t>(t / segment * segment));
    last.push_back(static_cast<int32_t>(t + 1));
  }
  made.feeds.push_back({table, angles});
  made.ints = {{positions, places}, {begin, first}, {end, last}};
  return made;
}

TEST_F(Reverse, RopeInItsAttentionIsTheSteps) {
  struct Rows {
    int64_t tokens, segment, heads, kv_heads;
  };
  auto check = [&](const Rows& rows, int64_t head_dim) {
    SCOPED_TRACE(testing::Message() << rows.tokens << " tokens in segments of " << rows.segment
                                    << ", heads of " << head_dim);
    AttentionAttr a;
    a.heads = rows.heads;
    a.kv_heads = rows.kv_heads;
    a.head_dim = head_dim;
    a.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    a.causal_self = true;
    expect_same(attention_and_rope(rows.tokens, a, rows.segment));
  };
  for (int64_t head_dim : {64, 128})
    for (const Rows& rows :
         {Rows{70, 50, 4, 2}, {512, 512, 4, 2}, {700, 200, 4, 2}, {2100, 700, 4, 4}})
      check(rows, head_dim);
  // Lists of blocks of keys shared by eight, four and two blocks, and by none.
  for (const Rows& rows :
       {Rows{1000, 1000, 14, 2}, {1400, 190, 14, 2}, {1100, 300, 8, 8}, {1100, 300, 16, 16}})
    check(rows, 64);
}

// The same between the reverse of o, which makes dy, and that of q, k, v, of which q and v have
// adapters: dh = s d B, dx = dh A + d W.
Reversed attention_between_products(int64_t tokens, const AttentionAttr& a, int64_t segment,
                                    int64_t hidden, int64_t rank) {
  Reversed made = attention_and_rope(tokens, a, segment);
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim, all = q + 2 * kv;
  Recorder r(made.plan, true, DType::kBF16);
  const ValueId dy = made.feeds[1].first, d = made.plan.results[0];
  made.feeds.erase(made.feeds.begin() + 1);
  made.plan.values[static_cast<size_t>(dy)].kind = Kind::kTemp;
  const ValueId dz = r.feed("dz", {tokens, hidden}, DType::kBF16);
  const ValueId o = r.weight("o", {hidden, q}, DType::kBF16),
                w = r.weight("w", {all, hidden}, DType::kBF16);
  const ValueId params = r.state("params", {rank * (2 * hidden + q + kv)}, DType::kF32);
  const ValueId dh = r.temp("dh", {tokens, 2 * rank}, DType::kBF16);
  const ValueId dx = r.temp("dx", {tokens, hidden}, DType::kBF16);
  auto reverse = [&](std::vector<ValueId> inputs, Output out, float scale) {
    r.append({Op::kLinear, Dir::kBackward, std::move(inputs), {out, {}, {}}, LinearAttr{scale}});
  };
  reverse({dz, kNone, o}, {dy}, 1.0f);
  auto& steps = made.plan.steps;  // the reverse of o comes before that of attention
  std::rotate(steps.end() - 3, steps.end() - 1, steps.end());
  int64_t at = 2 * rank * hidden;
  auto adapter = [&](int64_t first, int64_t cols, int64_t ranks) {
    reverse({r.cols(d, first, first + cols), kNone, r.flat(params, at, {cols, rank}, "b")},
            {r.cols(dh, ranks, ranks + rank)}, 1.5f);
    at += cols * rank;
  };
  adapter(0, q, 0);
  adapter(q + kv, kv, rank);
  reverse({dh, kNone, r.flat(params, 0, {2 * rank, hidden}, "a")}, {dx}, 1.0f);
  reverse({d, kNone, w}, {dx, OutMode::kAccumulate}, 1.0f);
  made.plan.results = {d, dh, dx};
  made.feeds.push_back({dz, random(tokens * hidden, 3, 1.0f)});
  made.states = {{params, random(rank * (2 * hidden + q + kv), 4, 0.1f)}};
  made.weights = {{o, random(hidden * q, 5, 0.05f)}, {w, random(all * hidden, 6, 0.05f)}};
  return made;
}

TEST_F(Reverse, ProductsAroundAttentionAreTheSteps) {
  AttentionAttr a;
  a.head_dim = 64;
  a.scale = 0.125f;
  a.causal_self = true;
  auto check = [&](int64_t tokens, int64_t heads, int64_t kv_heads, int64_t hidden, int64_t rank) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, " << heads << " heads, rank " << rank);
    a.heads = heads;
    a.kv_heads = kv_heads;
    const Reversed products = attention_between_products(tokens, a, 190, hidden, rank);
    expect_same(products);
    for (DType dtype : {DType::kQ8G32, DType::kQ4G64}) expect_same(in_codes(products, dtype));
  };
  check(512, 14, 2, 896, 8);  // the products in tiles, with the statistics and LoRA's part of dx
  check(1408, 14, 2, 896, 8);
  check(1024, 15, 3, 1000, 12);
}

struct Gated {
  int64_t rows, depth, half, out;
  int64_t gate_rank, up_rank, down_rank;
  Act act;
  bool again;  // what the gate made is made again in the reverse pass
};

// An adapted product, the gate of it, an adapted product of that, and their reverse.
Reversed gated(const Gated& s) {
  Reversed made;
  Recorder r(made.plan, true, DType::kBF16);
  auto param = [&](const char* name, int64_t rows, int64_t cols, uint64_t seed) {
    const ValueId id = r.state(name, {rows, cols}, DType::kF32);
    made.states.push_back({id, random(rows * cols, seed, 0.1f)});
    return id;
  };
  auto sum = [&](const char* name, int64_t rows, int64_t cols) {
    const ValueId id = r.temp(name, {rows, cols}, DType::kF32);
    made.plan.results.push_back(id);
    return id;
  };
  constexpr float kScale = 1.5f;
  const int64_t ranks = s.gate_rank + s.up_rank;
  const ValueId x = r.feed("x", {s.rows, s.depth}, DType::kBF16);
  const ValueId dz = r.feed("dz", {s.rows, s.out}, DType::kBF16);
  const ValueId w = r.weight("w", {2 * s.half, s.depth}, DType::kBF16);
  const ValueId v = r.weight("v", {s.out, s.half}, DType::kBF16);
  const ValueId a = param("a", ranks, s.depth, 1), gate_b = param("gate_b", s.half, s.gate_rank, 2),
                up_b = param("up_b", s.half, s.up_rank, 3),
                down_a = param("down_a", s.down_rank, s.half, 4),
                down_b = param("down_b", s.out, s.down_rank, 5);
  const ValueId y = r.linear(x, w), h = r.linear(x, a);
  r.linear_into(r.cols(y, 0, s.half), r.cols(h, 0, s.gate_rank), gate_b, kScale);
  r.linear_into(r.cols(y, s.half, 2 * s.half), r.cols(h, s.gate_rank, ranks), up_b, kScale);
  const ValueId gated = r.gated_act(y, s.act);
  const Step gate = made.plan.steps.back();
  const ValueId z = r.linear(gated, v), down_h = r.linear(gated, down_a);
  r.linear_into(z, down_h, down_b, kScale);

  const ValueId ddown_h = r.temp("ddown_h", {s.rows, s.down_rank}, DType::kBF16);
  const ValueId dgated = r.temp("dgated", {s.rows, s.half}, DType::kBF16);
  const ValueId dy = r.temp("dy", {s.rows, 2 * s.half}, DType::kBF16);
  const ValueId dh = r.temp("dh", {s.rows, ranks}, DType::kBF16);
  const ValueId dx = r.temp("dx", {s.rows, s.depth}, DType::kBF16);
  auto reverse = [&](std::vector<ValueId> inputs, std::vector<Output> outputs, float scale) {
    r.append(
        {Op::kLinear, Dir::kBackward, std::move(inputs), std::move(outputs), LinearAttr{scale}});
  };
  reverse({dz, down_h, down_b}, {{ddown_h}, {sum("ddown_b", s.out, s.down_rank)}, {}}, kScale);
  ValueId read = gated;
  if (s.again) {
    Step again = gate;
    read = again.outputs[0].value = r.temp("again", {s.rows, s.half}, DType::kBF16);
    r.append(std::move(again));
  }
  reverse({ddown_h, read, down_a}, {{dgated}, {sum("ddown_a", s.down_rank, s.half)}, {}}, 1.0f);
  reverse({dz, kNone, v}, {{dgated, OutMode::kAccumulate}, {}, {}}, 1.0f);
  r.append({Op::kGatedAct, Dir::kBackward, {dgated, y}, {{dy}}, GatedActAttr{s.act}});
  reverse({r.cols(dy, s.half, 2 * s.half), r.cols(h, s.gate_rank, ranks), up_b},
          {{r.cols(dh, s.gate_rank, ranks)}, {sum("dup_b", s.half, s.up_rank)}, {}}, kScale);
  reverse({r.cols(dy, 0, s.half), r.cols(h, 0, s.gate_rank), gate_b},
          {{r.cols(dh, 0, s.gate_rank)}, {sum("dgate_b", s.half, s.gate_rank)}, {}}, kScale);
  reverse({dh, x, a}, {{dx}, {sum("da", ranks, s.depth)}, {}}, 1.0f);
  reverse({dy, kNone, w}, {{dx, OutMode::kAccumulate}, {}, {}}, 1.0f);
  for (ValueId id : {z, down_h, dh, dx}) made.plan.results.push_back(id);

  made.feeds = {{x, random(s.rows * s.depth, 6, 1.0f)}, {dz, random(s.rows * s.out, 7, 1.0f)}};
  made.weights = {{w, random(2 * s.half * s.depth, 8, 0.02f)},
                  {v, random(s.out * s.half, 9, 0.1f)}};
  return made;
}

TEST_F(Reverse, AGateBetweenAdaptersIsTheSteps) {
  for (const Gated& s : {Gated{2051, 2056, 8200, 72, 16, 16, 16, Act::kSilu, true},
                         Gated{2048, 2056, 8192, 136, 8, 16, 8, Act::kGeluTanh, false},
                         Gated{2300, 136, 8224, 136, 16, 8, 16, Act::kSilu, true}}) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.depth << " x " << s.half);
    expect_same(gated(s));
    expect_same(in_codes(gated(s), s.again ? DType::kQ4G32 : DType::kQ8G128));
  }
}

// The reverse of a product of what a gate made, an adapter's part of it before, and of the gate.
Reversed gate_behind_product(int64_t rows, int64_t depth, int64_t half, int64_t rank, Act act) {
  Reversed made;
  Recorder r(made.plan, true, DType::kBF16);
  const ValueId y = r.feed("y", {rows, 2 * half}, DType::kBF16);
  const ValueId dz = r.feed("dz", {rows, depth}, DType::kBF16);
  const ValueId w = r.weight("w", {depth, half}, DType::kBF16);
  const ValueId dmade = r.temp("dmade", {rows, half}, DType::kBF16);
  const ValueId dy = r.temp("dy", {rows, 2 * half}, DType::kBF16);
  auto reverse = [&](std::vector<ValueId> inputs, Output out, float scale) {
    r.append({Op::kLinear, Dir::kBackward, std::move(inputs), {out, {}, {}}, LinearAttr{scale}});
  };
  if (rank > 0) {
    const ValueId dh = r.feed("dh", {rows, rank}, DType::kBF16);
    const ValueId a = r.state("a", {rank, half}, DType::kF32);
    reverse({dh, kNone, a}, {dmade}, 1.5f);
    made.feeds = {{dh, random(rows * rank, 1, 1.0f)}};
    made.states = {{a, random(rank * half, 2, 1.0f)}};
  }
  reverse({dz, kNone, w}, {dmade, rank > 0 ? OutMode::kAccumulate : OutMode::kWrite}, 1.0f);
  r.append({Op::kGatedAct, Dir::kBackward, {dmade, y}, {{dy}}, GatedActAttr{act}});
  made.plan.results = {dy};
  made.feeds.push_back({y, random(rows * 2 * half, 3, 1.0f)});
  made.feeds.push_back({dz, random(rows * depth, 4, 1.0f)});
  made.weights = {{w, random(depth * half, 5, 0.1f)}};
  return made;
}

TEST_F(Reverse, AGateBehindItsProductIsTheSteps) {
  expect_same(gate_behind_product(512, 896, 4864, 0, Act::kSilu));
  expect_same(gate_behind_product(509, 904, 4872, 8, Act::kGeluTanh));
  expect_same(gate_behind_product(250, 520, 4864, 4, Act::kSilu));
  expect_same(gate_behind_product(640, 256, 4824, 16, Act::kSilu));
  expect_same(gate_behind_product(130, 1536, 8960, 0, Act::kGeluTanh));
  expect_same(in_codes(gate_behind_product(420, 896, 4864, 12, Act::kSilu), DType::kQ4G32));
}

}  // namespace
}  // namespace wick
