// SPDX-License-Identifier: Apache-2.0
#include "quant/mlx.h"

#include <cstring>

#include "base/half.h"
#include "quant/rows.h"

namespace wick {
namespace {

// Little-endian words of codes are bytes of codes, the first in the lowest bits.
unsigned code_at(int bits, const std::byte* words, int64_t col) {
  if (bits == 8) return std::to_integer<unsigned>(words[col]);
  return std::to_integer<unsigned>(words[col / 2]) >> (col % 2 * 4) & 15u;
}

float float_at(DType type, const std::byte* from, int64_t i) {
  auto get = [&](auto x) {
    std::memcpy(&x, from + static_cast<size_t>(i) * sizeof x, sizeof x);
    return to_float(x);
  };
  if (type == DType::kF32) return get(0.0f);
  return type == DType::kBF16 ? get(bf16{}) : get(f16{});
}

void put_bf16(std::byte* to, int64_t i, float x) {
  bf16 stored = to_bf16(x);
  std::memcpy(to + static_cast<size_t>(i) * sizeof stored, &stored, sizeof stored);
}

}  // namespace

void mlx_dequantize_row(int bits, int64_t group, const MlxRow& from, int64_t cols, float* x) {
  for (int64_t c = 0; c < cols; ++c) {
    const float scale = float_at(from.scale_type, from.scales, c / group);
    const float bias = float_at(from.scale_type, from.biases, c / group);
    x[c] = scale * static_cast<float>(code_at(bits, from.words, c)) + bias;
  }
}

bool mlx_to_row(DType dtype, const MlxRow& from, int64_t cols, std::byte* row) {
  const int bits = quant_bits(dtype), middle = 1 << (bits - 1);
  const int64_t group = quant_group(dtype), groups = cols / group;
  std::byte* scales = row + quant_code_bytes(dtype, cols);
  for (int64_t g = 0; g < groups; ++g) {
    const float scale = float_at(from.scale_type, from.scales, g);
    if (to_float(to_bf16(scale)) != scale ||
        float_at(from.scale_type, from.biases, g) != -scale * static_cast<float>(middle))
      return false;
    put_bf16(scales, g, scale);
  }
  auto* bytes = reinterpret_cast<uint8_t*>(row);
  for (int64_t c = 0; c < cols; ++c) {
    const unsigned u = code_at(bits, from.words, c);
    if (bits == 8) {
      bytes[c] = static_cast<uint8_t>(u ^ 0x80u);
    } else {
      uint8_t& b = bytes[c / 32 * 16 + c % 16];
      b = static_cast<uint8_t>(c % 32 < 16 ? u : b | u << 4);
    }
  }
  return true;
}

void row_to_mlx(DType dtype, const std::byte* row, int64_t cols, std::byte* words,
                std::byte* scales, std::byte* biases) {
  const int bits = quant_bits(dtype), middle = 1 << (bits - 1);
  auto* bytes = reinterpret_cast<uint8_t*>(words);
  for (int64_t c = 0; c < cols; ++c) {
    const auto u = static_cast<unsigned>(quant_code(dtype, row, c) + middle);
    if (bits == 8)
      bytes[c] = static_cast<uint8_t>(u);
    else
      bytes[c / 2] = static_cast<uint8_t>(c % 2 == 0 ? u : bytes[c / 2] | u << 4);
  }
  for (int64_t g = 0; g < cols / quant_group(dtype); ++g) {
    const float scale = quant_scale(dtype, row, cols, g);
    put_bf16(scales, g, scale);
    put_bf16(biases, g, -scale * static_cast<float>(middle));
  }
}

}  // namespace wick
