// SPDX-License-Identifier: Apache-2.0
// attention forward: bound by multiply-adds for long ranges, by reading k and v when decoding. The
// scores live in one block of rows x keys per thread; a running maximum and sum make them a
// softmax. Reaches 45 to 59 % of one core's peak (Emerald Rapids, AVX-512, 2026-11), four fifths of
// what products do on AVX2 (Zen 3, 2026-11).
//
// Blocks of keys are counted from a row's own begin, so its result does not depend on where its
// segment lies or what lies beside it. The query heads that share k and v are rows of one block.
#include <numeric>

#include "backend/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_fwd.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kKeys = kMaxRows == 14 ? 112 : 96;  // of a block: whole panels
// Of a block, about. Narrow vectors multiply slower, so that panels of k should serve more rows.
constexpr int64_t kRows = kLanes <= 8 ? 224 : 96;
constexpr float kNoScore = -3.0e38f;

struct Sizes {
  int64_t kv_heads, e, group;
  int64_t positions, rows, width;  // of one block at most; rows padded
  explicit Sizes(const AttentionAttr& a)
      : kv_heads(a.kv_heads), e(a.head_dim), group(a.heads / a.kv_heads) {
    // Whole panels of columns where the group allows it.
    const int64_t unit = kMaxCols / std::gcd(kMaxCols, group);
    positions = std::max<int64_t>(1, kRows / group);
    if (unit <= positions) positions = positions / unit * unit;
    rows = positions * group;
    width = round_up(rows + kMaxRows, kMaxCols);
  }
  int64_t blocks(int64_t tokens) const { return (tokens + positions - 1) / positions; }
  // Smaller blocks where there would be too few for the threads.
  void share(int64_t tokens, int threads) {
    constexpr int64_t kTasks = 3;  // for each
    while (positions > 1 && blocks(tokens) * kv_heads < kTasks * threads)
      positions = (positions + 1) / 2;
  }
};

// One thread's scratch: every pointer into one stretch of floats.
struct Work {
  float *q, *packed_q, *packed_k, *packed_v, *scores, *sums, *most, *total, *factor;
  int32_t *low, *high;  // of each row: the keys it sees
  Range* wanted;        // by panel of a product: the keys that its rows see
  int64_t floats;
  Work(const Sizes& s, float* base) {
    int64_t at = 0;
    auto take = [&](int64_t n) {
      float* p = base + at;
      at += round_up(n, 16);
      return p;
    };
    q = take(s.rows * s.e);
    packed_q = take(s.e * packed_cols(s.rows));
    packed_k = take((kKeys + kMaxRows) * s.e);
    packed_v = take(kKeys * packed_cols(s.e));
    scores = take((kKeys + kMaxRows) * s.width);
    sums = take(s.width * packed_cols(s.e));
    most = take(s.width);
    total = take(s.width);
    factor = take(s.width);
    low = reinterpret_cast<int32_t*>(take(s.width));
    high = reinterpret_cast<int32_t*>(take(s.width));
    constexpr int64_t kRangeFloats = sizeof(Range) / sizeof(float);
    wanted = reinterpret_cast<Range*>(take(s.width * kRangeFloats));
    floats = at;
  }
};

