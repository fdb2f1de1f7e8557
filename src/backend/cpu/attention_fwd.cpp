// SPDX-License-Identifier: Apache-2.0
// attention forward: bound by multiply-adds for long ranges, by reading k and v when decoding. The
// scores live in one block of rows x keys per thread; a running maximum and sum make them a
// softmax.
//
// Blocks of keys are counted from a row's own begin, so its result does not depend on where its
// segment lies or what lies beside it. The query heads that share k and v are rows of one block.
#include "backend/cpu/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_fwd.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kKeys = 64;   // of a block
constexpr int64_t kRows = 128;  // of a block, about
constexpr float kNoScore = -3.0e38f;

struct Sizes {
  int64_t heads, kv_heads, e, group, positions, rows;  // positions and rows of one block, at most
  explicit Sizes(const AttentionAttr& a)
      : heads(a.heads), kv_heads(a.kv_heads), e(a.head_dim), group(a.heads / a.kv_heads) {
    positions = std::max<int64_t>(1, kRows / group);
    rows = positions * group;
  }
};

// One thread's scratch: every pointer into one stretch of floats.
struct Work {
  float *q, *packed_q, *packed_p, *packed_k, *packed_v, *scores, *sums, *most, *total;
  int64_t floats;
  Work(const Sizes& s, float* base) {
    int64_t at = 0;
    auto take = [&](int64_t n) {
      float* p = base + at;
      at += round_up(n, 16);
      return p;
    };
    q = take(s.rows * s.e);
    packed_q = take((s.rows + kMaxRows) * s.e);
    packed_p = take((s.rows + kMaxRows) * kKeys);
    packed_k = take(s.e * kKeys);
    packed_v = take(kKeys * packed_cols(s.e));
    scores = take(s.rows * kKeys);
    sums = take(s.rows * s.e);
    most = take(s.rows);
    total = take(s.rows);
    floats = at;
  }
};

// Turns one row of scores into exp(score - running maximum), 0 outside [lo, hi), and rescales what
// was summed so far.
void softmax_row(float* score, int64_t lo, int64_t hi, int64_t keys, float* most, float* total,
                 float* sums, int64_t e) {
  if (std::max<int64_t>(lo, 0) >= std::min(hi, keys)) {
    std::fill_n(score, keys, 0.0f);
    return;
  }
  const hn::RebindToSigned<DF> di;
  VF top = set(kNoScore);
  for (int64_t j = 0; j < keys; j += kLanes) {
    auto at = hn::Iota(di, static_cast<int32_t>(j));
    auto inside = hn::RebindMask(df, hn::And(hn::Gt(at, hn::Set(di, static_cast<int32_t>(lo - 1))),
                                             hn::Lt(at, hn::Set(di, static_cast<int32_t>(hi)))));
    VF v = hn::IfThenElse(inside, load(score + j), set(kNoScore));
    store(v, score + j);
    top = hn::Max(top, v);
  }
  const float old_most = *most, new_most = std::max(old_most, max_lanes(top));
  VF sum = hn::Zero(df);
  for (int64_t j = 0; j < keys; j += kLanes) {
    VF p = exp_v(hn::Sub(load(score + j), set(new_most)));
    store(p, score + j);
    sum = hn::Add(sum, p);
  }
  float factor = 1.0f;
  if (old_most != new_most) {
    factor = hn::GetLane(exp_v(set(old_most - new_most)));
    for (int64_t i = 0; i < e; i += kLanes)
      store_part(hn::Mul(load_part(sums + i, e - i), set(factor)), sums + i, e - i);
  }
  *total = std::fma(*total, factor, sum_lanes(sum));
  *most = new_most;
}

struct Inputs {
  const Operand &q, &k, &v, &y, &lse;
  const int32_t *begin, *end;
  float scale;
  int64_t window;
  int64_t first(int64_t t) const {
    return window > 0 ? std::max<int64_t>(begin[t], end[t] - window) : begin[t];
  }
};

