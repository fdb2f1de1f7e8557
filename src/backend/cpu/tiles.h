// SPDX-License-Identifier: Apache-2.0
// kTiles: how a frozen matrix w [N, K] rests for the units that multiply bf16.
//
// N and K are padded with zeros to multiples of 32 and cut into blocks [N/32][K/32]. A block is two
// tiles, of its first and its last 16 rows of w; a tile is [16 pairs of k][16 rows][2], 1 KiB. That
// is the right operand of AMX's y = x wᵀ as it lies, a vector of 16 outputs per pair of k for
// AVX-512's dot products, and two permutes away from the left operand of dx = dy w: one copy serves
// forward, backward, head, embed and decoding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/half.h"

namespace wick {
class ThreadPool;
}

namespace wick::cpu {

constexpr int64_t kTileRows = 16;   // of w in one tile
constexpr int64_t kTileBlock = 32;  // rows and columns of w in one block
constexpr int64_t kTileElements = kTileRows * kTileBlock;
constexpr int64_t kBlockElements = 2 * kTileElements;

constexpr int64_t tile_blocks(int64_t n) { return (n + kTileBlock - 1) / kTileBlock; }

constexpr size_t tiles_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(tile_blocks(n) * tile_blocks(k) * kBlockElements) * sizeof(bf16);
}

// Where element (n, k) of a matrix with K columns lies.
constexpr int64_t tile_index(int64_t n, int64_t k, int64_t columns) {
  int64_t block = n / kTileBlock * tile_blocks(columns) + k / kTileBlock;
  int64_t row = n % kTileBlock, pair = k % kTileBlock / 2;
  return block * kBlockElements + row / kTileRows * kTileElements +
         (pair * kTileRows + row % kTileRows) * 2 + k % 2;
}

// From row-major f32, bf16 or f16, rounded to nearest even (a subnormal may become zero); `ld`
// elements from a row to the next, 0: k. `to` is aligned to 64.
void pack_tiles(ThreadPool& pool, DType from, const void* rows, int64_t n, int64_t k, void* to,
                int64_t ld = 0);
// One panel, of up to kTileBlock rows, on this thread.
void pack_tile_panel(DType from, const void* rows, int64_t n, int64_t k, void* to, int64_t ld = 0);

}  // namespace wick::cpu
