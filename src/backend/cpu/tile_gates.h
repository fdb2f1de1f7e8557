// SPDX-License-Identifier: Apache-2.0
// A gated_act in the product beside it, while the sums are at hand: forward in the product that
// makes its input, backward in the one that makes its gradient. Bits are those of the single steps.
#pragma once

#include "backend/flat_program.h"

namespace wick::cpu {

// Gives the products of a plan in tiles the gated_act that follows them.
void join_gates(const Plan& plan, std::span<FlatProgram::Call> calls);

// Whether a kernel of linear makes StepArgs::next too: in tile_linear.cpp.
bool takes_gate(KernelFn linear);

}  // namespace wick::cpu
