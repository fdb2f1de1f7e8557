// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

namespace wick {

std::optional<DType> parse_dtype(std::string_view name) {
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  for (DType t :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64, DType::kU8,
        DType::kQ8G32, DType::kQ8G64, DType::kQ8G128, DType::kQ4G32, DType::kQ4G64, DType::kQ4G128})
    if (name == dtype_name(t)) return t;
  return std::nullopt;
}

std::optional<DType> quantized_dtype(int bits, int64_t group) {
  for (DType t :
       {DType::kQ8G32, DType::kQ8G64, DType::kQ8G128, DType::kQ4G32, DType::kQ4G64, DType::kQ4G128})
    if (quant_bits(t) == bits && quant_group(t) == group) return t;
  return std::nullopt;
}

}  // namespace wick
