// SPDX-License-Identifier: Apache-2.0
// Steps that a product makes while its sums are at hand (StepArgs::next, one after the other):
// what adapters add to it, so that their sum is rounded once; and a gated_act of it, where nobody
// else reads what it takes: in plans that only run forward. A gate's bits are those of the two
// steps; without the first, what is less than half a step of bf16 beside y would be lost, which is
// what an adapter adds while it is young.
#pragma once

#include "backend/flat_program.h"

namespace wick::cpu {

// Gives the products of a plan the steps behind them that they make too. A product moves behind
// what is made of its input for that; nothing else changes its place.
void join_steps(const Plan& plan, std::span<FlatProgram::Call> calls);

// Whether a kernel of linear makes a gate too: on tiles, in tile_linear.cpp; of weights in rows, in
// linear.cpp.
bool takes_gate(KernelFn linear);
bool rows_take_gate(KernelFn linear, const StepArgs& args);
// Whether it adds such products: in tile_linear.cpp.
bool takes_addends(KernelFn linear, const StepArgs& args);

}  // namespace wick::cpu
