// SPDX-License-Identifier: Apache-2.0
// attention backward: bound by multiply-adds. The probabilities are made again from q, k and lse,
// block by block. Where the pack has enough parts for the threads, one task makes dq, dk and dv of
// a part; otherwise tasks own queries (dq) or keys (dk, dv), which makes seven products of five.
//
// Every sum continues in the inner kernel from where the block before left it: dq over keys in
// order, dk and dv over heads, then rows. What lies outside a row's range adds exact zeros. So
// neither where blocks begin nor who makes what leaves a trace in the bits.
#include <optional>

#include "backend/accepts.h"
#include "backend/cpu/attention_parts.h"
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
constexpr int64_t kBlock = 64;  // rows and keys of a block of the one pass for all
constexpr int64_t kBlockLd = kBlock + 16;
constexpr int64_t kBlockSums = kBlock + kMaxRows;  // rows of dk and dv that a block's tiles touch
constexpr int64_t kMostKeys = 8192;                // of a part that is made in one pass

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
  float *q, *dy, *packed_q, *packed_dy, *packed_k, *packed_v, *p, *ds, *sum0, *sum1;
  float* columns[3];  // rows of k, q and dy, for the products that sum over them
  float *lse, *delta;
  float *part_k, *part_v, *part_dk, *part_dv;  // of all blocks of a part, in one pass
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
    for (float*& to : columns) to = take(most * sums_ld);
    sum0 = take(width * sums_ld);
    sum1 = take(width * sums_ld);
    lse = take(width);
    delta = take(width);
    low = reinterpret_cast<int32_t*>(take(width));
    high = reinterpret_cast<int32_t*>(take(width));
    const int64_t blocks = (std::min(in.tokens, kMostKeys) + kBlock - 1) / kBlock;
    part_k = take(blocks * kBlock * e);
    part_v = take(blocks * kBlock * e);
    part_dk = take(blocks * kBlockSums * sums_ld);
    part_dv = take(blocks * kBlockSums * sums_ld);
    floats = at;
  }
};

// p = exp(score - lse) and ds = scale * p * (dp - delta), both 0 outside, of kLanes scores.
template <bool Masked>
HWY_INLINE void probabilities(float* p, float* ds, VF lse, VF delta, VF scale,
                              hn::Mask<DF> outside) {
  VF pv = exp_small(hn::Sub(load(p), lse));
  if constexpr (Masked) pv = hn::IfThenZeroElse(outside, pv);
  VF dv = hn::Mul(hn::Mul(pv, scale), hn::Sub(load(ds), delta));
  if constexpr (Masked) dv = hn::IfThenZeroElse(outside, dv);
  store(pv, p);
  store(dv, ds);
}

// `depth` rows of B: packed, or as they lie where they are whole vectors of f32. Rows often lie a
// power of two apart, where a first cache of eight ways holds few of them.
Panels columns(const Inputs& in, const void* from, const Operand& of, int64_t depth, float* to) {
  if (kLanes > 8 && in.e % kLanes == 0 && of.dtype == DType::kF32)
    return {static_cast<const float*>(from), of.ld};
  pack_cols({from, of.ld, false, of.dtype}, in.e, depth, to);
  return {to};
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
        probabilities<true>(w.p + j * w.width + r, w.ds + j * w.width + r, lse, delta,
                            set(in.scale),
                            hn::RebindMask(df, hn::Or(hn::Lt(at, lo), hn::Not(hn::Lt(at, hi)))));
      }
    }
    multiply_panels(rows, e, keys, {w.ds, w.width}, columns(in, k, in.k, keys, w.columns[0]),
                    {w.sum0, w.sums_ld}, Finish::kContinue);
  }
  for (int64_t r = 0; r < rows; ++r)
    narrow(w.sum0 + r * w.sums_ld, e, in.head_at(dq, t0 + r / in.group, head + r % in.group),
           dq.dtype);
}

void put_keys(const Inputs& in, const Work& w, const float* from, const Operand& to, int64_t kv,
              int64_t j0, int64_t keys) {
  for (int64_t j = 0; to && j < keys; ++j)
    narrow(from + j * w.sums_ld, in.e, in.head_at(to, j0 + j, kv), to.dtype);
}

