// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>

namespace wick {

namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // bits reversed

// table[k][b]: the remainder of byte b followed by k zero bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> make_table() {
  std::array<std::array<uint32_t, 256>, 8> table{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0u);
    table[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t b = 0; b < 256; ++b)
      table[k][b] = (table[k - 1][b] >> 8) ^ table[0][table[k - 1][b] & 0xFF];
  return table;
}

constexpr auto kTable = make_table();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  const auto* p = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t n = bytes.size();
  for (; n >= 8; p += 8, n -= 8) {
    crc ^= static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 |
           static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
    crc = kTable[7][crc & 0xFF] ^ kTable[6][(crc >> 8) & 0xFF] ^ kTable[5][(crc >> 16) & 0xFF] ^
          kTable[4][crc >> 24] ^ kTable[3][p[4]] ^ kTable[2][p[5]] ^ kTable[1][p[6]] ^
          kTable[0][p[7]];
  }
  for (; n > 0; ++p, --n) crc = (crc >> 8) ^ kTable[0][(crc ^ *p) & 0xFF];
  return ~crc;
}

}  // namespace wick
