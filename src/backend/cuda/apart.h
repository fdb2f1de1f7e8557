// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/kernels.h"

namespace wick::cuda {

// Whether nothing from the first byte of one to its last lies within the other: what is written
// before its step comes must lie apart from what that step's neighbours still read.
inline bool apart(const Operand& a, const Operand& b) {
  auto end = [](const Operand& o) {
    return o.as<const std::byte>() +
           ((o.rows - 1) * o.ld + o.cols) * static_cast<int64_t>(dtype_bytes(o.dtype));
  };
  return !a || !b || a.as<const std::byte>() >= end(b) || b.as<const std::byte>() >= end(a);
}

}  // namespace wick::cuda
