// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers in kernels, the host's to the bit.
#pragma once

#include <cstdint>

namespace wick::cuda {

// philox() of base/rng.h.
__device__ inline uint4 random_words(uint2 key, uint32_t counter, uint64_t site) {
  uint4 c{counter, 0, static_cast<uint32_t>(site), static_cast<uint32_t>(site >> 32)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = {high1 ^ c.y ^ key.x, low1, high0 ^ c.w ^ key.y, low0};
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return c;
}

}  // namespace wick::cuda
