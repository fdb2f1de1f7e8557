// SPDX-License-Identifier: Apache-2.0
// Sums that several blocks made parts of, added up in the order of the parts by a launch of its
// own.
#pragma once

#include "backend/cuda/queue.h"

namespace wick::cuda {

// y[row * row_step + rank * rank_step] (+)= alpha * the sum of the parts at [row, rank]. r is a
// multiple of 4.
struct Parts {
  const float* from = nullptr;  // [parts, rows, r]
  void* y = nullptr;
  int row_step = 0, rank_step = 0;
  int parts = 0, rows = 0, r = 0;
  float alpha = 1.0f;
  bool adds = false, half = false;  // half: y is bf16
  // AllParts::add() sets them: threads that share the parts of an element.
  int sharers = 1, first_block = 0;
};

struct AllParts {
  static constexpr int kMost = 16;
  Parts at[kMost] = {};
  int count = 0, blocks = 0;

  // Gives it its blocks.
  void add(Parts p);
};

void add_parts(const Queue& queue, const AllParts& all);

}  // namespace wick::cuda
