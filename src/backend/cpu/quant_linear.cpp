// SPDX-License-Identifier: Apache-2.0
// linear over quantised rows for up to kFewRows rows of x (decoding): bound by reading the codes
// once from memory. Each group's dot product is made of codes and scaled once. More rows go through
// gemm.cpp, which widens panels as it packs them.
#include "backend/accepts.h"
#include "backend/cpu/rungs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/quant_linear.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include <hwy/cache_control.h>

#include "backend/cpu/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kFewRows = 16;
constexpr int64_t kRowsAtOnce = 4;   // of x, while the rows of w are in the first cache
constexpr int64_t kAhead = 4 << 10;  // bytes of w
constexpr int64_t kTaskBytes = 64 << 10;

int64_t padded(int64_t cols) { return (cols + kQuantBlock - 1) / kQuantBlock * kQuantBlock; }

// sums[i * Outputs + j] = x[i] · w[n + j]; x in f32, padded with zeros to whole blocks.
template <int Bits, int Rows, int Outputs>
void dots(const QuantRows& w, int64_t n, const float* x, int64_t ldx, float* sums) {
  constexpr int64_t kBlockBytes = Bits * kQuantBlock / 8;
  const uint8_t* ws[Outputs];
  WICK_UNROLL
  for (int j = 0; j < Outputs; ++j) ws[j] = w.row(n + j);
  VF total[Rows][Outputs];
  WICK_UNROLL
  for (int i = 0; i < Rows; ++i) {
    WICK_UNROLL
    for (int j = 0; j < Outputs; ++j) total[i][j] = hn::Zero(df);
  }
  const int64_t blocks = padded(w.cols) / kQuantBlock, in_group = w.group / kQuantBlock;
  for (int64_t b0 = 0, g = 0; b0 < blocks; b0 += in_group, ++g) {
    VF sum[Rows][Outputs];
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      WICK_UNROLL
      for (int j = 0; j < Outputs; ++j) sum[i][j] = hn::Zero(df);
    }
    for (int64_t b = b0; b < std::min(blocks, b0 + in_group); ++b) {
      WICK_UNROLL
      for (int j = 0; j < Outputs; ++j) hwy::Prefetch(ws[j] + b * kBlockBytes + kAhead);
      WICK_UNROLL
      for (int64_t v = 0; v < kQuantBlock; v += kLanes) {
        VF codes[Outputs];
        WICK_UNROLL
        for (int j = 0; j < Outputs; ++j) codes[j] = block_codes<Bits>(ws[j] + b * kBlockBytes, v);
        WICK_UNROLL
        for (int i = 0; i < Rows; ++i) {
          const VF xv = load(x + i * ldx + b * kQuantBlock + v);
          WICK_UNROLL
          for (int j = 0; j < Outputs; ++j) sum[i][j] = hn::MulAdd(xv, codes[j], sum[i][j]);
        }
      }
    }
    WICK_UNROLL
    for (int j = 0; j < Outputs; ++j) {
      const VF scale = w.scale(ws[j], g);
      WICK_UNROLL
      for (int i = 0; i < Rows; ++i) total[i][j] = hn::MulAdd(sum[i][j], scale, total[i][j]);
    }
  }
  WICK_UNROLL
  for (int i = 0; i < Rows; ++i) {
    WICK_UNROLL
    for (int j = 0; j < Outputs; ++j) sums[i * Outputs + j] = sum_lanes(total[i][j]);
  }
}

using DotsFn = void (*)(const QuantRows&, int64_t, const float*, int64_t, float*);
constexpr int kOutputs = 4;

// Which of [rows][one output, kOutputs].
template <int Bits>
DotsFn dots_fn(int64_t rows, bool single) {
  constexpr DotsFn kTable[kRowsAtOnce][2] = {{dots<Bits, 1, 1>, dots<Bits, 1, kOutputs>},
                                             {dots<Bits, 2, 1>, dots<Bits, 2, kOutputs>},
                                             {dots<Bits, 3, 1>, dots<Bits, 3, kOutputs>},
                                             {dots<Bits, 4, 1>, dots<Bits, 4, kOutputs>}};
  return kTable[rows - 1][single ? 0 : 1];
}

void put(const StepArgs& args, int64_t t, int64_t n, float sum) {
  const Operand& y = args.out[0];
  float v = 0;
  if (args.in.size() > 2 && args.in[2])
    with_type(args.in[2].dtype,
              [&](auto* type) { v = to_float(static_cast<decltype(type)>(args.in[2].data)[n]); });
  v = std::fma(sum, attr<LinearAttr>(*args.step).scale, v);
  const int64_t at = t * y.ld + n;
  if (y.dtype == DType::kF32)
    y.as<float>()[at] = args.accumulates(0) ? y.as<float>()[at] + v : v;
  else
    y.as<bf16>()[at] = to_bf16(args.accumulates(0) ? to_float(y.as<bf16>()[at]) + v : v);
}

void linear_fwd_quant_few(const StepArgs& args) {
  const Operand& x = args.in[0];
  const QuantRows w(args.in[1].data, args.in[1].dtype, args.in[1].cols);
  const int64_t ldx = padded(x.cols);
  float* wide = static_cast<float*>(args.scratch);
  for (int64_t t = 0; t < x.rows; ++t) {
    float* to = wide + t * ldx;
    with_type(x.dtype, [&](auto* type) HWY_ATTR {
      auto* from = static_cast<decltype(type)>(x.data) + t * x.ld;
      for (int64_t i = 0; i < x.cols; i += kLanes)
        store_part(load_part(from + i, x.cols - i), to + i, ldx - i);
    });
    std::fill(to + x.cols, to + ldx, 0.0f);
  }
  const int64_t n = args.in[1].rows;
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / (w.stride * kOutputs)) * kOutputs;
  args.pool->parallel((n + grain - 1) / grain, [&](int64_t task) HWY_ATTR {
    float sums[kRowsAtOnce * kOutputs];
    const int64_t end = std::min(n, (task + 1) * grain);
    for (int64_t n0 = task * grain; n0 < end;) {
      const int64_t outputs = end - n0 >= kOutputs ? kOutputs : 1;
      for (int64_t t0 = 0; t0 < x.rows; t0 += kRowsAtOnce) {
        const int64_t rows = std::min(kRowsAtOnce, x.rows - t0);
        const DotsFn fn =
            w.bits == 8 ? dots_fn<8>(rows, outputs == 1) : dots_fn<4>(rows, outputs == 1);
        fn(w, n0, wide + t0 * ldx, ldx, sums);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < outputs; ++j) put(args, t0 + i, n0 + j, sums[i * outputs + j]);
      }
      n0 += outputs;
    }
  });
}
size_t few_scratch(const StepArgs& args, int) {
  return static_cast<size_t>(args.in[0].rows * padded(args.in[0].cols)) * sizeof(float);
}
bool accepts_quant_few(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &y = args.out[0];
  const bool plain_bias = args.in.size() < 3 || is_weight(args.in[2]);
  return dtype_is_quantized(w.dtype) && w.form == WeightForm::kRows && x.rows <= kFewRows &&
         plain_bias && (is_f32(x) || x.dtype == DType::kBF16) &&
         (is_f32(y) || y.dtype == DType::kBF16);
}

}  // namespace

Candidates quant_linear_table() {
  static constexpr Candidate kTable[] = {
      {Op::kLinear, Dir::kForward, "linear_fwd_quant_few_rows", linear_fwd_quant_few,
       accepts_quant_few, few_scratch},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(quant_linear_candidates, quant_linear_table)
}  // namespace wick::cpu
#endif
