// SPDX-License-Identifier: Apache-2.0
#include "text/normalizer.h"

#include <utility>

#include "text/component.h"

namespace wick {

Normalizer::Normalizer(const Json& json, const std::string& where) { add(json, where, 0); }

void Normalizer::add(const Json& json, const std::string& where, int depth) {
  check_component_depth(depth, where);
  std::string type = get_string(json, "type", where);
  if (type == "Sequence") {
    const Json& items = sequence_items(json, "normalizers", where);
    for (size_t i = 0; i < items.size(); ++i)
      add(items[i], item_path(where, "normalizers", i), depth + 1);
  } else if (type == "NFC") {
    steps_.push_back(unicode::Form::kNfc);
  } else if (type == "NFD") {
    steps_.push_back(unicode::Form::kNfd);
  } else if (type == "NFKC") {
    steps_.push_back(unicode::Form::kNfkc);
  } else if (type == "NFKD") {
    steps_.push_back(unicode::Form::kNfkd);
  } else if (type == "Lowercase") {
    steps_.push_back(Lowercase{});
  } else if (type == "StripAccents") {
    steps_.push_back(StripAccents{});
  } else if (type == "ByteLevel") {
    steps_.push_back(ByteLevel{});
  } else if (type == "Strip") {
    steps_.push_back(Strip{get_bool(json, "strip_left", where, true),
                           get_bool(json, "strip_right", where, true)});
  } else if (type == "Prepend") {
    steps_.push_back(Prepend{get_string(json, "prepend", where)});
  } else if (type == "Replace") {
    const Json* pattern = find_member(json, "pattern");
    steps_.push_back(Replace{Pattern(pattern ? *pattern : Json(), where + ".pattern"),
                             get_string(json, "content", where)});
  } else {
    unsupported_component(where, type,
                          "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, "
                          "ByteLevel and Sequence");
  }
}

AlignedText Normalizer::apply(AlignedText text) const {
  for (const Step& step : steps_)
    text = std::visit([&](const auto& s) { return run(text, s); }, step);
  return text;
}

AlignedText Normalizer::run(const AlignedText& text, unicode::Form form) {
  // Below U+0300 nothing changes under NFC, and nothing combines with what stands before.
  uint32_t safe_below = form == unicode::Form::kNfc ? 0x300 : 0x80;
  std::string_view in = text.text();
  if (unicode::is_ascii(in)) return text;
  AlignedText out = text.rewritten();
  for (size_t at = 0; at < in.size();) {
    size_t begin = at;
    bool plain = unicode::next_char(in, at) < safe_below;
    while (at < in.size()) {
      size_t next = at;
      uint32_t code = unicode::next_char(in, next);
      if (code < safe_below || !unicode::joins_previous(code, form)) break;
      plain = false;
      at = next;
    }
    Range range{begin, at};
    if (plain) {
      out.keep(text, range);
      continue;
    }
    std::string normal = unicode::normal_form(text.slice_text(range), form);
    if (normal == text.slice_text(range))
      out.keep(text, range);
    else
      out.put(normal, text.source_of(range));
  }
  return out;
}

namespace {

// Calls each(code, range) for every character.
template <typename Each>
void for_each_char(std::string_view text, Each each) {
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    uint32_t code = unicode::next_char(text, at);
    each(code, Range{begin, at});
  }
}

}  // namespace

AlignedText Normalizer::run(const AlignedText& text, Lowercase) {
  AlignedText out = text.rewritten();
  std::string lower;
  for_each_char(text.text(), [&](uint32_t code, Range range) {
    lower.clear();
    unicode::append_lower(lower, code);
    out.put(lower, text.source_of(range));
  });
  return out;
}

AlignedText Normalizer::run(const AlignedText& text, StripAccents) {
  AlignedText out = text.rewritten();
  for_each_char(text.text(), [&](uint32_t code, Range range) {
    if (!unicode::is_mark(code)) out.keep(text, range);
  });
  return out;
}

AlignedText Normalizer::run(const AlignedText& text, ByteLevel) { return byte_level_text(text); }

AlignedText Normalizer::run(const AlignedText& text, Strip strip) {
  std::string_view in = text.text();
  Range kept{0, in.size()};
  while (strip.left && kept.begin < kept.end) {
    size_t next = kept.begin;
    if (!unicode::is_white_space(unicode::next_char(in, next))) break;
    kept.begin = next;
  }
  while (strip.right && kept.begin < kept.end) {
    size_t before = kept.end;
    if (!unicode::is_white_space(unicode::previous_char(in, before))) break;
    kept.end = before;
  }
  return text.slice(kept);
}

AlignedText Normalizer::run(const AlignedText& text, const Prepend& prepend) {
  std::string_view in = text.text();
  if (in.empty()) return text;
  size_t first = 0;
  unicode::next_char(in, first);
  AlignedText out = text.rewritten();
  out.put(prepend.text, text.source_of({0, first}));
  out.keep(text, {0, in.size()});
  return out;
}

AlignedText Normalizer::run(const AlignedText& text, const Replace& replace) {
  std::vector<Range> matches = replace.pattern.matches(text.text());
  if (matches.empty()) return text;
  AlignedText out = text.rewritten();
  size_t done = 0;
  for (Range m : matches) {
    out.keep(text, {done, m.begin});
    Source source;
    if (m.size() > 0) {
      source = text.source_of(m);
    } else if (m.begin > 0) {
      source = text.source_of({m.begin - 1, m.begin});
    }
    out.put(replace.content, source);
    done = m.end;
  }
  out.keep(text, {done, text.text().size()});
  return out;
}

AlignedText byte_level_text(const AlignedText& text) {
  AlignedText out = text.rewritten();
  std::string_view in = text.text();
  for (size_t i = 0; i < in.size(); ++i)
    out.put(unicode::encode(unicode::byte_to_char(static_cast<uint8_t>(in[i]))),
            text.source_of({i, i + 1}));
  return out;
}

}  // namespace wick
