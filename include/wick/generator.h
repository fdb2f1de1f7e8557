// SPDX-License-Identifier: Apache-2.0
// Generator: prompts to text, streamed, with the model's attached adapter.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "wick/model.h"

namespace wick {

struct GenerateOptions {
  int64_t max_tokens = 100;
  double temperature = 0.0;  // 0: greedy
  int64_t top_k = 0;
  double top_p = 1.0, min_p = 0.0;
  double xtc_probability = 0.0, xtc_threshold = 0.1;
  int64_t min_tokens_to_keep = 1;
  double repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  int64_t repetition_context = 20, presence_context = 20, frequency_context = 20;
  std::map<int32_t, double> logit_bias = {};
  std::vector<std::string> stop = {};
  std::vector<std::string> extra_eos_tokens = {};
  bool ignore_eos = false;
  uint64_t seed = 0;
  // Asked while weights are read and packed and between runs of the model: true ends the text as
  // `cancelled`, or, before its first token, throws kCancelled. Of many texts those that have ended
  // stay; where there is none, it throws.
  std::function<bool()> should_stop = {};
};

struct Generation {
  std::string text;
  std::vector<int32_t> tokens;
  int64_t prompt_tokens = 0, generated_tokens = 0;
  double prompt_tps = 0, generation_tps = 0, first_token_ms = 0;
  std::string finish_reason;  // stop, length, cancelled; "" of many texts for one not ended
};

class Generator {
 public:
  // Keeps a KV cache between calls, so that a conversation costs only its new tokens. A change of
  // the model's adapter is noticed at the next call. A callback may use another Generator of the
  // model; this one is refused there.
  explicit Generator(Model& model);
  ~Generator();
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;

  using OnText = std::function<bool(const std::string& piece)>;  // false stops

  // `prompt` is one user message where the model has a chat template, else plain text.
  Generation generate(const std::string& prompt, const GenerateOptions& options = {},
                      const OnText& on_text = {});
  Generation chat(const std::vector<Message>& messages, const GenerateOptions& options = {},
                  const OnText& on_text = {}, const ChatOptions& chat = {});
  // `text` as it is, with the tokenizer's special tokens unless it was rendered by a template.
  Generation complete(const std::string& text, const GenerateOptions& options = {},
                      const OnText& on_text = {}, bool add_special = true);

  // Many rendered or plain texts side by side; results in order. `on_done` gets each as it ends;
  // false stops all, and those that have not ended stay empty.
  using OnDone = std::function<bool(size_t index, const Generation& result)>;
  std::vector<Generation> complete_many(const std::vector<std::string>& texts,
                                        const GenerateOptions& options = {},
                                        bool add_special = true, const OnDone& on_done = {});

  // Tokens of a text, as complete() counts them.
  int64_t count_tokens(const std::string& text, bool add_special) const;

 private:
  struct Impl;
  class Use;
  Handle<Impl> impl_;
};

}  // namespace wick
