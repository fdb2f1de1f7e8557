// SPDX-License-Identifier: Apache-2.0
// attention backward: bound by multiply-adds. The probabilities are made again from q, k and lse,
// block by block: once by query blocks for dq, once by key blocks for dk and dv, which makes seven
// products of the five that are counted. Reaches 30 to 40 % of one core's peak, of the five
// (Emerald Rapids, AVX-512, 2026-11).
//
// Every sum continues in the inner kernel from where the block before left it, and what lies
// outside a row's range adds exact zeros: where blocks begin leaves no trace in the bits.
#include "backend/cpu/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_bwd.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kRows = 96;   // of queries in a block, at most
constexpr int64_t kKeys = 96;   // of keys in a block of the pass for dq
constexpr int64_t kOwned = 64;  // keys of one task of the pass for dk and dv

struct Inputs {
  const Operand &dy, &q, &k, &v, &y, &lse;
  const int32_t* begin;
  int64_t heads, kv_heads, e, group;
  float scale;
  int64_t window, tokens;
  float* deltas;  // [T, H]: dy · y

  void* head_at(const Operand& o, int64_t t, int64_t head) const { return at(o, t, head * e); }
  float lse_of(int64_t t, int64_t head) const { return lse.as<const float>()[t * lse.ld + head]; }
  int64_t first(int64_t t) const {
    return window > 0 ? std::max<int64_t>(begin[t], t + 1 - window) : begin[t];
  }
  int64_t positions() const { return std::max<int64_t>(1, kRows / group); }
  int64_t rows() const { return std::max(kRows, positions() * group); }
};

struct Work {
  float *q, *dy, *packed_q, *packed_dy, *packed_k, *packed_v, *p, *ds, *packed, *sum0, *sum1;
  float *lse, *delta;
  int32_t *low, *high;
  int64_t floats, width, sums_ld;
  Work(const Inputs& in, float* base) {
    int64_t at = 0;
    auto take = [&](int64_t n) {
      float* to = base + at;
      at += round_up(n, 16);
      return to;
    };
    const int64_t e = in.e, rows = in.rows(), most = std::max(rows, kKeys);
    width = round_up(most + kMaxRows, kMaxCols);
    sums_ld = packed_cols(e);
    q = take(rows * e);
    dy = take(rows * e);
    packed_q = take(width * e);
    packed_dy = take(width * e);
    packed_k = take(width * e);
    packed_v = take(width * e);
    p = take(width * width);
    ds = take(width * width);
    packed = take(most * sums_ld);
    sum0 = take(width * sums_ld);
    sum1 = take(width * sums_ld);
    lse = take(width);
    delta = take(width);
    low = reinterpret_cast<int32_t*>(take(width));
    high = reinterpret_cast<int32_t*>(take(width));
    floats = at;
  }
};

// p = exp(score - lse) and ds = scale * p * (dp - delta), both 0 outside, of kLanes scores.
HWY_INLINE void probabilities(float* p, float* ds, VF lse, VF delta, VF scale,
                              hn::Mask<DF> outside) {
  const VF pv = hn::IfThenZeroElse(outside, exp_small(hn::Sub(load(p), lse)));
  const VF dv = hn::Mul(hn::Mul(pv, scale), hn::Sub(load(ds), delta));
  store(pv, p);
  store(hn::IfThenZeroElse(outside, dv), ds);
}

// Rows of B as they lie, or packed where they are not whole vectors of f32.
Panels columns(const Inputs& in, const Work& w, const void* from, const Operand& of,
               int64_t depth) {
  if (in.e % kLanes == 0 && of.dtype == DType::kF32)
    return {static_cast<const float*>(from), of.ld};
  pack_cols({from, of.ld, false, of.dtype}, in.e, depth, w.packed);
  return {w.packed};
}

