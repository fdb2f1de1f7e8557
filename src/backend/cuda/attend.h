// SPDX-License-Identifier: Apache-2.0
// attend: a layer's whole attention for a few rows in one launch (sm_90): norm, the product of q, k
// and v, their rotation, the copies into the cache, attention over it, and o. A cluster of blocks
// has a kv head and the heads that share it: its blocks make some of their rows each and give them
// to all, look at some of the keys each, join what they found, and multiply some rows of o with the
// columns of these heads. So a kv head leaves one part of o's result, and who reads it next adds
// the parts in order (MatvecIn::parts).
//
// For weights in codes and heads of 64: what a block needs of q, k, v and o is in shared memory,
// and its first keys and values are in registers, before the launch before it ends. So the states
// and feeds that say where rows look must be written by no launch of the same run before it, and
// the cache by none but itself. It gains together with mlp.h, whose blocks find room beside its
// own.
//
// A row's bits depend on the matrices, the card and the range it looks at, not on the rows beside
// it.
#pragma once

#include "backend/cuda/matvec.h"

namespace wick::cuda {

constexpr int64_t kAttendRows = 8;

struct Attend {
  MatvecIn in;
  Operand qkv, qkv_bias, out, out_bias;
  MatvecRotation rotation;  // without q
  Operand begin, end;
  int64_t window = 0;
  float scale = 0;
  float* parts = nullptr;  // [kv_heads][M][N of out]
};
// False, having done nothing, where it does not serve these shapes and types or the card has not
// the room.
bool attend(const Queue& queue, const Attend& step);

// y = the sum of [count][M][N] parts, in bf16.
void sum_parts(const Queue& queue, const float* parts, int count, const Operand& y);

}  // namespace wick::cuda
