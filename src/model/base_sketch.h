// SPDX-License-Identifier: Apache-2.0
// A sketch of a model: a few of its numbers, kept with an adapter, so that other weights of the
// same shapes are told from those that it was trained on, wherever they lie and in whichever type.
#pragma once

#include <string>

#include "model/weights.h"

namespace wick {

// As text for a file's metadata; "" for random weights.
std::string base_sketch(const ModelConfig& config, const ModelWeights& weights);

// ‖a - b‖ / ‖a‖ of the numbers, 100 at most, or 0 where rounding (of either's codes, too) may be
// all of it, and where a sketch is missing or not one of ours.
double sketch_distance(const std::string& a, const std::string& b);

}  // namespace wick
