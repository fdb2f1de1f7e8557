// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers (Philox 4x32-10): a pure function of key and counter, so a draw
// depends on what it is for (seed, epoch, row, position, site), never on when or where it is made.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace wick {

inline std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// [0, 1) with 24 random bits.
inline float uniform_float(uint32_t bits) {
  return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f);
}

// Mixes two words into one key (splitmix64's finisher); for deriving keys from keys.
inline uint64_t mix_key(uint64_t key, uint64_t word) {
  uint64_t z = key + 0x9E3779B97F4A7C15ull * (word + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// A stable key for a name (FNV-1a), so that what is drawn for it does not depend on its neighbours.
inline uint64_t name_key(std::string_view name) {
  uint64_t h = 1469598103934665603ull;
  for (unsigned char c : name) h = (h ^ c) * 1099511628211ull;
  return h;
}

// A sequential reader of one Philox stream, for host code (shuffles, start values, sampling).
class Rng {
 public:
  explicit Rng(uint64_t key, uint64_t stream = 0) : key_(key), stream_(stream) {}

  uint32_t next_u32() {
    if (used_ == 4) {
      block_ = philox(key_, counter_++, stream_);
      used_ = 0;
    }
    return block_[used_++];
  }
  float uniform() { return uniform_float(next_u32()); }
  double uniform_double() {
    uint64_t high = next_u32() >> 5, low = next_u32() >> 6;
    return static_cast<double>(high * 67108864ull + low) * (1.0 / 9007199254740992.0);
  }
  float uniform(float low, float high) { return low + (high - low) * uniform(); }
  // An unbiased integer in [0, n). Requires: n > 0.
  uint64_t below(uint64_t n) {
    uint64_t limit = ~0ull - ~0ull % n;
    uint64_t x;
    do {
      x = static_cast<uint64_t>(next_u32()) << 32;
      x |= next_u32();
    } while (x >= limit);
    return x % n;
  }
  float normal() {
    double u = 1.0 - uniform_double(), v = uniform_double();
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }

 private:
  uint64_t key_, stream_, counter_ = 0;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace wick
