// SPDX-License-Identifier: Apache-2.0
#include "ops/case.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "backend/ref/ref.h"
#include "base/check.h"
#include "base/elements.h"
#include "base/file.h"
#include "base/rng.h"

namespace wick::ops {
namespace {

const Candidate& reference_kernel(Op op, Dir dir) {
  for (const Candidate& c : ref_candidates<double>()) {
    if (c.op == op && c.dir == dir) return c;
  }
  fail(ErrorCode::kUnsupported, "ref has no ", op_name(op), " kernel");
}

Operand operand(const Shape& shape, DType dtype, void* data) {
  return {
      .data = data, .rows = shape.rows(), .cols = shape.cols(), .ld = shape.cols(), .dtype = dtype};
}

}  // namespace

bool Case::has(const std::string& name) const {
  return std::any_of(args.begin(), args.end(), [&](const Arg& a) { return a.name == name; });
}

const Arg& Case::arg(const std::string& name) const {
  for (const Arg& a : args) {
    if (a.name == name) return a;
  }
  fail(ErrorCode::kInternal, op_name(op), " has no operand ", name);
}

Arg& Case::arg(const std::string& name) {
  return const_cast<Arg&>(static_cast<const Case*>(this)->arg(name));
}

int64_t Case::size(const std::string& key, int64_t otherwise) const {
  auto found = keys.find(key);
  if (found == keys.end()) return otherwise;
  const std::string& text = found->second;
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail(ErrorCode::kInvalidArgument, key, "=", text, " is no number");
  }
  return value;
}

bool Case::runs(Dir dir) const {
  if (dir == Dir::kBackward && bwd_out.empty()) return false;
  auto found = keys.find("dir");
  if (found == keys.end()) return true;
  return found->second == (dir == Dir::kForward ? "fwd" : "bwd");
}

bool Case::frozen(const Arg& arg) const {
  if (dtype_is_quantized(arg.dtype)) return true;
  const bool product = op == Op::kLinear || op == Op::kHead || op == Op::kEmbed;
  return in_bf16() && product && arg.role == Role::kWeight && arg.dtype == DType::kBF16 &&
         arg.shape.rank() == 2 && gap() == 0;
}

Role role_of(Op op, const std::string& name) {
  if (op == Op::kSegmentSum || op == Op::kPreferenceLoss ||
      (op >= Op::kGradNorm && op <= Op::kSample))
    return Role::kOther;
  if (op == Op::kColumnNorm) return name == "wa" ? Role::kActivation : Role::kOther;
  if (op == Op::kColumnScale && (name == "m" || name == "norm" || name == "dm"))
    return Role::kOther;
  if ((op == Op::kHead || op == Op::kKlHead) && name == "b") return Role::kOther;
  const bool has_bias = op == Op::kLinear || op == Op::kBias || op == Op::kLayerNorm;
  if (name == "w" || name == "tw" || (op == Op::kEmbed && name == "table") ||
      (has_bias && name == "b"))
    return Role::kWeight;
  for (const char* other :
       {"table", "dtable", "dw", "db", "rstd", "stats", "lse", "logp", "dlogp", "kl", "dkl"})
    if (name == other) return Role::kOther;
  return Role::kActivation;
}

namespace {

// About what a case costs on one device: the arithmetic of its directions and its operands'
// elements.
double work(const Case& c) {
  constexpr double kElement = 40;  // in operations: filled, guarded, compared
  double sum = 0;
  for (const Arg& arg : c.args) sum += kElement * static_cast<double>(arg.shape.elements());
  for (Dir dir : {Dir::kForward, Dir::kBackward})
    if (c.runs(dir)) sum += plan_flops(one_step_plan(c, dir));
  return sum;
}

std::vector<Case> take_part(std::vector<Case> cases, Part part) {
  constexpr double kSmall = 5e6;
  if (part == Part::kAll) return cases;
  std::vector<double> works;
  for (const Case& c : cases) works.push_back(work(c));
  const double most = std::max(kSmall, *std::min_element(works.begin(), works.end()));
  std::vector<Case> taken;
  for (size_t i = 0; i < cases.size(); ++i) {
    const bool small = works[i] <= most || cases[i].flag("grad");
    if (small == (part == Part::kSmall)) taken.push_back(std::move(cases[i]));
  }
  return taken;
}

}  // namespace

uint64_t case_seed(const Case& c) {
  uint64_t seed = name_key(op_name(c.op));
  for (const auto& [key, value] : c.keys) seed = mix_key(seed, name_key(cat(key, "=", value)));
  return seed;
}

std::vector<Case> load_cases(const std::string& folder, Op op, Part part) {
  std::string path = folder + "/" + op_name(op) + ".cases";
  std::istringstream file(read_file(path));
  std::vector<Case> cases;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    Case c;
    c.op = op;
    std::string word;
    while (words >> word) {
      size_t equals = word.find('=');
      if (equals == std::string::npos) {
        fail(ErrorCode::kInvalidArgument, path, ":", number, ": '", word, "' is not key=value");
      }
      c.keys[word.substr(0, equals)] = word.substr(equals + 1);
      c.text += (c.text.empty() ? "" : " ") + word;
    }
    if (c.keys.empty()) continue;
    const uint64_t seed = case_seed(c);
    std::vector<Case> of_line = {c};
    if (role_of(op, "y") == Role::kActivation && !c.keys.contains("compute") &&
        !c.flag("optional")) {
      c.keys["compute"] = "bf16";
      c.keys.erase("grad");
      c.text += " compute=bf16";
      of_line.push_back(c);
    }
    for (Case& made : of_line) {
      try {
        build_operands(made, seed);
      } catch (const Error& e) {
        fail(e.code(), path, ":", number, ": ", e.what());
      }
      cases.push_back(std::move(made));
    }
  }
  if (cases.empty()) fail(ErrorCode::kNotFound, path, " has no case");
  cases = take_part(std::move(cases), part);
  for (Case& c : cases) run_forward(c);
  return cases;
}

