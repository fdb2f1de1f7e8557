// SPDX-License-Identifier: Apache-2.0
#include "api/report_text.h"

#include <cmath>
#include <cstdio>

#include "text/unicode.h"

namespace wick::report {

namespace {

const char* not_finite(double x) { return std::isnan(x) ? "not a number" : "infinite"; }

bool forbidden(uint32_t code) {
  bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  bool non_character = (code & 0xFFFE) == 0xFFFE || (code >= 0xFDD0 && code <= 0xFDEF);
  return (control && code != '\n' && code != '\t') || non_character;
}

template <class... Args>
std::string print(const char* format, Args... args) {
  char text[64];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    unicode::Utf8Char c = unicode::first_char(text);
    if (c.status != unicode::Utf8Status::kValid || forbidden(c.code)) {
      out += unicode::kReplacement;
    } else {
      switch (c.code) {
        case '&':
          out += "&amp;";
          break;
        case '<':
          out += "&lt;";
          break;
        case '>':
          out += "&gt;";
          break;
        case '"':
          out += "&quot;";
          break;
        case '\'':
          out += "&#39;";
          break;
        default:
          out += text.substr(0, c.length);
      }
    }
    text.remove_prefix(c.length);
  }
  return out;
}

std::string shortened(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t cut = limit;
  while (cut > 0 && unicode::is_continuation(text[cut])) --cut;
  return std::string(text.substr(0, cut)) + " … (" +
         count(static_cast<int64_t>(text.size() - cut)) + " more bytes)";
}

std::string count(int64_t n) {
  std::string digits = std::to_string(n);
  size_t first = n < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string number(double x, int digits) {
  if (!std::isfinite(x)) return not_finite(x);
  std::string text = print("%.*g", digits, x);
  // 2e-05 is written 2e-5.
  size_t e = text.find('e');
  if (e != std::string::npos && text[e + 2] == '0') text.erase(e + 2, 1);
  return text;
}

std::string fixed(double x, int decimals) {
  if (!std::isfinite(x)) return not_finite(x);
  return std::abs(x) < 1e9 ? print("%.*f", decimals, x) : number(x);
}

std::string bytes_up(int64_t n) {
  int64_t unit = 1;  // of the last of three digits
  while (n / unit >= 1000) unit *= 10;
  return bytes(n - n % unit + (n % unit > 0 ? unit : 0));
}

std::string bytes(int64_t n) {
  static constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
  if (n < 1000) return std::to_string(n) + " B";
  double x = static_cast<double>(n) / 1000;
  size_t unit = 0;
  while (x >= 999.5 && unit + 1 < std::size(kUnits)) {
    x /= 1000;
    ++unit;
  }
  return print(x < 10 ? "%.2f %s" : x < 100 ? "%.1f %s" : "%.0f %s", x, kUnits[unit]);
}

std::string seconds(double s) {
  if (!std::isfinite(s)) return not_finite(s);
  if (s < 59.95) return print(s < 9.95 ? "%.1f s" : "%.0f s", s);
  auto whole = static_cast<long long>(std::llround(std::min(s, 1e12)));
  if (whole < 3600) return print("%lld min %02lld s", whole / 60, whole % 60);
  return print("%lld h %02lld min", whole / 3600, whole / 60 % 60);
}

std::string plural(int64_t n, const char* one) {
  return count(n) + " " + one + (n == 1 ? "" : "s");
}

}  // namespace wick::report
