// SPDX-License-Identifier: Apache-2.0
// Products with quantised tiles on the rungs with bf16 units. Many rows: blocks of codes become
// blocks of bf16 in the first cache, for the units of product.h, or of bytes. Few rows:
// dot products of the codes themselves, each group's sum scaled once, bound by reading the codes
// from memory.
#pragma once

#include "backend/cpu/product.h"
#include "backend/cpu/quant_tiles.h"

namespace wick::cpu {

// Block (panel, step) of w as bf16, scaled and rounded once, in the layout of tiles.h. `to` is
// kBlockBytes, aligned to 64.
void unpack_quant_block(const QuantTiles& w, int64_t panel, int64_t step, char* to);

// y = x wᵀ for up to kQuantFewRows rows of bf16 x, in 15 bits or, `narrow` and beside codes of 4
// bits, in 8. The weights are not rounded.
constexpr int64_t kQuantFewRows = 4;
size_t quant_few_scratch(const QuantTiles& w, int64_t rows);
void multiply_quant_few(ThreadPool& pool, const Unit& unit, const Operand& x, const QuantTiles& w,
                        bool narrow, const Finish& finish, void* scratch);

// y = x wᵀ for many rows of bf16 x and codes of 4 bits, in bytes: LinearAttr::narrow.
bool multiplies_bytes(const QuantTiles& w, int64_t rows);
size_t quant_bytes_scratch(const QuantTiles& w, int64_t rows);
void multiply_quant_bytes(ThreadPool& pool, const Unit& unit, const Operand& x, const QuantTiles& w,
                          const Finish& finish, void* scratch);

}  // namespace wick::cpu
