// SPDX-License-Identifier: Apache-2.0
#include "app/format.h"

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <limits>

#include "text/unicode.h"

namespace wick {

namespace {

template <typename... Values>
std::string printed(const char* form, Values... values) {
  char buffer[128];
  std::snprintf(buffer, sizeof buffer, form, values...);
  return buffer;
}

}  // namespace

std::string format_count(int64_t n) {
  std::string digits = std::to_string(n < 0 ? -n : n);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return n < 0 ? "-" + digits : digits;
}

std::string format_bytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  // 999.95 would print as 1000.0.
  while (std::abs(value) >= 999.95 && unit < 4) value /= 1000, ++unit;
  return unit == 0 ? printed("%" PRId64 " B", bytes) : printed("%.1f %s", value, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds > 0 && seconds < 0.1) return format_ms(1000 * seconds);
  if (seconds < 9.95) return printed("%.1f s", seconds);
  int64_t whole = std::llround(seconds);
  if (whole < 60) return printed("%d s", static_cast<int>(whole));
  if (whole < 3600)
    return printed("%d m %02d s", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  return printed("%" PRId64 " h %02d m", whole / 3600, static_cast<int>(whole % 3600 / 60));
}

std::string format_ms(double ms) {
  if (!std::isfinite(ms)) return "?";
  if (ms >= 1000) return format_seconds(ms / 1000);
  return printed(ms < 1 ? "%.2f ms" : ms < 100 ? "%.1f ms" : "%.0f ms", ms);
}

std::string fixed(double value, int digits) { return printed("%.*f", digits, value); }
std::string general(double value, int digits) { return printed("%.*g", digits, value); }
std::string percent(double share, int digits) { return printed("%.*f %%", digits, 100 * share); }

std::string plural(int64_t n, std::string_view one, std::string_view many) {
  std::string word(n == 1 ? one : many.empty() ? std::string(one) + "s" : std::string(many));
  return format_count(n) + " " + word;
}

std::optional<int64_t> parse_size(std::string_view text) {
  size_t at = 0;
  uint64_t whole = 0;
  uint64_t fraction = 0, fraction_scale = 1;  // the value is whole + fraction / fraction_scale
  bool any = false;
  for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at, any = true) {
    if (whole > (uint64_t{1} << 62) / 10) return {};
    whole = whole * 10 + static_cast<uint64_t>(text[at] - '0');
  }
  if (at < text.size() && text[at] == '.') {
    for (++at; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]));
         ++at, any = true) {
      if (fraction_scale >= 1'000'000'000) return {};
      fraction = fraction * 10 + static_cast<uint64_t>(text[at] - '0');
      fraction_scale *= 10;
    }
  }
  if (!any) return {};
  while (at < text.size() && text[at] == ' ') ++at;
  std::string unit;
  for (; at < text.size(); ++at)
    unit += static_cast<char>(std::toupper(static_cast<unsigned char>(text[at])));
  unsigned __int128 factor = 1;
  if (!unit.empty() && unit != "B") {
    size_t power = std::string_view("KMGTP").find(unit[0]);
    std::string rest = unit.substr(1);
    if (power == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "IB"))
      return {};
    for (size_t i = 0; i <= power; ++i) factor *= rest == "IB" ? 1024 : 1000;
  }
  unsigned __int128 bytes = whole * factor + fraction * factor / fraction_scale;
  if (bytes > static_cast<unsigned __int128>(std::numeric_limits<int64_t>::max())) return {};
  return static_cast<int64_t>(bytes);
}

std::string shell_quote(const std::string& word) {
  bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("-_./=,:@%+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

size_t columns_of(std::string_view utf8) {
  size_t columns = 0;
  while (!utf8.empty()) {
    const unicode::Utf8Char first = unicode::first_char(utf8);
    columns += unicode::columns(first.code);
    utf8.remove_prefix(first.length);
  }
  return columns;
}

std::string_view fitting(std::string_view utf8, size_t columns) {
  size_t used = 0, end = 0;
  while (end < utf8.size()) {
    const unicode::Utf8Char next = unicode::first_char(utf8.substr(end));
    used += unicode::columns(next.code);
    if (used > columns) break;
    end += next.length;
  }
  return utf8.substr(0, end);
}

std::string visible(std::string_view text, bool keep_newlines) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    unsigned char byte = static_cast<unsigned char>(c);
    if (byte == 0xC2 && i + 1 < text.size() && (text[i + 1] & 0xE0) == 0x80)
      out += printed("\\u%04x", static_cast<unsigned char>(text[++i]));
    else if (c == '\n' && !keep_newlines)
      out += "\\n";
    else if (c == '\t' && !keep_newlines)
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F)
      out += printed("\\x%02x", byte);
    else
      out += c;
  }
  return out;
}

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  std::string line;
  size_t at = 0;
  while (at <= text.size()) {
    size_t end = std::min(text.find_first_of(" \n", at), text.size());
    std::string_view word = text.substr(at, end - at);
    if (!line.empty() && columns_of(line) + 1 + columns_of(word) > width) {
      lines.push_back(line);
      line.clear();
    }
    if (!line.empty() && !word.empty()) line += ' ';
    line += word;
    if (end == text.size() || text[end] == '\n') {
      lines.push_back(line);
      line.clear();
    }
    at = end + 1;
  }
  return lines;
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

}  // namespace wick
