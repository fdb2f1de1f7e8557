// SPDX-License-Identifier: Apache-2.0
// The largest singular values of a matrix and their vectors.
#pragma once

#include <cstdint>
#include <vector>

namespace wick {

struct SingularVectors {
  std::vector<float> u;  // [rows, rank]
  std::vector<float> s;  // [rank], falling
  std::vector<float> v;  // [rank, cols]
};

// Of w [rows, cols]. Small matrices by one-sided Jacobi rotations in f64, others by subspace
// iteration until the vectors stand still, to 1e-6 of the largest value. The same bits on every machine with the same arithmetic.
// Requires: 1 <= rank <= min(rows, cols).
SingularVectors singular_vectors(const float* w, int64_t rows, int64_t cols, int64_t rank);

}  // namespace wick
