// SPDX-License-Identifier: Apache-2.0
// The reverse of gated_act as the product before it leaves (sm_90, bf16), where all tiles of that
// product fit on the card at once:
//
//   dmade = dz w + scale * dh a     dy = dmade * (d act(gate) * up, act(gate)), the halves of y
//
// dmade is neither stored nor rounded.
#pragma once

#include "backend/cuda/queue.h"

namespace wick::cuda {

struct GatedRound {
  Operand dz, w;  // [M, K], [K, N]
  Operand y, dy;  // [M, 2 N]
  Act act = Act::kSilu;
  Operand dh = {}, a = {};  // [M, R], [R, N] f32: an adapter's part, up to 16 ranks; or none
  float scale = 1.0f;
};

// False, having done nothing, where it does not serve. w and a are read before the kernel before is
// done: weights, parameters or feeds.
bool gated_round(const Queue& queue, const GatedRound& p);

}  // namespace wick::cuda
