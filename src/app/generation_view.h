// SPDX-License-Identifier: Apache-2.0
// A generation for programs and for people.
#pragma once

#include <string>

#include "io/json.h"
#include "wick/generator.h"

namespace wick {

Json generation_json(const Generation& generation);
// One line of statistics.
std::string generation_statistics(const Generation& generation);

}  // namespace wick
