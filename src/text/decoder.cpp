// SPDX-License-Identifier: Apache-2.0
#include "text/decoder.h"

#include <algorithm>
#include <utility>

#include "text/component.h"
#include "text/unicode.h"

namespace wick {

namespace {

// The byte of "<0x0A>", or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                       : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Visible characters to bytes; a token with any other character stands for itself.
std::string visible_to_bytes(std::string_view token) {
  std::string out;
  for (size_t at = 0; at < token.size();) {
    int byte = unicode::char_to_byte(unicode::next_char(token, at));
    if (byte < 0) return std::string(token);
    out.push_back(static_cast<char>(byte));
  }
  return out;
}

std::string strip(std::string_view text, std::string_view what, size_t start, size_t stop) {
  for (; start > 0 && text.starts_with(what); --start) text.remove_prefix(what.size());
  for (; stop > 0 && text.ends_with(what); --stop) text.remove_suffix(what.size());
  return std::string(text);
}

std::string marks_to_spaces(std::string_view text, std::string_view mark, bool drop) {
  std::string out;
  while (!text.empty()) {
    if (text.starts_with(mark)) {
      if (!drop) out += ' ';
      text.remove_prefix(mark.size());
    } else {
      out += text[0];
      text.remove_prefix(1);
    }
  }
  return out;
}

// How many bytes at the end of `text` may be the beginning of `what`.
size_t begun_at_end(std::string_view text, std::string_view what) {
  size_t length = std::min(text.size(), what.size() - 1);
  while (length > 0 && !what.starts_with(text.substr(text.size() - length))) --length;
  return length;
}

}  // namespace

Decoder::Decoder() { stages_.push_back({Kind::kJoin, " "}); }

Decoder::Decoder(const Json& json, const std::string& where) {
  add(json, where, 0);
  bool joined = false;
  for (Stage& stage : stages_) {
    stage.joined = joined;
    joined = joined || stage.kind == Kind::kFuse || stage.kind == Kind::kByteLevel;
  }
}

void Decoder::add(const Json& json, const std::string& where, int depth) {
  check_component_depth(depth, where);
  std::string type = get_string(json, "type", where);
  auto one_char = [&](const char* key) {
    std::string text = get_string(json, key, where);
    if (!unicode::is_single_char(text))
      fail(ErrorCode::kCorruptFile, where, ".", key, " is \"", text, "\", expected one character");
    return text;
  };
  if (type == "Sequence") {
    const Json& items = sequence_items(json, "decoders", where);
    for (size_t i = 0; i < items.size(); ++i)
      add(items[i], item_path(where, "decoders", i), depth + 1);
  } else if (type == "ByteLevel") {
    stages_.push_back({Kind::kByteLevel, ""});
  } else if (type == "ByteFallback") {
    stages_.push_back({Kind::kByteFallback, ""});
  } else if (type == "Fuse") {
    stages_.push_back({Kind::kFuse, ""});
  } else if (type == "Strip") {
    Stage stage{Kind::kStrip, one_char("content")};
    constexpr IntRange kCount{0, 1 << 20};
    stage.start = static_cast<size_t>(get_int(json, "start", where, {}, kCount));
    stage.stop = static_cast<size_t>(get_int(json, "stop", where, {}, kCount));
    stages_.push_back(std::move(stage));
  } else if (type == "Replace") {
    Stage stage{Kind::kReplace, get_string(json, "content", where)};
    const Json* pattern = find_member(json, "pattern");
    stage.pattern.emplace(pattern ? *pattern : Json(), where + ".pattern");
    stages_.push_back(std::move(stage));
  } else if (type == "Metaspace") {
    Stage stage{Kind::kMetaspace, one_char("replacement")};
    bool prefix = get_bool(json, "add_prefix_space", where, true);
    stage.drop_first =
        get_string(json, "prepend_scheme", where, prefix ? "always" : "never") != "never";
    stages_.push_back(std::move(stage));
  } else {
    unsupported_component(where, type,
                          "ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace and Sequence");
  }
}

Decoder::State Decoder::start() const {
  State state;
  state.stages.resize(stages_.size());
  return state;
}

void Decoder::push(State& state, std::string_view token, std::string& out) const {
  state.taken += token.size();
  feed(0, state, std::string(token), out);
}

std::string Decoder::replace(const Stage& stage, State& state, std::string_view text) const {
  // Stages that each make a text longer would make it endless.
  size_t limit = state.taken * 64 + (size_t{1} << 20);
  std::string out = stage.pattern->replaced(text, stage.text, limit - std::min(limit, state.grown));
  state.grown += out.size();
  return out;
}

void Decoder::finish(State& state, std::string& out) const {
  for (size_t i = 0; i < stages_.size(); ++i) flush(i, state, out);
  state = start();
}

void Decoder::feed(size_t index, State& state, std::string text, std::string& out) const {
  if (index == stages_.size()) {
    out += text;
    return;
  }
  const Stage& stage = stages_[index];
  if (stage.joined) return feed_joined(index, state, std::move(text), out);
  State::Stage& memory = state.stages[index];
  auto pass = [&](std::string result) { feed(index + 1, state, std::move(result), out); };
  switch (stage.kind) {
    case Kind::kJoin:
      return pass(memory.count++ ? stage.text + text : std::move(text));
    case Kind::kByteLevel: {
      memory.held += visible_to_bytes(text);
      std::string decided;
      unicode::take_lossy(memory.held, /*last=*/false, decided);
      return pass(std::move(decided));
    }
    case Kind::kByteFallback:
      // Whether a run of bytes is text is known at its end only.
      if (int byte = fallback_byte(text); byte >= 0) {
        memory.held.push_back(static_cast<char>(byte));
        return;
      }
      flush_bytes(index, state, out);
      return pass(std::move(text));
    case Kind::kFuse:
      return pass(std::move(text));
    case Kind::kStrip:
      return pass(strip(text, stage.text, stage.start, stage.stop));
    case Kind::kReplace:
      return pass(replace(stage, state, text));
    case Kind::kMetaspace:
      return pass(marks_to_spaces(text, stage.text, stage.drop_first && memory.count++ == 0));
  }
}

void Decoder::feed_joined(size_t index, State& state, std::string text, std::string& out) const {
  const Stage& stage = stages_[index];
  State::Stage& memory = state.stages[index];
  auto pass = [&](std::string result) { feed(index + 1, state, std::move(result), out); };
  switch (stage.kind) {
    case Kind::kStrip: {
      memory.held += text;
      std::string_view rest = memory.held;
      while (memory.count < stage.start && rest.starts_with(stage.text)) {
        rest.remove_prefix(stage.text.size());
        ++memory.count;
      }
      if (rest.empty()) {
        memory.held.clear();
        return;
      }
      memory.count = stage.start;
      size_t keep = 0;  // what stands at the end may be stripped there
      while (keep < stage.stop &&
             rest.substr(0, rest.size() - keep * stage.text.size()).ends_with(stage.text))
        ++keep;
      size_t ready = rest.size() - keep * stage.text.size();
      std::string decided(rest.substr(0, ready));
      memory.held = std::string(rest.substr(ready));
      return pass(std::move(decided));
    }
    case Kind::kReplace: {
      memory.held += text;
      std::optional<std::string_view> literal = stage.pattern->literal();
      if (!literal || literal->empty()) return;  // decided at the end only
      std::vector<Range> matches = stage.pattern->matches(memory.held);
      size_t done = matches.empty() ? 0 : matches.back().end;
      size_t ready =
          memory.held.size() - begun_at_end(std::string_view(memory.held).substr(done), *literal);
      std::string decided = replace(stage, state, std::string_view(memory.held).substr(0, ready));
      memory.held.erase(0, ready);
      return pass(std::move(decided));
    }
    case Kind::kMetaspace:
      return pass(marks_to_spaces(text, stage.text, stage.drop_first));
    case Kind::kByteLevel:
    case Kind::kByteFallback:
      memory.held += text;  // about the one token as a whole
      return;
    case Kind::kJoin:
    case Kind::kFuse:
      return pass(std::move(text));
  }
}

void Decoder::flush(size_t index, State& state, std::string& out) const {
  const Stage& stage = stages_[index];
  State::Stage& memory = state.stages[index];
  auto pass = [&](std::string result) { feed(index + 1, state, std::move(result), out); };
  std::string held = std::exchange(memory.held, {});
  switch (stage.kind) {
    case Kind::kByteLevel: {
      if (stage.joined) held = visible_to_bytes(held);
      std::string decided;
      unicode::take_lossy(held, /*last=*/true, decided);
      return pass(std::move(decided));
    }
    case Kind::kByteFallback: {
      if (!stage.joined) {
        memory.held = std::move(held);
        return flush_bytes(index, state, out);
      }
      int byte = fallback_byte(held);
      if (byte < 0) return pass(std::move(held));
      return pass(byte < 0x80 ? std::string(1, static_cast<char>(byte))
                              : std::string(unicode::kReplacement));
    }
    case Kind::kReplace:
      if (stage.joined) pass(replace(stage, state, held));
      return;
    case Kind::kStrip:  // held: only what is stripped at the end
    case Kind::kJoin:
    case Kind::kFuse:
    case Kind::kMetaspace:
      return;
  }
}

void Decoder::flush_bytes(size_t index, State& state, std::string& out) const {
  std::string bytes = std::exchange(state.stages[index].held, {});
  if (bytes.empty()) return;
  if (unicode::is_valid(bytes)) return feed(index + 1, state, std::move(bytes), out);
  for (size_t i = 0; i < bytes.size(); ++i)
    feed(index + 1, state, std::string(unicode::kReplacement), out);
}

std::string Decoder::bytes_of(std::string_view token) const {
  std::string out(token);
  for (const Stage& stage : stages_) {
    switch (stage.kind) {
      case Kind::kByteLevel:
        return visible_to_bytes(out);
      case Kind::kByteFallback:
        if (int byte = fallback_byte(out); byte >= 0)
          return std::string(1, static_cast<char>(byte));
        break;
      case Kind::kReplace:
        if (!stage.joined)
          out = stage.pattern->replaced(out, stage.text, token.size() * 64 + (size_t{1} << 20));
        break;
      case Kind::kMetaspace:
        out = marks_to_spaces(out, stage.text, /*drop=*/false);
        break;
      case Kind::kStrip:  // about the first or last token of a text
      case Kind::kFuse:
      case Kind::kJoin:
        break;
    }
  }
  return out;
}

}  // namespace wick
