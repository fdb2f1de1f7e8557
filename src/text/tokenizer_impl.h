// SPDX-License-Identifier: Apache-2.0
// The parts of a Tokenizer, shared by its loading and its use.
#pragma once

#include <map>
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
  Impl(const Json& tokenizer, const Json& config, const std::string& where,
       int64_t id_limit = INT64_MAX);

  const std::string* piece(int32_t id) const;    // nullptr: no such id
  const std::string* decoded(int32_t id) const;  // what the decoder gets for it
  std::optional<int32_t> id_of(std::string_view token) const;
  std::string named(const std::string& name) const;  // "bos_token" → "<s>"; "" where there is none
  bool is_special(int32_t id) const;
  // Calls emit(id, source) for each token of the text, without the post-processor's.
  template <typename Emit>
  void encode(std::string_view text, Emit emit) const;

  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
  std::vector<std::string> beyond;  // contents of added tokens that id_limit leaves out
  AddedTokens added;
  std::map<std::string, std::string> special_tokens;  // by name: bos_token, …
  int64_t vocab_size = 0;
  std::string chat_template, tool_template;  // "" where there is none
};

}  // namespace wick
