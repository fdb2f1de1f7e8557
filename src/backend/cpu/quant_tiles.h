// SPDX-License-Identifier: Apache-2.0
// kTiles of a quantised matrix w [N, K]: the blocks of tiles.h in codes, with their scales.
//
// N and K are padded with zeros to multiples of 32. A panel is 32 rows of w: its groups one after
// the other, each the 32 rows' scales in bf16 and then its blocks of 32 columns. A block is two
// tiles, of its first and its last 16 rows:
//   8 bits   [8][16 rows] of words: word v has q + 128 of columns 4 v to 4 v + 3, so that one dot
//            product of bytes takes 16 rows
//   4 bits   [4][16 rows] of words: word v has q + 8 of column 8 v + 2 i in bits 4 i to 4 i + 3,
//            and of column 8 v + 2 i + 1 sixteen bits higher, so that one shift and one masking
//            make a pair of bf16, or four bytes, of 16 rows
// One stream of whole cache lines, read in order.
#pragma once

#include <algorithm>

#include "backend/cpu/tiles.h"

namespace wick::cpu {

struct QuantTiles {
  const char* data;
  int64_t rows, cols, steps, in_group;  // steps of 32 columns; of them in a group
  int64_t block_bytes, panel_bytes;
  int bits;

  QuantTiles(const void* tiles, DType dtype, int64_t n, int64_t k)
      : data(static_cast<const char*>(tiles)),
        rows(n),
        cols(k),
        steps(tile_blocks(k)),
        in_group(quant_group(dtype) / kTileBlock),
        block_bytes(kBlockElements * quant_bits(dtype) / 8),
        bits(quant_bits(dtype)) {
    panel_bytes = groups() * kScaleBytes + steps * block_bytes;
  }

  static constexpr int64_t kScaleBytes = kTileBlock * 2;
  int64_t groups() const { return (steps + in_group - 1) / in_group; }
  const char* scales(int64_t panel, int64_t step) const {
    return data + panel * panel_bytes + step / in_group * (kScaleBytes + in_group * block_bytes);
  }
  const char* block(int64_t panel, int64_t step) const {
    return scales(panel, step) + kScaleBytes + step % in_group * block_bytes;
  }
  size_t bytes() const { return static_cast<size_t>(tile_blocks(rows) * panel_bytes); }
};

// From quantised rows (quant/rows.h), to the same numbers.
void pack_quant_tiles(ThreadPool& pool, DType dtype, const void* from, int64_t n, int64_t k,
                      void* to);

// One row of w, as bf16.
void unpack_quant_row(const QuantTiles& w, int64_t row, bf16* to);

}  // namespace wick::cpu
