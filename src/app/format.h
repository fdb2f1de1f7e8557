// SPDX-License-Identifier: Apache-2.0
// Numbers and words for people, and the sizes that people write.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

std::string format_count(int64_t n);         // 1,234,567
std::string format_bytes(int64_t bytes);     // 61.4 MB (decimal)
std::string format_seconds(double seconds);  // 35.0 ms, 4.2 s, 1 m 32 s, 2 h 05 m
std::string format_ms(double ms);            // 0.41 ms, 12.3 ms, 1.52 s
std::string fixed(double value, int digits);
std::string general(double value, int digits = 4);                                // %g: 1e-04, 0.5
std::string percent(double share, int digits = 1);                                // 41.2 %
std::string plural(int64_t n, std::string_view one, std::string_view many = {});  // 1 row, 2 rows

// 1024, 20G, 512M, 4.1MB, 2GiB: decimal unless the unit has an i; exact, without float drift.
// Empty where the text is no size or does not fit.
std::optional<int64_t> parse_size(std::string_view text);

// The word as a shell reads it back.
std::string shell_quote(const std::string& word);

// Columns that a terminal needs for it: two for a wide character, none for a combining one.
size_t columns_of(std::string_view utf8);
// The longest beginning of whole characters that needs at most `columns`.
std::string_view fitting(std::string_view utf8, size_t columns);
// Control characters as they are written in C, so that a text from a file cannot drive a terminal;
// those of U+0080 to U+009F too, which are two bytes each. `text` is whole characters.
std::string visible(std::string_view text, bool keep_newlines = false);
// Lines of at most `width` columns, broken at spaces; a line break in `text` stays.
std::vector<std::string> wrap(std::string_view text, size_t width);

std::string joined(const std::vector<std::string>& parts, const char* between);

}  // namespace wick
