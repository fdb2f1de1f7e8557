// SPDX-License-Identifier: Apache-2.0
// Shapes of published models by name, for random weights: what a benchmark or a forecast needs to
// know of a model without having it.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"

namespace wick {

// Names that shape_config() takes: qwen2.5-0.5b, …
std::vector<std::string> shape_names();

// The config.json of a shape, as read_config() takes it. Throws: kNotFound naming the nearest shape
// and all of them.
Json shape_config(const std::string& name);

}  // namespace wick
