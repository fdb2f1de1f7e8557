// SPDX-License-Identifier: Apache-2.0
// DecoderEngine: runs tokens through the model over a KV cache. Prefill and decoding are the same
// plan at different sizes: a few buckets of tokens, each compiled on first use over the same
// weights, cache and arena.
//
// Where the back end runs ahead of the host, decoding can walk: a step draws the token that the
// next one runs, on the device, and the host reads them when it likes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/draw.h"
#include "model/decoder_plan.h"

namespace wick {

// One token to run: it is written at `position` of the cache of `slot` and attends to everything
// there up to itself. Tokens of one slot are given in order of their positions.
struct SlotToken {
  int32_t id = 0;
  int32_t slot = 0;
  int32_t position = 0;
  bool wants_logits = false;
};

class DecoderEngine {
 public:
  // `slots` sequences of up to `context` tokens each. `params` holds the numbers of `source`, if it
  // has any. All must outlive this.
  DecoderEngine(Backend& backend, const ModelConfig& config, ModelWeights& weights,
                ParamSource source, BufferPtr params, int64_t slots, int64_t context);

  // What a run() takes at a time, and by how many tokens its plan has for so many.
  static constexpr int64_t kMostTokens = 512;
  static int64_t tokens_of_run(int64_t tokens);
  // The plan of a run() of `tokens` tokens by an engine that is not made: for a forecast.
  static std::unique_ptr<DecoderPlan> record(const ModelConfig& config, const ModelWeights& weights,
                                             const Backend& backend, ParamSource source,
                                             int64_t slots, int64_t context, int64_t tokens);

  int64_t slots() const { return slots_; }
  int64_t context() const { return context_; }
  int64_t vocab() const { return config_.vocab; }
  int64_t cache_bytes() const;
  // To a larger context; of the cache the first `tokens` stay. Requires: one slot. After an error
  // it cannot be used any more.
  void grow(int64_t context, int64_t tokens);

  // Asked between the chunks of a run: whether whoever waits wants no more of it.
  void stop_when(std::function<bool()> asked) { stop_ = std::move(asked); }

  // The plan that runs `tokens` tokens at once, at most those of the largest bucket.
  const Plan& plan(int64_t tokens);
  // Of a run() of that many tokens of one sequence.
  double flops(int64_t tokens);

  // Any number of tokens (in chunks of the largest bucket). `logits` receives one row of the
  // vocabulary per token that wants them, in order.
  // Requires: at most slots() tokens of a call want logits; positions below context().
  // `step_seconds`, if given, receives the seconds of each step of the last chunk's plan.
  // Throws: kCancelled.
  void run(std::span<const SlotToken> tokens, std::vector<float>& logits,
           std::vector<double>* step_seconds = nullptr);

  // The same, and of each row of logits the token that `how` draws instead, one for each row and
  // with its position; none: the likeliest. -1: no logit is a number.
  void run_drawn(std::span<const SlotToken> tokens, std::vector<int32_t>& drawn,
                 std::span<const DrawHow> how = {});

  bool can_walk() const { return backend_.runs_ahead(); }
  // How many steps may be walked before their tokens are read.
  static constexpr int64_t kMostSteps = 32;
  // From these tokens on, at most one of each slot; the other slots rest. `how` as in run_drawn(),
  // one for each token, without positions.
  void walk_from(std::span<const SlotToken> tokens, std::span<const DrawHow> how = {});
  // Starts `steps` more. Requires: their positions are below context().
  void walk(int64_t steps);
  // Waits; `drawn` receives [steps][slots()], the tokens of the last `steps`, with what is of no
  // meaning for resting slots.
  void walked(int64_t steps, std::vector<int32_t>& drawn);

 private:
  enum class Tail { kLogits, kTokens, kDrawnTokens, kWalk, kDrawnWalk };
  static bool walks(Tail tail) { return tail == Tail::kWalk || tail == Tail::kDrawnWalk; }
  static bool draws(Tail tail) { return tail == Tail::kDrawnTokens || tail == Tail::kDrawnWalk; }
  struct Bucket {
    std::unique_ptr<DecoderPlan> plan;
    ValueId rows = kNone, logits = kNone, tokens = kNone, how = kNone, log = kNone;
    std::unique_ptr<Program> program;
  };
  static DecoderPlanOptions bucket_options(const Backend& backend, ParamSource source,
                                           int64_t slots, int64_t context, int64_t tokens,
                                           Tail tail);
  static Bucket record_bucket(const ModelConfig& config, const ModelWeights& weights,
                              const DecoderPlanOptions& options, Tail tail);
  Bucket& bucket(int64_t tokens, Tail tail);
  // The results of a chunk go behind those in `logits` or `drawn`, as the tail says.
  struct Results {
    Tail tail;
    std::vector<float>* logits = nullptr;
    std::vector<int32_t>* drawn = nullptr;
    std::span<const DrawHow> how = {};
  };
  void run_all(std::span<const SlotToken> tokens, const Results& results,
               std::vector<double>* step_seconds);
  void run_chunk(std::span<const SlotToken> tokens, const Results& results,
                 std::vector<double>* step_seconds);

  Backend& backend_;
  ModelConfig config_;
  ModelWeights& weights_;
  ParamSource source_;
  BufferPtr params_;
  int64_t slots_, context_;
  std::function<bool()> stop_;
  std::vector<BufferPtr> cache_k_, cache_v_;
  BufferPtr rope_, arena_;
  BufferPtr place_, begin_, log_, how_;  // of walking
  Tail walk_ = Tail::kWalk;
  std::vector<std::pair<int32_t, int64_t>> walking_;  // slots, and the position each runs next
  std::map<std::pair<int64_t, Tail>, Bucket> buckets_;
};

}  // namespace wick
