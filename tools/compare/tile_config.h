// SPDX-License-Identifier: Apache-2.0
// Included before every source when llama.cpp is built: GCC's _tile_loadconfig says that it reads 8
// bytes of the 64, so the compiler may drop the stores to the rest, and the program dies at its
// first tile. This one says what it reads.
#pragma once
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
static inline void wick_tile_loadconfig(const void* config) {
  struct whole {
    char bytes[64];
  };
  __asm__ volatile("ldtilecfg %0" ::"m"(*(const struct whole*)config) : "memory");
}
#undef _tile_loadconfig
#define _tile_loadconfig wick_tile_loadconfig
#endif
