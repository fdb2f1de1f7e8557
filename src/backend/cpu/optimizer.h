// SPDX-License-Identifier: Apache-2.0
// What the optimizers' kernels read of one group of parameters.
#pragma once

#include "backend/cpu/rungs.h"
#include "plan/param_groups.h"

namespace wick::cpu {

// The group's row of hyper, its own rate and decay, and the factor that clips its gradients.
struct GroupHyper {
  const float* row;
  float rate, decay, shrink;

  GroupHyper(const StepArgs& args, const ParamGroup& group)
      : row(args.in[0].as<const float>() + 8 * group.set),
        rate(row[0] * group.lr_scale),
        decay(row[4] * group.decay_scale),
        shrink(1.0f) {
    const float norm = args.in[1].as<const float>()[group.set], clip = row[5];
    if (clip > 0 && norm > clip) shrink = clip / norm;
  }
  float operator[](int i) const { return row[i]; }
};

// muon, adafactor, adamw8.
Candidates matrix_optimizer_candidates(Rung rung);

}  // namespace wick::cpu
