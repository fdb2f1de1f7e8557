// SPDX-License-Identifier: Apache-2.0
// The parts of a Tokenizer, shared by its loading and its use.
#pragma once

#include <optional>
#include <string>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace wick {

struct Tokenizer::Impl {
  // `where` names the file in messages; empty JSON (null) for a config that is not there.
  Impl(const Json& tokenizer, const Json& config, const Json& special_map,
       const std::string& where);

  const std::string* piece(int32_t id) const;    // nullptr: no such id
  const std::string* decoded(int32_t id) const;  // what the decoder gets for it
  std::optional<int32_t> id_of(std::string_view token) const;
  bool is_special(int32_t id) const;
  // Calls emit(id, source) for each token of the text, without the post-processor's.
  template <typename Emit>
  void encode(std::string_view text, Emit emit) const;

  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
  AddedTokens added;
  int64_t vocab_size = 0;
  std::string bos, eos, pad;  // "" where there is none
  std::string chat_template, tool_template;  // "" where there is none
};

}  // namespace wick
