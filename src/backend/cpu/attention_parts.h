// SPDX-License-Identifier: Apache-2.0
// How attention backward cuts a pack into tasks. A part is a stretch of rows that see no key of
// another part: one packed segment, whose sums are its own.
#pragma once

#include <cstdint>

namespace wick::cpu {

struct AttentionPart {
  int32_t start, stop;
  bool lone;  // rows that each see themselves alone, or nothing: p is 1, ds is 0
  int64_t length() const { return stop - start; }
};

// The parts of rows [0, tokens) whose `begin` never decreases, the longest first, lone rows side by
// side as one; returns how many. `parts` has room for one per row.
int64_t find_parts(const int32_t* begin, int64_t tokens, AttentionPart* parts);

// Whether tasks of one part and kv head each keep the threads about as busy as smaller ones that
// make the probabilities twice. A part of more than `most_keys` rows never does.
bool parts_suffice(const AttentionPart* parts, int64_t count, int64_t kv_heads, int64_t threads,
                   int64_t most_keys);

}  // namespace wick::cpu
