// SPDX-License-Identifier: Apache-2.0
// Loops that reach a machine's limits, beside those of rungs.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wick::cpu {

// As read_loop(), but in four streams side by side: which of the two is faster depends on the
// processor.
uint64_t read_four_loop(const void* data, size_t bytes);

}  // namespace wick::cpu
