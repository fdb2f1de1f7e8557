// SPDX-License-Identifier: Apache-2.0
// UTF-8 and the properties of characters, as the tokenizer needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace wick::unicode {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Status { kValid, kInvalid, kTruncated };

// The first character of `text` (which is not empty). kInvalid: `length` bytes stand for one
// U+FFFD, the longest beginning of a character, else one byte. kTruncated: the same, and the text
// ended before it could become valid.
struct Utf8Char {
  uint32_t code = 0xFFFD;
  uint32_t length = 1;
  Utf8Status status = Utf8Status::kValid;
};
Utf8Char first_char(std::string_view text);

// Requires: `text` is valid UTF-8 and `at` < its size is a boundary; advances `at`.
inline uint32_t next_char(std::string_view text, size_t& at) {
  auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) {
    ++at;
    return byte;
  }
  Utf8Char c = first_char(text.substr(at));
  at += c.length;
  return c.code;
}
// Requires: the same, and 0 < `at`; moves `at` to the character before.
uint32_t previous_char(std::string_view text, size_t& at);

inline bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }
bool is_valid(std::string_view text);
bool is_ascii(std::string_view text);
void append(std::string& out, uint32_t code);
std::string encode(uint32_t code);
// Exactly one character?
bool is_single_char(std::string_view text);

// Moves what is decided from the front of `bytes` to `out`, with U+FFFD for what is no UTF-8.
// The beginning of a character at the end stays, unless `last`.
void take_lossy(std::string& bytes, bool last, std::string& out);

bool is_white_space(uint32_t code);  // White_Space
bool is_number(uint32_t code);       // N*
bool is_punctuation(uint32_t code);  // P*, and every ASCII sign that is no letter or digit
bool is_mark(uint32_t code);         // M*
bool is_word(uint32_t code);         // \w of Rust's regex: letters, marks, digits, joiners
void append_lower(std::string& out, uint32_t code);
size_t columns(uint32_t code);  // of a terminal: 2 for wide characters, 0 for what combines

// GPT-2's alphabet of visible characters, one for each byte.
uint32_t byte_to_char(uint8_t byte);
int char_to_byte(uint32_t code);  // -1: not of that alphabet

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
// Can the normal form of a text change across the front of this character? No: then the forms of
// what stands before and of what begins here can be made apart and joined.
bool joins_previous(uint32_t code, Form form);
std::string normal_form(std::string_view text, Form form);

}  // namespace wick::unicode
