// SPDX-License-Identifier: Apache-2.0
// What `sample` does with a row's place in its text (plan/op.h), in the host's memory.
#pragma once

#include <algorithm>

#include "backend/draw.h"
#include "backend/kernels.h"

namespace wick {

// How row b is drawn. Requires: how.
inline DrawHow how_of(const Operand& how, const Operand& place, int64_t b) {
  DrawHow row = draw_how(how.as<const int32_t>() + b * how.ld);
  if (place) row.position = place.as<const int32_t>()[place.ld + b] + 1;
  return row;
}

inline void take_place(const Operand& place, const Operand& log, int64_t b, int32_t token) {
  auto at = [&](int64_t row) -> int32_t& { return place.as<int32_t>()[row * place.ld + b]; };
  if (at(3) < 0) return;
  at(0) = std::max(token, 0);
  for (int64_t row = 1; row < 4; ++row) ++at(row);
  if (log) log.as<int32_t>()[at(1) % log.rows * log.ld + b] = token;
}

}  // namespace wick
