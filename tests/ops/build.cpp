// SPDX-License-Identifier: Apache-2.0
// The operands of each op from the sizes of a case, in the orders of plan/op.h.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/check.h"
#include "base/rng.h"
#include "ops/case.h"
#include "quant/rows.h"

namespace wick::ops {
namespace {

class Builder {
 public:
  Builder(Case& c, uint64_t seed) : c_(c), rng_(seed) {}

  void build() {
    switch (c_.op) {
      case Op::kEmbed:
        embed();
        break;
      case Op::kLinear:
        linear();
        break;
      case Op::kRmsNorm:
        rms_norm();
        break;
      case Op::kAddRmsNorm:
        add_rms_norm();
        break;
      case Op::kRope:
        rope();
        break;
      case Op::kAttention:
        attention();
        break;
      case Op::kGatedAct:
        gated_act();
        break;
      case Op::kAdd:
        add();
        break;
      case Op::kScale:
        scale();
        break;
      case Op::kBias:
        bias();
        break;
      case Op::kDropout:
        dropout();
        break;
      case Op::kGatherRows:
        gather_rows();
        break;
      case Op::kHead:
        head();
        break;
      case Op::kSegmentSum:
        segment_sum();
        break;
      case Op::kGradNorm:
        grad_norm();
        break;
      case Op::kAdamw:
        adamw();
        break;
      case Op::kCopy:
        copy();
        break;
    }
    drop_absent();
    for (const auto& [key, value] : c_.keys) {
      if (std::find(used_.begin(), used_.end(), key) == used_.end()) {
        fail(ErrorCode::kInvalidArgument, "unknown key ", key, " of ", op_name(c_.op));
      }
    }
  }

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
  // Outputs of products with what is not bf16 already, which a kernel may make in bf16.
  void half_terms(std::initializer_list<const char*> outputs, int size = 1) {
    for (const char* name : outputs) c_.arg(name).half_terms = c_.in_bf16() ? size : 0;
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

  void embed() {
    int64_t t = size("T"), v = size("V"), d = size("D");
    input("table", {v, d});
    ints_by("ids", t, [&](int64_t) { return below(v); });
    output("y", {t, d}, 1);
    input("dy", {t, d});
    accumulate(output("dtable", {v, d}, t));
    c_.fwd_in = {"table", "ids"};
    c_.fwd_out = {"y"};
    c_.bwd_in = {"dy", "ids"};
    c_.bwd_out = {"dtable"};
  }

  void linear() {
    int64_t t = size("T"), k = size("K"), n = size("N");
    bool has_bias = size("bias", 0) != 0;
    c_.attr = LinearAttr{number("scale", 1.0f)};
    input("x", {t, k});
    input("w", {n, k});
    if (has_bias) input("b", {n});
    output("y", {t, n}, k, true);
    input("dy", {t, n});
    output("dx", {t, k}, n, true);
    output("dw", {n, k}, t, true);
    output("db", {n}, t, true);
    if (c_.arg("w").dtype != DType::kBF16) half_terms({"y", "dx"});
    c_.fwd_in = {"x", "w", has_bias ? "b" : ""};
    c_.fwd_out = {"y"};
    c_.bwd_in = {"dy", absent("dw") ? "" : "x", absent("dx") ? "" : "w"};
    c_.bwd_out = {"dx", "dw", has_bias ? "db" : ""};
  }

  void rms_norm() {
    int64_t t = size("T"), g = size("G", 1), d = size("D");
    c_.attr = NormAttr{number("eps", 1e-6f), g};
    input("x", {t, g * d});
    input("w", {d}, true, 0.3, 1.0);
    output("y", {t, g * d}, d);
    output("rstd", {t, g}, d);
    input("dy", {t, g * d});
    output("dx", {t, g * d}, d, true);
    output("dw", {d}, t * g, true);
    c_.fwd_in = {"x", "w"};
    c_.fwd_out = {"y", "rstd"};
    c_.bwd_in = {"dy", "x", "w", "rstd"};
    c_.bwd_out = {"dx", "dw"};
  }

  void add_rms_norm() {
    int64_t t = size("T"), d = size("D");
    bool has_dsum = size("dsum_given", 1) != 0;
    c_.attr = NormAttr{number("eps", 1e-6f), 1};
    input("a", {t, d});
    input("b", {t, d});
    input("w", {d}, true, 0.3, 1.0);
    output("sum", {t, d}, 1);
    output("y", {t, d}, d);
    output("rstd", {t, 1}, d);
    input("dy", {t, d});
    input("dsum", {t, d});
    output("d", {t, d}, d);
    output("dw", {d}, t, true);
    half_terms({"y", "rstd"});  // of the sum as it is kept
    c_.fwd_in = {"a", "b", "w"};
    c_.fwd_out = {"sum", "y", "rstd"};
    c_.bwd_in = {"dy", has_dsum ? "dsum" : "", "sum", "w", "rstd"};
    c_.bwd_out = {"d", "dw"};
  }

  void rope() {
    int64_t t = size("T"), h = size("H"), e = size("E"), p = size("P");
    c_.attr = RopeAttr{e};
    input("x", {t, h * e});
    Arg& table = value("table", {p, e});
    for (int64_t row = 0; row < p; ++row) {
      for (int64_t i = 0; i < e; ++i) {
        double rate =
            std::pow(10000.0, -2.0 * static_cast<double>(i % (e / 2)) / static_cast<double>(e));
        double angle = static_cast<double>(row) * rate;
        table.data.push_back(rounded(i < e / 2 ? std::cos(angle) : std::sin(angle), DType::kF32));
      }
    }
    ints_by("positions", t, [&](int64_t) { return below(p); });
    output("y", {t, h * e}, 2);
    input("dy", {t, h * e});
    output("dx", {t, h * e}, 2, true);
    c_.fwd_in = {"x", "table", "positions"};
    c_.fwd_out = {"y"};
    c_.bwd_in = {"dy", "table", "positions"};
    c_.bwd_out = {"dx"};
  }

  // Without S: packed segments of one pack (causal_self). With S: rows that look at ranges of a
  // cache; with empty=1 some of them at none.
  void attention() {
    int64_t t = size("T"), s = size("S", 0), h = size("H"), k = size("K"), e = size("E");
    bool self = s == 0, empty = size("empty", 0) != 0;
    int64_t segments = size("segments", 1);
    if (self) s = t;
    c_.attr = AttentionAttr{.heads = h,
                            .kv_heads = k,
                            .head_dim = e,
                            .scale = number("scale", 1.0f / std::sqrt(static_cast<float>(e))),
                            .window = size("window", 0),
                            .causal_self = self};
    input("q", {t, h * e});
    input("k", {s, k * e});
    input("v", {s, k * e});
    std::vector<int32_t> begin, end;
    for (int64_t i = 0; i < t; ++i) {
      if (self) {
        int64_t segment = i * segments / t;
        begin.push_back(static_cast<int32_t>((segment * t + segments - 1) / segments));
        end.push_back(static_cast<int32_t>(i + 1));
      } else {
        auto first = static_cast<int32_t>(below(s));
        begin.push_back(first);
        end.push_back(empty && rarely() ? first
                                        : static_cast<int32_t>(first + 1 + below(s - first)));
      }
    }
    ints("begin", {t}, begin);
    ints("end", {t}, end);
    int64_t terms = e + s;
    output("y", {t, h * e}, terms);
    output("lse", {t, h}, terms);
    input("dy", {t, h * e});
    // dy·v is about sqrt(E) times what is left of it after its mean is taken off.
    int64_t group = h / k, cancelling = terms * std::max<int64_t>(e / 4, 1);
    output("dq", {t, h * e}, cancelling);
    output("dk", {s, k * e}, cancelling * group);
    output("dv", {s, k * e}, terms * group);
    half_terms({"y"});  // probabilities
    // Those of rows that see few keys are larger than most.
    half_terms({"dq", "dk", "dv"}, 2);
    c_.fwd_in = {"q", "k", "v", "begin", "end"};
    c_.fwd_out = {"y", "lse"};
    if (!self) return;
    c_.bwd_in = {"dy", "q", "k", "v", "y", "lse", "begin", "end"};
    c_.bwd_out = {"dq", "dk", "dv"};
  }

  void gated_act() {
    int64_t t = size("T"), f = size("F");
    used_.push_back("act");
    auto act = c_.keys.find("act");
    bool gelu = act != c_.keys.end() && act->second == "gelu_tanh";
    c_.attr = GatedActAttr{gelu ? Act::kGeluTanh : Act::kSilu};
    input("x", {t, 2 * f}, true, number("range", 1.0f));
    output("y", {t, f}, 1);
    input("dy", {t, f});
    output("dx", {t, 2 * f}, 4);
    c_.fwd_in = {"x"};
    c_.fwd_out = {"y"};
    c_.bwd_in = {"dy", "x"};
    c_.bwd_out = {"dx"};
  }

  void add() {
    int64_t t = size("T"), d = size("D");
    input("a", {t, d});
    input("b", {t, d});
    output("y", {t, d}, 1);
    c_.fwd_in = {"a", "b"};
    c_.fwd_out = {"y"};
  }

  void scale() {
    int64_t t = size("T"), d = size("D");
    c_.attr = ScaleAttr{number("factor", 0.37f)};
    input("x", {t, d});
    output("y", {t, d}, 1, true);
    input("dy", {t, d});
    output("dx", {t, d}, 1, true);
    c_.fwd_in = {"x"};
    c_.fwd_out = {"y"};
    c_.bwd_in = {"dy"};
    c_.bwd_out = {"dx"};
  }

  void bias() {
    int64_t t = size("T"), d = size("D");
    input("x", {t, d});
    input("b", {d});
    output("y", {t, d}, 1);
    input("dy", {t, d});
    output("db", {d}, t, true);
    c_.fwd_in = {"x", "b"};
    c_.fwd_out = {"y"};
    c_.bwd_in = {"dy"};
    c_.bwd_out = {"db"};
  }

  void dropout() {
    int64_t t = size("T"), d = size("D");
    c_.attr = DropoutAttr{number("p", 0.3f), static_cast<uint64_t>(size("site", 7))};
    input("x", {t, d});
    std::vector<int32_t> keys;
    for (int64_t i = 0; i < 2 * t; ++i) keys.push_back(static_cast<int32_t>(rng_.next_u32()));
    ints("keys", {t, 2}, keys);
    output("y", {t, d}, 1);
    input("dy", {t, d});
    output("dx", {t, d}, 1, true);
    c_.fwd_in = {"x", "keys"};
    c_.fwd_out = {"y"};
    c_.bwd_in = {"dy", "keys"};
    c_.bwd_out = {"dx"};
  }

  void gather_rows() {
    int64_t t = size("T"), m = size("M"), d = size("D");
    input("x", {t, d});
    std::vector<int64_t> order;
    for (int64_t i = 0; i < t; ++i) order.push_back(i);
    for (int64_t i = t - 1; i > 0; --i)
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(below(i + 1))]);
    ints_by("rows", m,
            [&](int64_t i) { return i >= t || rarely() ? -1 : order[static_cast<size_t>(i)]; });
    output("y", {m, d}, 1);
    input("dy", {m, d});
    output("dx", {t, d}, 1);
    c_.fwd_in = {"x", "rows"};
    c_.fwd_out = {"y"};
    c_.bwd_in = {"dy", "rows"};
    c_.bwd_out = {"dx"};
  }

