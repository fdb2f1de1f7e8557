// SPDX-License-Identifier: Apache-2.0
// AMX's tiles in memory, under the names of the compiler's operations: read before any other line
// of the sources that use them, so that their loops run on every processor with AVX-512 BF16.
// Unlike the unit, this one notices tiles that are used without a configuration.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace wick::test::amx {

void load_config(const void* config);
void release();
void zero(int tile);
void load(int tile, const void* base, int64_t stride);
void store(int tile, void* base, int64_t stride);
// c += a b: pairs of bf16, or fours of signed bytes.
void multiply_pairs(int c, int a, int b);
void multiply_bytes(int c, int a, int b);

}  // namespace wick::test::amx

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig wick::test::amx::load_config
#define _tile_release wick::test::amx::release
#define _tile_zero wick::test::amx::zero
#define _tile_loadd wick::test::amx::load
#define _tile_stream_loadd wick::test::amx::load
#define _tile_stored wick::test::amx::store
#define _tile_dpbf16ps wick::test::amx::multiply_pairs
#define _tile_dpbssd wick::test::amx::multiply_bytes
