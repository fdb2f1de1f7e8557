// SPDX-License-Identifier: Apache-2.0
// How `sample` draws a token (plan/op.h), and the draw in the host's memory: the meaning that
// devices are held to, and what infer/sampler.h shares with them.
//
// In this order: top-k; top-p; min-p; temperature. The filters judge the distribution at
// temperature 1, each that of the tokens that the ones before it kept; of equal weights the lower
// id counts as likelier. Temperature 0 is the largest logit, whatever the filters.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "base/rng.h"

namespace wick {

struct DrawHow {
  float temperature = 0;
  int32_t top_k = 0;  // 0: all
  float top_p = 1, min_p = 0;
  uint64_t key = 0;      // of random numbers
  int32_t position = 0;  // tells the draws of one key apart; of rows with a place, the new one
};
// A row of the op's input: temperature, top_k, top_p, min_p, key (low half first), position, 0;
// floats by their bits.
constexpr int64_t kDrawWords = 8;
void to_words(const DrawHow& how, int32_t* words);
DrawHow draw_how(const int32_t* words);

constexpr uint64_t kSampleStream = 0x73616d706c65;

struct RandomDraw {
  double coin, where;  // in [0, 1)
};
inline RandomDraw random_draw(uint64_t key, int64_t position) {
  auto words = philox(key, static_cast<uint64_t>(position), 0);
  uint64_t bits = (static_cast<uint64_t>(words[1]) << 32) | words[2];
  return {uniform_float(words[0]), static_cast<double>(bits >> 11) * 0x1p-53};
}

// Bounded, so that the likeliest token's 0 times it stays 0.
inline float inverse_temperature(float temperature) { return std::min(1 / temperature, 1e30f); }

// e^x for x <= 0, with a relative error below 3e-7; 0 for NaN and below e^-87.6. Written out,
// without branches, so that loops over it vectorise and every C library gives the same bits.
inline float exp_negative(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  // Clamped to -88, NaN too, where n is -127 and the power of two below is 0. On the bits, because
  // compilers make a branch of a comparison of floats here.
  constexpr int32_t kBitsOf88 = 0x42b00000;
  int32_t magnitude = std::bit_cast<int32_t>(x) & 0x7fffffff;
  float clamped = -std::bit_cast<float>(std::min(magnitude, kBitsOf88));
  float n = (clamped * kLog2e + kRounder) - kRounder;
  float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// weights[i] = exp_negative((logits[i] - most) * by), on vectors as wide as the machine has.
void weigh(std::span<const float> logits, float most, float by, float* weights);

// The token; -1 where no logit is a number above minus infinity.
int32_t draw_token(std::span<const float> logits, const DrawHow& how);

}  // namespace wick
