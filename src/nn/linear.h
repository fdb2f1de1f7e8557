// SPDX-License-Identifier: Apache-2.0
// The one seam for adapters: a frozen (or trained) module plus whatever adapter is attached.
#pragma once

#include <string>
#include <vector>

#include "adapter/lora.h"
#include "plan/recorder.h"

namespace wick::nn {

// A linear as it is computed. Several linears of a file that share an input are one product, their
// rows one after the other: q, k, v; gate, up.
struct Linear {
  ValueId w = kNone;        // [sum of rows, in]
  ValueId bias = kNone;     // [sum of rows]
  ValueId squares = kNone;  // Σ w² of each row, f32 [sum of rows]; for DoRA only
  struct Part {
    std::string module;  // as adapters name it
    int64_t rows;
  };
  std::vector<Part> parts;
};

// The adapter of a recording, if any. `params` is the flat state that holds its numbers; `frozen`
// those of Adapter::frozen(), where there are any; `keys` the feed of random keys, needed only when
// training with dropout; `count` the numbers 0, 1, … of i32, needed only for DoRA in bf16.
struct AdapterBinding {
  const Adapter* adapter = nullptr;
  ValueId params = kNone;
  ValueId frozen = kNone;
  ValueId keys = kNone;
  ValueId count = kNone;
  bool tied = false;  // the head's weight is the embedding's table

  // Several adapters in place of `adapter`, each for its own rows of x: of linears alone.
  std::vector<AdapterBinding> lanes = {};
  int64_t first_row = 0, row_count = 0;  // of a lane
};

// x [T, in] -> [T, sum of rows]
ValueId linear(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId x);

// ids [T] -> [T, hidden]; `module` as adapters name the table.
ValueId embed(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId table,
              ValueId ids);

// x [M, hidden] -> logits [M, vocab] in f32; `module` as adapters name the head.
ValueId logits(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
               ValueId x);
// x [M, hidden], targets [M] -> log-probabilities [M] (plan/op.h: head).
ValueId head(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
             ValueId x, ValueId targets, const HeadAttr& attr);

}  // namespace wick::nn