// Scores and dy·v of rows from t0 of a head and of keys from j0, as [rows][keys] `ld` apart, into p
// and ds. Unless Masked, every row sees every key.
template <bool Masked>
void soften(const Inputs& in, const Work& w, int64_t head, int64_t t0, int64_t rows, int64_t j0,
            int64_t keys, int64_t ld) {
  const hn::RebindToSigned<DF> di;
  const VF scale = set(in.scale);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = t0 + r, low = in.first(t) - j0, high = t + 1 - j0;
    const VF lse = set(in.lse_of(t, head)), delta = set(in.deltas[t * in.heads + head]);
    const auto lo = hn::Set(di, static_cast<int32_t>(low));
    const auto hi = hn::Set(di, static_cast<int32_t>(high));
    float *p = w.p + r * ld, *ds = w.ds + r * ld;
    for (int64_t j = 0; j < keys; j += kLanes, p += kLanes, ds += kLanes) {
      if (Masked && (j >= high || j + kLanes <= low)) {
        store(hn::Zero(df), p);
        store(hn::Zero(df), ds);
        continue;
      }
      const auto at = hn::Iota(di, static_cast<int32_t>(j));
      probabilities<Masked>(p, ds, lse, delta, scale,
                            hn::RebindMask(df, hn::Or(hn::Lt(at, lo), hn::Not(hn::Lt(at, hi)))));
    }
  }
}

// dk and dv of keys [j0, j1) of one kv head of a part that ends at `end`: its query heads in order,
// their rows in order.
void key_block(const Inputs& in, const Work& w, int64_t kv, int64_t j0, int64_t j1, int64_t end,
               const Operand& dk, const Operand& dv) {
  const int64_t keys = j1 - j0, e = in.e;
  int64_t stop = j1;  // begin and window never decrease, so the rows that see a key are a stretch
  while (stop < end && in.first(stop) < j1) ++stop;
  pack_cols({in.head_at(in.k, j0, kv), in.k.ld, true, in.k.dtype}, keys, e, w.packed_k);
  pack_cols({in.head_at(in.v, j0, kv), in.v.ld, true, in.v.dtype}, keys, e, w.packed_v);
  std::fill_n(w.sum0, w.width * w.sums_ld, 0.0f);
  std::fill_n(w.sum1, w.width * w.sums_ld, 0.0f);
  for (int64_t head = kv * in.group; head < (kv + 1) * in.group; ++head)
    for (int64_t t0 = j0; t0 < stop; t0 += kRows) {
      const int64_t rows = std::min(kRows, stop - t0);
      const void *q = in.head_at(in.q, t0, head), *dy = in.head_at(in.dy, t0, head);
      pack_rows({q, in.q.ld, false, in.q.dtype}, rows, e, w.packed_q);
      pack_rows({dy, in.dy.ld, false, in.dy.dtype}, rows, e, w.packed_dy);
      multiply_panels(rows, keys, e, {w.packed_q}, {w.packed_k}, {w.p, w.width, in.scale},
                      Finish::kWrite);
      multiply_panels(rows, keys, e, {w.packed_dy}, {w.packed_v}, {w.ds, w.width}, Finish::kWrite);
      soften<true>(in, w, head, t0, rows, j0, keys, w.width);
      if (dv)
        multiply_panels(keys, e, rows, {w.p, w.width}, columns(in, dy, in.dy, rows, w.columns[2]),
                        {w.sum1, w.sums_ld}, Finish::kContinue);
      if (dk)
        multiply_panels(keys, e, rows, {w.ds, w.width}, columns(in, q, in.q, rows, w.columns[1]),
                        {w.sum0, w.sums_ld}, Finish::kContinue);
    }
  put_keys(in, w, w.sum0, dk, kv, j0, keys);
  put_keys(in, w, w.sum1, dv, kv, j0, keys);
}

// Of a block of rows from t0 and keys from j0 that do not all see each other: which do.
struct Edge {
  static constexpr int64_t kPanels = kBlock + 1;
  Range rows_of_columns[kPanels], rows_of_keys[kPanels], keys_of_rows[kPanels];

