// SPDX-License-Identifier: Apache-2.0
// WICK_UNROLL: before a loop of constant length over an array of vectors, so that it is unrolled
// early enough for the array to live in registers.
#pragma once

#if defined(__clang__)
#define WICK_UNROLL _Pragma("unroll")
#else
#define WICK_UNROLL _Pragma("GCC unroll 32")
#endif
