// SPDX-License-Identifier: Apache-2.0
// The one seam for adapters: a frozen (or trained) product plus whatever adapter is attached.
#pragma once

#include <string>
#include <vector>

#include "adapter/lora.h"
#include "plan/recorder.h"

namespace wick::nn {

// A linear as it is computed. Several linears of a file that share an input are one product, their
// rows one after the other: q, k, v; gate, up.
struct Linear {
  ValueId w = kNone;     // [sum of rows, in]
  ValueId bias = kNone;  // [sum of rows]
  struct Part {
    std::string module;  // as adapters name it
    int64_t rows;
  };
  std::vector<Part> parts;
};

// The adapter of a recording, if any. `params` is the flat state that holds its numbers; `keys` the
// feed of random keys, needed only when training with dropout.
struct AdapterBinding {
  const Adapter* adapter = nullptr;
  ValueId params = kNone;
  ValueId keys = kNone;
};

// x [T, in] -> [T, sum of rows]
ValueId linear(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId x);

}  // namespace wick::nn
