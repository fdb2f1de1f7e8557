// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/quant_tiles.h"

#include <cstring>

#include "base/threads.h"
#include "quant/rows.h"

namespace wick::cpu {
namespace {

// Where code (row, column) of a tile of 4 bits lies, in bits from the tile's first.
int64_t nibble_at(int64_t row, int64_t column) {
  return ((column / 8 * kTileRows + row) * 2 + column % 2) * 16 + column % 8 / 2 * 4;
}

// Where byte (row, column) of a tile of 8 bits lies.
int64_t byte_at(int64_t row, int64_t column) {
  return (column / 4 * kTileRows + row) * 4 + column % 4;
}

void pack_panel(const QuantTiles& w, DType dtype, const std::byte* from, int64_t panel, char* to) {
  const size_t stride = row_bytes(dtype, w.cols);
  std::memset(to, 0, static_cast<size_t>(w.panel_bytes));
  auto offset = [&](const char* p) { return p - w.data - panel * w.panel_bytes; };
  for (int64_t i = 0; i < kTileBlock; ++i) {
    const int64_t row = panel * kTileBlock + i, tile = i / kTileRows, r = i % kTileRows;
    const std::byte* codes = from + static_cast<size_t>(row) * stride;
    for (int64_t g = 0; g < w.groups() && row < w.rows; ++g)
      std::memcpy(to + offset(w.scales(panel, g * w.in_group)) + i * 2,
                  codes + quant_code_bytes(dtype, w.cols) + g * 2, 2);
    for (int64_t s = 0; s < w.steps; ++s) {
      char* block = to + offset(w.block(panel, s)) + tile * w.block_bytes / 2;
      for (int64_t c = 0; c < kTileBlock; ++c) {
        const int q = row < w.rows ? quant_code(dtype, codes, s * kTileBlock + c) : 0;
        if (w.bits == 8) {
          block[byte_at(r, c)] = static_cast<char>(q + 128);
        } else {
          const int64_t at = nibble_at(r, c);
          block[at / 8] = static_cast<char>(block[at / 8] | (q + 8) << at % 8);
        }
      }
    }
  }
}

}  // namespace

void pack_quant_tiles(ThreadPool& pool, DType dtype, const void* from, int64_t n, int64_t k,
                      void* to) {
  const QuantTiles w(to, dtype, n, k);
  pool.parallel(tile_blocks(n), [&](int64_t p) {
    pack_panel(w, dtype, static_cast<const std::byte*>(from), p,
               static_cast<char*>(to) + p * w.panel_bytes);
  });
}

void unpack_quant_row(const QuantTiles& w, int64_t row, bf16* to) {
  const int64_t panel = row / kTileBlock, i = row % kTileBlock;
  const int64_t tile = i / kTileRows, r = i % kTileRows;
  for (int64_t s = 0; s < w.steps; ++s) {
    bf16 stored;
    std::memcpy(&stored, w.scales(panel, s) + i * 2, sizeof stored);
    const float scale = to_float(stored);
    const char* block = w.block(panel, s) + tile * w.block_bytes / 2;
    for (int64_t c = 0; c < std::min(kTileBlock, w.cols - s * kTileBlock); ++c) {
      int q;
      if (w.bits == 8) {
        q = static_cast<unsigned char>(block[byte_at(r, c)]) - 128;
      } else {
        const int64_t at = nibble_at(r, c);
        q = (static_cast<unsigned char>(block[at / 8]) >> at % 8 & 15) - 8;
      }
      to[s * kTileBlock + c] = to_bf16(scale * static_cast<float>(q));
    }
  }
}

}  // namespace wick::cpu
