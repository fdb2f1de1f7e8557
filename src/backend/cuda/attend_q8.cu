// SPDX-License-Identifier: Apache-2.0
// attend for weights in codes of 8 bits.
#include "backend/cuda/attend_launch.cuh"

namespace wick::cuda {

template <>
bool attend_codes<8>(const Queue& queue, const Attend& a) {
  return attend_codes_here<8>(queue, a);
}

}  // namespace wick::cuda
