// SPDX-License-Identifier: Apache-2.0
// From logits to the next token, on the host.
//
// In this order: logit bias; repetition, presence and frequency penalty; top-k; top-p; min-p; XTC;
// temperature. The filters judge the distribution at temperature 1, each that of the tokens that
// the ones before it kept. Temperature 0 is greedy: the largest logit after bias and penalties, the
// lowest id among equals, and no filter (XTC would drop the winner).
//
// A draw is a function of logits, history, seed and position alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "backend/draw.h"

namespace wick {

struct SampleOptions {
  float temperature = 0;         // >= 0
  int top_k = 0;                 // keep the k likeliest; 0: all
  float top_p = 1;               // keep the fewest, likeliest first, that have this mass; in (0, 1]
  float min_p = 0;               // keep those with at least this share of the likeliest; in [0, 1]
  float xtc_probability = 0;     // how often XTC is applied; in [0, 1]
  float xtc_threshold = 0.1f;    // in [0, 0.5]: above it there can be no two tokens
  int min_tokens_to_keep = 1;    // of top-p and min-p; >= 1
  float repetition_penalty = 1;  // > 0; divides positive logits of seen tokens, multiplies others
  float presence_penalty = 0;    // subtracted once from seen tokens
  float frequency_penalty = 0;   // subtracted as often as the token was seen
  // How many of the last tokens count as seen; 0: all of the history.
  int repetition_context = 20, presence_context = 20, frequency_context = 20;
  std::map<int32_t, float> logit_bias = {};  // added; minus infinity bans a token
  uint64_t seed = 0;
  std::vector<int32_t> xtc_special = {};  // ids that XTC spares, e.g. end of text and newline
};

// A token that may still be drawn, and its weight relative to the others.
struct TokenWeight {
  int32_t id = 0;
  float weight = 0;
};

// The filters. Candidates are in order of their ids, before and after; of equal weights the lower
// id counts as likelier. None of them takes the last candidate.
void keep_top_k(std::vector<TokenWeight>& candidates, int k);
void keep_top_p(std::vector<TokenWeight>& candidates, float p, int min_keep);
void keep_min_p(std::vector<TokenWeight>& candidates, float p, int min_keep);
// XTC, "exclude top choices": of the candidates with a probability above the threshold, drops all
// that are likelier than the least of them, `spared` ids excepted.
void drop_top_choices(std::vector<TokenWeight>& candidates, float threshold,
                      std::span<const int32_t> spared);

// Holds scratch memory: one per thread.
class Sampler {
 public:
  // Throws: kInvalidArgument naming the option, what was given and what is wanted.
  Sampler(SampleOptions options, int64_t vocab);

  // The next token after `history` (prompt and all tokens so far). `logits` [vocab] are changed by
  // bias and penalties. NaN counts as minus infinity. `position` tells the draws of one sequence
  // apart. `logprob` receives the token's log-probability after bias and penalties, before filters,
  // at temperature 1. Throws: kInvalidArgument when no logit is a number above minus infinity.
  int32_t sample(std::span<float> logits, std::span<const int32_t> history, int64_t position,
                 float* logprob = nullptr);

  // How the op `sample` draws what sample() does, but for the position; none where it cannot.
  std::optional<DrawHow> draws() const;
  // Throws what sample() does.
  [[noreturn]] static void fail_without_numbers();

  // Bias and penalties alone.
  void process(std::span<float> logits, std::span<const int32_t> history);

  const SampleOptions& options() const { return options_; }

 private:
  uint64_t key() const;
  template <typename F>
  void for_each_seen(std::span<const int32_t> history, int context, F&& f);
  int32_t draw_unfiltered(std::span<const float> logits, float max, int64_t position);
  float least_weight_of_interest(double total);
  void gather(float least);
  int32_t draw_filtered(std::span<const float> logits, float max, int64_t position);

  SampleOptions options_;
  int64_t vocab_;
  bool filters_ = false;
  std::vector<int32_t> counts_;  // all 0 between calls
  std::vector<int32_t> seen_;
  std::vector<float> weights_, maxima_, kept_;
  std::vector<TokenWeight> candidates_;
};

}  // namespace wick