  void head() {
    int64_t m = size("M"), d = size("D"), v = size("V");
    input("x", {m, d}, true, 1.0 / std::sqrt(static_cast<double>(d)));
    input("w", {v, d});
    ints_by("targets", m, [&](int64_t) { return rarely() ? -1 : below(v); });
    output("logp", {m}, d + v);
    output("lse", {m}, d + v);
    output("dlogp_dx", {m, d}, d + v);
    input("dlogp", {m});
    output("dx", {m, d}, d + v);
    output("dw", {v, d}, d + m, true);
    half_terms({"dlogp_dx", "dx", "dw"});  // probabilities
    if (c_.arg("w").dtype != DType::kBF16) half_terms({"logp", "lse"});
    c_.fwd_in = {"x", "w", "targets"};
    c_.fwd_out = {"logp", "lse", "dlogp_dx"};
    c_.bwd_in = {"dlogp", "x", "w", "targets", "lse", "dlogp_dx"};
    c_.bwd_out = {"dx", "dw"};
  }

  void segment_sum() {
    int64_t m = size("M"), s = size("S");
    bool has_dy = size("dy_given", 1) != 0;
    input("x", {m});
    input("weight", {m}, false);
    ints_by("segment", m, [&](int64_t) { return rarely() ? -1 : below(s); });
    output("y", {s}, m);
    input("dy", {s});
    output("dx", {m}, 1);
    c_.fwd_in = {"x", "weight", "segment"};
    c_.fwd_out = {"y"};
    c_.bwd_in = {has_dy ? "dy" : "", "weight", "segment"};
    c_.bwd_out = {"dx"};
  }

