// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <limits>
#include <utility>

#include "base/check.h"
#include "text/tokenizer_impl.h"

namespace wick {

const std::string* Tokenizer::Impl::piece(int32_t id) const {
  if (const AddedToken* token = added.find(id)) return &token->content;
  return model.piece(id);
}

const std::string* Tokenizer::Impl::decoded(int32_t id) const {
  if (const AddedToken* token = added.find(id)) return &token->form;
  return model.piece(id);
}

std::optional<int32_t> Tokenizer::Impl::id_of(std::string_view token) const {
  if (const AddedToken* found = added.find(token)) return found->id;
  return model.find(token);
}

std::string Tokenizer::Impl::named(const std::string& name) const {
  auto found = special_tokens.find(name);
  return found == special_tokens.end() ? std::string() : found->second;
}

bool Tokenizer::Impl::is_special(int32_t id) const {
  const AddedToken* token = added.find(id);
  return token && token->special;
}

template <typename Emit>
void Tokenizer::Impl::encode(std::string_view text, Emit emit) const {
  if (text.size() >= std::numeric_limits<uint32_t>::max())
    fail(ErrorCode::kInvalidArgument, "a text of ", text.size(),
         " bytes to tokenize; the limit is 4 GiB: cut it");
  WordCache plain(model, /*byte_level=*/false), byte_level(model, /*byte_level=*/true);

  auto encode_words = [&](AlignedText part) {
    Words words = pre_tokenizer.apply(std::move(part));
    WordCache& cache = words.byte_level ? byte_level : plain;
    for (Range word : words.ranges) {
      size_t at = word.begin;
      for (WordPart token : cache.encode(words.text.slice_text(word))) {
        Range range{at, at + token.length};
        at = range.end;
        // A token of no length has nothing of its own; the byte it follows stands for it.
        if (range.size() == 0) range.begin = at > word.begin ? at - 1 : at;
        if (range.size() == 0) range.end = at + 1;
        emit(token.id, words.text.source_of(range));
      }
    }
  };

  AlignedText whole(text);
  for (const AddedTokens::Part& outer : added.split(whole.text(), /*normalized=*/false)) {
    if (outer.token) {
      emit(outer.token->id, whole.source_of(outer.range));
      continue;
    }
    bool all = outer.range.size() == whole.text().size();
    AlignedText part = normalizer.apply(all ? std::move(whole) : whole.slice(outer.range));
    for (const AddedTokens::Part& inner : added.split(part.text(), /*normalized=*/true)) {
      if (inner.token)
        emit(inner.token->id, part.source_of(inner.range));
      else if (inner.range.size() == part.text().size())
        encode_words(std::move(part));
      else
        encode_words(part.slice(inner.range));
    }
  }
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<Token> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<Token> out;
  out.reserve(text.size() / 4 + 4);
  if (add_special)
    for (int32_t id : impl_->post_processor.before()) out.push_back({id, 0, 0});
  impl_->encode(text, [&](int32_t id, Source s) { out.push_back({id, s.begin, s.end}); });
  auto end = static_cast<uint32_t>(text.size());
  if (add_special)
    for (int32_t id : impl_->post_processor.after()) out.push_back({id, end, end});
  return out;
}

std::vector<int32_t> Tokenizer::encode_ids(std::string_view text, bool add_special) const {
  std::vector<Token> tokens = encode(text, add_special);
  std::vector<int32_t> out;
  out.reserve(tokens.size());
  for (const Token& token : tokens) out.push_back(token.id);
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  StreamDecoder stream(*this, skip_special);
  std::string out;
  for (int32_t id : ids) out += stream.push(id);
  out += stream.finish();
  return out;
}

int64_t Tokenizer::vocab_size() const { return impl_->vocab_size; }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  return impl_->id_of(token);
}

std::string Tokenizer::piece(int32_t id) const {
  const std::string* piece = impl_->piece(id);
  return piece ? *piece : std::string();
}

const std::vector<std::string>& Tokenizer::tokens_beyond() const { return impl_->beyond; }

std::string Tokenizer::bytes_of(int32_t id) const {
  const std::string* piece = impl_->decoded(id);
  return piece ? impl_->decoder.bytes_of(*piece) : std::string();
}

bool Tokenizer::is_special(int32_t id) const { return impl_->is_special(id); }

std::optional<int32_t> Tokenizer::bos_id() const { return impl_->id_of(bos()); }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->id_of(eos()); }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->id_of(impl_->named("pad_token")); }
std::string Tokenizer::bos() const { return impl_->named("bos_token"); }
std::string Tokenizer::eos() const { return impl_->named("eos_token"); }
const std::map<std::string, std::string>& Tokenizer::special_tokens() const {
  return impl_->special_tokens;
}
const std::string& Tokenizer::chat_template_source(bool with_tools) const {
  const bool own = with_tools && !impl_->tool_template.empty();
  return own ? impl_->tool_template : impl_->chat_template;
}

struct StreamDecoder::State {
  std::shared_ptr<const Tokenizer::Impl> tokenizer;
  bool skip_special;
  Decoder::State decoder;
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(std::make_unique<State>(
          State{tokenizer.impl_.share(), skip_special, tokenizer.impl_->decoder.start()})) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int32_t id) {
  std::string out;
  const std::string* piece = state_->tokenizer->decoded(id);
  if (!piece || (state_->skip_special && state_->tokenizer->is_special(id))) return out;
  state_->tokenizer->decoder.push(state_->decoder, *piece, out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  state_->tokenizer->decoder.finish(state_->decoder, out);
  return out;
}

}  // namespace wick
