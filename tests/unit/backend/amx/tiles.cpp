// SPDX-License-Identifier: Apache-2.0
#include "unit/backend/amx/tiles.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace wick::test::amx {
namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct alignas(64) Tile {
  int8_t bytes[kRows][kRowBytes];
};

struct Unit {
  bool configured = false;
  int rows[kTiles] = {};
  Tile tiles[kTiles] = {};
};
thread_local Unit unit;

Tile& tile_of(int tile) {
  if (!unit.configured) {
    std::fputs("AMX tiles are used without a configuration\n", stderr);
    std::abort();
  }
  return unit.tiles[tile];
}

}  // namespace

void load_config(const void* config) {
  const auto* bytes = static_cast<const uint8_t*>(config);
  unit = {};
  unit.configured = bytes[0] == 1;
  for (int i = 0; i < kTiles; ++i) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof row_bytes);
    unit.rows[i] = bytes[48 + i];
    unit.configured &= row_bytes == kRowBytes && unit.rows[i] >= 1 && unit.rows[i] <= kRows;
  }
}

void release() { unit.configured = false; }

void zero(int tile) { tile_of(tile) = {}; }

void load(int tile, const void* base, int64_t stride) {
  Tile& to = tile_of(tile);
  to = {};
  for (int r = 0; r < unit.rows[tile]; ++r)
    std::memcpy(to.bytes[r], static_cast<const char*>(base) + r * stride, kRowBytes);
}

void store(int tile, void* base, int64_t stride) {
  const Tile& from = tile_of(tile);
  for (int r = 0; r < unit.rows[tile]; ++r)
    std::memcpy(static_cast<char*>(base) + r * stride, from.bytes[r], kRowBytes);
}

__attribute__((target("avx512f,avx512bf16"))) void multiply_pairs(int c, int a, int b) {
  Tile& to = tile_of(c);
  for (int r = 0; r < unit.rows[c]; ++r) {
    __m512 sum = _mm512_load_ps(to.bytes[r]);
    for (int pair = 0; pair < kRows; ++pair) {
      int words;
      std::memcpy(&words, unit.tiles[a].bytes[r] + 4 * pair, sizeof words);
      sum = _mm512_dpbf16_ps(
          sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(words)),
          reinterpret_cast<__m512bh>(_mm512_load_si512(unit.tiles[b].bytes[pair])));
    }
    _mm512_store_ps(to.bytes[r], sum);
  }
}

void multiply_bytes(int c, int a, int b) {
  Tile& to = tile_of(c);
  for (int r = 0; r < unit.rows[c]; ++r) {
    int32_t sums[kRowBytes / 4];
    std::memcpy(sums, to.bytes[r], sizeof sums);
    for (int four = 0; four < kRows; ++four)
      for (int col = 0; col < kRowBytes / 4; ++col)
        for (int i = 0; i < 4; ++i)
          sums[col] +=
              unit.tiles[a].bytes[r][4 * four + i] * unit.tiles[b].bytes[four][4 * col + i];
    std::memcpy(to.bytes[r], sums, sizeof sums);
  }
}

}  // namespace wick::test::amx
