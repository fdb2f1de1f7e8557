// SPDX-License-Identifier: Apache-2.0
// gated_act with silu in bf16 on the rungs whose vectors round to it: half the instructions of
// elementwise.cpp, which has the meaning. Bound by bytes.
#include <algorithm>

#include "backend/accepts.h"
#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/rungs.h"

#if WICK_CPU_BF16
#include "base/half.h"
#include "base/threads.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/silu-inl.h"

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

void silu_rows(const Operand& x, const Operand& y, int64_t t0, int64_t t1) {
  const int64_t f = y.cols;
  for (int64_t t = t0; t < t1; ++t) {
    const uint16_t *gate = x.as<const uint16_t>() + t * x.ld, *up = gate + f;
    uint16_t* to = y.as<uint16_t>() + t * y.ld;
    for (int64_t i = 0; i < f; i += 32) {
      const __mmask32 mask = words_below(f - i);
      const Words g = load_wide(gate + i, mask), u = load_wide(up + i, mask);
      _mm512_mask_storeu_epi16(to + i, mask, gated(g, u));
    }
  }
}

void silu_rows_bwd(const Operand& dy, const Operand& x, const Operand& dx, int64_t t0, int64_t t1) {
  const int64_t f = dy.cols;
  for (int64_t t = t0; t < t1; ++t) {
    const uint16_t* gate = x.as<const uint16_t>() + t * x.ld;
    const uint16_t* from = dy.as<const uint16_t>() + t * dy.ld;
    uint16_t* to = dx.as<uint16_t>() + t * dx.ld;
    for (int64_t i = 0; i < f; i += 32) {
      const __mmask32 mask = words_below(f - i);
      const Words g = load_wide(gate + i, mask), u = load_wide(gate + f + i, mask),
                  d = load_wide(from + i, mask);
      __m512i dg, du;
      gated_bwd(g, u, d, &dg, &du);
      _mm512_mask_storeu_epi16(to + i, mask, dg);
      _mm512_mask_storeu_epi16(to + f + i, mask, du);
    }
  }
}

}  // namespace
}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {
namespace {

constexpr int64_t kRows = 4;  // of one task

bool is_silu(const StepArgs& args) { return attr<GatedActAttr>(*args.step).act == Act::kSilu; }

bool accepts_fwd(const StepArgs& args) {
  return is_silu(args) && args.in[0].dtype == DType::kBF16 && args.out[0].dtype == DType::kBF16;
}
void gated_act_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &y = args.out[0];
  args.pool->parallel((y.rows + kRows - 1) / kRows, [&](int64_t i) {
    silu_rows(x, y, i * kRows, std::min(y.rows, (i + 1) * kRows));
  });
}

bool accepts_bwd(const StepArgs& args) {
  return is_silu(args) && args.in[0].dtype == DType::kBF16 && args.in[1].dtype == DType::kBF16 &&
         args.out[0].dtype == DType::kBF16;
}
void gated_act_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &x = args.in[1], &dx = args.out[0];
  args.pool->parallel((dy.rows + kRows - 1) / kRows, [&](int64_t i) {
    silu_rows_bwd(dy, x, dx, i * kRows, std::min(dy.rows, (i + 1) * kRows));
  });
}

}  // namespace

Candidates bf16_act_candidates(Rung rung) {
  static constexpr Candidate kTable[] = {
      {Op::kGatedAct, Dir::kForward, "gated_act_fwd_bf16", gated_act_fwd, accepts_fwd, nullptr},
      {Op::kGatedAct, Dir::kBackward, "gated_act_bwd_bf16", gated_act_bwd, accepts_bwd, nullptr},
  };
  if (!rung_has_bf16(rung)) return {};
  return kTable;
}

}  // namespace wick::cpu

#else

namespace wick::cpu {
Candidates bf16_act_candidates(Rung) { return {}; }
}  // namespace wick::cpu

#endif
