// SPDX-License-Identifier: Apache-2.0
#include "adapter/select.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "text/regex.h"

namespace wick {

namespace {

bool matches_whole(const std::string& expression, const std::string& module,
                   const std::string& where) {
  const Regex regex("^(?:" + expression + ")$", where);
  return Regex::Search(regex, module).find(0).has_value();
}

// As PEFT matches the keys of its patterns: the whole name, or its end from a dot on.
bool pattern_matches(const std::string& pattern, const std::string& module,
                     const std::string& where) {
  return matches_whole("(?:.*\\.)?(?:" + pattern + ")", module, where);
}

// Of names, as PEFT matches modules_to_save: what ends so, within a word too ("norm" is all norms).
bool whole_matches(const std::string& name, const std::string& module, const std::string& where) {
  if (is_expression(name)) return matches_whole(name, module, where);
  return !name.empty() && module.ends_with(name);
}

bool can_have_pair(const LinearInfo& l) {
  return l.kind != ModuleKind::kGain && l.kind != ModuleKind::kBias;
}

[[noreturn]] void fail_unknown(const std::string& target, std::span<const LinearInfo> linears,
                               const char* option, bool whole) {
  std::set<std::string> names;
  if (!whole) names.insert("all-linear");
  for (const LinearInfo& l : linears)
    if (whole ? l.kind != ModuleKind::kLinear && l.kind != ModuleKind::kBias : can_have_pair(l))
      names.insert(last_part(l.module));
  std::string near = nearest_name(target, names), all;
  for (const std::string& n : names) all += (all.empty() ? "" : ", ") + n;
  fail(ErrorCode::kInvalidArgument, option, ": the model has no ", whole ? "module" : "linear",
       is_expression(target) ? " that matches " : " called ", target,
       near.empty() ? "" : cat("; did you mean ", near, "?"), " (there are ", all, ")");
}

}  // namespace

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

bool module_matches(const std::string& module, const std::string& target) {
  if (module == target) return true;
  return module.size() > target.size() + 1 &&
         module.compare(module.size() - target.size(), target.size(), target) == 0 &&
         module[module.size() - target.size() - 1] == '.';
}

bool is_expression(const std::string& target) {
  return target.find_first_of("\\^$*+?()[]{}|") != std::string::npos;
}

bool target_matches(const std::string& target, const std::string& module,
                    const std::string& where) {
  return is_expression(target) ? matches_whole(target, module, where)
                               : module_matches(module, target);
}

template <typename T>
T by_pattern(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module,
             T otherwise, const std::string& where) {
  for (const auto& [pattern, value] : patterns)
    if (pattern_matches(pattern, module, where)) return value;
  return otherwise;
}
template int64_t by_pattern(const std::vector<std::pair<std::string, int64_t>>&, const std::string&,
                            int64_t, const std::string&);
template double by_pattern(const std::vector<std::pair<std::string, double>>&, const std::string&,
                           double, const std::string&);

float lora_scale(double alpha, int64_t rank, bool rslora) {
  const double r = static_cast<double>(rank);
  return static_cast<float>(alpha / (rslora ? std::sqrt(r) : r));
}

void select_modules(const LoraOptions& o, std::span<const LinearInfo> linears,
                    std::vector<LoraModule>& adapted, std::vector<WholeModule>& whole) {
  int64_t layers = 0;
  for (const LinearInfo& l : linears) layers = std::max(layers, l.layer + 1);
  if (o.num_layers > layers)
    fail(ErrorCode::kInvalidArgument, "--num-layers is ", o.num_layers, ", but the model has ",
         layers, " layers; use -1 for all");
  for (int64_t layer : o.layers_to_transform)
    if (layer < 0 || layer >= layers)
      fail(ErrorCode::kInvalidArgument, "--layers-to-transform names layer ", layer,
           ", but the model has layers 0 to ", layers - 1);
  // 0 means all as well, as users of mlx-lm know it.
  const int64_t first_layer = o.num_layers > 0 ? layers - o.num_layers : 0;

  auto any = [](const std::vector<std::string>& targets, const std::string& module,
                const char* where) {
    return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
      return target_matches(target, module, where);
    });
  };
  auto saved = [&](const LinearInfo& l) {
    return std::any_of(o.modules_to_save.begin(), o.modules_to_save.end(),
                       [&](const std::string& name) {
                         return whole_matches(name, l.module, "--modules-to-save");
                       });
  };
  auto all_known = [&](const std::vector<std::string>& targets, const char* option, bool wholes) {
    for (const std::string& target : targets) {
      if (target == "all-linear" && !wholes) continue;
      const bool known = std::any_of(linears.begin(), linears.end(), [&](const LinearInfo& l) {
        return (wholes ? l.kind != ModuleKind::kBias : can_have_pair(l)) &&
               (wholes ? whole_matches : target_matches)(target, l.module, option);
      });
      if (!known) fail_unknown(target, linears, option, wholes);
    }
  };
  all_known(o.targets, "--targets", false);
  all_known(o.modules_to_save, "--modules-to-save", true);
  all_known(o.exclude_modules, "--exclude-modules", false);
  // A pattern with a slip in it would leave every module at its usual size, without a word.
  auto patterns_known = [&](const auto& patterns, const char* option) {
    for (const auto& [pattern, value] : patterns)
      if (std::none_of(linears.begin(), linears.end(), [&, &p = pattern](const LinearInfo& l) {
            return can_have_pair(l) && pattern_matches(p, l.module, option);
          }))
        fail_unknown(pattern, linears, option, false);
  };
  patterns_known(o.rank_pattern, "--rank-pattern");
  patterns_known(o.alpha_pattern, "--alpha-pattern");
  auto has_all_linear = [](const std::vector<std::string>& targets) {
    return std::find(targets.begin(), targets.end(), "all-linear") != targets.end();
  };
  const bool all_linear = has_all_linear(o.targets),
             none_linear = has_all_linear(o.exclude_modules);
  for (const LinearInfo& l : linears) {
    if (l.kind == ModuleKind::kBias) continue;
    if (saved(l)) {
      if (l.kind == ModuleKind::kLinear)
        fail(ErrorCode::kUnsupported, "--modules-to-save names the linear ", l.module,
             "; norms, embed_tokens and lm_head are trained whole beside an adapter, a linear by "
             "--targets with a high --rank, or by --fine-tune-type full");
      whole.push_back({l});
      continue;
    }
    if (l.kind == ModuleKind::kGain) continue;
    const bool wanted =
        (all_linear && l.kind == ModuleKind::kLinear) || any(o.targets, l.module, "--targets");
    // What is named in full stays, as in PEFT.
    const bool chosen =
        o.layers_to_transform.empty() ||
        std::find(o.targets.begin(), o.targets.end(), l.module) != o.targets.end() ||
        std::find(o.layers_to_transform.begin(), o.layers_to_transform.end(), l.layer) !=
            o.layers_to_transform.end();
    const bool excluded = (none_linear && l.kind == ModuleKind::kLinear) ||
                          any(o.exclude_modules, l.module, "--exclude-modules");
    if (!wanted || excluded) continue;
    if (!chosen && l.layer < 0)
      fail(ErrorCode::kInvalidArgument, "--targets takes in ", l.module,
           ", which is in no block, and --layers-to-transform keeps to blocks; name ", l.module,
           " in full to adapt it beside them, or leave it out (--exclude-modules)");
    if (!chosen) continue;
    if (l.layer >= 0 && l.layer < first_layer) continue;
    LoraModule m{l};
    m.rank = by_pattern(o.rank_pattern, l.module, o.rank, "--rank-pattern");
    if (m.rank < 1 || m.rank > kMostRank)
      fail(ErrorCode::kInvalidArgument, "--rank-pattern gives ", l.module, " the rank ", m.rank,
           ", wanted 1 to ", kMostRank);
    const double alpha =
        by_pattern(o.alpha_pattern, l.module, static_cast<double>(o.alpha), "--alpha-pattern");
    m.scale = lora_scale(alpha, m.rank, o.rslora);
    m.dropout = l.kind == ModuleKind::kEmbedding ? 0.0f : o.dropout;
    adapted.push_back(std::move(m));
  }
  for (const LinearInfo& l : linears) {
    if (l.kind != ModuleKind::kBias || o.bias == "none") continue;
    const bool beside_pair = std::any_of(adapted.begin(), adapted.end(), [&](const LoraModule& m) {
      return l.module == m.module + ".bias";
    });
    if (o.bias == "all" || beside_pair) whole.push_back({l});
  }
}

}  // namespace wick
