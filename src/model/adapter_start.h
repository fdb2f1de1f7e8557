// SPDX-License-Identifier: Apache-2.0
// What an adapter takes from the model's weights.
#pragma once

#include <span>

#include "adapter/lora.h"
#include "model/weights.h"

namespace wick {

// Before the first step: of a `fresh` adapter DoRA's magnitudes, PiSSA's pairs and the modules that
// are trained whole, in `params`; of any adapter Adapter::frozen(). Reads the weights concerned,
// and none where Adapter::needs_weights() is false. The same bits for any number of threads (0: all
// that there are): a weight is one thread's work. Throws: kCancelled (ModelWeights::stop_when);
// kInvalidArgument where Adapter::base_copies() are of another base.
void start_adapter(Adapter& adapter, const ModelConfig& config, const ModelWeights& weights,
                   bool fresh, std::span<float> params, int threads = 0);

}  // namespace wick
