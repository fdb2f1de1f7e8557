// SPDX-License-Identifier: Apache-2.0
// Builder: the operands of each op from the sizes of a case, in the orders of plan/op.h.
#pragma once

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "base/rng.h"
#include "ops/case.h"
#include "ops/tolerance.h"
#include "quant/rows.h"

namespace wick::ops {

class Builder {
 public:
  Builder(Case& c, uint64_t seed) : c_(c), rng_(seed) {}

  void build();

 private:
  int64_t size(const char* key, int64_t otherwise = -1) {
    used_.push_back(key);
    int64_t n = c_.size(key, otherwise);
    if (n < 0) fail(ErrorCode::kInvalidArgument, "the size ", key, " is missing");
    return n;
  }
  float number(const char* key, float otherwise) {
    used_.push_back(key);
    auto found = c_.keys.find(key);
    return found == c_.keys.end() ? otherwise : std::stof(found->second);
  }

  // Of an operand: its own key, or the compute type for an activation.
  DType dtype_key(const std::string& name, Role role) {
    used_.push_back(name);
    auto found = c_.keys.find(name);
    if (found == c_.keys.end() && role == Role::kActivation) found = c_.keys.find("compute");
    if (found == c_.keys.end()) return DType::kF32;
    auto dtype = parse_dtype(found->second);
    if (!dtype) fail(ErrorCode::kInvalidArgument, "no dtype: ", name, "=", found->second);
    return *dtype;
  }

  Arg& value(const std::string& name, Shape shape) {
    Role role = role_of(c_.op, name);
    c_.args.push_back({.name = name, .shape = shape, .dtype = dtype_key(name, role), .role = role});
    return c_.args.back();
  }
  void fill(Arg& a, double scale = 1.0, double shift = 0.0) {
    a.data.resize(static_cast<size_t>(a.shape.elements()));
    for (double& x : a.data) x = rounded(shift + scale * rng_.normal(), a.dtype);
    if (!dtype_is_quantized(a.dtype)) return;
    // The numbers that codes stand for, so that every back end has the same.
    const auto cols = static_cast<size_t>(a.shape.cols());
    std::vector<std::byte> codes(row_bytes(a.dtype, a.shape.cols()));
    for (auto row = a.data.begin(); row != a.data.end(); row += static_cast<ptrdiff_t>(cols)) {
      std::vector<float> values(row, row + static_cast<ptrdiff_t>(cols));
      quantize_row(a.dtype, values.data(), a.shape.cols(), codes.data());
      dequantize_row(a.dtype, codes.data(), a.shape.cols(), values.data());
      std::copy(values.begin(), values.end(), row);
    }
  }
  // A float operand with contents.
  void input(const std::string& name, Shape shape, bool differentiable = true, double scale = 1.0,
             double shift = 0.0) {
    Arg& a = value(name, shape);
    a.differentiable = differentiable;
    fill(a, scale, shift);
  }
  void ints(const std::string& name, Shape shape, std::vector<int32_t> data) {
    c_.args.push_back({.name = name, .shape = shape, .dtype = DType::kI32});
    c_.args.back().ints = std::move(data);
  }
  template <typename F>
  void ints_by(const std::string& name, int64_t count, F&& f) {
    ints(name, {count}, {});
    for (int64_t i = 0; i < count; ++i) c_.args.back().ints.push_back(static_cast<int32_t>(f(i)));
  }
  // An output; with `accumulates` it follows the case's mode.
  Arg& output(const std::string& name, Shape shape, int64_t reduction, bool accumulates = false) {
    used_.push_back("mode");
    Arg& a = value(name, shape);
    a.reduction = reduction;
    auto mode = c_.keys.find("mode");
    if (accumulates && mode != c_.keys.end() && mode->second == "accumulate") accumulate(a);
    return a;
  }
  // Outputs that may be sums of terms rounded to bf16, in bf16 programs.
  void half_terms(std::initializer_list<const char*> outputs, int size = 1) {
    for (const char* name : outputs) c_.arg(name).half_terms = c_.in_bf16() ? size : 0;
  }
  // Outputs of products with what is not bf16 already: units of bf16 round it.
  void unit_terms(std::initializer_list<const char*> outputs, int size = 1) {
    half_terms(outputs, size);
    for (const char* name : outputs) c_.arg(name).by_units = true;
  }
  // The same where each element's own terms can be had.
  void own_unit_terms(std::initializer_list<const char*> outputs, int size = 1) {
    unit_terms(outputs, size);
    for (const char* name : outputs) c_.arg(name).own_terms = true;
  }
  // An output of a product that may take x in integers, which share a scale: a small term is off by
  // as much as a large one.
  void narrow_terms(const char* name, int bits) {
    unit_terms({name}, kByteTerms);
    c_.arg(name).own_terms = false;
    c_.arg(name).integer_terms = bits == 4 ? 3 * kByteTerms * 0x1p-8 : kFixedTerms;
  }
  void accumulate(Arg& a) {
    a.mode = OutMode::kAccumulate;
    fill(a);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(rng_.below(static_cast<uint64_t>(n))); }
  // One in five is absent.
  bool rarely() { return below(5) == 0; }

  bool absent(const std::string& name) const {
    auto found = c_.keys.find("without");
    if (found == c_.keys.end()) return false;
    std::istringstream names(found->second);
    for (std::string n; std::getline(names, n, ',');) {
      if (n == name) return true;
    }
    return false;
  }
  void drop_absent() {
    for (const char* key : {"without", "gap", "dir", "optional", "grad", "bench", "compute"})
      used_.push_back(key);
    for (auto* names : {&c_.fwd_out, &c_.bwd_out, &c_.bwd_in}) {
      for (std::string& name : *names) {
        if (absent(name)) name.clear();
      }
    }
  }

  void embed();
  void linear();
  void rms_norm();
  void add_rms_norm();
  void layer_norm();
  void softmax();
  void rope();
  void attention();
  void gated_act();
  void add();
  void scale();
  void bias();
  void dropout();
  void gather_rows();
  void head();
  void segment_sum();
  void preference_loss();
  void kl_head();
  void column_scale();
  void column_norm();
  void grad_norm();
  // Groups, and an optimizer's hyper (of every set; clip at 5) and norm.
  ParamGroups param_groups();
  void optimizer(const ParamGroups& groups, std::vector<double> hyper);
  void adamw();
  void sgd();
  void lion();
  void muon();
  void adafactor();
  void adamw8();
  void sample();
  void copy();

  Case& c_;
  Rng rng_;
  std::vector<std::string> used_;
};

}  // namespace wick::ops
