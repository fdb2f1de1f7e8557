// SPDX-License-Identifier: Apache-2.0
// attention backward: bound by multiply-adds. The probabilities are made again from q, k and lse,
// block by block: once by query blocks for dq, once by key blocks for dk and dv.
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

constexpr int64_t kKeys = 64;   // of a block
constexpr int64_t kRows = 112;  // of a block, at most

struct Inputs {
  const Operand &dy, &q, &k, &v, &y, &lse;
  const int32_t* begin;
  int64_t heads, kv_heads, e, group;
  float scale;
  int64_t window, tokens;
  float* deltas;  // [T, H]: dy · y

  const float* at(const Operand& o, int64_t t, int64_t head) const {
    return o.as<const float>() + t * o.ld + head * e;
  }
  int64_t first(int64_t t) const {
    return window > 0 ? std::max<int64_t>(begin[t], t + 1 - window) : begin[t];
  }
};

struct Work {
  float *packed_q, *packed_dy, *packed_k, *packed_v, *p, *ds, *packed_a, *packed_b, *sum0, *sum1;
  int64_t floats;
  Work(int64_t e, float* base) {
    int64_t at = 0;
    auto take = [&](int64_t n) {
      float* to = base + at;
      at += round_up(n, 16);
      return to;
    };
    const int64_t rows = kRows + kMaxRows;
    packed_q = take(rows * e);
    packed_dy = take(rows * e);
    packed_k = take(e * kKeys);
    packed_v = take(e * kKeys);
    p = take(kRows * kKeys);
    ds = take(kRows * kKeys);
    packed_a = take(rows * (kKeys + kMaxRows));
    packed_b = take(kRows * packed_cols(e));
    sum0 = take(kRows * e);
    sum1 = take(kRows * e);
    floats = at;
  }
};

// p and ds of rows [t0, t1) of one head against keys [j0, j0 + keys), from packed q, dy, k, v.
void scores(const Inputs& in, const Work& w, int64_t head, int64_t t0, int64_t t1, int64_t j0,
            int64_t keys) {
  const int64_t rows = t1 - t0;
  multiply_packed(rows, keys, in.e, w.packed_q, w.packed_k, {w.p, kKeys, in.scale}, Finish::kWrite);
  multiply_packed(rows, keys, in.e, w.packed_dy, w.packed_v, {w.ds, kKeys}, Finish::kWrite);
  const hn::RebindToSigned<DF> di;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = t0 + r;
    const VF lse = set(in.lse.as<const float>()[t * in.lse.ld + head]);
    const VF delta = set(in.deltas[t * in.heads + head]), scale = set(in.scale);
    const auto lo = hn::Set(di, static_cast<int32_t>(in.first(t) - j0 - 1));
    const auto hi = hn::Set(di, static_cast<int32_t>(t + 1 - j0));
    float *p = w.p + r * kKeys, *ds = w.ds + r * kKeys;
    for (int64_t j = 0; j < keys; j += kLanes) {
      auto at = hn::Iota(di, static_cast<int32_t>(j));
      auto inside = hn::RebindMask(df, hn::And(hn::Gt(at, lo), hn::Lt(at, hi)));
      VF pv = hn::IfThenElseZero(inside, exp_v(hn::Sub(load(p + j), lse)));
      VF dv = hn::Mul(hn::Mul(pv, scale), hn::Sub(load(ds + j), delta));
      store(pv, p + j);
      store(hn::IfThenElseZero(inside, dv), ds + j);
    }
  }
}

void write_rows(const float* from, int64_t rows, int64_t e, const Operand& to, int64_t t0,
                int64_t head) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(to.as<float>() + (t0 + r) * to.ld + head * e, from + r * e,
                static_cast<size_t>(e) * sizeof(float));
}

// dq of rows [t0, t1) of one head.
void query_block(const Inputs& in, const Work& w, int64_t head, int64_t t0, int64_t t1,
                 const Operand& dq) {
  const int64_t rows = t1 - t0, e = in.e, kv = head / in.group;
  int64_t first = t0;
  for (int64_t t = t0; t < t1; ++t) first = std::min(first, in.first(t));
  pack_rows({in.at(in.q, t0, head), in.q.ld}, rows, e, w.packed_q);
  pack_rows({in.at(in.dy, t0, head), in.dy.ld}, rows, e, w.packed_dy);
  std::fill_n(w.sum0, rows * e, 0.0f);
  for (int64_t j0 = first; j0 < t1; j0 += kKeys) {
    const int64_t keys = std::min(kKeys, t1 - j0);
    pack_cols({in.at(in.k, j0, kv), in.k.ld, true}, keys, e, w.packed_k);
    pack_cols({in.at(in.v, j0, kv), in.v.ld, true}, keys, e, w.packed_v);
    scores(in, w, head, t0, t1, j0, keys);
    pack_rows({w.ds, kKeys}, rows, keys, w.packed_a);
    pack_cols({in.at(in.k, j0, kv), in.k.ld}, e, keys, w.packed_b);
    multiply_packed(rows, e, keys, w.packed_a, w.packed_b, {w.sum0, e}, Finish::kContinue);
  }
  write_rows(w.sum0, rows, e, dq, t0, head);
}