  void grad_norm() {
    int64_t p = size("P");
    input("g", {p}, false);
    output("y", {1}, p);
    c_.fwd_in = {"g"};
    c_.fwd_out = {"y"};
  }

  void adamw() {
    int64_t p = size("P"), groups = size("groups", 1);
    Arg& hyper = value("hyper", {8});
    for (double h : {1e-2, 0.9, 0.999, 1e-8, 0.1, static_cast<double>(number("clip", 0.0f)),
                     1 - std::pow(0.9, 3), 1 - std::pow(0.999, 3)}) {
      hyper.data.push_back(rounded(h, DType::kF32));
    }
    value("norm", {1}).data = {rounded(1.7, DType::kF32)};
    for (const char* name : {"params", "m", "v", "g"}) {
      Arg& a = output(name, {p}, 4);
      a.mode = OutMode::kUpdate;
      fill(a, 0.1);
    }
    for (double& x : c_.arg("v").data) x = rounded(x * x, DType::kF32);
    AdamwAttr attr;
    for (int64_t i = 0; i < groups; ++i) {
      attr.groups.push_back({p * i / groups, p * (i + 1) / groups, i % 2 == 0 ? 1.0f : 16.0f,
                             i % 2 == 0 ? 1.0f : 0.0f});
    }
    c_.attr = attr;
    c_.fwd_in = {"hyper", "norm"};
    c_.fwd_out = {"params", "m", "v", "g"};
  }

