// SPDX-License-Identifier: Apache-2.0
#include "text/aligned_text.h"

#include "base/check.h"
#include "text/unicode.h"

namespace wick {

AlignedText::AlignedText(std::string_view original)
    // The longest normal form of a character is 18 times as long; nothing real needs more than 64.
    : limit_(original.size() * 64 + (size_t{1} << 20)) {
  if (unicode::is_valid(original)) {
    text_ = original;
    return;
  }
  identity_ = false;
  for (size_t at = 0; at < original.size();) {
    std::string_view rest = original.substr(at);
    unicode::Utf8Char c = unicode::first_char(rest);
    bool valid = c.status == unicode::Utf8Status::kValid;
    put(valid ? rest.substr(0, c.length) : unicode::kReplacement,
        {static_cast<uint32_t>(at), static_cast<uint32_t>(at + c.length)});
    at += c.length;
  }
}

Source AlignedText::source_of(Range r) const {
  if (!identity_) return {sources_[r.begin].begin, sources_[r.end - 1].end};
  while (r.begin > 0 && unicode::is_continuation(text_[r.begin])) --r.begin;
  while (r.end < text_.size() && unicode::is_continuation(text_[r.end])) ++r.end;
  return {base_ + static_cast<uint32_t>(r.begin), base_ + static_cast<uint32_t>(r.end)};
}

AlignedText AlignedText::slice(Range r) const {
  AlignedText out;
  out.text_ = slice_text(r);
  if (!identity_) out.sources_.assign(sources_.begin() + r.begin, sources_.begin() + r.end);
  out.base_ = base_ + static_cast<uint32_t>(identity_ ? r.begin : 0);
  out.identity_ = identity_;
  out.limit_ = limit_;
  return out;
}

AlignedText AlignedText::rewritten() const {
  AlignedText out;
  out.identity_ = false;
  out.limit_ = limit_;
  out.text_.reserve(text_.size() + text_.size() / 4);
  out.sources_.reserve(text_.size() + text_.size() / 4);
  return out;
}

void AlignedText::keep(const AlignedText& from, Range r) {
  if (r.size() == 0) return;
  text_ += from.slice_text(r);
  if (!from.identity_) {
    sources_.insert(sources_.end(), from.sources_.begin() + r.begin, from.sources_.begin() + r.end);
    return;
  }
  Source* out = &*sources_.insert(sources_.end(), r.size(), Source{});
  for (size_t at = r.begin; at < r.end;) {
    size_t end = at + 1;
    while (end < r.end && unicode::is_continuation(from.text_[end])) ++end;
    Source source{from.base_ + static_cast<uint32_t>(at), from.base_ + static_cast<uint32_t>(end)};
    for (; at < end; ++at) *out++ = source;
  }
}

void AlignedText::put(std::string_view replacement, Source source) {
  if (text_.size() + replacement.size() > limit_)
    fail(ErrorCode::kInvalidArgument,
         "the tokenizer's normalizer or pre-tokenizer makes a text more than 64 times as long; "
         "is its tokenizer.json damaged?");
  text_ += replacement;
  sources_.insert(sources_.end(), replacement.size(), source);
}

}  // namespace wick