// dk and dv of keys [j0, j1) of one kv head: its query heads in order, their rows in order.
void key_block(const Inputs& in, const Work& w, int64_t kv, int64_t j0, int64_t j1,
               const Operand& dk, const Operand& dv) {
  const int64_t keys = j1 - j0, e = in.e;
  int64_t stop = j1;  // begin and window never decrease, so the rows that see a key are a stretch
  while (stop < in.tokens && in.first(stop) < j1) ++stop;
  pack_cols({in.at(in.k, j0, kv), in.k.ld, true}, keys, e, w.packed_k);
  pack_cols({in.at(in.v, j0, kv), in.v.ld, true}, keys, e, w.packed_v);
  std::fill_n(w.sum0, keys * e, 0.0f);
  std::fill_n(w.sum1, keys * e, 0.0f);
  for (int64_t head = kv * in.group; head < (kv + 1) * in.group; ++head)
    for (int64_t t0 = j0; t0 < stop; t0 += kRows) {
      const int64_t t1 = std::min(stop, t0 + kRows), rows = t1 - t0;
      pack_rows({in.at(in.q, t0, head), in.q.ld}, rows, e, w.packed_q);
      pack_rows({in.at(in.dy, t0, head), in.dy.ld}, rows, e, w.packed_dy);
      scores(in, w, head, t0, t1, j0, keys);
      if (dv) {
        pack_rows({w.p, kKeys, true}, keys, rows, w.packed_a);
        pack_cols({in.at(in.dy, t0, head), in.dy.ld}, e, rows, w.packed_b);
        multiply_packed(keys, e, rows, w.packed_a, w.packed_b, {w.sum1, e}, Finish::kContinue);
      }
      if (dk) {
        pack_rows({w.ds, kKeys, true}, keys, rows, w.packed_a);
        pack_cols({in.at(in.q, t0, head), in.q.ld}, e, rows, w.packed_b);
        multiply_packed(keys, e, rows, w.packed_a, w.packed_b, {w.sum0, e}, Finish::kContinue);
      }
    }
  if (dk) write_rows(w.sum0, keys, e, dk, j0, kv);
  if (dv) write_rows(w.sum1, keys, e, dv, j0, kv);
}

void attention_bwd(const StepArgs& args) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  float* scratch = static_cast<float*>(args.scratch);
  const Inputs in{args.in[0],
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
                  scratch};
  const Operand &dq = args.out[0], &dk = args.out[1], &dv = args.out[2];
  parallel_rows(*args.pool, in.tokens, in.heads * in.e * 8, [&](int64_t t0, int64_t t1) HWY_ATTR {
    for (int64_t t = t0; t < t1; ++t)
      for (int64_t h = 0; h < in.heads; ++h) {
        const float *g = in.at(in.dy, t, h), *y = in.at(in.y, t, h);
        VF sum = hn::Zero(df);
        for (int64_t i = 0; i < in.e; i += kLanes)
          sum = hn::MulAdd(load_part(g + i, in.e - i), load_part(y + i, in.e - i), sum);
        in.deltas[t * in.heads + h] = sum_lanes(sum);
      }
  });
  scratch += round_up(in.tokens * in.heads, 16);
  const int64_t floats = Work(in.e, nullptr).floats;
  const int64_t query_blocks = (in.tokens + kRows - 1) / kRows;
  const int64_t key_blocks = (in.tokens + kKeys - 1) / kKeys;
  const int64_t key_tasks = dk || dv ? key_blocks * in.kv_heads : 0;
  const int64_t query_tasks = dq ? query_blocks * in.heads : 0;
  args.pool->parallel(key_tasks + query_tasks, [&](int64_t i, int worker) HWY_ATTR {
    const Work w(in.e, scratch + worker * floats);
    if (i < key_tasks) {
      const int64_t j0 = i / in.kv_heads * kKeys;
      key_block(in, w, i % in.kv_heads, j0, std::min(in.tokens, j0 + kKeys), dk, dv);
    } else {
      i -= key_tasks;
      const int64_t t0 = (query_blocks - 1 - i / in.heads) * kRows;
      query_block(in, w, i % in.heads, t0, std::min(in.tokens, t0 + kRows), dq);
    }
  });
}

size_t attention_bwd_scratch(const StepArgs& args, int threads) {
  const AttentionAttr& a = attr<AttentionAttr>(*args.step);
  const int64_t floats =
      round_up(args.in[1].rows * a.heads, 16) + Work(a.head_dim, nullptr).floats * threads;
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace

Candidates attention_bwd_table() {
  static constexpr Candidate kTable[] = {
      {Op::kAttention, Dir::kBackward, "attention_bwd", attention_bwd, nullptr,
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
