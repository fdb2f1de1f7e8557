// SPDX-License-Identifier: Apache-2.0
#include "train/prefix_cache.h"

#include <algorithm>

#include "train/scorer.h"

namespace wick {

namespace {

struct Part {
  int64_t example = 0, first = 0, tokens = 0;  // of the slots
};

// Which slots each row of a pack has: a row starts where its position is 0.
std::vector<Part> parts_of(const Pack& pack) {
  std::vector<Part> parts;
  for (int64_t t = 0; t < pack.used_tokens; ++t) {
    if (pack.positions[static_cast<size_t>(t)] == 0)
      parts.push_back({pack.examples[parts.size()], t, 0});
    ++parts.back().tokens;
  }
  return parts;
}

}  // namespace

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

std::span<const std::byte> PrefixCache::rows(const Pack& pack, int32_t set) {
  const auto size = static_cast<size_t>(token_bytes());
  const std::vector<Part> parts = parts_of(pack);
  auto slots = [&](const Part& p) {
    return std::span<std::byte>(stream_).subspan(static_cast<size_t>(p.first) * size,
                                                 static_cast<size_t>(p.tokens) * size);
  };
  bool complete = store_ != nullptr;
  for (const Part& p : parts) complete = complete && store_->get({set, p.example}, slots(p));
  if (complete) {
    ++gathered_;
  } else {
    ++computed_;
    feed_tokens(*program_, *plan_, pack);
    program_->run();
    program_->wait();
    program_->read(plan_->hidden(), stream_.data(), stream_.size());
    for (const Part& p : parts)
      if (store_) store_->put({set, p.example}, slots(p));
  }
  const auto used = static_cast<ptrdiff_t>(static_cast<size_t>(pack.used_tokens) * size);
  std::fill(stream_.begin() + used, stream_.end(), std::byte{0});
  return stream_;
}

}  // namespace wick
