// SPDX-License-Identifier: Apache-2.0
// The instruction set of the rungs avx512_bf16 and amx for the functions between WICK_BF16_BEGIN
// and WICK_BF16_END. After all includes, so that no inline function of a header is compiled for it.
// Lambdas do not get it from clang: they only call functions that do.
#pragma once

#include "backend/cpu/unroll.h"

#if defined(__x86_64__) && defined(__linux__)
#define WICK_CPU_BF16 1
#include <immintrin.h>

#define WICK_BF16_TARGET                                                                        \
  "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,f16c,fma,prfchw,amx-tile,amx-bf16," \
  "amx-int8"
#define WICK_PRAGMA_TEXT(text) _Pragma(#text)
#define WICK_PRAGMA(text) WICK_PRAGMA_TEXT(text)

#if defined(__clang__)
#define WICK_BF16_BEGIN \
  WICK_PRAGMA(clang attribute push(__attribute__((target(WICK_BF16_TARGET))), apply_to = function))
#define WICK_BF16_END WICK_PRAGMA(clang attribute pop)
#else
#define WICK_BF16_BEGIN WICK_PRAGMA(GCC push_options) WICK_PRAGMA(GCC target(WICK_BF16_TARGET))
#define WICK_BF16_END WICK_PRAGMA(GCC pop_options)
#endif

#else
#define WICK_CPU_BF16 0
#endif
