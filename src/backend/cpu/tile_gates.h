// SPDX-License-Identifier: Apache-2.0
// A gated_act in the product that makes its input, while the sums are at hand, where nobody else
// reads that input: in plans that only run forward. Bits are those of the two steps.
#pragma once

#include "backend/flat_program.h"

namespace wick::cpu {

// Gives the products of a plan the gated_act that follows them.
void join_gates(const Plan& plan, std::span<FlatProgram::Call> calls);

// Whether a kernel of linear makes StepArgs::next too: on tiles, in tile_linear.cpp; of weights in
// rows, in linear.cpp.
bool takes_gate(KernelFn linear);
bool rows_take_gate(KernelFn linear, const StepArgs& args);

}  // namespace wick::cpu
