// SPDX-License-Identifier: Apache-2.0
#include "text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/component.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace wick {

namespace {

// GPT-2's expression, which ByteLevel means by use_regex.
constexpr std::string_view kByteLevelSplit =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// Maximal runs of the characters for which is(code), or each one alone.
template <typename Is>
std::vector<Range> char_matches(std::string_view text, Is is, bool runs) {
  std::vector<Range> out;
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    if (!is(unicode::next_char(text, at))) continue;
    if (runs && !out.empty() && out.back().end == begin)
      out.back().end = at;
    else
      out.push_back({begin, at});
  }
  return out;
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& json, const std::string& where) { add(json, where, 0); }

PreTokenizer::Behavior PreTokenizer::read_behavior(const Json& json, const std::string& where,
                                                   std::optional<std::string> fallback) {
  std::string name = get_string(json, "behavior", where, std::move(fallback));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  fail(ErrorCode::kUnsupported, where, ".behavior is \"", name,
       "\"; wick knows Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
}

PreTokenizer::Metaspace PreTokenizer::read_metaspace(const Json& json, const std::string& where) {
  Metaspace out;
  out.mark = get_string(json, "replacement", where);
  if (!unicode::is_single_char(out.mark))
    fail(ErrorCode::kCorruptFile, where, ".replacement is \"", out.mark,
         "\", expected one character");
  out.split = get_bool(json, "split", where, true);
  // Files from before prepend_scheme have only add_prefix_space.
  bool prefix = get_bool(json, "add_prefix_space", where, true);
  std::string scheme = get_string(json, "prepend_scheme", where, prefix ? "always" : "never");
  if (scheme == "first") {
    out.prepend = Prepend::kFirst;
  } else if (scheme == "never") {
    out.prepend = Prepend::kNever;
  } else if (scheme == "always") {
    out.prepend = Prepend::kAlways;
  } else {
    fail(ErrorCode::kUnsupported, where, ".prepend_scheme is \"", scheme,
         "\"; wick knows first, never and always");
  }
  if (!prefix && out.prepend != Prepend::kNever)
    fail(ErrorCode::kCorruptFile, where, ": add_prefix_space is false but prepend_scheme is \"",
         scheme, "\"");
  return out;
}

void PreTokenizer::add(const Json& json, const std::string& where, int depth) {
  check_component_depth(depth, where);
  std::string type = get_string(json, "type", where);
  if (type == "Sequence") {
    const Json& items = sequence_items(json, "pretokenizers", where);
    for (size_t i = 0; i < items.size(); ++i)
      add(items[i], item_path(where, "pretokenizers", i), depth + 1);
  } else if (type == "ByteLevel") {
    ByteLevel step{get_bool(json, "add_prefix_space", where, true), {}};
    if (get_bool(json, "use_regex", where, true)) step.split.emplace(kByteLevelSplit, where);
    steps_.push_back(std::move(step));
  } else if (type == "Split") {
    const Json* pattern = find_member(json, "pattern");
    steps_.push_back(Split{Pattern(pattern ? *pattern : Json(), where + ".pattern"),
                           read_behavior(json, where, {}), get_bool(json, "invert", where, false)});
  } else if (type == "Digits") {
    steps_.push_back(Digits{get_bool(json, "individual_digits", where, false)});
  } else if (type == "Whitespace") {
    steps_.push_back(Whitespace{});
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(WhitespaceSplit{});
  } else if (type == "Punctuation") {
    steps_.push_back(Punctuation{read_behavior(json, where, "Isolated")});
  } else if (type == "Metaspace") {
    steps_.push_back(read_metaspace(json, where));
  } else {
    unsupported_component(where, type,
                          "ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, "
                          "Metaspace and Sequence");
  }
}

namespace {

// Writes the visible characters out, for a step that follows ByteLevel and cuts them.
void write_byte_level(Words& words) {
  Words out;
  out.text = words.text.rewritten();
  for (Range r : words.ranges) {
    size_t begin = out.text.text().size();
    AlignedText visible = byte_level_text(words.text.slice(r));
    out.text.keep(visible, {0, visible.text().size()});
    out.ranges.push_back({begin, out.text.text().size()});
  }
  words = std::move(out);
}

}  // namespace

Words PreTokenizer::apply(AlignedText text) const {
  Words words;
  words.text = std::move(text);
  if (size_t size = words.text.text().size()) words.ranges.push_back({0, size});
  for (const Step& step : steps_) {
    if (words.byte_level) write_byte_level(words);
    std::visit([&](const auto& s) { run(words, s); }, step);
  }
  return words;
}

template <typename FindMatches>
void PreTokenizer::cut(Words& words, FindMatches find_matches, Behavior behavior, bool invert) {
  struct Part {
    Range range;
    bool is_match;
  };
  std::vector<Range> out;
  out.reserve(words.ranges.size());
  std::vector<Part> parts;
  for (Range word : words.ranges) {
    std::string_view text = words.text.slice_text(word);
    parts.clear();
    size_t done = 0;
    for (Range m : find_matches(text)) {
      if (m.begin > done) parts.push_back({{done, m.begin}, invert});
      parts.push_back({m, !invert});
      done = m.end;
    }
    if (done < text.size()) parts.push_back({{done, text.size()}, invert});

    size_t first = out.size();
    bool previous = false;
    switch (behavior) {
      case Behavior::kIsolated:
        for (const Part& p : parts) out.push_back(p.range);
        break;
      case Behavior::kRemoved:
        for (const Part& p : parts)
          if (!p.is_match) out.push_back(p.range);
        break;
      case Behavior::kContiguous:
        for (const Part& p : parts) {
          if (p.is_match == previous && out.size() > first)
            out.back().end = p.range.end;
          else
            out.push_back(p.range);
          previous = p.is_match;
        }
        break;
      case Behavior::kMergedWithPrevious:
        for (const Part& p : parts) {
          if (p.is_match && !previous && out.size() > first)
            out.back().end = p.range.end;
          else
            out.push_back(p.range);
          previous = p.is_match;
        }
        break;
      case Behavior::kMergedWithNext:
        for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
          if (p->is_match && !previous && out.size() > first)
            out.back().begin = p->range.begin;
          else
            out.push_back(p->range);
          previous = p->is_match;
        }
        std::reverse(out.begin() + first, out.end());
        break;
    }
    size_t kept = first;
    for (size_t i = first; i < out.size(); ++i)
      if (out[i].size() > 0) out[kept++] = {out[i].begin + word.begin, out[i].end + word.begin};
    out.resize(kept);
  }
  words.ranges = std::move(out);
}

