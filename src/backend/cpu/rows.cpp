// SPDX-License-Identifier: Apache-2.0
// embed, gather_rows, copy, segment_sum, sample: rows moved, summed or searched by index. Bound by
// bytes.
#include "backend/accepts.h"
#include "backend/cpu/rungs.h"
#include "backend/place.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include "backend/cpu/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

const int32_t* ints(const Operand& o) { return o.as<const int32_t>(); }

void copy_row(const Operand& from, int64_t r, const Operand& to, int64_t t) {
  std::memcpy(at(to, t), at(from, r), static_cast<size_t>(to.cols) * dtype_bytes(to.dtype));
}

void embed_fwd(const StepArgs& args) {
  const Operand &table = args.in[0], &ids = args.in[1], &y = args.out[0];
  if (table.dtype == y.dtype)
    return parallel_rows(*args.pool, y.rows, y.cols * 8, [&](int64_t t0, int64_t t1) {
      for (int64_t t = t0; t < t1; ++t) copy_row(table, ints(ids)[t], y, t);
    });
  if (dtype_is_quantized(table.dtype))
    return parallel_rows(*args.pool, y.rows, y.cols * 8, [&](int64_t t0, int64_t t1) HWY_ATTR {
      constexpr int64_t kPart = 256;
      alignas(64) float part[kPart];
      const QuantRows rows(table.data, table.dtype, table.ld);
      for (int64_t t = t0; t < t1; ++t)
        for (int64_t c = 0; c < y.cols; c += kPart) {
          const int64_t count = std::min(kPart, y.cols - c);
          dequantize(rows, ints(ids)[t], c, count, part);
          narrow(part, count, at(y, t, c), y.dtype);
        }
    });
  const bool to_bf16 = y.dtype == DType::kBF16;
  with_type(table.dtype, [&](auto* type) {
    auto* from = static_cast<decltype(type)>(table.data);
    parallel_rows(*args.pool, y.rows, y.cols * 8, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t)
        for (int64_t i = 0; i < y.cols; i += kLanes) {
          const int64_t n = y.cols - i;
          const VF v = load_part(from + ints(ids)[t] * table.ld + i, n);
          if (to_bf16)
            store_part(v, row<bf16>(y, t) + i, n);
          else
            store_part(v, row<float>(y, t) + i, n);
        }
    });
  });
}

// A task owns a stripe of columns of the whole table and takes the tokens in order.
void embed_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &ids = args.in[1], &table = args.out[0];
  if (!args.accumulates(0))
    parallel_rows(*args.pool, table.rows, table.cols * 4, [&](int64_t v0, int64_t v1) {
      for (int64_t v = v0; v < v1; ++v) zero_row(table, v);
    });
  const int64_t untrained = attr<EmbedAttr>(*args.step).untrained;
  constexpr int64_t kStripe = 4 * kLanes;
  with_activation(dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    args.pool->parallel((dy.cols + kStripe - 1) / kStripe, [&](int64_t s) HWY_ATTR {
      const int64_t c0 = s * kStripe, c1 = std::min(dy.cols, c0 + kStripe);
      for (int64_t t = 0; t < dy.rows; ++t) {
        if (ints(ids)[t] == untrained) continue;
        float* to = row<float>(table, ints(ids)[t]);
        for (int64_t c = c0; c < c1; c += kLanes)
          store_part(hn::Add(load_part(to + c, c1 - c), load_part(row<T>(dy, t) + c, c1 - c)),
                     to + c, c1 - c);
      }
    });
  });
}

void gather_rows_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &rows = args.in[1], &y = args.out[0];
  parallel_rows(*args.pool, y.rows, y.cols * 8, [&](int64_t m0, int64_t m1) {
    for (int64_t m = m0; m < m1; ++m) {
      const int32_t from = ints(rows)[m];
      if (from < 0)
        zero_row(y, m);
      else
        copy_row(x, from, y, m);
    }
  });
}
void gather_rows_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &rows = args.in[1], &dx = args.out[0];
  parallel_rows(*args.pool, dx.rows, dx.cols * 4, [&](int64_t t0, int64_t t1) {
    for (int64_t t = t0; t < t1; ++t) zero_row(dx, t);
  });
  parallel_rows(*args.pool, dy.rows, dy.cols * 8, [&](int64_t m0, int64_t m1) {
    for (int64_t m = m0; m < m1; ++m)
      if (ints(rows)[m] >= 0) copy_row(dy, m, dx, ints(rows)[m]);
  });
}