  void copy() {
    int64_t t = size("T"), s = size("S"), d = size("D");
    input("x", {t, d}, false);
    ints_by("rows", t, [&](int64_t i) { return i >= s || rarely() ? -1 : (i * 7 + 3) % s; });
    Arg& y = output("y", {s, d}, 1);
    y.mode = OutMode::kUpdate;
    fill(y);
    // A row may be the target of one row of x only: 7 may divide s.
    Arg& rows = c_.arg("rows");
    for (size_t i = 0; i < rows.ints.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (rows.ints[j] == rows.ints[i]) rows.ints[i] = -1;
    c_.fwd_in = {"x", "rows"};
    c_.fwd_out = {"y"};
  }

  Case& c_;
  Rng rng_;
  std::vector<std::string> used_;
};

}  // namespace

void build(Case& c, uint64_t seed) {
  // References into args must stay valid while operands are added.
  c.args.reserve(16);
  Builder(c, seed).build();
  if (c.bwd_out.empty()) return;
  // What forward leaves for backward, in the precision it is kept in.
  auto made = run_reference(c, Dir::kForward);
  for (size_t i = 0; i < c.fwd_out.size(); ++i) {
    const std::string& name = c.fwd_out[i];
    if (name.empty() || c.arg(name).mode != OutMode::kWrite) continue;
    Arg& a = c.arg(name);
    for (double& x : made[i]) x = rounded(x, a.dtype);
    a.data = std::move(made[i]);
  }
}

}  // namespace wick::ops
