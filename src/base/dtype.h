// SPDX-License-Identifier: Apache-2.0
// Element types of values. A quantised base is a dtype of a weight, so QLoRA is no layer kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace wick {

enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF64,
  kI32,
  kI64,
  kU8,
  // Frozen matrices only: codes of 8 or 4 bits with one scale per group of a row (quant/rows.h).
  kQ8G32,
  kQ8G64,
  kQ8G128,
  kQ4G32,
  kQ4G64,
  kQ4G128,
};

constexpr bool dtype_is_quantized(DType t) { return t >= DType::kQ8G32; }

// Of one element; 0 for quantised types, whose elements have no bytes of their own: row_bytes.
constexpr size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::kF32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kF16:
      return 2;
    case DType::kF64:
      return 8;
    case DType::kI32:
      return 4;
    case DType::kI64:
      return 8;
    case DType::kU8:
      return 1;
    case DType::kQ8G32:
    case DType::kQ8G64:
    case DType::kQ8G128:
    case DType::kQ4G32:
    case DType::kQ4G64:
    case DType::kQ4G128:
      return 0;
  }
  return 0;
}

// Of a quantised type: bits of a code, elements of a group.
constexpr int quant_bits(DType t) { return t >= DType::kQ4G32 ? 4 : 8; }
constexpr int64_t quant_group(DType t) {
  return int64_t{32} << (static_cast<int>(t) - static_cast<int>(DType::kQ8G32)) % 3;
}
// None for other bits than 8 and 4, or other groups than 32, 64 and 128.
std::optional<DType> quantized_dtype(int bits, int64_t group);

// Of a quantised row: its codes come first, padded to whole blocks of kQuantBlock elements, then
// the groups' scales in bf16.
constexpr int64_t kQuantBlock = 32;
constexpr size_t quant_code_bytes(DType t, int64_t cols) {
  return static_cast<size_t>((cols + kQuantBlock - 1) / kQuantBlock * kQuantBlock) *
         static_cast<size_t>(quant_bits(t)) / 8;
}
constexpr int64_t quant_groups(DType t, int64_t cols) {
  return (cols + quant_group(t) - 1) / quant_group(t);
}

// Of one row of a matrix.
constexpr size_t row_bytes(DType t, int64_t cols) {
  if (!dtype_is_quantized(t)) return static_cast<size_t>(cols) * dtype_bytes(t);
  return quant_code_bytes(t, cols) + static_cast<size_t>(quant_groups(t, cols)) * 2;
}

constexpr bool dtype_is_float(DType t) {
  return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16 || t == DType::kF64;
}

constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kQ8G32:
      return "q8g32";
    case DType::kQ8G64:
      return "q8g64";
    case DType::kQ8G128:
      return "q8g128";
    case DType::kQ4G32:
      return "q4g32";
    case DType::kQ4G64:
      return "q4g64";
    case DType::kQ4G128:
      return "q4g128";
  }
  return "?";
}

// "f32", "bf16", "f16", "q4g32", … ; also the long names float32, bfloat16, float16.
std::optional<DType> parse_dtype(std::string_view name);

}  // namespace wick
