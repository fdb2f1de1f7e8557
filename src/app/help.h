// SPDX-License-Identifier: Apache-2.0
// Help screens from the tables of options.
#pragma once

#include <string>
#include <vector>

#include "app/args.h"

namespace wick {

// "-p, --prompt TEXT", "--shuffle, --no-shuffle".
std::string flag_spelling(const Option& option);
// The help of an option with its choices and default.
std::string option_text(const Option& option);

// In the order of their first option that is shown, the general ones last.
std::vector<std::string> option_groups(const Args& args);

std::string verb_help(const Args& args);
std::string overview();

}  // namespace wick
