// SPDX-License-Identifier: Apache-2.0
// What tiles in fewer bytes hold; the kernels that read them are in tiles_test.cpp.
#include "backend/cpu/short_tiles.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "backend/cpu/amx.h"
#include "backend/cpu/rungs.h"
#include "backend/host_program.h"
#include "base/rng.h"
#include "base/threads.h"

namespace wick::test {
namespace {

// Every number comes back, whatever is in a block: of one size, of several, zeros, infinities, a
// few that are odd; what has too many sizes is refused.
TEST(ShortTiles, Pack) {
  if (!cpu::avx512_bf16_works()) GTEST_SKIP() << "no rung here has them";
  Rng rng(7);
  enum Kind { kNormal, kZero, kTwoSizes, kSmallRows, kOdd, kSpecial, kAnything };
  for (auto [n, k] : {std::array<int64_t, 2>{32, 32}, {33, 70}, {70, 100}, {256, 64}})
    for (Kind kind : {kNormal, kZero, kTwoSizes, kSmallRows, kOdd, kSpecial, kAnything}) {
      std::vector<uint16_t> rows(static_cast<size_t>(n * k));
      for (size_t i = 0; i < rows.size(); ++i) {
        float x = 0.02f * rng.normal();
        if (kind == kZero) x = i % 3 == 0 ? -0.0f : 0.0f;
        if (kind == kTwoSizes && i % 2 == 0) x = 0x1p40f * (1 + static_cast<float>(i % 128) / 128);
        if (kind == kSmallRows && i / static_cast<size_t>(k) % 2 == 0)
          x = i % 5 == 0 ? 0x1p-130f : 0;
        if (kind == kOdd && i % 97 == 0) x = std::ldexp(1.0f, static_cast<int>(i % 200) - 100);
        if (kind == kSpecial && i % 211 == 0) x = i % 2 == 0 ? HUGE_VALF : std::nanf("");
        const bf16 b = to_bf16(x);
        std::memcpy(&rows[i], &b, 2);
        if (kind == kAnything) rows[i] = static_cast<uint16_t>(rng.next_u32());
      }
      ThreadPool pool(2);
      HostBuffer packed(cpu::short_tiles_bytes(n, k)), tiles(cpu::tiles_bytes(n, k));
      const bool fits = cpu::pack_short_tiles(pool, DType::kBF16, rows.data(), n, k, packed.data());
      ASSERT_EQ(fits, kind != kAnything) << n << " x " << k << " of kind " << kind;
      if (!fits) continue;
      cpu::pack_tiles(pool, DType::kBF16, rows.data(), n, k, tiles.data());
      for (size_t b = 0; b < tiles.bytes() / cpu::kBlockBytes; ++b) {
        alignas(64) char block[cpu::kBlockBytes];
        cpu::unpack_short_block(
            reinterpret_cast<const char*>(packed.data()) + b * cpu::kShortBlockBytes, block);
        ASSERT_EQ(std::memcmp(block, tiles.data() + b * cpu::kBlockBytes, sizeof block), 0)
            << n << " x " << k << " of kind " << kind << ", block " << b;
      }
      std::vector<uint16_t> row(static_cast<size_t>(k));
      for (int64_t r = 0; r < n; ++r) {
        cpu::copy_short_row(reinterpret_cast<const char*>(packed.data()), r, k, DType::kBF16,
                            row.data());
        ASSERT_EQ(std::memcmp(row.data(), rows.data() + r * k, row.size() * 2), 0) << r;
      }
    }
}

}  // namespace
}  // namespace wick::test
