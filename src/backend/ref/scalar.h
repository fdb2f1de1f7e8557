// SPDX-License-Identifier: Apache-2.0
// What the ref kernels are written with: operands as matrices of S, outputs that know their mode.
#pragma once

#include <complex>
#include <type_traits>

#include "backend/kernels.h"

// A kernel in each of ref's scalars.
#define WICK_REF_KERNEL(name)                  \
  template void name<float>(const StepArgs&);  \
  template void name<double>(const StepArgs&); \
  template void name<std::complex<double>>(const StepArgs&)

namespace wick::ref {

// What a sum of S runs in.
template <class S>
using Sum = std::conditional_t<std::is_same_v<S, float>, double, S>;

inline double real_part(double x) { return x; }
inline double real_part(std::complex<double> x) { return x.real(); }

template <class S>
struct In {
  const S* data;
  int64_t rows, cols, ld;

  explicit In(const Operand& o) : data(o.as<S>()), rows(o.rows), cols(o.cols), ld(o.ld) {}
  explicit operator bool() const { return ld != 0; }
  Sum<S> operator()(int64_t r, int64_t c) const { return data[r * ld + c]; }
  Sum<S> operator[](int64_t i) const { return data[i]; }  // of a vector
};

// One row of int32.
struct Ints {
  const int32_t* data;
  int64_t count;

  explicit Ints(const Operand& o) : data(o.as<int32_t>()), count(o.elements()) {}
  int32_t operator[](int64_t i) const { return data[i]; }
};

template <class S>
struct Out {
  S* data;
  int64_t rows, cols, ld;
  bool accumulates;

  Out(const StepArgs& args, int i)
      : data(args.out[static_cast<size_t>(i)].template as<S>()),
        rows(args.out[static_cast<size_t>(i)].rows),
        cols(args.out[static_cast<size_t>(i)].cols),
        ld(args.out[static_cast<size_t>(i)].ld),
        accumulates(args.accumulates(i)) {}
  explicit operator bool() const { return ld != 0; }

  S& at(int64_t r, int64_t c) const { return data[r * ld + c]; }
  void put(int64_t r, int64_t c, Sum<S> value) const {
    S& y = at(r, c);
    y = static_cast<S>(accumulates ? Sum<S>(y) + value : value);
  }
  void put(int64_t i, Sum<S> value) const { put(0, i, value); }
};

template <class A>
const A& attr_of(const StepArgs& args) {
  return attr<A>(*args.step);
}

template <class S>
void embed_fwd(const StepArgs&);
template <class S>
void embed_bwd(const StepArgs&);
template <class S>
void linear_fwd(const StepArgs&);
template <class S>
void linear_bwd(const StepArgs&);
template <class S>
void rms_norm_fwd(const StepArgs&);
template <class S>
void rms_norm_bwd(const StepArgs&);
template <class S>
void add_rms_norm_fwd(const StepArgs&);
template <class S>
void add_rms_norm_bwd(const StepArgs&);
template <class S>
void layer_norm_fwd(const StepArgs&);
template <class S>
void layer_norm_bwd(const StepArgs&);
template <class S>
void softmax_fwd(const StepArgs&);
template <class S>
void softmax_bwd(const StepArgs&);
template <class S>
void rope_fwd(const StepArgs&);
template <class S>
void rope_bwd(const StepArgs&);
template <class S>
void attention_fwd(const StepArgs&);
template <class S>
void attention_bwd(const StepArgs&);
template <class S>
void gated_act_fwd(const StepArgs&);
template <class S>
void gated_act_bwd(const StepArgs&);
template <class S>
void add_fwd(const StepArgs&);
template <class S>
void scale_fwd(const StepArgs&);
template <class S>
void bias_fwd(const StepArgs&);
template <class S>
void bias_bwd(const StepArgs&);
template <class S>
void dropout_fwd(const StepArgs&);
template <class S>
void gather_rows_fwd(const StepArgs&);
template <class S>
void gather_rows_bwd(const StepArgs&);
template <class S>
void head_fwd(const StepArgs&);
template <class S>
void head_bwd(const StepArgs&);
template <class S>
void segment_sum_fwd(const StepArgs&);
template <class S>
void segment_sum_bwd(const StepArgs&);
template <class S>
void preference_loss_fwd(const StepArgs&);
template <class S>
void preference_loss_bwd(const StepArgs&);
template <class S>
void kl_head_fwd(const StepArgs&);
template <class S>
void kl_head_bwd(const StepArgs&);
template <class S>
void column_scale_fwd(const StepArgs&);
template <class S>
void column_scale_bwd(const StepArgs&);
template <class S>
void column_norm_fwd(const StepArgs&);
template <class S>
void grad_norm_fwd(const StepArgs&);
template <class S>
void adamw_fwd(const StepArgs&);
template <class S>
void sgd_fwd(const StepArgs&);
template <class S>
void lion_fwd(const StepArgs&);
template <class S>
void muon_fwd(const StepArgs&);
template <class S>
void adafactor_fwd(const StepArgs&);
template <class S>
void adamw8_fwd(const StepArgs&);
template <class S>
void sample_fwd(const StepArgs&);
template <class S>
void copy_fwd(const StepArgs&);

}  // namespace wick::ref
