// SPDX-License-Identifier: Apache-2.0
#include "model/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "base/rng.h"
#include "base/threads.h"

namespace wick {

namespace {

constexpr size_t kChunk = size_t{1} << 16;  // a multiple of 4

template <typename T>
void fill(uint64_t key, float factor, size_t begin, size_t end, std::byte* to) {
  for (size_t i = begin; i < end; i += 4) {
    const uint64_t word = mix_key(key, i / 4);
    T four[4];
    for (unsigned lane = 0; lane < 4; ++lane) {
      const float u = static_cast<float>((word >> (16 * lane)) & 0xffff);
      four[lane] = from_float<T>((u - 32767.5f) * factor);
    }
    std::memcpy(to + i * sizeof(T), four, std::min<size_t>(4, end - i) * sizeof(T));
  }
}

}  // namespace

void fill_random(uint64_t seed, std::string_view tensor, double deviation, DType dtype,
                 size_t count, std::byte* to) {
  const uint64_t key = mix_key(seed, name_key(tensor));
  const float factor = static_cast<float>(std::sqrt(3.0) * deviation / 32768.0);
  auto fill_as = [&](auto element) {
    using T = decltype(element);
    const size_t chunks = (count + kChunk - 1) / kChunk;
    ThreadPool pool(chunks > 1 ? 0 : 1);
    pool.parallel(static_cast<int64_t>(chunks), [&](int64_t chunk) {
      const size_t begin = static_cast<size_t>(chunk) * kChunk;
      fill<T>(key, factor, begin, std::min(count, begin + kChunk), to);
    });
  };
  switch (dtype) {
    case DType::kF32:
      return fill_as(0.0f);
    case DType::kBF16:
      return fill_as(bf16{});
    case DType::kF16:
      return fill_as(f16{});
    default:
      WICK_CHECK(false, dtype_name(dtype), " is no weight's element type");
  }
}

}  // namespace wick
