// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), the checksum of TFRecord files and of wick's checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace wick {

// Of `bytes` after those that gave `before`; start with 0.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace wick