  Edge(const Inputs& in, int64_t t0, int64_t rows, int64_t j0, int64_t keys) {
    // Neither the first nor the last key that a row sees falls from one row to the next.
    auto rows_of = [&](int64_t width, Range* to) {
      for (int64_t j = 0; j < keys; j += width, ++to) {
        *to = {std::max<int64_t>(0, j0 + j - t0), rows};
        while (to->to > to->from && in.first(t0 + to->to - 1) >= j0 + j + width) --to->to;
      }
    };
    rows_of(kMaxCols, rows_of_columns);
    rows_of(panel_rows(keys), rows_of_keys);
    const int64_t height = panel_rows(rows);
    Range* to = keys_of_rows;
    for (int64_t r = 0; r < rows; r += height, ++to) {
      const int64_t last = t0 + std::min(rows, r + height);
      *to = {std::clamp<int64_t>(in.first(t0 + r) - j0, 0, keys),
             std::clamp<int64_t>(last - j0, 0, keys)};
    }
  }
};

// dq, dk and dv of rows and keys [start, stop) of one kv head.
void whole_part(const Inputs& in, const Work& w, int64_t kv, int64_t start, int64_t stop,
                const Operand& dq, const Operand& dk, const Operand& dv) {
  const int64_t e = in.e, blocks = (stop - start + kBlock - 1) / kBlock;
  auto keys_of = [&](int64_t b) { return std::min(kBlock, stop - start - b * kBlock); };
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t j0 = start + b * kBlock;
    pack_cols({in.head_at(in.k, j0, kv), in.k.ld, true, in.k.dtype}, keys_of(b), e,
              w.part_k + b * kBlock * e);
    pack_cols({in.head_at(in.v, j0, kv), in.v.ld, true, in.v.dtype}, keys_of(b), e,
              w.part_v + b * kBlock * e);
  }
  std::fill_n(w.part_dk, blocks * kBlockSums * w.sums_ld, 0.0f);
  std::fill_n(w.part_dv, blocks * kBlockSums * w.sums_ld, 0.0f);
  for (int64_t head = kv * in.group; head < (kv + 1) * in.group; ++head)
    for (int64_t t0 = start; t0 < stop; t0 += kBlock) {
      const int64_t rows = std::min(kBlock, stop - t0);
      const void *q = in.head_at(in.q, t0, head), *dy = in.head_at(in.dy, t0, head);
      pack_rows({q, in.q.ld, false, in.q.dtype}, rows, e, w.packed_q);
      pack_rows({dy, in.dy.ld, false, in.dy.dtype}, rows, e, w.packed_dy);
      const Panels q_columns = columns(in, q, in.q, rows, w.columns[1]);
      const Panels dy_columns = columns(in, dy, in.dy, rows, w.columns[2]);
      std::fill_n(w.sum0, packed_rows(rows) * w.sums_ld, 0.0f);
      const int64_t last = (t0 - start) / kBlock;
      for (int64_t b = std::max<int64_t>(0, in.first(t0) - start) / kBlock; b <= last; ++b) {
        const int64_t j0 = start + b * kBlock, keys = keys_of(b), sums = b * kBlockSums * w.sums_ld;
        const bool at_edge = b == last || in.first(t0 + rows - 1) > j0;
        std::optional<Edge> edge;
        if (at_edge) edge.emplace(in, t0, rows, j0, keys);
        const Wanted scores{at_edge ? edge->rows_of_columns : nullptr, nullptr};
        const Wanted by_key{nullptr, at_edge ? edge->rows_of_keys : nullptr};
        const Wanted by_row{nullptr, at_edge ? edge->keys_of_rows : nullptr};
        multiply_panels(rows, keys, e, {w.packed_q}, {w.part_k + b * kBlock * e},
                        {w.p, kBlockLd, in.scale}, Finish::kWrite, scores);
        multiply_panels(rows, keys, e, {w.packed_dy}, {w.part_v + b * kBlock * e}, {w.ds, kBlockLd},
                        Finish::kWrite, scores);
        (at_edge ? soften<true> : soften<false>)(in, w, head, t0, rows, j0, keys, kBlockLd);
        if (dv)
          multiply_panels(keys, e, rows, {w.p, kBlockLd}, dy_columns, {w.part_dv + sums, w.sums_ld},
                          Finish::kContinue, by_key);
        if (dk)
          multiply_panels(keys, e, rows, {w.ds, kBlockLd}, q_columns, {w.part_dk + sums, w.sums_ld},
                          Finish::kContinue, by_key);
        if (!dq) continue;
        pack_rows({w.ds, kBlockLd}, rows, keys, w.p);
        multiply_panels(rows, e, keys, {w.p},
                        columns(in, in.head_at(in.k, j0, kv), in.k, keys, w.columns[0]),
                        {w.sum0, w.sums_ld}, Finish::kContinue, by_row);
      }
      for (int64_t r = 0; dq && r < rows; ++r)
        narrow(w.sum0 + r * w.sums_ld, e, in.head_at(dq, t0 + r, head), dq.dtype);
    }
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t sums = b * kBlockSums * w.sums_ld;
    put_keys(in, w, w.part_dk + sums, dk, kv, start + b * kBlock, keys_of(b));
    put_keys(in, w, w.part_dv + sums, dv, kv, start + b * kBlock, keys_of(b));
  }
}

