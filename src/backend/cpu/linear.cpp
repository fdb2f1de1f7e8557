// SPDX-License-Identifier: Apache-2.0
// linear: y = scale * x wᵀ + bias and its gradients. Many rows: bound by multiply-adds, see
// gemm.cpp. Up to kFewRows rows (decoding): bound by reading each weight once from memory; one
// thread takes 28 GB/s (Emerald Rapids, 2026-11).
#include "backend/accepts.h"
#include "backend/cpu/joined.h"
#include "backend/cpu/rungs.h"
#include "backend/cpu/stretches.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first.
#include <hwy/cache_control.h>

#include "backend/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kFewRows = 16;
constexpr int64_t kRowsAtOnce = 4;

MatB weight(const Operand& w, bool transposed) { return {w.data, w.ld, transposed, w.dtype}; }

void linear_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &y = args.out[0];
  MatC c{y.data, y.ld, attr<LinearAttr>(*args.step).scale, args.accumulates(0), y.dtype};
  if (args.in.size() > 2 && args.in[2]) c.bias = args.in[2];
  if (args.next != nullptr) c.gated = args.next->out[0];
  gemm(*args.pool, x.rows, w.rows, x.cols, {x.data, x.ld, false, x.dtype}, weight(w, true), c,
       args.scratch);
}
size_t linear_fwd_scratch(const StepArgs& args, int) {
  return gemm_scratch(args.in[0].rows, args.in[1].rows, args.in[0].cols, args.out[0].dtype);
}
// The logits of decoding may be f32 where activations are bf16.
bool accepts_fwd(const StepArgs& args) {
  return accepts<0b1, 0b110, 0b1, 0b10>(args) || accepts<0b1, 0b110, 0, 0b10>(args);
}

// y for `Rows` rows from `first` on, outputs [n0, n1): vectors along K, one sum per (row, output).
// Eight sums or more hide their latency, and sixteen registers hold them beside what is multiplied;
// the more rows of w for one of x, the less of x comes from the second cache.
//
// The outputs taken together lie apart, so that each is the next of a stream that goes on from row
// to row: memory then gives a core of Zen 3 25 GB/s, where it gives 14 to eight rows side by side,
// whose streams begin again every few rows.
template <typename T, int Rows>
void few_rows(const StepArgs& args, const float* xs, int64_t ldx, int64_t first, int64_t n0,
              int64_t n1) {
  const Operand &x = args.in[0], &w = args.in[1], &y = args.out[0];
  const float scale = attr<LinearAttr>(*args.step).scale;
  const bool add = args.accumulates(0);
  const Operand bias = args.in.size() > 2 ? args.in[2] : Operand{};
  constexpr int kOutputs = Rows < 3 ? 4 : 3;
  const int64_t k = x.cols, apart = (n1 - n0 + kOutputs - 1) / kOutputs;
  for (int64_t n = n0; n < n0 + apart; ++n) {
    const T* ws[kOutputs];
    WICK_UNROLL
    for (int j = 0; j < kOutputs; ++j)
      ws[j] = w.as<T>() + std::min<int64_t>(n + j * apart, n1 - 1) * w.ld;
    VF sum[Rows][kOutputs];
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      WICK_UNROLL
      for (int j = 0; j < kOutputs; ++j) sum[i][j] = hn::Zero(df);
    }

    int64_t at = 0;
    auto step = [&]() HWY_ATTR {
      VF wv[kOutputs];
      WICK_UNROLL
      for (int j = 0; j < kOutputs; ++j) wv[j] = load(ws[j] + at);
      WICK_UNROLL
      for (int i = 0; i < Rows; ++i) {
        VF xv = load(xs + i * ldx + at);
        WICK_UNROLL
        for (int j = 0; j < kOutputs; ++j) sum[i][j] = hn::MulAdd(xv, wv[j], sum[i][j]);
      }
      at += kLanes;
    };
    // A line of each row at a time; brought near is what its stream reads soon.
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T)), kAhead = 16 * kLine;
    while (at + kLine <= k) {
      WICK_UNROLL
      for (int j = 0; j < kOutputs; ++j) hwy::Prefetch(ws[j] + at + kAhead);
      WICK_UNROLL
      for (int64_t i = 0; i < kLine; i += kLanes) step();
    }
    while (at + kLanes <= k) step();
    if (at < k) {
      WICK_UNROLL
      for (int j = 0; j < kOutputs; ++j) {
        VF wv = load_part(ws[j] + at, k - at);
        WICK_UNROLL
        for (int i = 0; i < Rows; ++i)
          sum[i][j] = hn::MulAdd(load_part(xs + i * ldx + at, k - at), wv, sum[i][j]);
      }
    }
    WICK_UNROLL
    for (int j = 0; j < kOutputs; ++j) {
      const int64_t output = n + j * apart;
      if (output >= n1) break;
      float b = 0;
      if (bias)
        with_type(bias.dtype, [&](auto* type) {
          b = to_float(static_cast<decltype(type)>(bias.data)[output]);
        });
      WICK_UNROLL
      for (int i = 0; i < Rows; ++i) {
        const int64_t to = (first + i) * y.ld + output;
        float v = std::fma(sum_lanes(sum[i][j]), scale, b);
        if (y.dtype == DType::kF32)
          y.as<float>()[to] = add ? y.as<float>()[to] + v : v;
        else
          y.as<bf16>()[to] = to_bf16(add ? to_float(y.as<bf16>()[to]) + v : v);
      }
    }
  }
}

