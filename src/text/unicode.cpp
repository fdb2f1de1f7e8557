// SPDX-License-Identifier: Apache-2.0
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace wick::unicode {

Utf8Char first_char(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, Utf8Status::kValid};
  uint32_t length = lead >= 0xC2 && lead <= 0xDF ? 2 : (lead & 0xF0) == 0xE0 ? 3 : 4;
  if (lead < 0xC2 || lead > 0xF4) return {0xFFFD, 1, Utf8Status::kInvalid};
  // The second byte's range excludes overlong forms, surrogates and what is above U+10FFFF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  uint32_t code = lead & (0xFF >> (length + 1));
  for (uint32_t i = 1; i < length; ++i) {
    if (i == text.size()) return {0xFFFD, i, Utf8Status::kTruncated};
    if (byte(i) < low || byte(i) > high) return {0xFFFD, i, Utf8Status::kInvalid};
    code = code << 6 | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code, length, Utf8Status::kValid};
}

uint32_t previous_char(std::string_view text, size_t& at) {
  do {
    --at;
  } while (at > 0 && is_continuation(text[at]));
  return first_char(text.substr(at)).code;
}

namespace {

// The number of bytes at the front that are ASCII, in steps of eight.
size_t ascii_blocks(std::string_view text) {
  size_t at = 0;
  for (uint64_t block; at + 8 <= text.size(); at += 8) {
    std::memcpy(&block, text.data() + at, 8);
    if (block & 0x8080808080808080u) break;
  }
  return at;
}

}  // namespace

bool is_valid(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      size_t blocks = ascii_blocks(text.substr(at));
      at += blocks ? blocks : 1;
      continue;
    }
    Utf8Char c = first_char(text.substr(at));
    if (c.status != Utf8Status::kValid) return false;
    at += c.length;
  }
  return true;
}

bool is_ascii(std::string_view text) {
  for (size_t at = ascii_blocks(text); at < text.size(); ++at)
    if (static_cast<uint8_t>(text[at]) >= 0x80) return false;
  return true;
}

void append(std::string& out, uint32_t code) {
  auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

std::string encode(uint32_t code) {
  std::string out;
  append(out, code);
  return out;
}

bool is_single_char(std::string_view text) {
  return !text.empty() && first_char(text).length == text.size();
}

void take_lossy(std::string& bytes, bool last, std::string& out) {
  size_t at = 0;
  while (at < bytes.size()) {
    std::string_view rest = std::string_view(bytes).substr(at);
    Utf8Char c = first_char(rest);
    if (c.status == Utf8Status::kTruncated && !last) break;
    out += c.status == Utf8Status::kValid ? rest.substr(0, c.length) : kReplacement;
    at += c.length;
  }
  bytes.erase(0, at);
}

bool is_white_space(uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

namespace {

utf8proc_category_t category(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

bool is_number(uint32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  auto c = category(code);
  return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(uint32_t code) {
  if (code < 0x80)
    return (code > ' ' && code < '0') || (code > '9' && code < 'A') || (code > 'Z' && code < 'a') ||
           (code > 'z' && code < 0x7F);
  auto c = category(code);
  return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(uint32_t code) {
  auto c = category(code);
  return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

bool is_word(uint32_t code) {
  auto c = category(code);
  if (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) return true;  // L*, M*, Nd, Nl
  if (c == UTF8PROC_CATEGORY_PC || code == 0x200C || code == 0x200D) return true;
  // Circled and squared letters: symbols that are alphabetic.
  return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
         (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

size_t columns(uint32_t code) {
  return static_cast<size_t>(std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(code))));
}

void append_lower(std::string& out, uint32_t code) {
  if (code == 0x130) {  // the only character whose lower case is two
    out += "i\xCC\x87";
    return;
  }
  append(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

namespace {

bool is_visible_byte(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
}

}  // namespace

// The bytes without a visible character of their own take the characters from U+0100 on, in order:
// 0 … 0x20, 0x7F … 0xA0, 0xAD.
uint32_t byte_to_char(uint8_t byte) {
  if (is_visible_byte(byte)) return byte;
  if (byte <= 0x20) return 0x100 + byte;
  return byte == 0xAD ? 0x143 : 0x121 + (byte - 0x7F);
}

int char_to_byte(uint32_t code) {
  if (code < 0x100) return is_visible_byte(code) ? static_cast<int>(code) : -1;
  if (code <= 0x120) return static_cast<int>(code - 0x100);
  if (code <= 0x142) return static_cast<int>(code - 0x121 + 0x7F);
  return code == 0x143 ? 0xAD : -1;
}

namespace {

constexpr bool is_compatible(Form form) { return form == Form::kNfkc || form == Form::kNfkd; }

}  // namespace

bool joins_previous(uint32_t code, Form form) {
  if (code < 0x80) return false;
  utf8proc_int32_t parts[32];
  int boundclass = 0;
  auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE |
                                                (is_compatible(form) ? UTF8PROC_COMPAT : 0));
  utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, 32, options, &boundclass);
  // A longer decomposition than any known one: claiming that it joins is always safe.
  if (count < 1 || count > 32) return true;
  const utf8proc_property_t* first = utf8proc_get_property(parts[0]);
  if (first->combining_class != 0) return true;
  if (form == Form::kNfd || form == Form::kNfkd) return false;
  // Second halves of compositions: indices from 0x8000 on in utf8proc's table, and Hangul's medial
  // vowels and final consonants, which are composed by arithmetic.
  return (first->comb_index >= 0x8000 && first->comb_index != UINT16_MAX) ||
         (parts[0] >= 0x1160 && parts[0] <= 0x11FF);
}

std::string normal_form(std::string_view text, Form form) {
  bool composed = form == Form::kNfc || form == Form::kNfkc;
  auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE |
                                                (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                                (is_compatible(form) ? UTF8PROC_COMPAT : 0));
  auto checked = [&](utf8proc_ssize_t size) {
    if (size < 0)
      fail(ErrorCode::kInternal, "normal form of a text of ", text.size(),
           " bytes: ", utf8proc_errmsg(size));
    return static_cast<size_t>(size);
  };
  constexpr size_t kLongest = 18;  // of a character
  std::vector<utf8proc_int32_t> codes;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = codes.size();
    const auto code = static_cast<utf8proc_int32_t>(next_char(text, at));
    codes.resize(begin + kLongest);
    codes.resize(begin + std::min(kLongest, checked(utf8proc_decompose_char(
                                                code, &codes[begin], kLongest, options, nullptr))));
  }
  // The library's own way of putting marks in order takes time that grows with their square.
  auto rank = [](utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; };
  for (auto first = codes.begin(); first != codes.end();) {
    const auto last = std::find_if(first, codes.end(), [&](auto code) { return rank(code) == 0; });
    if (last - first > 1)
      std::stable_sort(first, last, [&](auto a, auto b) { return rank(a) < rank(b); });
    first = last == codes.end() ? last : last + 1;
  }
  codes.push_back(0);  // the text is written in place, with a zero behind it
  const auto count = static_cast<utf8proc_ssize_t>(codes.size() - 1);
  const size_t size = checked(utf8proc_reencode(codes.data(), count, options));
  return std::string(reinterpret_cast<const char*>(codes.data()), size);
}

}  // namespace wick::unicode
