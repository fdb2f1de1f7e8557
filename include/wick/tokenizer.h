// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, as Hugging Face's `tokenizers` does it for a tokenizer.json, to the
// id. BPE models only: byte-level, or SentencePiece style with byte fallback.
//
// All const methods may be called from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wick/handle.h"

namespace wick {

// [begin, end) is the byte range of the original text, before normalisation, that the token was
// made from. It is a range of whole characters: the tokens of a character that was cut into bytes
// all have that character's range. Spaces that belong to a token are inside its range, whatever
// the file's trim_offsets says. Tokens that the post-processor added have begin == end.
struct Token {
  int32_t id = 0;
  uint32_t begin = 0, end = 0;
};

class Tokenizer {
 public:
  // Reads tokenizer.json, and beside it, where present, tokenizer_config.json,
  // special_tokens_map.json, chat_template.jinja, chat_template.json and
  // additional_chat_templates/tool_use.jinja.
  // Added tokens with ids of `id_limit` or more are left out, as if the files did not have them.
  // Throws: kNotFound without tokenizer.json; kCorruptFile, kUnsupported naming file and key.
  static Tokenizer load(const std::filesystem::path& folder, int64_t id_limit = INT64_MAX);
  // The same from texts. `where` begins the messages about tokenizer_json.
  static Tokenizer from_json(std::string_view tokenizer_json,
                             std::string_view tokenizer_config_json = {},
                             std::string_view where = "tokenizer.json");
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Special and other added tokens that are written in `text` are recognised. `add_special` also
  // adds those of the post-processor (begin and end of text). Bytes that are not UTF-8 are read as
  // U+FFFD. Throws: kInvalidArgument for a text of 4 GiB or more, or one on which an expression of
  // the file takes beyond all measure.
  std::vector<Token> encode(std::string_view text, bool add_special) const;
  std::vector<int32_t> encode_ids(std::string_view text, bool add_special) const;

  // Ids outside the vocabulary are left out. The result is valid UTF-8: U+FFFD stands for bytes
  // that form no character.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  int64_t vocab_size() const;  // 1 + the largest id, added tokens included
  std::optional<int32_t> id_of(std::string_view token) const;
  std::string piece(int32_t id) const;  // as the vocabulary spells it; "" for an unknown id
  const std::vector<std::string>& tokens_beyond() const;  // those that id_limit left out
  std::string bytes_of(int32_t id) const;                 // the bytes it stands for inside a text
  bool is_special(int32_t id) const;

  // The tokens that tokenizer_config.json names, such as bos_token, eos_token and pad_token, and
  // those of special_tokens_map.json, which counts where the config has no added_tokens_decoder: as
  // transformers has them, and what chat templates find under these names.
  const std::map<std::string, std::string>& special_tokens() const;
  // Of these; empty where there is none.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::string bos() const;
  std::string eos() const;

  // The source of the default chat template: chat_template.jinja, else "chat_template" of
  // tokenizer_config.json, else of chat_template.json; "" if there is none. Conversations that
  // offer tools have one of their own in some models: the one named tool_use of
  // tokenizer_config.json, or additional_chat_templates/tool_use.jinja.
  const std::string& chat_template_source(bool with_tools = false) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  Handle<const Impl> impl_;
};

// Decodes one id at a time. push() returns text that later ids cannot change: never a part of a
// UTF-8 character. All pushes and finish(), joined, are decode() of all ids. Not for several
// threads.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  std::string push(int32_t id);
  // The held-back rest; the decoder is then as new.
  std::string finish();

 private:
  struct State;
  Handle<State> state_;
};

}  // namespace wick