template <typename T>
auto few_rows_fn(int64_t rows) {
  using Fn = decltype(&few_rows<T, 1>);
  constexpr Fn kTable[kRowsAtOnce] = {few_rows<T, 1>, few_rows<T, 2>, few_rows<T, 3>,
                                      few_rows<T, 4>};
  return kTable[rows - 1];
}

// x in f32: as it lies, or widened into the scratch. Each weight comes from memory once: the next
// rows of x find a task's weights in the second cache.
void linear_fwd_few(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1];
  if (x.rows == 0) return;
  const bool wide = x.dtype == DType::kF32;
  const float* xs = wide ? x.as<float>() : static_cast<float*>(args.scratch);
  const int64_t ldx = wide ? x.ld : x.cols;
  for (int64_t i = 0; !wide && i < x.rows; ++i)
    widen(row<bf16>(x, i), x.dtype, x.cols, static_cast<float*>(args.scratch) + i * ldx);
  with_type(w.dtype, [&](auto* type) {
    using T = std::remove_cvref_t<decltype(*type)>;
    const int64_t grain = round_up((128 << 10) / (x.cols * sizeof(T) + 1) + 1, 24);
    in_stretches(*args.pool, (w.rows + grain - 1) / grain, [&](auto next) {
      for (int64_t i; (i = next()) >= 0;) {
        const int64_t n0 = i * grain, n1 = std::min(w.rows, n0 + grain);
        for (int64_t t = 0; t < x.rows; t += kRowsAtOnce)
          few_rows_fn<T>(std::min(kRowsAtOnce, x.rows - t))(args, xs + t * ldx, ldx, t, n0, n1);
      }
    });
  });
}
size_t linear_fwd_few_scratch(const StepArgs& args, int) {
  const Operand& x = args.in[0];
  return x.dtype == DType::kF32 ? 0 : static_cast<size_t>(x.elements()) * sizeof(float);
}
bool accepts_few(const StepArgs& args) {
  return args.in[0].rows <= kFewRows && !is_codes(args.in[1]) && accepts_fwd(args);
}

// db[n] (+)= Σ_t dy[t, n] in row order; a task owns one stripe of columns.
void column_sums(ThreadPool& pool, const Operand& dy, const Operand& db, bool add) {
  constexpr int64_t kStripe = 4 * kLanes;
  with_activation(dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    pool.parallel((dy.cols + kStripe - 1) / kStripe, [&](int64_t i) HWY_ATTR {
      for (int64_t c = i * kStripe; c < std::min(dy.cols, (i + 1) * kStripe); c += kLanes) {
        const int64_t n = dy.cols - c;
        float* to = db.as<float>() + c;
        VF sum = add ? load_part(to, n) : hn::Zero(df);
        for (int64_t t = 0; t < dy.rows; ++t) sum = hn::Add(sum, load_part(row<T>(dy, t) + c, n));
        store_part(sum, to, n);
      }
    });
  });
}