// Rows that see themselves alone, or nothing.
void lone_rows(const Inputs& in, const Work& w, int64_t kv, int64_t start, int64_t stop,
               const Operand& dq, const Operand& dk, const Operand& dv) {
  const int64_t e = in.e;
  float *zero = w.sum0, *sum = w.sum1;
  std::fill_n(zero, e, 0.0f);
  for (int64_t t = start; t < stop; ++t) {
    std::fill_n(sum, e, 0.0f);
    for (int64_t head = kv * in.group; head < (kv + 1) * in.group; ++head) {
      if (dq) narrow(zero, e, in.head_at(dq, t, head), dq.dtype);
      if (in.begin[t] > t) continue;
      widen(in.head_at(in.dy, t, head), in.dy.dtype, e, w.dy);
      for (int64_t i = 0; i < e; ++i) sum[i] += w.dy[i];
    }
    if (dk) narrow(zero, e, in.head_at(dk, t, kv), dk.dtype);
    if (dv) narrow(sum, e, in.head_at(dv, t, kv), dv.dtype);
  }
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

int64_t delta_floats(const Inputs& in) { return round_up(in.tokens * in.heads, 16); }
int64_t part_floats(const Inputs& in) {
  constexpr int64_t kPartFloats = sizeof(AttentionPart) / sizeof(float);
  return round_up(in.tokens * kPartFloats, 16);
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
  AttentionPart* parts = reinterpret_cast<AttentionPart*>(in.deltas + delta_floats(in));
  float* works = in.deltas + delta_floats(in) + part_floats(in);
  const int64_t floats = Work(in, nullptr).floats;
  const int64_t count = find_parts(in.begin, in.tokens, parts);
  const bool whole = parts_suffice(parts, count, in.kv_heads, args.pool->threads(), kMostKeys);
  // How many tasks a part is cut into: those that own keys, then those that own queries.
  auto key_tasks = [&](const AttentionPart& p) {
    if (whole || p.lone) return int64_t{1};
    return dk || dv ? (p.length() + kOwned - 1) / kOwned : 0;
  };
  auto query_tasks = [&](const AttentionPart& p) {
    if (whole || p.lone || !dq) return int64_t{0};
    return (p.length() + in.positions() - 1) / in.positions();
  };
  int64_t tasks = 0;
  for (int64_t i = 0; i < count; ++i) tasks += key_tasks(parts[i]) + query_tasks(parts[i]);
  args.pool->parallel(tasks * in.kv_heads, [&](int64_t task, int worker) HWY_ATTR {
    const Work w(in, works + worker * floats);
    const int64_t kv = task % in.kv_heads;
    int64_t i = task / in.kv_heads;
    const AttentionPart* part = parts;
    for (int64_t n; i >= (n = key_tasks(*part) + query_tasks(*part)); ++part) i -= n;
    if (part->lone) {
      lone_rows(in, w, kv, part->start, part->stop, dq, dk, dv);
    } else if (whole) {
      whole_part(in, w, kv, part->start, part->stop, dq, dk, dv);
    } else if (i < key_tasks(*part)) {
      const int64_t j0 = part->start + i * kOwned;
      key_block(in, w, kv, j0, std::min<int64_t>(part->stop, j0 + kOwned), part->stop, dk, dv);
    } else {
      // Later rows see more keys.
      i = query_tasks(*part) - 1 - (i - key_tasks(*part));
      const int64_t t0 = part->start + i * in.positions();
      query_block(in, w, kv, t0, std::min<int64_t>(part->stop, t0 + in.positions()), dq);
    }
  });
}

size_t attention_bwd_scratch(const StepArgs& args, int threads) {
  const Inputs in = inputs_of(args);
  const int64_t floats = delta_floats(in) + part_floats(in) + Work(in, nullptr).floats * threads;
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
