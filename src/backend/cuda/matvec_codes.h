// SPDX-License-Identifier: Apache-2.0
// What matvec_mma.cu asks of the kernels for codes (matvec_q8.cu, matvec_q4.cu).
#pragma once

#include "backend/cuda/matvec.h"

namespace wick::cuda {

// The power of two that holds n.
inline int shift_of(int64_t n) {
  int shift = 0;
  while (int64_t{1} << shift < n) ++shift;
  return shift;
}

// Launches x wᵀ for codes of `Bits` bits; false as in matvec.h. Out: one of matvec_out.cuh.
template <int Bits, class Out>
bool launch_codes(const Queue& queue, const MatvecIn& in, const Operand& w, const Out& out);

}  // namespace wick::cuda
