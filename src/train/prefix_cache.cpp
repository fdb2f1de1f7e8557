// SPDX-License-Identifier: Apache-2.0
#include "train/prefix_cache.h"

#include <algorithm>
#include <numeric>

#include "train/scorer.h"

namespace wick {

PrefixCache::PrefixCache(const ModelConfig& config, const ModelWeights& weights,
                         const PackLimits& limits, int64_t positions, int64_t blocks,
                         int64_t kept_tokens)
    : slots_(limits.tokens), kept_tokens_(kept_tokens) {
  DecoderPlanOptions o;
  o.tokens = slots_;
  o.positions = positions;
  o.end_block = blocks;
  plan_ = std::make_unique<DecoderPlan>(config, weights, o);
  Recorder& r = plan_->recorder();
  const Value hidden = plan_->plan().value(plan_->hidden());
  state_ = r.state("stream", {buffer_rows(), hidden.shape.cols()}, hidden.dtype);
  to_ = r.feed("stream_rows", {slots_}, DType::kI32);
  r.copy(plan_->hidden(), to_, state_);
  fuse(plan_->plan());
  check(plan_->plan());
  rows_.resize(static_cast<size_t>(slots_));
}

int64_t PrefixCache::token_bytes() const {
  const Value& v = plan_->plan().value(plan_->hidden());
  return v.shape.cols() * static_cast<int64_t>(dtype_bytes(v.dtype));
}

void PrefixCache::compile(Backend& backend, ModelWeights& weights, BufferPtr arena) {
  backend_ = &backend;
  const Value& state = plan_->plan().value(state_);
  buffer_ = backend.allocate(state.dtype, state.shape.elements());
  Bindings bindings = plan_->bind(backend, weights);
  bindings[static_cast<size_t>(state_)] = buffer_;
  program_ = backend.compile(plan_->plan(), bindings, std::move(arena));
}

void PrefixCache::forget() {
  places_.clear();
  used_tokens_ = 0;
}

const PrefixCache::Place* PrefixCache::kept(PrefixStore::Key key, int64_t count) const {
  const auto found = places_.find(key);
  return found != places_.end() && found->second.count == count ? &found->second : nullptr;
}

void PrefixCache::set_rows(const Pack::Slots& slots, int64_t first) {
  const auto begin = rows_.begin() + slots.first;
  std::iota(begin, begin + slots.count, static_cast<int32_t>(first));
}

std::span<std::byte> PrefixCache::bytes_of(const Pack::Slots& slots) {
  stream_.resize(static_cast<size_t>(slots_ * token_bytes()));
  const auto size = static_cast<size_t>(token_bytes());
  return std::span<std::byte>(stream_).subspan(static_cast<size_t>(slots.first) * size,
                                               static_cast<size_t>(slots.count) * size);
}

// A row that only the store has goes to its slots' own rows of the buffer.
bool PrefixCache::gather(const Pack& pack, const std::vector<PrefixStore::Key>& keys, bool keeps) {
  if (!keeps) return false;
  std::vector<bool> stored(keys.size(), false);
  for (size_t i = 0; i < keys.size(); ++i) {
    const Pack::Slots& slots = pack.slots[i];
    if (const Place* place = kept(keys[i], slots.count)) {
      set_rows(slots, place->first);
      continue;
    }
    if (!store_ || !store_->get(keys[i], bytes_of(slots))) return false;
    set_rows(slots, slots.first);
    stored[i] = true;
  }
  const Value& state = plan_->plan().value(state_);
  for (size_t i = 0; i < keys.size(); ++i)
    if (const Pack::Slots& slots = pack.slots[i]; stored[i])
      backend_->upload(*buffer_, state.dtype, slots.first * state.shape.cols(),
                       slots.count * state.shape.cols(), bytes_of(slots).data());
  return true;
}

void PrefixCache::compute(const Pack& pack, const std::vector<PrefixStore::Key>& keys, bool keeps) {
  std::vector<int32_t> to(rows_.size(), -1);
  std::vector<size_t> unkept;
  for (size_t i = 0; i < keys.size(); ++i) {
    const Pack::Slots& slots = pack.slots[i];
    const Place* place = keeps ? kept(keys[i], slots.count) : nullptr;
    if (place) {  // also where the pack has the row twice
      set_rows(slots, place->first);
      continue;
    }
    int64_t first = slots.first;
    if (keeps && places_.count(keys[i]) == 0 && used_tokens_ + slots.count <= kept_tokens_) {
      first = slots_ + used_tokens_;
      places_[keys[i]] = {first, slots.count};
      used_tokens_ += slots.count;
    } else {
      unkept.push_back(i);
    }
    set_rows(slots, first);
    std::copy_n(rows_.begin() + slots.first, slots.count, to.begin() + slots.first);
  }
  feed_tokens(*program_, *plan_, pack);
  program_->feed(to_, to.data(), to.size() * sizeof(int32_t));
  program_->run();
  program_->wait();
  if (!store_ || !keeps) return;
  const Value& state = plan_->plan().value(state_);
  for (size_t i : unkept) {
    const Pack::Slots& slots = pack.slots[i];
    const std::span<std::byte> bytes = bytes_of(slots);
    backend_->download(*buffer_, state.dtype, slots.first * state.shape.cols(),
                       slots.count * state.shape.cols(), bytes.data());
    store_->put(keys[i], bytes);
  }
}

std::span<const int32_t> PrefixCache::rows(const Pack& pack, RowSet set) {
  std::vector<PrefixStore::Key> keys;
  for (size_t i = 0; i < pack.slots.size(); ++i) {
    const auto lane = static_cast<size_t>(pack.lanes.empty() ? 0 : pack.lanes[i]);
    const int32_t data = lane < data_of_lane_.size() ? data_of_lane_[lane] : 0;
    keys.push_back({2 * data + static_cast<int32_t>(set), pack.examples[i]});
  }
  const bool keeps = set != RowSet::kNone;
  std::fill(rows_.begin(), rows_.end(), -1);
  if (gather(pack, keys, keeps)) {
    ++gathered_;
  } else {
    ++computed_;
    compute(pack, keys, keeps);
  }
  return rows_;
}

}  // namespace wick
