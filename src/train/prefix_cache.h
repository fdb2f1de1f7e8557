// SPDX-License-Identifier: Apache-2.0
// PrefixCache: the residual stream that enters the first trained block, computed once per row.
//
// Below that block nothing changes during a run, so a row's stream is always the same; its bits do
// not depend on what the row is packed with, as long as the program has the same number of slots
// (docs/numerics.md). The blocks below are a program of their own, forward only; the training step
// starts above them, from a feed of rows in the activations' type.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "data/packing.h"
#include "model/decoder_plan.h"
#include "train/prefix_store.h"

namespace wick {

class PrefixCache {
 public:
  // Records only. `blocks` > 0 of the model are below.
  PrefixCache(const ModelConfig& config, const ModelWeights& weights, const PackLimits& limits,
              int64_t positions, int64_t blocks);

  const Plan& plan() const { return plan_->plan(); }
  // Of one token.
  int64_t token_bytes() const;

  // `arena` is shared with programs that never run at the same time.
  void compile(Backend& backend, ModelWeights& weights, BufferPtr arena);
  // Where rows are kept; null: nowhere, each pack is computed.
  void keep_in(std::shared_ptr<PrefixStore> store) { store_ = std::move(store); }
  const PrefixStore* store() const { return store_.get(); }

  // The stream of a pack's slots, [T, D], until the next call; zero where a slot is unused. `set`
  // tells the data sets of a run apart. Requires compile().
  std::span<const std::byte> rows(const Pack& pack, int32_t set);

  // Packs that were gathered, and packs that had to be computed.
  int64_t gathered() const { return gathered_; }
  int64_t computed() const { return computed_; }

 private:
  std::unique_ptr<DecoderPlan> plan_;
  std::unique_ptr<Program> program_;
  std::shared_ptr<PrefixStore> store_;
  std::vector<std::byte> stream_;
  int64_t gathered_ = 0, computed_ = 0;
};

}  // namespace wick
