// SPDX-License-Identifier: Apache-2.0
// The one seam for adapters: a frozen (or trained) module plus whatever adapter is attached.
#pragma once

#include <string>
#include <vector>

#include "adapter/lora.h"
#include "plan/head_pair.h"

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

  // Several adapters in place of `adapter`, each for its own rows: lane k of n has the k-th of n
  // equal ranges of whatever has a row for each token or target.
  std::vector<AdapterBinding> lanes = {};

  // What an adapter trains in place of the weight of `module`, or kNone.
  ValueId whole(Recorder& r, const std::string& module) const;
  // Whether a lane has one.
  bool lane_has_whole(const std::string& module) const;
  // A lane's range of rows.
  ValueId rows_of_lane(Recorder& r, size_t lane, ValueId v) const;
};

// x [T, in] -> [T, sum of rows]
ValueId linear(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId x);

// x [T, G*D] -> the same, normed in groups of D; `module` as adapters name the gain, `w` the
// base's.
ValueId rms_norm(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
                 ValueId x, float eps);

// ids [T] -> [T, hidden]; `module` as adapters name the table, `table` the base's. What is trained of
// the row `untrained` of a table, whole or by a pair, gets no gradient; -1: all do.
ValueId embed(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId table,
              ValueId ids, int64_t untrained = -1);

// x [M, hidden] -> logits [M, vocab] in f32; `module` as adapters name the head, `w` what it is.
ValueId logits(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
               ValueId x);
// x [M, hidden], targets [M] -> log-probabilities [M] (plan/op.h: head).
ValueId head(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
             ValueId x, ValueId targets, const HeadAttr& attr);
// The divergence [M] from a teacher (plan/op.h: kl_head); `heads` without a pair, which is the
// adapter's.
ValueId kl_head(Recorder& r, const AdapterBinding& binding, const std::string& module,
                const KlHeads& heads, const KlAttr& attr);

}  // namespace wick::nn
