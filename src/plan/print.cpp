// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "plan/plan.h"

namespace wick {

namespace {

struct AttrPrinter {
  std::ostream& out;
  void operator()(std::monostate) const {}
  void operator()(const EmbedAttr& a) const {
    if (a.untrained >= 0) out << " untrained=" << a.untrained;
  }
  void operator()(const LinearAttr& a) const {
    if (a.scale != 1.0f) out << " scale=" << a.scale;
    if (a.narrow != Narrow::kNo) out << (a.narrow == Narrow::kWords ? " words" : " bytes");
  }
  void operator()(const NormAttr& a) const {
    out << " eps=" << a.eps;
    if (a.groups != 1) out << " groups=" << a.groups;
  }
  void operator()(const RopeAttr& a) const { out << " head_dim=" << a.head_dim; }
  void operator()(const AttentionAttr& a) const {
    out << " heads=" << a.heads << " kv_heads=" << a.kv_heads << " head_dim=" << a.head_dim
        << " scale=" << a.scale;
    if (a.window) out << " window=" << a.window;
  }
  void operator()(const GatedActAttr& a) const {
    out << " act=" << (a.act == Act::kSilu ? "silu" : "gelu_tanh");
  }
  void operator()(const ScaleAttr& a) const { out << " factor=" << a.factor; }
  void operator()(const DropoutAttr& a) const { out << " p=" << a.p << " site=" << a.site; }
  void operator()(const HeadAttr& a) const {
    if (a.skip_below > 0) out << " skip_below=" << a.skip_below;
  }
  void operator()(const ParamGroups& a) const { out << " groups=" << a.groups.size(); }
  void operator()(const PreferenceAttr& a) const {
    static constexpr const char* kNames[] = {"dpo", "simpo", "orpo", "kto"};
    out << " kind=" << kNames[static_cast<int>(a.kind)] << " beta=" << a.beta;
  }
  void operator()(const KlAttr& a) const { out << " temperature=" << a.temperature; }
  void operator()(const ColumnNormAttr& a) const { out << " scale=" << a.scale; }
};

const char* mode_mark(OutMode mode) {
  switch (mode) {
    case OutMode::kWrite:
      return "";
    case OutMode::kAccumulate:
      return "+";
    case OutMode::kUpdate:
      return "!";
  }
  return "?";
}

}  // namespace

std::string print(const Plan& plan) {
  std::ostringstream out;
  auto value = [&](ValueId id) {
    if (id == kNone) return std::string("-");
    const Value& v = plan.value(id);
    return cat(v.name, " ", dtype_name(v.dtype), v.shape.str());
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    for (const Block& block : plan.blocks)
      if (block.begin == static_cast<int32_t>(i) && block.end > block.begin)
        out << "# block" << (block.recompute ? ", recomputed in the reverse pass" : "") << "\n";
    const Step& step = plan.steps[i];
    out << i << "  ";
    for (size_t o = 0; o < step.outputs.size(); ++o) {
      const Output& result = step.outputs[o];
      out << (o ? ", " : "") << value(result.value)
          << (result.value == kNone ? "" : mode_mark(result.mode));
    }
    out << " = " << op_name(step.op) << (step.dir == Dir::kBackward ? "_bwd" : "") << "(";
    for (size_t k = 0; k < step.inputs.size(); ++k)
      out << (k ? ", " : "") << (step.inputs[k] == kNone ? "-" : plan.value(step.inputs[k]).name);
    out << ")";
    std::visit(AttrPrinter{out}, step.attr);
    out << "\n";
  }
  return out.str();
}

}  // namespace wick
