// SPDX-License-Identifier: Apache-2.0
// mlp for weights in codes of 4 bits.
#include "backend/cuda/mlp.cuh"

namespace wick::cuda {

template <>
bool mlp_codes<4>(const Queue& queue, const Mlp& a, bool launches) {
  return mlp_codes_here<4>(queue, a, launches);
}

}  // namespace wick::cuda
