// SPDX-License-Identifier: Apache-2.0
// attend for weights in codes of 4 bits.
#include "backend/cuda/attend_launch.cuh"

namespace wick::cuda {

template <>
bool attend_codes<4>(const Queue& queue, const Attend& a) {
  return attend_codes_here<4>(queue, a);
}

}  // namespace wick::cuda