// Rows [t0, t1), all with one begin, of the heads that share kv head `kv`.
void attend(const Inputs& in, const Sizes& s, const Work& w, int64_t kv, int64_t t0, int64_t t1) {
  const int64_t rows = (t1 - t0) * s.group, e = s.e, begin = in.begin[t0];
  int64_t first = INT64_MAX, last = begin;
  for (int64_t t = t0; t < t1; ++t) {
    first = std::min(first, in.first(t));
    last = std::max<int64_t>(last, in.end[t]);
    std::memcpy(w.q + (t - t0) * s.group * e,
                in.q.as<const float>() + t * in.q.ld + kv * s.group * e,
                static_cast<size_t>(s.group * e) * sizeof(float));
  }
  std::fill_n(w.sums, rows * e, 0.0f);
  std::fill_n(w.most, rows, kNoScore);
  std::fill_n(w.total, rows, 0.0f);
  pack_rows({w.q, e}, rows, e, w.packed_q);
  for (int64_t j0 = begin + (first - begin) / kKeys * kKeys; j0 < last; j0 += kKeys) {
    const int64_t keys = std::min(kKeys, last - j0);
    pack_cols({in.k.as<const float>() + j0 * in.k.ld + kv * e, in.k.ld, true}, keys, e, w.packed_k);
    multiply_packed(rows, keys, e, w.packed_q, w.packed_k, {w.scores, kKeys, in.scale},
                    Finish::kWrite);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = t0 + r / s.group;
      const int64_t lo = in.first(t) - j0, hi = in.end[t] - j0;
      softmax_row(w.scores + r * kKeys, lo, hi, kKeys, w.most + r, w.total + r, w.sums + r * e, e);
    }
    pack_rows({w.scores, kKeys}, rows, keys, w.packed_p);
    pack_cols({in.v.as<const float>() + j0 * in.v.ld + kv * e, in.v.ld}, e, keys, w.packed_v);
    multiply_packed(rows, e, keys, w.packed_p, w.packed_v, {w.sums, e}, Finish::kContinue);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = t0 + r / s.group, h = kv * s.group + r % s.group;
    const bool empty = in.end[t] <= in.first(t);
    const VF factor = set(empty ? 0.0f : 1.0f / w.total[r]);
    float* to = in.y.as<float>() + t * in.y.ld + h * e;
    for (int64_t i = 0; i < e; i += kLanes)
      store_part(hn::Mul(load_part(w.sums + r * e + i, e - i), factor), to + i, e - i);
    if (in.lse)
      in.lse.as<float>()[t * in.lse.ld + h] = empty ? -INFINITY : w.most[r] + std::log(w.total[r]);
  }
}

void attention_fwd(const StepArgs& args) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  const Sizes s(a);
  const Operand none{};
  const Inputs in{args.in[0],
                  args.in[1],
                  args.in[2],
                  args.out[0],
                  args.out.size() > 1 ? args.out[1] : none,
                  args.in[3].as<const int32_t>(),
                  args.in[4].as<const int32_t>(),
                  a.scale,
                  a.window};
  const int64_t blocks = (in.q.rows + s.positions - 1) / s.positions;
  const int64_t floats = Work(s, nullptr).floats;
  float* scratch = static_cast<float*>(args.scratch);
  args.pool->parallel(blocks * s.kv_heads, [&](int64_t i, int worker) HWY_ATTR {
    // Later rows see more keys: the longest blocks first.
    const int64_t block = blocks - 1 - i / s.kv_heads, kv = i % s.kv_heads;
    const Work w(s, scratch + worker * floats);
    const int64_t stop = std::min(in.q.rows, (block + 1) * s.positions);
    for (int64_t t0 = block * s.positions, t1; t0 < stop; t0 = t1) {
      for (t1 = t0 + 1; t1 < stop && in.begin[t1] == in.begin[t0];) ++t1;
      attend(in, s, w, kv, t0, t1);
    }
  });
}

size_t attention_fwd_scratch(const StepArgs& args, int threads) {
  const Sizes s(attr<AttentionAttr>(*args.step));
  return static_cast<size_t>(Work(s, nullptr).floats * threads) * sizeof(float);
}

}  // namespace

Candidates attention_fwd_table() {
  static constexpr Candidate kTable[] = {
      {Op::kAttention, Dir::kForward, "attention_fwd", attention_fwd, nullptr,
       attention_fwd_scratch},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(attention_fwd_candidates, attention_fwd_table)
}  // namespace wick::cpu
#endif
