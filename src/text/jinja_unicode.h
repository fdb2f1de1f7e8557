// SPDX-License-Identifier: Apache-2.0
// What Python's str knows about characters, over UTF-8 bytes: code points, white space, case.
// Bytes that are not UTF-8 are passed through, each as one character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wick::jinja {

// Reads the code point at `pos` (< text.size()) and moves `pos` behind it.
uint32_t next_code_point(std::string_view text, size_t& pos);
void append_code_point(std::string& out, uint32_t code_point);

bool is_ascii(std::string_view text);
size_t code_point_count(std::string_view text);

// Byte offsets of every code point, and text.size() as the last element.
std::vector<size_t> code_point_offsets(std::string_view text);

bool is_space(uint32_t code_point);      // str.isspace
bool is_printable(uint32_t code_point);  // str.isprintable: what repr() leaves as it is
bool is_alpha(uint32_t code_point);
bool is_decimal(uint32_t code_point);
bool is_digit(uint32_t code_point);
bool is_numeric(uint32_t code_point);
bool is_upper(uint32_t code_point);
bool is_lower(uint32_t code_point);
bool is_title(uint32_t code_point);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title_case(std::string_view text);  // str.title
std::string swap_case(std::string_view text);
std::string case_fold(std::string_view text);

// Bytes of leading / trailing characters that are white space, or in `chars` where it is given.
size_t leading_length(std::string_view text, const std::string* chars);
size_t trailing_length(std::string_view text, const std::string* chars);

}  // namespace wick::jinja
