// SPDX-License-Identifier: Apache-2.0
// Completions and reference pages from the tables of options, so that they cannot be out of date.
#pragma once

#include <string>

namespace wick {

std::string bash_completion();
std::string zsh_completion();
std::string man_page();
std::string markdown_reference();

}  // namespace wick
