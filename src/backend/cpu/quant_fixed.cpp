// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/quant_fixed.h"

#include "backend/accepts.h"

namespace wick::cpu {

#if WICK_CPU_AVX2

FixedCodes::FixedCodes(const Operand& w)
    : data(w.as<const uint8_t>()),
      rows(w.rows),
      stride(static_cast<int64_t>(row_bytes(w.dtype, w.cols))),
      code_bytes(static_cast<int64_t>(quant_code_bytes(w.dtype, w.cols))),
      blocks((w.cols + 31) / 32),
      in_group(quant_group(w.dtype) / 32),
      bits(quant_bits(w.dtype)) {}

namespace {

FixedFinish finish_of(const StepArgs& args) {
  return {args.out[0], args.in.size() > 2 ? args.in[2] : Operand{},
          attr<LinearAttr>(*args.step).scale, args.accumulates(0)};
}

void linear_fwd_fixed_few(const StepArgs& args) {
  multiply_fixed_few(*args.pool, args.in[0], FixedCodes(args.in[1]), finish_of(args), args.scratch);
}
size_t fixed_few_bytes(const StepArgs& args, int) {
  return fixed_few_scratch(FixedCodes(args.in[1]), args.in[0].rows);
}

void linear_fwd_fixed(const StepArgs& args) {
  multiply_fixed_many(*args.pool, args.in[0], FixedCodes(args.in[1]), finish_of(args),
                      args.scratch);
}
size_t fixed_many_bytes(const StepArgs& args, int threads) {
  return fixed_many_scratch(FixedCodes(args.in[1]), args.in[0].rows, threads);
}

bool accepts_fixed(const StepArgs& args) {
  return attr<LinearAttr>(*args.step).narrow && is_codes(args.in[1]) && is_activation(args.in[0]) &&
         is_activation(args.out[0]) && (args.in.size() < 3 || is_weight(args.in[2]));
}
bool accepts_fixed_few(const StepArgs& args) {
  return args.in[0].rows <= kFixedFewRows && accepts_fixed(args);
}

}  // namespace

Candidates fixed_linear_candidates(Rung rung) {
  static constexpr Candidate kTable[] = {
      {Op::kLinear, Dir::kForward, "linear_fwd_fixed_few_rows", linear_fwd_fixed_few,
       accepts_fixed_few, fixed_few_bytes},
      {Op::kLinear, Dir::kForward, "linear_fwd_fixed", linear_fwd_fixed, accepts_fixed,
       fixed_many_bytes},
  };
  return rung == Rung::kAvx2 ? Candidates(kTable) : Candidates();
}

#else

Candidates fixed_linear_candidates(Rung) { return {}; }

#endif

}  // namespace wick::cpu
