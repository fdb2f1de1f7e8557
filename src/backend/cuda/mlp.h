// SPDX-License-Identifier: Apache-2.0
// mlp: norm, the product of gate and up, their activation and down for a few rows in one launch
// (sm_90), for weights in codes that fit the shared memory of the card. A block has 64 columns of
// the hidden layer: the rows of gate and up that make them and the columns of down that they meet.
// The blocks of a cluster add what they have in order, and each cluster leaves one part of the
// result, which who reads it next adds (MatvecIn::parts).
//
// A row's bits depend on the matrices, not on the rows beside it.
#pragma once

#include "backend/cuda/matvec.h"

namespace wick::cuda {

constexpr int64_t kMlpRows = 8;

struct Mlp {
  MatvecIn in;
  Operand gate_up, gate_up_bias, down, down_bias;
  Act act = Act::kSilu;
  float* parts = nullptr;  // [mlp_parts()][M][N of down]
};

// How many parts a hidden layer of so many columns leaves.
int64_t mlp_parts(int64_t columns);
// False, having done nothing, where it does not serve these shapes and types or the card has not
// the room; with `launches` false it says no more than that.
bool mlp(const Queue& queue, const Mlp& step, bool launches = true);

}  // namespace wick::cuda