double rounded(double x, DType dtype) {
  if (!dtype_is_float(dtype)) return x;
  return with_element(dtype, [&](auto zero) { return to_double(from_double<decltype(zero)>(x)); });
}

std::vector<std::vector<double>> run_reference(const Case& c, Dir dir) {
  const auto& in_names = dir == Dir::kForward ? c.fwd_in : c.bwd_in;
  const auto& out_names = dir == Dir::kForward ? c.fwd_out : c.bwd_out;
  Step step{.op = c.op, .dir = dir, .inputs = {}, .outputs = {}, .attr = c.attr};
  std::vector<Operand> in, out;
  for (const std::string& name : in_names) {
    if (name.empty()) {
      in.emplace_back();
      continue;
    }
    const Arg& a = c.arg(name);
    // Kernels do not write to their inputs, so constness is given up only formally.
    const void* data = a.dtype == DType::kI32 ? static_cast<const void*>(a.ints.data())
                                              : static_cast<const void*>(a.data.data());
    in.push_back(operand(a.shape, a.dtype, const_cast<void*>(data)));
  }
  std::vector<std::vector<double>> results;
  results.reserve(out_names.size());
  std::vector<std::vector<int32_t>> ints;  // of the outputs that are
  ints.reserve(out_names.size());
  std::map<size_t, std::vector<uint8_t>> codes;  // outputs of bytes, which ref does not widen
  for (const std::string& name : out_names) {
    results.emplace_back();
    step.outputs.push_back({});
    if (name.empty()) {
      out.emplace_back();
      continue;
    }
    const Arg& a = c.arg(name);
    step.outputs.back().mode = a.mode;
    results.back() = a.data;
    if (a.dtype == DType::kI32) {
      ints.push_back(a.ints);
      ints.back().resize(static_cast<size_t>(a.shape.elements()));
      out.push_back(operand(a.shape, a.dtype, ints.back().data()));
      continue;
    }
    if (a.dtype == DType::kU8) {
      std::vector<uint8_t>& bytes = codes[results.size() - 1];
      bytes.assign(a.ints.begin(), a.ints.end());
      out.push_back(operand(a.shape, a.dtype, bytes.data()));
      continue;
    }
    if (a.mode == OutMode::kWrite) {
      results.back().assign(static_cast<size_t>(a.shape.elements()), 0.0);
    }
    out.push_back(operand(a.shape, a.dtype, results.back().data()));
  }
  reference_kernel(c.op, dir).fn({.step = &step, .in = in, .out = out});
  auto made = ints.begin();
  for (size_t i = 0; i < out_names.size(); ++i)
    if (!out_names[i].empty() && c.arg(out_names[i]).dtype == DType::kI32)
      results[i].assign(made->begin(), made->end()), ++made;
  for (const auto& [i, bytes] : codes) results[i].assign(bytes.begin(), bytes.end());
  return results;
}

Plan one_step_plan(const Case& c, Dir dir) {
  Plan plan;
  Step step{.op = c.op, .dir = dir, .inputs = {}, .outputs = {}, .attr = c.attr};
  auto add = [&](const std::string& name, Kind kind) -> ValueId {
    if (name.empty()) return kNone;
    const Arg& a = c.arg(name);
    auto id = static_cast<ValueId>(plan.values.size());
    if (c.frozen(a)) kind = Kind::kWeight;
    if (c.gap() == 0 || a.shape.rank() != 2 || a.dtype == DType::kI32 ||
        dtype_is_quantized(a.dtype)) {
      plan.values.push_back({name, a.shape, a.dtype, kind, id, 0, a.shape.cols()});
      return id;
    }
    int64_t wide = a.shape.cols() + c.gap();
    plan.values.push_back({name + ".wide", {a.shape.rows(), wide}, a.dtype, kind, id, 0, wide});
    plan.values.push_back({name, a.shape, a.dtype, kind, id, c.gap() / 2, wide});
    return id + 1;
  };
  const auto& in_names = dir == Dir::kForward ? c.fwd_in : c.bwd_in;
  const auto& out_names = dir == Dir::kForward ? c.fwd_out : c.bwd_out;
  for (const std::string& name : in_names) step.inputs.push_back(add(name, Kind::kFeed));
  for (const std::string& name : out_names) {
    ValueId id = add(name, Kind::kTemp);
    step.outputs.push_back({id, id == kNone ? OutMode::kWrite : c.arg(name).mode});
  }
  plan.steps.push_back(std::move(step));
  // A table rests in another form only where a product reads it too: a tied head.
  if (c.op == Op::kEmbed && dir == Dir::kForward && plan.values[0].kind == Kind::kWeight) {
    const ValueId table = plan.steps[0].inputs[0], y = plan.steps[0].outputs[0].value;
    const Shape logits{c.size("T"), c.size("V")};
    auto id = static_cast<ValueId>(plan.values.size());
    plan.values.push_back({"logits", logits, DType::kF32, Kind::kTemp, id, 0, logits.cols()});
    plan.steps.push_back({Op::kLinear, Dir::kForward, {y, table, kNone}, {{id}}, LinearAttr{}});
  }
  return plan;
}

}  // namespace wick::ops
