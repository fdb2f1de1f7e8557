// SPDX-License-Identifier: Apache-2.0
// Decoding without text: a KV cache that is filled with random prompts and then goes on.
#pragma once

#include <memory>
#include <vector>

#include "bench/context.h"
#include "infer/decoder_engine.h"
#include "infer/sampler.h"

namespace wick {

class DecodeCase {
 public:
  // `batch` sequences of up to `context` tokens.
  DecodeCase(const BenchContext& context, int64_t batch, int64_t length);

  // Runs the first `tokens` ids of every sequence from an empty cache; the last logits stay.
  void prefill(int64_t tokens);
  // The same and draws each sequence's next token where the back end does that best.
  void prefill_drawn(int64_t tokens, const SampleOptions& options = {});
  // Runs and draws `steps` more tokens of every sequence; wraps as decode() does.
  void decode_drawn(int64_t steps, int64_t keep, const SampleOptions& options = {});
  // Runs one more token of every sequence, the one drawn last; wraps back to `keep` tokens when the
  // cache is full.
  void decode(int64_t keep);
  // Draws each sequence's next token from the logits.
  void sample(const SampleOptions& options);

  // From now on the seconds of each step of the last run go there; null: no longer.
  void time_steps(std::vector<double>* into) { step_seconds_ = into; }

  DecoderEngine& engine() { return *engine_; }

 private:
  std::vector<SlotToken> prompt(int64_t slot, int64_t tokens);
  // Back to `keep` tokens where the cache has no room for `steps` more. Whether it went back.
  bool make_room(int64_t steps, int64_t keep);
  std::vector<SlotToken> last_tokens() const;
  void sample_by(const SampleOptions& options);
  // Whether the back end draws them itself.
  bool draws_ahead(const SampleOptions& options);
  // How it draws the next token of these sequences; none: the likeliest.
  std::vector<DrawHow> how(std::span<const int64_t> slots) const;

  const BenchContext& context_;
  int64_t batch_, capacity_, length_ = 0;
  std::unique_ptr<DecoderEngine> engine_;
  bool walking_ = false;  // the engine's walk stands where the histories do
  std::vector<float> logits_;
  std::vector<std::vector<int32_t>> history_;
  SampleOptions sampling_;
  std::vector<double>* step_seconds_ = nullptr;
  std::unique_ptr<Sampler> sampler_;
};

}  // namespace wick
