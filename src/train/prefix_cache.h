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

// Of which data set the rows of a pack are. Rows of none, made for the moment, are not kept.
enum class RowSet : int32_t { kTrain = 0, kHeldOut = 1, kNone = -1 };

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

  // Of each lane (Pack::lanes) which data it has: lanes with the same number share their rows.
  // Without this all do.
  void set_data(std::vector<int32_t> of_lane) { data_of_lane_ = std::move(of_lane); }

  // The stream of a pack's slots, [T, D], until the next call; zero where a slot is unused.
  // Requires compile().
  std::span<const std::byte> rows(const Pack& pack, RowSet set);

  // Packs that were gathered, and packs that had to be computed.
  int64_t gathered() const { return gathered_; }
  int64_t computed() const { return computed_; }

 private:
  std::unique_ptr<DecoderPlan> plan_;
  std::unique_ptr<Program> program_;
  std::shared_ptr<PrefixStore> store_;
  std::vector<int32_t> data_of_lane_;
  std::vector<std::byte> stream_;
  int64_t gathered_ = 0, computed_ = 0;
};

}  // namespace wick
