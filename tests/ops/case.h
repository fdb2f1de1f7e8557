// SPDX-License-Identifier: Apache-2.0
// One case of an op: operands with shapes, dtypes and contents, made from a line of a .cases file.
//
// A line is key=value words; "#" starts a comment. Sizes have the letters of plan/op.h (T=5 K=7).
// Keys that every op understands:
//   compute=bf16     type of the activations (default f32). A line without it is two cases, one of
//                    each type, unless it is optional or the op has no activations
//   <operand>=bf16   dtype of an operand (default: the activations' type, or f32 for the others);
//                    q8g32 and kin for frozen matrices
//   mode=accumulate  outputs that may accumulate do (default write)
//   without=dw,lse   absent outputs, and with them the inputs that only they need
//   gap=5            every matrix is a column range of one that is 5 columns wider
//   dir=fwd          only that direction (default both)
//   optional=1       a back end may lack it; other cases must run everywhere
//   grad=1           small enough for the complex step of each element
//   bench=1          also for the bench mode
// Contents are drawn by the op's name and the line's own words, whatever their order and wherever
// the line stands: a new case changes no other.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace wick::ops {

enum class Role {
  kActivation,  // of the compute type
  kWeight,      // of any float type
  kOther,       // f32 in every compute type: statistics, tables, parameters' gradients; or i32
};

struct Arg {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  Role role = Role::kOther;
  bool differentiable = false;  // a float input that backward makes a gradient of
  OutMode mode = OutMode::kWrite;
  int64_t reduction = 1;           // how many terms are summed into an element
  int half_terms = 0;              // a kernel may round what it sums, or sums from, to bf16
  bool by_units = false;           // … only where products are made by units of bf16
  bool own_terms = false;          // … and an element is held to its own terms: term_norms
  double integer_terms = 0;        // what rounding them to integers may cost, on rungs that do
  std::vector<double> data = {};   // of a float; exact in its dtype. Empty where a run makes it
  std::vector<int32_t> ints = {};  // of an i32
};

struct Case {
  Op op = Op::kAdd;
  std::string text;  // the line
  std::map<std::string, std::string> keys;
  Attr attr;
  std::vector<Arg> args;
  std::vector<std::string> fwd_in, fwd_out, bwd_in, bwd_out;  // "" where absent

  const Arg& arg(const std::string& name) const;
  Arg& arg(const std::string& name);
  bool has(const std::string& name) const;

  int64_t size(const std::string& key, int64_t otherwise = 0) const;
  bool flag(const std::string& key) const { return size(key) != 0; }
  bool runs(Dir dir) const;
  int64_t gap() const { return size("gap"); }
  bool in_bf16() const { return keys.contains("compute") && keys.at("compute") == "bf16"; }
  // Whether an operand is a frozen matrix of the plan, which a back end may keep in a form of its
  // own: bf16 already, so that no form rounds it, or quantised.
  bool frozen(const Arg& arg) const;
};

Role role_of(Op op, const std::string& name);

// Which cases of an op: those that take no time on any device, among them the smallest and all with
// grad=1; the others.
enum class Part { kAll, kSmall, kLarge };

// What the contents of a case are drawn by.
uint64_t case_seed(const Case& c);

// Throws: kNotFound without a file or a case in it, kInvalidArgument naming file and line.
std::vector<Case> load_cases(const std::string& folder, Op op, Part part = Part::kAll);

// Operands, attributes and contents from the keys; `seed` makes the contents.
void build(Case& c, uint64_t seed);
// The same without what forward leaves for backward, which is then run_forward's.
void build_operands(Case& c, uint64_t seed);
void run_forward(Case& c);

// The value that `x` becomes in a dtype.
double rounded(double x, DType dtype);

// Runs one direction on ref<double> and fills in the outputs' contents.
std::vector<std::vector<double>> run_reference(const Case& c, Dir dir);

// Of the outputs with own_terms, for each element: the root of the sum of its squared terms. Empty
// for the others, and where no term is rounded.
std::vector<std::vector<double>> term_norms(const Case& c, Dir dir);

// The step of one direction over plain values: inputs feeds or weights, outputs temps; views where
// c.gap().
Plan one_step_plan(const Case& c, Dir dir);

}  // namespace wick::ops
