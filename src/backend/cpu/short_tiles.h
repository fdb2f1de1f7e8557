// SPDX-License-Identifier: Apache-2.0
// kShortTiles: the blocks of tiles.h in 1,600 bytes instead of 2,048, every number the same to the
// bit. Decoding is bound by reading weights, and reads a fifth less. For the rung avx512_bf16: AMX
// takes tiles from memory, and is slower where they must be made first.
//
// The upper byte of a bf16 (its sign and seven bits of its exponent) takes few values in a matrix
// that was trained: most of a block's lie within sixteen powers of two. A block has a table of 16
// upper bytes, each number's place in it in 4 bits, and its lower byte as it is. Up to kShortOdd
// numbers of a block may have other upper bytes; where there are more the matrix stays in kTiles.
//
// A block is its head (ShortHead, 64 bytes) and then, for each four lines (of 16 pairs of k) of its
// first tile, the same four of its second, and so on, 192 bytes: the places of 128 numbers, and two
// times 64 lower bytes. Within 16 bytes the first 8 are of one line, the last 8 of the next, so
// that interleaving them with their upper bytes makes lines; places of the first 64 numbers are the
// lower halves of their bytes. One stream of whole cache lines, read in order.
#pragma once

#include "backend/cpu/product.h"

namespace wick::cpu {

constexpr int kShortOdd = 15;
struct ShortHead {
  uint8_t table[16];
  uint8_t odd;               // numbers whose upper byte is another one
  uint8_t upper[kShortOdd];  // that byte
  uint16_t at[kShortOdd];    // and where it belongs: the number's place in the block of tiles.h
  uint16_t none;
};
constexpr int64_t kShortBlockBytes = 1600;
static_assert(sizeof(ShortHead) == 64);

constexpr size_t short_tiles_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(tile_blocks(n) * tile_blocks(k) * kShortBlockBytes);
}
// Smaller matrices gain nothing.
constexpr bool may_be_short(int64_t n, int64_t k) { return n >= kTileBlock && k >= kTileBlock; }

// As pack_tiles(), where avx512_bf16_works(). False: some block does not fit, and `to` is not
// whole.
bool pack_short_tiles(ThreadPool& pool, DType from, const void* rows, int64_t n, int64_t k,
                      void* to);

// One block as tiles.h has it, kBlockBytes; `to` is aligned to 64.
void unpack_short_block(const char* block, char* to);

// Row `row` of w [*, k] as k elements of bf16 or f32.
void copy_short_row(const char* w, int64_t row, int64_t k, DType dtype, void* to);

// multiply_few() of product.h with dot products, the same bits.
void multiply_few_short(ThreadPool& pool, const Operand& x, const char* w, const Finish& finish,
                        void* scratch);

}  // namespace wick::cpu
