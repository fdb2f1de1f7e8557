// SPDX-License-Identifier: Apache-2.0
// Where these tests run: on the device that WICK_DEVICE names, else on the CPU.
#pragma once

#include <cstdlib>

#include "wick/engine.h"

namespace wick {

inline EngineOptions test_device() {
  const char* name = std::getenv("WICK_DEVICE");
  return {.device = name ? name : "cpu", .threads = 2};
}

}  // namespace wick
