// SPDX-License-Identifier: Apache-2.0
// Random small networks made of legal recording calls, ending in a scalar loss.
#pragma once

#include <memory>
#include <vector>

#include "base/rng.h"
#include "plan/recorder.h"

namespace wick {

struct RandomPlan {
  Plan plan;
  ValueId params = kNone, grads = kNone, loss = kNone;
  struct Feed {
    ValueId id;
    std::vector<float> floats;
    std::vector<int32_t> ints;
  };
  std::vector<Feed> feeds;
  std::vector<ValueId> weights;
  int64_t used = 0;  // parameters that the network has; the state is larger
  int fused = 0;     // how often a rewrite applied
};

struct RandomPlanOptions {
  uint64_t seed = 0;
  bool fuse = false;
  bool recompute = false;
  bool reverse = true;
  DType activations = DType::kF32;
};

// The same seed makes the same network, whatever the other options are.
RandomPlan make_random_plan(const RandomPlanOptions& options);

}  // namespace wick