// Turns scores [keys][width] of kLanes rows and keys from j0 on into exp(score - running maximum),
// 0 for keys outside a row's [low, high). Keys go down, rows across: nothing is summed over lanes.
// All keys that a row sees are among `seen`.
template <bool Masked>
void softmax_rows(float* scores, int64_t width, int64_t keys, Range seen, int64_t j0,
                  const int32_t* low, const int32_t* high, float* most, float* total,
                  float* factor) {
  const hn::RebindToSigned<DF> di;
  const auto lo = hn::LoadU(di, low), hi = hn::LoadU(di, high);
  auto outside = [&](int64_t j) HWY_ATTR {
    const auto at = hn::Set(di, static_cast<int32_t>(j0 + j));
    return hn::RebindMask(df, hn::Or(hn::Lt(at, lo), hn::Not(hn::Lt(at, hi))));
  };
  const VF old_most = load(most);
  VF top = old_most;
  for (int64_t j = seen.from; j < seen.to; ++j) {
    VF v = load(scores + j * width);
    if constexpr (Masked) v = hn::IfThenElse(outside(j), set(kNoScore), v);
    top = hn::Max(top, v);
  }
  VF sum = hn::Zero(df);
  if constexpr (Masked)
    for (int64_t j = 0; j < seen.from; ++j) store(sum, scores + j * width);
  for (int64_t j = seen.from; j < seen.to; ++j) {
    VF p = exp_small(hn::Sub(load(scores + j * width), top));
    if constexpr (Masked) p = hn::IfThenZeroElse(outside(j), p);
    store(p, scores + j * width);
    sum = hn::Add(sum, p);
  }
  if constexpr (Masked)
    for (int64_t j = seen.to; j < keys; ++j) store(hn::Zero(df), scores + j * width);
  const VF rescale = exp_small(hn::Sub(old_most, top));
  store(rescale, factor);
  store(hn::MulAdd(load(total), rescale, sum), total);
  store(top, most);
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

// Whether each of `count` rows sees all `keys` keys from j0 on.
bool sees_all(const int32_t* low, const int32_t* high, int64_t count, int64_t j0, int64_t keys) {
  return *std::max_element(low, low + count) <= j0 &&
         *std::min_element(high, high + count) >= j0 + keys;
}
// Those of them that some row sees.
Range keys_seen(const int32_t* low, const int32_t* high, int64_t count, int64_t j0, int64_t keys) {
  Range r{keys, 0};
  for (int64_t i = 0; i < count; ++i) {
    if (low[i] >= high[i]) continue;
    r.from = std::min(r.from, low[i] - j0);
    r.to = std::max(r.to, high[i] - j0);
  }
  r.from = std::max<int64_t>(r.from, 0);
  r.to = std::min(r.to, keys);
  return r.from < r.to ? r : Range{0, 0};
}

// Rows [t0, t1), all with one begin, of the heads that share kv head `kv`.
void attend(const Inputs& in, const Sizes& s, const Work& w, int64_t kv, int64_t t0, int64_t t1) {
  const int64_t rows = (t1 - t0) * s.group, e = s.e, begin = in.begin[t0];
  const int64_t lanes = packed_cols(rows), sums_ld = packed_cols(e), height = panel_rows(rows);
  int64_t first = INT64_MAX, last = begin;
  for (int64_t t = t0; t < t1; ++t) {
    const int64_t r = (t - t0) * s.group;
    first = std::min(first, in.first(t));
    last = std::max<int64_t>(last, in.end[t]);
    widen(at(in.q, t, kv * s.group * e), in.q.dtype, s.group * e, w.q + r * e);
    std::fill_n(w.low + r, s.group, static_cast<int32_t>(in.first(t)));
    std::fill_n(w.high + r, s.group, in.end[t]);
  }
  // Lanes past the last row repeat it, as in packed_q.
  std::fill_n(w.low + rows, lanes - rows, w.low[rows - 1]);
  std::fill_n(w.high + rows, lanes - rows, w.high[rows - 1]);
  pack_cols({w.q, e, true}, rows, e, w.packed_q);
  std::fill_n(w.sums, packed_rows(rows) * sums_ld, 0.0f);
  std::fill_n(w.most, lanes, kNoScore);
  std::fill_n(w.total, lanes, 0.0f);
  for (int64_t j0 = begin + (first - begin) / kKeys * kKeys; j0 < last; j0 += kKeys) {
    const int64_t keys = std::min(kKeys, last - j0);
    const void *k = at(in.k, j0, kv * e), *v = at(in.v, j0, kv * e);
    // Blocks at an edge: what no row of a panel sees is not made.
    const bool whole = sees_all(w.low, w.high, rows, j0, keys);
    auto panels_seen = [&](int64_t count) {
      for (int64_t r = 0; r < rows; r += count)
        w.wanted[r / count] = keys_seen(w.low + r, w.high + r, std::min(count, rows - r), j0, keys);
      return w.wanted;
    };
    pack_rows({k, in.k.ld, false, in.k.dtype}, keys, e, w.packed_k);
    multiply_panels(keys, rows, e, {w.packed_k}, {w.packed_q}, {w.scores, s.width, in.scale},
                    Finish::kWrite, {whole ? nullptr : panels_seen(kMaxCols), nullptr});
    for (int64_t r = 0; r < lanes; r += kLanes) {
      const bool all = whole || sees_all(w.low + r, w.high + r, kLanes, j0, keys);
      const Range seen = all ? Range{0, keys} : keys_seen(w.low + r, w.high + r, kLanes, j0, keys);
      (all ? softmax_rows<false> : softmax_rows<true>)(w.scores + r, s.width, keys, seen, j0,
                                                       w.low + r, w.high + r, w.most + r,
                                                       w.total + r, w.factor + r);
    }
    for (int64_t r = 0; r < rows; ++r)
      if (w.factor[r] != 1.0f)
        for (int64_t i = 0; i < sums_ld; i += kLanes)
          store(hn::Mul(load(w.sums + r * sums_ld + i), set(w.factor[r])),
                w.sums + r * sums_ld + i);
    Panels values{static_cast<const float*>(v), in.v.ld};
    // Rows of v often lie a power of two apart, where a first cache of eight ways holds few.
    constexpr int64_t kEnoughRows = kLanes <= 8 ? 48 : INT64_MAX;
    if (e % kLanes != 0 || in.v.dtype != DType::kF32 || rows >= kEnoughRows) {
      pack_cols({v, in.v.ld, false, in.v.dtype}, e, keys, w.packed_v);
      values = {w.packed_v};
    }
    multiply_panels(rows, e, keys, {w.scores, s.width}, values, {w.sums, sums_ld},
                    Finish::kContinue, {nullptr, whole ? nullptr : panels_seen(height)});
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = t0 + r / s.group, h = kv * s.group + r % s.group;
    const bool empty = in.end[t] <= in.first(t);
    const VF factor = set(empty ? 0.0f : 1.0f / w.total[r]);
    with_activation(in.y.dtype, [&](auto* type) HWY_ATTR {
      auto* to = row<std::remove_pointer_t<decltype(type)>>(in.y, t) + h * e;
      for (int64_t i = 0; i < e; i += kLanes)
        store_part(hn::Mul(load(w.sums + r * sums_ld + i), factor), to + i, e - i);
    });
    if (in.lse)
      in.lse.as<float>()[t * in.lse.ld + h] = empty ? -INFINITY : w.most[r] + std::log(w.total[r]);
  }
}

void attention_fwd(const StepArgs& args) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  Sizes s(a);
  const int64_t floats = Work(s, nullptr).floats;
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
  s.share(in.q.rows, args.pool->threads());
  const int64_t blocks = s.blocks(in.q.rows);
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
      {Op::kAttention, Dir::kForward, "attention_fwd", attention_fwd, accepts<0b111, 0, 0b1>,
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
