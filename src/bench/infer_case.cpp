// SPDX-License-Identifier: Apache-2.0
#include "bench/infer_case.h"

#include <numeric>

namespace wick {

DecodeCase::DecodeCase(const BenchContext& c, int64_t batch, int64_t length)
    : context_(c), batch_(batch), capacity_(length), history_(static_cast<size_t>(batch)) {
  engine_ = std::make_unique<DecoderEngine>(c.backend(), c.config(), c.generating_weights(),
                                            ParamSource{}, nullptr, batch, length);
}

std::vector<SlotToken> DecodeCase::prompt(int64_t slot, int64_t tokens) {
  std::vector<int32_t>& ids = history_[static_cast<size_t>(slot)];
  ids.clear();
  std::vector<SlotToken> run;
  for (int64_t p = 0; p < tokens; ++p) {
    ids.push_back(
        bench_id(context_.options.seed, 0, slot * (tokens + 1) + p, context_.config().vocab));
    run.push_back(
        {ids.back(), static_cast<int32_t>(slot), static_cast<int32_t>(p), p + 1 == tokens});
  }
  return run;
}

void DecodeCase::prefill(int64_t tokens) {
  std::vector<float> last, all;
  for (int64_t slot = 0; slot < batch_; ++slot) {
    engine_->run(prompt(slot, tokens), last, step_seconds_);
    all.insert(all.end(), last.begin(), last.end());
  }
  logits_ = std::move(all);
  length_ = tokens;
  walking_ = false;
}

void DecodeCase::prefill_drawn(int64_t tokens, const SampleOptions& options) {
  if (!draws_ahead(options)) {
    prefill(tokens);
    sample(options);
    return;
  }
  std::vector<int32_t> drawn;
  for (int64_t slot = 0; slot < batch_; ++slot) {
    const std::vector<SlotToken> run = prompt(slot, tokens);
    engine_->run_drawn(run, drawn, how({&slot, 1}));
    history_[static_cast<size_t>(slot)].push_back(drawn[0]);
  }
  length_ = tokens;
  walking_ = false;
}

bool DecodeCase::make_room(int64_t steps, int64_t keep) {
  if (length_ + steps <= capacity_) return false;
  length_ = keep;
  for (auto& ids : history_) ids.resize(static_cast<size_t>(keep) + 1);
  return true;
}

std::vector<SlotToken> DecodeCase::last_tokens() const {
  std::vector<SlotToken> run;
  for (int64_t slot = 0; slot < batch_; ++slot)
    run.push_back({history_[static_cast<size_t>(slot)].back(), static_cast<int32_t>(slot),
                   static_cast<int32_t>(length_), true});
  return run;
}

void DecodeCase::decode(int64_t keep) {
  make_room(1, keep);
  engine_->run(last_tokens(), logits_, step_seconds_);
  ++length_;
  walking_ = false;
}

void DecodeCase::decode_drawn(int64_t steps, int64_t keep, const SampleOptions& options) {
  if (!draws_ahead(options)) {
    for (int64_t i = 0; i < steps; ++i) {
      decode(keep);
      sample(options);
    }
    return;
  }
  if (make_room(steps, keep) || !walking_) {
    std::vector<int64_t> slots(history_.size());
    std::iota(slots.begin(), slots.end(), 0);
    engine_->walk_from(last_tokens(), how(slots));
  }
  walking_ = true;
  engine_->walk(steps);
  std::vector<int32_t> drawn;
  engine_->walked(steps, drawn);
  for (size_t i = 0; i < drawn.size(); ++i) history_[i % history_.size()].push_back(drawn[i]);
  length_ += steps;
}

void DecodeCase::sample_by(const SampleOptions& options) {
  if (sampler_ && sampling_.temperature == options.temperature &&
      sampling_.top_p == options.top_p && sampling_.top_k == options.top_k)
    return;
  sampling_ = options;
  sampler_ = std::make_unique<Sampler>(options, context_.config().vocab);
  walking_ = false;
}

bool DecodeCase::draws_ahead(const SampleOptions& options) {
  sample_by(options);
  return engine_->can_walk() && sampler_->draws();
}

std::vector<DrawHow> DecodeCase::how(std::span<const int64_t> slots) const {
  std::vector<DrawHow> all;
  if (sampling_.temperature == 0) return all;
  for (int64_t slot : slots) {
    all.push_back(*sampler_->draws());
    all.back().position = static_cast<int32_t>(history_[static_cast<size_t>(slot)].size());
  }
  return all;
}

void DecodeCase::sample(const SampleOptions& options) {
  const size_t vocab = static_cast<size_t>(context_.config().vocab);
  sample_by(options);
  for (size_t slot = 0; slot < history_.size(); ++slot) {
    std::vector<int32_t>& ids = history_[slot];
    ids.push_back(sampler_->sample(std::span(logits_).subspan(slot * vocab, vocab), ids,
                                   static_cast<int64_t>(ids.size())));
  }
}

}  // namespace wick
