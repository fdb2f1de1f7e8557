// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "quant/mlx.h"
#include "quant/rows.h"

namespace wick {
namespace {

constexpr DType kTypes[] = {DType::kQ8G32, DType::kQ8G64, DType::kQ8G128,
                            DType::kQ4G32, DType::kQ4G64, DType::kQ4G128};

std::vector<float> normal_row(int64_t n, uint64_t seed, float scale = 0.02f) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = scale * rng.normal();
  return x;
}

std::vector<std::byte> quantized(DType type, const std::vector<float>& x) {
  auto cols = static_cast<int64_t>(x.size());
  std::vector<std::byte> row(row_bytes(type, cols) + 1, std::byte{0xa5});
  quantize_row(type, x.data(), cols, row.data());
  EXPECT_EQ(row.back(), std::byte{0xa5}) << "wrote past the row";
  row.pop_back();
  return row;
}

std::vector<float> restored(DType type, const std::vector<float>& x) {
  std::vector<std::byte> row = quantized(type, x);
  std::vector<float> y(x.size());
  dequantize_row(type, row.data(), static_cast<int64_t>(x.size()), y.data());
  return y;
}

TEST(QuantTypes, SizesAndNames) {
  EXPECT_EQ(row_bytes(DType::kQ8G32, 896), 896u + 56u);
  EXPECT_EQ(row_bytes(DType::kQ4G64, 896), 448u + 28u);
  EXPECT_EQ(row_bytes(DType::kQ4G128, 33), 32u + 2u);
  EXPECT_EQ(row_bytes(DType::kBF16, 33), 66u);
  for (DType t : kTypes) {
    EXPECT_EQ(parse_dtype(dtype_name(t)), t);
    EXPECT_EQ(quantized_dtype(quant_bits(t), quant_group(t)), t);
  }
  EXPECT_FALSE(quantized_dtype(4, 16));
  EXPECT_FALSE(quantized_dtype(3, 32));
}

TEST(QuantRows, ErrorOfNormalNumbers) {
  for (DType t : kTypes) {
    std::vector<float> x = normal_row(128 * 200, 1);
    QuantError e = quant_error(x, restored(t, x));
    const double wanted = quant_bits(t) == 8 ? 0.0075 : 0.108;
    EXPECT_LT(e.relative, wanted) << dtype_name(t);
    EXPECT_GT(e.relative, wanted / 3) << dtype_name(t);
  }
}

TEST(QuantRows, ErrorStaysInsideAStep) {
  for (DType t : kTypes)
    for (int64_t n : {1, 2, 7, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 300}) {
      std::vector<float> x = normal_row(n, static_cast<uint64_t>(n)), y = restored(t, x);
      for (int64_t c = 0; c < n; ++c) {
        const int64_t g0 = c / quant_group(t) * quant_group(t);
        float most = 0;
        for (int64_t i = g0; i < std::min(n, g0 + quant_group(t)); ++i)
          most = std::max(most, std::abs(x[static_cast<size_t>(i)]));
        const float step = quant_bits(t) == 8 ? most / 127 : most / 7;
        EXPECT_LE(std::abs(y[static_cast<size_t>(c)] - x[static_cast<size_t>(c)]), 1.3f * step)
            << dtype_name(t) << " " << n << " " << c;
      }
    }
}

TEST(QuantRows, WhatWasQuantizedStays) {
  for (DType t : kTypes)
    for (int64_t n : {1, 5, 32, 96, 129, 896})
      for (uint64_t seed = 0; seed < 20; ++seed) {
        std::vector<float> once = restored(t, normal_row(n, seed, seed % 3 == 0 ? 1e-6f : 3.0f));
        EXPECT_EQ(restored(t, once), once) << dtype_name(t) << " " << n << " " << seed;
      }
}

TEST(QuantRows, Extremes) {
  for (DType t : kTypes) {
    std::vector<float> zeros(70, 0.0f);
    EXPECT_EQ(restored(t, zeros), zeros);

    std::vector<float> tiny = normal_row(70, 3, 1e-39f);
    for (float y : restored(t, tiny)) EXPECT_EQ(y, 0.0f);

    std::vector<float> outlier = normal_row(256, 4);
    outlier[40] = -3e4f;
    std::vector<float> y = restored(t, outlier);
    EXPECT_NEAR(y[40], -3e4f, 3e4f * 0.01f) << dtype_name(t);
    // Other groups are not touched by it.
    const auto g = static_cast<size_t>(quant_group(t));
    std::vector<float> rest(outlier.begin() + static_cast<ptrdiff_t>(128), outlier.end());
    ASSERT_LE(g, 128u);
    EXPECT_LT(quant_error(rest, {y.data() + 128, 128}).relative, 0.12);

    std::vector<float> huge = {FLT_MAX, -FLT_MAX, 1.0f, FLT_MAX / 3};
    for (float v : restored(t, huge)) EXPECT_TRUE(std::isfinite(v)) << dtype_name(t);

    std::vector<float> one(33, 0.0f);
    one[32] = 0.123f;
    EXPECT_NEAR(restored(t, one)[32], 0.123f, 0.123f * 0.005f);
    EXPECT_EQ(restored(t, one)[0], 0.0f);
  }
}

TEST(QuantRows, PaddingCodesAreZero) {
  std::vector<std::byte> row8 = quantized(DType::kQ8G32, normal_row(33, 9));
  std::vector<std::byte> row4 = quantized(DType::kQ4G32, normal_row(33, 9));
  for (int64_t c = 33; c < 64; ++c) {
    EXPECT_EQ(quant_code(DType::kQ8G32, row8.data(), c), 0);
    EXPECT_EQ(quant_code(DType::kQ4G32, row4.data(), c), 0);
  }
}

TEST(Mlx, DecodesAffineGroups) {
  // Codes 0, 1, …, 15, 0, … of four bits: the first in the lowest bits of a word.
  std::vector<uint32_t> words = {0x76543210u, 0xfedcba98u, 0x76543210u, 0xfedcba98u};
  const f16 scales[] = {to_f16(0.5f)}, biases[] = {to_f16(-3.25f)};
  MlxRow row{reinterpret_cast<const std::byte*>(words.data()),
             reinterpret_cast<const std::byte*>(scales), reinterpret_cast<const std::byte*>(biases),
             DType::kF16};
  std::vector<float> x(32);
  mlx_dequantize_row(4, 32, row, 32, x.data());
  for (int i = 0; i < 32; ++i) EXPECT_EQ(x[static_cast<size_t>(i)], 0.5f * (i % 16) - 3.25f);
  std::vector<std::byte> ours(row_bytes(DType::kQ4G32, 32));
  EXPECT_FALSE(mlx_to_row(DType::kQ4G32, row, 32, ours.data())) << "its bias is not centred";

  std::vector<uint32_t> bytes(16);
  for (size_t i = 0; i < 64; ++i) bytes[i / 4] |= static_cast<uint32_t>(i * 4) << i % 4 * 8;
  const float scale8[] = {0.25f}, bias8[] = {-1.0f};
  MlxRow row8{reinterpret_cast<const std::byte*>(bytes.data()),
              reinterpret_cast<const std::byte*>(scale8), reinterpret_cast<const std::byte*>(bias8),
              DType::kF32};
  std::vector<float> x8(64);
  mlx_dequantize_row(8, 64, row8, 64, x8.data());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(x8[static_cast<size_t>(i)], static_cast<float>(i) - 1.0f);
}

TEST(Mlx, OurRowsThereAndBack) {
  for (DType t : kTypes) {
    const int64_t cols = 256, groups = cols / quant_group(t);
    std::vector<float> x = normal_row(cols, 12);
    std::vector<std::byte> row = quantized(t, x);
    std::vector<std::byte> words(static_cast<size_t>(mlx_row_words(quant_bits(t), cols)) * 4);
    std::vector<std::byte> scales(static_cast<size_t>(groups) * 2), biases(scales.size());
    row_to_mlx(t, row.data(), cols, words.data(), scales.data(), biases.data());
    MlxRow there{words.data(), scales.data(), biases.data(), DType::kBF16};
    std::vector<std::byte> back(row.size());
    ASSERT_TRUE(mlx_to_row(t, there, cols, back.data())) << dtype_name(t);
    EXPECT_EQ(back, row);
    std::vector<float> theirs(x.size()), ours(x.size());
    mlx_dequantize_row(quant_bits(t), quant_group(t), there, cols, theirs.data());
    dequantize_row(t, row.data(), cols, ours.data());
    EXPECT_EQ(theirs, ours);
  }
}

}  // namespace
}  // namespace wick
