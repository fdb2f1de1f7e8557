// SPDX-License-Identifier: Apache-2.0
// PrefixCache: the residual stream that enters the first trained block, computed once per row.
//
// Below that block nothing changes during a run, so a row's stream is always the same; its bits do
// not depend on what the row is packed with, as long as the program has the same number of slots
// (docs/numerics.md). The blocks below are a program of their own, forward only. It writes into a
// buffer on the device: as many tokens as a pack has slots, then those that are kept. The training
// step starts above, from rows of that buffer.
#pragma once

#include <map>
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
  // Records only. `blocks` > 0 of the model are below; the device keeps up to `kept_tokens`.
  PrefixCache(const ModelConfig& config, const ModelWeights& weights, const PackLimits& limits,
              int64_t positions, int64_t blocks, int64_t kept_tokens);

  const Plan& plan() const { return plan_->plan(); }
  // Of one token.
  int64_t token_bytes() const;
  int64_t buffer_rows() const { return slots_ + kept_tokens_; }
  int64_t kept_tokens() const { return kept_tokens_; }

  // `arena` is shared with programs that never run at the same time.
  void compile(Backend& backend, ModelWeights& weights, BufferPtr arena);
  BufferPtr buffer() const { return buffer_; }
  // Where rows are kept that the device does not keep; null: nowhere, they are computed.
  void keep_in(std::shared_ptr<PrefixStore> store) { store_ = std::move(store); }
  // What the device keeps.
  void forget();

  // Of each lane (Pack::lanes) which data it has: lanes with the same number share their rows.
  // Without this all do.
  void set_data(std::vector<int32_t> of_lane) { data_of_lane_ = std::move(of_lane); }

  // Of a pack's slots the rows of the buffer that have their stream, [T], until the next call; -1
  // where a slot is unused. Requires compile().
  std::span<const int32_t> rows(const Pack& pack, RowSet set);

  // Packs that were gathered, and packs that had to be computed.
  int64_t gathered() const { return gathered_; }
  int64_t computed() const { return computed_; }

 private:
  struct Place {
    int64_t first = 0, count = 0;  // rows of the buffer
  };
  bool gather(const Pack& pack, const std::vector<PrefixStore::Key>& keys, bool keeps);
  void compute(const Pack& pack, const std::vector<PrefixStore::Key>& keys, bool keeps);
  // Where the device keeps a row of that size; null: nowhere.
  const Place* kept(PrefixStore::Key key, int64_t count) const;
  void set_rows(const Pack::Slots& slots, int64_t first);
  std::span<std::byte> bytes_of(const Pack::Slots& slots);

  std::unique_ptr<DecoderPlan> plan_;
  ValueId state_ = kNone, to_ = kNone;
  int64_t slots_ = 0, kept_tokens_ = 0;
  Backend* backend_ = nullptr;
  std::unique_ptr<Program> program_;
  BufferPtr buffer_;
  std::map<PrefixStore::Key, Place> places_;
  int64_t used_tokens_ = 0;
  std::shared_ptr<PrefixStore> store_;
  std::vector<int32_t> data_of_lane_;
  std::vector<int32_t> rows_;
  std::vector<std::byte> stream_;  // of a pack, on its way from or to the store
  int64_t gathered_ = 0, computed_ = 0;
};

}  // namespace wick
