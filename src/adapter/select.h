// SPDX-License-Identifier: Apache-2.0
// Which modules a name, a suffix or an expression means, as PEFT reads them.
#pragma once

#include <string>
#include <vector>

#include "adapter/lora.h"

namespace wick {

// "q_proj" of "model.layers.3.self_attn.q_proj".
std::string last_part(const std::string& module);
// Whether `module` is `target` or ends in "." + target.
bool module_matches(const std::string& module, const std::string& target);

// Whether `target` has a sign of a regular expression, so that it has to match a whole name.
bool is_expression(const std::string& target);
// A target of a list: an expression, a name or a suffix. `where` names the option or field.
bool target_matches(const std::string& target, const std::string& module, const std::string& where);

// The value of the first pattern that matches the module's name or its end from a dot on.
template <typename T>
T by_pattern(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module,
             T otherwise, const std::string& where);

// The options' own choice, in the model's order: adapted modules, and those trained whole.
// Throws: kInvalidArgument naming what no module has.
void select_modules(const LoraOptions& options, std::span<const LinearInfo> linears,
                    std::vector<LoraModule>& adapted, std::vector<WholeModule>& whole);

// alpha / rank, or alpha / sqrt(rank).
float lora_scale(double alpha, int64_t rank, bool rslora);

}  // namespace wick
