// SPDX-License-Identifier: Apache-2.0
// Attention for the rungs amx and avx512_bf16: q, k, v, y and their gradients in bf16, lse and
// every sum in f32; any length, heads of up to 256, packed segments, windows, ranges of a cache.
//
// Promised: the same bits for any number of threads; a row's y and lse depend on its query, its
// range of keys and where its first key block begins (at begin) alone, so not on its place or on
// what it is packed with; the gradients of a segment depend on that segment alone.
#pragma once

#include "backend/cpu/rungs.h"

namespace wick::cpu {

// Forward and backward; empty for other rungs, and in a binary without code for these.
Candidates tile_attention_candidates(Rung rung);

namespace tile_attention {
Candidate forward(Rung rung);  // either of the two
}

}  // namespace wick::cpu
