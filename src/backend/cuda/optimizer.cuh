// SPDX-License-Identifier: Apache-2.0
// Groups of parameters as the optimizers' launches carry them.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/cuda/device.cuh"
#include "plan/param_groups.h"

namespace wick::cuda {

constexpr int kGroups = 128;  // that one launch carries in its arguments

struct Groups {
  ParamGroup at[kGroups];
  int count;
};

// f(groups, index of the first) for all groups, in parts of at most kGroups.
template <typename F>
void each_part(const std::vector<ParamGroup>& all, F&& f) {
  for (size_t first = 0; first < all.size(); first += kGroups) {
    Groups groups{};
    groups.count = static_cast<int>(std::min<size_t>(kGroups, all.size() - first));
    std::copy_n(all.begin() + static_cast<ptrdiff_t>(first), groups.count, groups.at);
    f(groups, first);
  }
}

// A group's row of hyper, its own rate and decay, and the factor that clips its gradients.
struct GroupHyper {
  const float* row;
  float rate, decay, shrink;

  __device__ GroupHyper(const float* hyper, const float* norms, const ParamGroup& group)
      : row(hyper + 8 * group.set),
        rate(row[0] * group.lr_scale),
        decay(row[4] * group.decay_scale) {
    const float norm = norms[group.set], clip = row[5];
    shrink = clip > 0 && norm > clip ? clip / norm : 1.0f;
  }
  __device__ float operator[](int i) const { return row[i]; }
};

}  // namespace wick::cuda
