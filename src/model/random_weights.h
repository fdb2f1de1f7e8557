// SPDX-License-Identifier: Apache-2.0
// Random weights, fast enough for models of any size: element i of a tensor is a function of seed,
// tensor name and i alone, made by all threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace wick {

// Uniform with mean 0 and standard deviation `deviation`, rounded to `dtype` (f32, bf16, f16):
//   x[i] = (u - 32767.5) * sqrt(3) * deviation / 32768,
//   u = the 16 bits at 16 * (i % 4) of mix_key(mix_key(seed, name_key(tensor)), i / 4).
// `to` holds `count` elements.
void fill_random(uint64_t seed, std::string_view tensor, double deviation, DType dtype,
                 size_t count, std::byte* to);

}  // namespace wick