void copy_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &rows = args.in[1], &y = args.out[0];
  parallel_rows(*args.pool, x.rows, x.cols * 8, [&](int64_t t0, int64_t t1) {
    for (int64_t t = t0; t < t1; ++t)
      if (ints(rows)[t] >= 0) copy_row(x, t, y, ints(rows)[t]);
  });
}

// Comparisons with NaN are false, so that NaN never wins.
void sample_fwd(const StepArgs& args) {
  const Operand &logits = args.in[0], &token = args.out[0], &place = args.out[1],
                &log = args.out[2];
  args.pool->parallel(logits.rows, [&](int64_t b) {
    const float* x = row<float>(logits, b);
    float most = -INFINITY;
    for (int64_t v = 0; v < logits.cols; ++v) most = x[v] > most ? x[v] : most;
    const float* found = most > -INFINITY ? std::find(x, x + logits.cols, most) : nullptr;
    auto best = found != nullptr ? static_cast<int32_t>(found - x) : -1;
    if (args.in[1])
      best = draw_token({x, static_cast<size_t>(logits.cols)}, how_of(args.in[1], place, b));
    token.as<int32_t>()[b] = best;
    if (place) take_place(place, log, b, best);
  });
}
bool sample_accepts(const StepArgs& args) { return args.in[0].dtype == DType::kF32; }

// A few thousand scalars: one thread, in order.
void segment_sum_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &weight = args.in[1], &segment = args.in[2], &y = args.out[0];
  float* to = y.as<float>();
  std::fill_n(to, y.elements(), 0.0f);
  for (int64_t m = 0; m < x.elements(); ++m)
    if (int32_t s = ints(segment)[m]; s >= 0)
      to[s] += weight.as<const float>()[m] * x.as<const float>()[m];
}
void segment_sum_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &weight = args.in[1], &segment = args.in[2], &dx = args.out[0];
  for (int64_t m = 0; m < dx.elements(); ++m) {
    const int32_t s = ints(segment)[m];
    float g = s < 0 ? 0.0f : (dy ? dy.as<const float>()[s] : 1.0f);
    dx.as<float>()[m] = s < 0 ? 0.0f : g * weight.as<const float>()[m];
  }
}

}  // namespace

Candidates row_table() {
  static constexpr Candidate kTable[] = {
      {Op::kEmbed, Dir::kForward, "embed_fwd", embed_fwd, accepts<0, 0b1, 0b1, 0b1>, nullptr},
      {Op::kEmbed, Dir::kBackward, "embed_bwd", embed_bwd, accepts<0b1, 0, 0>, nullptr},
      {Op::kGatherRows, Dir::kForward, "gather_rows_fwd", gather_rows_fwd, accepts<0b1, 0, 0b1>,
       nullptr},
      {Op::kGatherRows, Dir::kBackward, "gather_rows_bwd", gather_rows_bwd, accepts<0b1, 0, 0b1>,
       nullptr},
      {Op::kSample, Dir::kForward, "sample_fwd", sample_fwd, sample_accepts, nullptr},
      {Op::kCopy, Dir::kForward, "copy_fwd", copy_fwd, accepts<0b1, 0, 0b1>, nullptr},
      {Op::kSegmentSum, Dir::kForward, "segment_sum_fwd", segment_sum_fwd, nullptr, nullptr},
      {Op::kSegmentSum, Dir::kBackward, "segment_sum_bwd", segment_sum_bwd, nullptr, nullptr},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(row_candidates, row_table)
}  // namespace wick::cpu
#endif
