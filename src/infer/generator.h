// SPDX-License-Identifier: Apache-2.0
// TextGenerator: prompts to text. One prompt streamed, or many side by side in the slots of one
// DecoderEngine. What a prompt gets depends on its own tokens, the options and its seed, not on its
// neighbours.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "infer/decoder_engine.h"
#include "infer/sampler.h"
#include "text/tokenizer.h"

namespace wick {

struct DecodeOptions {
  int64_t max_tokens = 100;
  SampleOptions sample;
  std::vector<std::string> stop;     // the text ends before the first of these
  std::vector<int32_t> stop_tokens;  // the text ends before one of these
  // Asked while weights are read and packed and between runs of the model; true stops.
  std::function<bool()> should_stop;
};

struct Decoded {
  std::string text;
  std::vector<int32_t> tokens;  // without the stop token
  int64_t prompt_tokens = 0, reused_tokens = 0;
  double prompt_seconds = 0, generation_seconds = 0, first_token_seconds = 0;
  std::string finish_reason;  // "stop", "length", "cancelled"
};

class TextGenerator {
 public:
  // `params` holds the numbers of `source`, if it has any. All must outlive this.
  TextGenerator(Backend& backend, const ModelConfig& config, ModelWeights& weights,
                const Tokenizer& tokenizer, ParamSource source, BufferPtr params);

  // Of the cache of a sequence of that many tokens.
  static int64_t context_for(const ModelConfig& config, int64_t tokens);

  // Called with each piece of final text; false stops.
  using OnText = std::function<bool(const std::string& piece)>;

  // The cache is kept: a prompt that begins as the last one did costs only its new tokens.
  // Throws: kInvalidArgument for an empty prompt, one that leaves no room in the model's context,
  // or ids outside the vocabulary; kCancelled where it was stopped before the first token.
  Decoded generate(std::span<const int32_t> prompt, const DecodeOptions& options,
                   const OnText& on_text = {});

  // Up to `slots` at a time; `on_done` gets each result with its index as it ends; false stops all,
  // as should_stop does. Throws: kCancelled where that is before a text has ended.
  using OnDone = std::function<bool(size_t index, const Decoded& result)>;
  std::vector<Decoded> generate_many(const std::vector<std::vector<int32_t>>& prompts,
                                     const DecodeOptions& options, int64_t slots,
                                     const OnDone& on_done = {});

 private:
  struct Sequence;
  void check_prompt(std::span<const int32_t> prompt, const DecodeOptions& options,
                    const std::string& where = {}) const;
  void make_engine(int64_t slots, int64_t context, const std::function<bool()>& should_stop);
  // Takes `first` and what greedy decoding draws after it, on the device, to the end of the text.
  void walk(Sequence& sequence, const DecodeOptions& options, int32_t first,
            const std::function<void(const std::string&)>& tell);

  Backend& backend_;
  ModelConfig config_;
  ModelWeights& weights_;
  const Tokenizer& tokenizer_;
  ParamSource source_;
  BufferPtr params_;
  std::unique_ptr<DecoderEngine> engine_;
  std::vector<int32_t> cached_;  // the tokens in slot 0
};

}  // namespace wick
