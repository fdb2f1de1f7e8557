// SPDX-License-Identifier: Apache-2.0
// Texts and numbers as report.html shows them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace wick::report {

// For text and quoted attributes. Bytes that are no UTF-8 and characters that HTML forbids become
// U+FFFD.
std::string escaped(std::string_view text);

// The first `limit` bytes of a text, in whole characters, and how much was left out; not escaped.
std::string shortened(std::string_view text, size_t limit);

std::string count(int64_t n);                    // 1,234,567
std::string number(double x, int digits = 4);    // significant digits; "not a number", "infinite"
std::string fixed(double x, int decimals);       // the same for what is not finite
std::string bytes(int64_t n);                    // 12.3 MB
std::string bytes_up(int64_t n);                 // a size that holds them, 12.4 MB
std::string seconds(double s);                   // 1 h 02 min, 3 min 05 s, 12.3 s
std::string plural(int64_t n, const char* one);  // 1 update, 2 updates

}  // namespace wick::report
