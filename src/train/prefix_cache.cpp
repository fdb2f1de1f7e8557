// SPDX-License-Identifier: Apache-2.0
#include "train/prefix_cache.h"

#include <algorithm>

#include "train/scorer.h"

namespace wick {

PrefixCache::PrefixCache(const ModelConfig& config, const ModelWeights& weights,
                         const PackLimits& limits, int64_t positions, int64_t blocks) {
  DecoderPlanOptions o;
  o.tokens = limits.tokens;
  o.positions = positions;
  o.end_block = blocks;
  plan_ = std::make_unique<DecoderPlan>(config, weights, o);
  plan_->plan().results.push_back(plan_->hidden());
  fuse(plan_->plan());
  check(plan_->plan());
  stream_.resize(static_cast<size_t>(limits.tokens * token_bytes()));
}

int64_t PrefixCache::token_bytes() const {
  const Value& v = plan_->plan().value(plan_->hidden());
  return v.shape.cols() * static_cast<int64_t>(dtype_bytes(v.dtype));
}

void PrefixCache::compile(Backend& backend, ModelWeights& weights, BufferPtr arena) {
  program_ = backend.compile(plan_->plan(), plan_->bind(backend, weights), std::move(arena));
}

std::span<const std::byte> PrefixCache::rows(const Pack& pack, RowSet set) {
  const auto size = static_cast<size_t>(token_bytes());
  const size_t count = pack.slots.size();
  auto slots = [&](size_t i) {
    return std::span<std::byte>(stream_).subspan(static_cast<size_t>(pack.slots[i].first) * size,
                                                 static_cast<size_t>(pack.slots[i].count) * size);
  };
  auto key = [&](size_t i) {
    const auto lane = static_cast<size_t>(pack.lanes.empty() ? 0 : pack.lanes[i]);
    const int32_t data = lane < data_of_lane_.size() ? data_of_lane_[lane] : 0;
    return PrefixStore::Key{2 * data + static_cast<int32_t>(set), pack.examples[i]};
  };
  const bool keeps = store_ && set != RowSet::kNone;
  bool complete = keeps;
  for (size_t i = 0; i < count; ++i) complete = complete && store_->get(key(i), slots(i));
  if (complete) {
    ++gathered_;
  } else {
    ++computed_;
    feed_tokens(*program_, *plan_, pack);
    program_->run();
    program_->wait();
    program_->read(plan_->hidden(), stream_.data(), stream_.size());
    for (size_t i = 0; keeps && i < count; ++i) store_->put(key(i), slots(i));
  }
  // Rows lie in the order of their slots.
  size_t used = 0;
  for (size_t i = 0; i <= count; ++i) {
    const size_t first =
        i < count ? static_cast<size_t>(pack.slots[i].first) * size : stream_.size();
    std::fill(stream_.begin() + static_cast<ptrdiff_t>(used),
              stream_.begin() + static_cast<ptrdiff_t>(first), std::byte{0});
    if (i < count) used = first + static_cast<size_t>(pack.slots[i].count) * size;
  }
  return stream_;
}

}  // namespace wick
