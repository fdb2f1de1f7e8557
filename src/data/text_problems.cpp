// SPDX-License-Identifier: Apache-2.0
#include "data/text_problems.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "text/unicode.h"

namespace wick {
namespace {

// Windows-1252 from 0x80 to 0x9F; 0 where it has none.
constexpr std::array<uint32_t, 32> kHighHalf = {
    0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0,      0x017D, 0,      0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0,      0x017E, 0x0178};

// The byte that Windows-1252 (or Latin-1) writes for a character from 0x80 on; -1 without one.
int byte_of(uint32_t code) {
  if (code >= 0x80 && code <= 0xFF) return static_cast<int>(code);
  auto found = std::find(kHighHalf.begin(), kHighHalf.end(), code);
  return found == kHighHalf.end() || code == 0 ? -1
                                               : 0x80 + static_cast<int>(found - kHighHalf.begin());
}

// How many bytes follow this one in UTF-8, where such a beginning is a sign of mojibake: of the
// two-byte ones only Â and Ã are, because capitals before a quotation mark look like the others.
int followers(int byte) {
  if (byte == 0xC2 || byte == 0xC3) return 1;
  if (byte >= 0xE0 && byte <= 0xEF) return 2;
  if (byte >= 0xF0 && byte <= 0xF4) return 3;
  return 0;
}

// The character at `at` that was taken apart, in UTF-8, and where its parts end.
bool whole_again(std::string_view text, size_t at, std::string& character, size_t& end) {
  size_t next = at;
  const int first = byte_of(unicode::next_char(text, next));
  const int more = first < 0 ? 0 : followers(first);
  if (more == 0) return false;
  character.assign(1, static_cast<char>(first));
  for (int i = 0; i < more; ++i) {
    if (next >= text.size()) return false;
    const uint32_t code = unicode::next_char(text, next);
    const int byte = byte_of(code);
    // "Ã»" is more often the end of a quotation than "û".
    if (byte < 0x80 || byte > 0xBF || (more == 1 && code == 0xBB)) return false;
    character += static_cast<char>(byte);
  }
  end = next;
  return unicode::is_valid(character);
}

}  // namespace

TextProblems text_problems(std::string_view text) {
  TextProblems found;
  if (unicode::is_ascii(text) &&
      std::none_of(text.begin(), text.end(), [](char c) { return c >= 0 && c < 0x20; }))
    return found;
  std::string character;
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    if (whole_again(text, at, character, next)) {
      if (found.mojibake++ == 0) found.first_mojibake = text.substr(at, next - at);
      found.repaired += character;
      at = next;
      continue;
    }
    const uint32_t code = unicode::next_char(text, next);
    const bool control = (code < 0x20 && code != '\t' && code != '\n' && code != '\r') ||
                         (code >= 0x7F && code < 0xA0 && code != 0x85);
    found.replacements += code == 0xFFFD;
    found.controls += control;
    if (!control) found.repaired += text.substr(at, next - at);
    at = next;
  }
  return found;
}

std::string folded(std::string_view text) {
  std::string out;
  bool space = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t code = unicode::next_char(text, at);
    if (unicode::is_white_space(code)) {
      space = true;
      continue;
    }
    if (space && !out.empty()) out += ' ';
    space = false;
    unicode::append_lower(out, code);
  }
  return out;
}

}  // namespace wick