// dq of positions [t0, t1) of the heads that share kv head `kv`. Scores lie as [keys][rows].
void query_block(const Inputs& in, const Work& w, int64_t kv, int64_t t0, int64_t t1,
                 const Operand& dq) {
  const int64_t rows = (t1 - t0) * in.group, e = in.e, head = kv * in.group;
  const int64_t lanes = packed_cols(rows);
  int64_t first = t0;
  for (int64_t t = t0; t < t1; ++t) {
    const int64_t r = (t - t0) * in.group;
    widen(in.head_at(in.q, t, head), in.q.dtype, in.group * e, w.q + r * e);
    widen(in.head_at(in.dy, t, head), in.dy.dtype, in.group * e, w.dy + r * e);
    for (int64_t g = 0; g < in.group; ++g) {
      w.lse[r + g] = in.lse_of(t, head + g);
      w.delta[r + g] = in.deltas[t * in.heads + head + g];
    }
    first = std::min(first, in.first(t));
  }
  pack_cols({w.q, e, true}, rows, e, w.packed_q);
  pack_cols({w.dy, e, true}, rows, e, w.packed_dy);
  std::fill_n(w.sum0, w.width * w.sums_ld, 0.0f);
  const hn::RebindToSigned<DF> di;
  for (int64_t j0 = first; j0 < t1; j0 += kKeys) {
    const int64_t keys = std::min(kKeys, t1 - j0);
    const void *k = in.head_at(in.k, j0, kv), *v = in.head_at(in.v, j0, kv);
    pack_rows({k, in.k.ld, false, in.k.dtype}, keys, e, w.packed_k);
    pack_rows({v, in.v.ld, false, in.v.dtype}, keys, e, w.packed_v);
    multiply_panels(keys, rows, e, {w.packed_k}, {w.packed_q}, {w.p, w.width, in.scale},
                    Finish::kWrite);
    multiply_panels(keys, rows, e, {w.packed_v}, {w.packed_dy}, {w.ds, w.width}, Finish::kWrite);
    for (int64_t r = 0; r < lanes; ++r) {
      const int64_t t = t0 + r / in.group;
      w.low[r] = r < rows ? static_cast<int32_t>(in.first(t) - j0) : 0;
      w.high[r] = r < rows ? static_cast<int32_t>(t + 1 - j0) : 0;
    }
    for (int64_t r = 0; r < lanes; r += kLanes) {
      const VF lse = load(w.lse + r), delta = load(w.delta + r);
      const auto lo = hn::LoadU(di, w.low + r), hi = hn::LoadU(di, w.high + r);
      for (int64_t j = 0; j < keys; ++j) {
        const auto at = hn::Set(di, static_cast<int32_t>(j));
        probabilities(w.p + j * w.width + r, w.ds + j * w.width + r, lse, delta, set(in.scale),
                      hn::RebindMask(df, hn::Or(hn::Lt(at, lo), hn::Not(hn::Lt(at, hi)))));
      }
    }
    multiply_panels(rows, e, keys, {w.ds, w.width}, columns(in, w, k, in.k, keys),
                    {w.sum0, w.sums_ld}, Finish::kContinue);
  }
  for (int64_t r = 0; r < rows; ++r)
    narrow(w.sum0 + r * w.sums_ld, e, in.head_at(dq, t0 + r / in.group, head + r % in.group),
           dq.dtype);
}

// dk and dv of keys [j0, j1) of one kv head: its query heads in order, their rows in order. Scores
// lie as [rows][keys].
void key_block(const Inputs& in, const Work& w, int64_t kv, int64_t j0, int64_t j1,
               const Operand& dk, const Operand& dv) {
  const int64_t keys = j1 - j0, e = in.e;
  int64_t stop = j1;  // begin and window never decrease, so the rows that see a key are a stretch
  while (stop < in.tokens && in.first(stop) < j1) ++stop;
  pack_cols({in.head_at(in.k, j0, kv), in.k.ld, true, in.k.dtype}, keys, e, w.packed_k);
  pack_cols({in.head_at(in.v, j0, kv), in.v.ld, true, in.v.dtype}, keys, e, w.packed_v);
  std::fill_n(w.sum0, w.width * w.sums_ld, 0.0f);
  std::fill_n(w.sum1, w.width * w.sums_ld, 0.0f);
  const hn::RebindToSigned<DF> di;
  for (int64_t head = kv * in.group; head < (kv + 1) * in.group; ++head)
    for (int64_t t0 = j0; t0 < stop; t0 += kRows) {
      const int64_t rows = std::min(kRows, stop - t0);
      const void *q = in.head_at(in.q, t0, head), *dy = in.head_at(in.dy, t0, head);
      pack_rows({q, in.q.ld, false, in.q.dtype}, rows, e, w.packed_q);
      pack_rows({dy, in.dy.ld, false, in.dy.dtype}, rows, e, w.packed_dy);
      multiply_panels(rows, keys, e, {w.packed_q}, {w.packed_k}, {w.p, w.width, in.scale},
                      Finish::kWrite);
      multiply_panels(rows, keys, e, {w.packed_dy}, {w.packed_v}, {w.ds, w.width}, Finish::kWrite);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t t = t0 + r;
        const VF lse = set(in.lse_of(t, head)), delta = set(in.deltas[t * in.heads + head]);
        const auto lo = hn::Set(di, static_cast<int32_t>(in.first(t) - j0));
        const auto hi = hn::Set(di, static_cast<int32_t>(t + 1 - j0));
        for (int64_t j = 0; j < keys; j += kLanes) {
          const auto at = hn::Iota(di, static_cast<int32_t>(j));
          probabilities(w.p + r * w.width + j, w.ds + r * w.width + j, lse, delta, set(in.scale),
                        hn::RebindMask(df, hn::Or(hn::Lt(at, lo), hn::Not(hn::Lt(at, hi)))));
        }
      }
      if (dv)
        multiply_panels(keys, e, rows, {w.p, w.width}, columns(in, w, dy, in.dy, rows),
                        {w.sum1, w.sums_ld}, Finish::kContinue);
      if (dk)
        multiply_panels(keys, e, rows, {w.ds, w.width}, columns(in, w, q, in.q, rows),
                        {w.sum0, w.sums_ld}, Finish::kContinue);
    }
  auto put = [&](const float* from, const Operand& to) {
    for (int64_t j = 0; to && j < keys; ++j)
      narrow(from + j * w.sums_ld, e, in.head_at(to, j0 + j, kv), to.dtype);
  };
  put(w.sum0, dk);
  put(w.sum1, dv);
}

