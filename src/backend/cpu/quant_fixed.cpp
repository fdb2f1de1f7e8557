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

// Of a number of x.
int x_bytes(const StepArgs& args) {
  const bool bytes = attr<LinearAttr>(*args.step).narrow == Narrow::kBytes;
  return bytes && quant_bits(args.in[1].dtype) == 4 ? 1 : 2;
}

void linear_fwd_fixed_few(const StepArgs& args) {
  multiply_fixed_few(*args.pool, args.in[0], FixedCodes(args.in[1]), x_bytes(args), finish_of(args),
                     args.scratch);
}
size_t fixed_few_bytes(const StepArgs& args, int) {
  return fixed_few_scratch(FixedCodes(args.in[1]), args.in[0].rows, x_bytes(args));
}

void linear_fwd_fixed(const StepArgs& args) {
  multiply_fixed_many(*args.pool, args.in[0], FixedCodes(args.in[1]), finish_of(args),
                      args.scratch);
}
size_t fixed_many_bytes(const StepArgs& args, int threads) {
  return fixed_many_scratch(FixedCodes(args.in[1]), args.in[0].rows, threads);
}

// Many rows beside codes of 4 bits are taken as bytes only.
bool bytes_alone(const StepArgs& args) { return quant_bits(args.in[1].dtype) == 4; }

bool is_fixed(const StepArgs& args) {
  return attr<LinearAttr>(*args.step).narrow != Narrow::kNo && is_codes(args.in[1]) &&
         is_activation(args.in[0]) && is_activation(args.out[0]) &&
         (args.in.size() < 3 || is_weight(args.in[2]));
}
bool accepts_fixed(const StepArgs& args) {
  return is_fixed(args) && (x_bytes(args) == 1 || !bytes_alone(args));
}
bool accepts_fixed_few(const StepArgs& args) {
  if (!is_fixed(args)) return false;
  return args.in[0].rows <= (x_bytes(args) == 2 && bytes_alone(args) ? 64 : 8);
}

}  // namespace

Candidates fixed_linear_candidates(Rung rung) {
  static constexpr Candidate kTable[] = {
      {Op::kLinear, Dir::kForward, "linear_fwd_fixed_few_rows", linear_fwd_fixed_few,
       accepts_fixed_few, fixed_few_bytes},
      {Op::kLinear, Dir::kForward, "linear_fwd_fixed", linear_fwd_fixed, accepts_fixed,
       fixed_many_bytes},
  };
  return rung == Rung::kAvx2 || rung == Rung::kAvx512 ? Candidates(kTable) : Candidates();
}

#else

Candidates fixed_linear_candidates(Rung) { return {}; }

#endif

}  // namespace wick::cpu
