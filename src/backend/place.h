// SPDX-License-Identifier: Apache-2.0
// What `sample` does with a row's place in its text (plan/op.h), in the host's memory.
#pragma once

#include <algorithm>

#include "backend/kernels.h"

namespace wick {

inline void take_place(const Operand& place, const Operand& log, int64_t b, int32_t token) {
  auto at = [&](int64_t row) -> int32_t& { return place.as<int32_t>()[row * place.ld + b]; };
  if (at(3) < 0) return;
  at(0) = std::max(token, 0);
  for (int64_t row = 1; row < 4; ++row) ++at(row);
  if (log) log.as<int32_t>()[at(1) % log.rows * log.ld + b] = token;
}

}  // namespace wick