Inputs inputs_of(const StepArgs& args) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  return {args.in[0],
          args.in[1],
          args.in[2],
          args.in[3],
          args.in[4],
          args.in[5],
          args.in[6].as<const int32_t>(),
          a.heads,
          a.kv_heads,
          a.head_dim,
          a.heads / a.kv_heads,
          a.scale,
          a.window,
          args.in[1].rows,
          static_cast<float*>(args.scratch)};
}

void attention_bwd(const StepArgs& args) {
  const Inputs in = inputs_of(args);
  const Operand &dq = args.out[0], &dk = args.out[1], &dv = args.out[2];
  with_activation(in.dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, in.tokens, in.heads * in.e * 8, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t)
        for (int64_t h = 0; h < in.heads; ++h) {
          const T *g = row<T>(in.dy, t) + h * in.e, *y = row<T>(in.y, t) + h * in.e;
          VF sum = hn::Zero(df);
          for (int64_t i = 0; i < in.e; i += kLanes)
            sum = hn::MulAdd(load_part(g + i, in.e - i), load_part(y + i, in.e - i), sum);
          in.deltas[t * in.heads + h] = sum_lanes(sum);
        }
    });
  });
  float* scratch = in.deltas + round_up(in.tokens * in.heads, 16);
  const int64_t floats = Work(in, nullptr).floats;
  const int64_t query_blocks = (in.tokens + in.positions() - 1) / in.positions();
  const int64_t key_blocks = (in.tokens + kOwned - 1) / kOwned;
  const int64_t key_tasks = dk || dv ? key_blocks * in.kv_heads : 0;
  const int64_t query_tasks = dq ? query_blocks * in.kv_heads : 0;
  args.pool->parallel(key_tasks + query_tasks, [&](int64_t i, int worker) HWY_ATTR {
    const Work w(in, scratch + worker * floats);
    if (i < key_tasks) {
      const int64_t j0 = i / in.kv_heads * kOwned;
      key_block(in, w, i % in.kv_heads, j0, std::min(in.tokens, j0 + kOwned), dk, dv);
    } else {
      i -= key_tasks;
      const int64_t t0 = (query_blocks - 1 - i / in.kv_heads) * in.positions();
      query_block(in, w, i % in.kv_heads, t0, std::min(in.tokens, t0 + in.positions()), dq);
    }
  });
}

size_t attention_bwd_scratch(const StepArgs& args, int threads) {
  const Inputs in = inputs_of(args);
  const int64_t floats = round_up(in.tokens * in.heads, 16) + Work(in, nullptr).floats * threads;
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace

Candidates attention_bwd_table() {
  static constexpr Candidate kTable[] = {
      {Op::kAttention, Dir::kBackward, "attention_bwd", attention_bwd, accepts<0b11111, 0, 0b111>,
       attention_bwd_scratch},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(attention_bwd_candidates, attention_bwd_table)
}  // namespace wick::cpu
#endif