void PreTokenizer::run(Words& words, const ByteLevel& step) {
  auto needs_space = [&](Range r) { return words.text.text()[r.begin] != ' '; };
  if (step.add_prefix_space && std::any_of(words.ranges.begin(), words.ranges.end(), needs_space)) {
    Words out;
    out.text = words.text.rewritten();
    for (Range r : words.ranges) {
      size_t begin = out.text.text().size();
      if (needs_space(r)) out.text.put(" ", words.text.source_of({r.begin, r.begin + 1}));
      out.text.keep(words.text, r);
      out.ranges.push_back({begin, out.text.text().size()});
    }
    words = std::move(out);
  }
  if (step.split) {
    auto find = [&](std::string_view text) {
      std::vector<Range> matches;
      Regex::Search search(*step.split, text);
      // The expression matches at every character and never nothing.
      for (size_t from = 0; from < text.size(); from = matches.back().end) {
        std::optional<Range> m = search.find(from);
        if (!m || m->size() == 0) break;
        matches.push_back(*m);
      }
      return matches;
    };
    cut(words, find, Behavior::kIsolated);
  }
  words.byte_level = true;
}

void PreTokenizer::run(Words& words, const Split& step) {
  cut(
      words, [&](std::string_view text) { return step.pattern.matches(text); }, step.behavior,
      step.invert);
}

void PreTokenizer::run(Words& words, Digits step) {
  cut(
      words,
      [&](std::string_view text) {
        return char_matches(text, unicode::is_number, !step.individual);
      },
      Behavior::kIsolated);
}

void PreTokenizer::run(Words& words, Whitespace) {
  // \w+|[^\w\s]+: runs of one kind are words.
  auto find = [](std::string_view text) {
    std::vector<Range> out;
    int last_kind = 0;
    for (size_t at = 0; at < text.size();) {
      size_t begin = at;
      uint32_t code = unicode::next_char(text, at);
      int kind = unicode::is_word(code) ? 1 : unicode::is_white_space(code) ? 0 : 2;
      if (kind != 0 && kind == last_kind)
        out.back().end = at;
      else if (kind != 0)
        out.push_back({begin, at});
      last_kind = kind;
    }
    return out;
  };
  cut(words, find, Behavior::kRemoved, /*invert=*/true);
}

void PreTokenizer::run(Words& words, WhitespaceSplit) {
  cut(
      words,
      [](std::string_view text) { return char_matches(text, unicode::is_white_space, true); },
      Behavior::kRemoved);
}

void PreTokenizer::run(Words& words, Punctuation step) {
  cut(
      words,
      [](std::string_view text) { return char_matches(text, unicode::is_punctuation, false); },
      step.behavior);
}

void PreTokenizer::run(Words& words, const Metaspace& step) {
  Words out;
  out.text = words.text.rewritten();
  for (Range r : words.ranges) {
    size_t begin = out.text.text().size();
    std::string_view text = words.text.slice_text(r);
    bool marked = text[0] == ' ' || text.starts_with(step.mark);
    size_t first_length = unicode::first_char(text).length;
    Source first = words.text.source_of({r.begin, r.begin + first_length});
    if (!marked &&
        (step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && first.begin == 0)))
      out.text.put(step.mark, first);
    for (size_t at = 0; at < text.size();) {
      size_t space = std::min(text.find(' ', at), text.size());
      out.text.keep(words.text, {r.begin + at, r.begin + space});
      if (space < text.size())
        out.text.put(step.mark, words.text.source_of({r.begin + space, r.begin + space + 1}));
      at = space + 1;
    }
    out.ranges.push_back({begin, out.text.text().size()});
  }
  words = std::move(out);
  if (!step.split) return;
  auto find = [&](std::string_view text) {
    std::vector<Range> marks;
    for (size_t at = text.find(step.mark); at != std::string_view::npos;
         at = text.find(step.mark, at + step.mark.size()))
      marks.push_back({at, at + step.mark.size()});
    return marks;
  };
  cut(words, find, Behavior::kMergedWithNext);
}

}  // namespace wick