void linear_bwd(const StepArgs& args) {
  const Operand &dy = args.in[0], &dx = args.out[0];
  const float scale = attr<LinearAttr>(*args.step).scale;
  if (dx) {
    const Operand& w = args.in[2];
    gemm(*args.pool, dy.rows, dx.cols, dy.cols, {dy.data, dy.ld, false, dy.dtype}, weight(w, false),
         {dx.data, dx.ld, scale, args.accumulates(0), dx.dtype}, args.scratch);
  }
  if (args.out.size() > 1 && args.out[1]) {
    const Operand &x = args.in[1], &dw = args.out[1];
    gemm(*args.pool, dy.cols, x.cols, dy.rows, {dy.data, dy.ld, true, dy.dtype},
         {x.data, x.ld, false, x.dtype}, {dw.data, dw.ld, scale, args.accumulates(1)},
         args.scratch);
  }
  if (args.out.size() > 2 && args.out[2])
    column_sums(*args.pool, dy, args.out[2], args.accumulates(2));
}
size_t linear_bwd_scratch(const StepArgs& args, int) {
  const Operand& dy = args.in[0];
  size_t bytes = 0;
  if (args.out[0]) bytes = gemm_scratch(dy.rows, args.out[0].cols, dy.cols, args.out[0].dtype);
  if (args.out.size() > 1 && args.out[1])
    bytes = std::max(bytes, gemm_scratch(dy.cols, args.out[1].cols, dy.rows));
  return bytes;
}

void bias_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &b = args.in[1], &y = args.out[0];
  const float* bs = widened(b, args.scratch);
  with_activation(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_rows(*args.pool, x.rows, x.cols * 8, [&](int64_t t0, int64_t t1) HWY_ATTR {
      for (int64_t t = t0; t < t1; ++t)
        for (int64_t d = 0; d < x.cols; d += kLanes) {
          const int64_t n = x.cols - d;
          VF v = hn::Add(load_part(row<T>(x, t) + d, n), load_part(bs + d, n));
          store_part(v, row<T>(y, t) + d, n);
        }
    });
  });
}
void bias_bwd(const StepArgs& args) {
  column_sums(*args.pool, args.in[0], args.out[0], args.accumulates(0));
}

}  // namespace

bool linear_takes_gate(KernelFn fn, const StepArgs& args) {
  return fn == linear_fwd && is_f32(args.in[0]) && is_f32(args.out[0]) &&
         makes_gate(args.in[1].rows, args.in[0].cols);
}

Candidates linear_table() {
  static constexpr Candidate kTable[] = {
      {Op::kLinear, Dir::kForward, "linear_fwd_few_rows", linear_fwd_few, accepts_few,
       linear_fwd_few_scratch},
      {Op::kLinear, Dir::kForward, "linear_fwd", linear_fwd, accepts_fwd, linear_fwd_scratch},
      {Op::kLinear, Dir::kBackward, "linear_bwd", linear_bwd, accepts<0b11, 0b100, 0b1, 0b100>,
       linear_bwd_scratch},
      {Op::kBias, Dir::kForward, "bias_fwd", bias_fwd, accepts<0b1, 0b10, 0b1>, widened_scratch<1>},
      {Op::kBias, Dir::kBackward, "bias_bwd", bias_bwd, accepts<0b1, 0, 0>, nullptr},
  };
  return kTable;
}

}  // namespace wick::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::cpu {
WICK_CPU_BY_RUNG(linear_candidates, linear_table)

// Where vectors are wider it is slower: a prompt of 512 tokens 1,858 ms beside 1,824 (Zen 4, the
// best of six runs each).
bool rows_take_gate(KernelFn linear, const StepArgs& args) {
  using Fn = bool (*)(KernelFn, const StepArgs&);
  for (Fn takes : {Fn{HWY_CHOOSE_AVX2(linear_takes_gate)}})  // null on other architectures
    if (takes != nullptr && takes(linear, args)) return true;
  return false;
}
}  // namespace wick::cpu
#endif
