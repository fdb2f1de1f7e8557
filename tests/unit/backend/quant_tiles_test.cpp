// SPDX-License-Identifier: Apache-2.0
// Codes in tiles stand for the numbers of the rows that they were packed from.
#include "backend/cpu/quant_tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/quant_product.h"
#include "backend/cpu/rungs.h"
#include "backend/cpu/tile_kernels.h"
#include "backend/host_program.h"
#include "base/rng.h"
#include "base/threads.h"
#include "quant/rows.h"

namespace wick::cpu {
namespace {

constexpr DType kTypes[] = {DType::kQ8G32, DType::kQ8G64, DType::kQ8G128,
                            DType::kQ4G32, DType::kQ4G64, DType::kQ4G128};

struct Packed {
  HostBuffer tiles;
  std::vector<float> numbers;  // [n, k]

  Packed(DType type, int64_t n, int64_t k)
      : tiles(QuantTiles(nullptr, type, n, k).bytes()), numbers(static_cast<size_t>(n * k)) {
    Rng rng(static_cast<uint64_t>(n * k));
    std::vector<std::byte> rows(static_cast<size_t>(n) * row_bytes(type, k));
    for (float& x : numbers) x = rng.normal();
    for (int64_t r = 0; r < n; ++r) {
      std::byte* row = rows.data() + static_cast<size_t>(r) * row_bytes(type, k);
      quantize_row(type, numbers.data() + r * k, k, row);
      dequantize_row(type, row, k, numbers.data() + r * k);
    }
    ThreadPool pool(2);
    pack_quant_tiles(pool, type, rows.data(), n, k, tiles.data());
  }
};

TEST(QuantTiles, RowsAreTheSameNumbers) {
  for (DType type : kTypes)
    for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {33, 40}, {70, 300}, {64, 256}}) {
      Packed p(type, n, k);
      const QuantTiles w(p.tiles.data(), type, n, k);
      std::vector<bf16> row(static_cast<size_t>(k));
      for (int64_t r = 0; r < n; ++r) {
        unpack_quant_row(w, r, row.data());
        for (int64_t c = 0; c < k; ++c)
          ASSERT_EQ(to_float(row[static_cast<size_t>(c)]),
                    to_float(to_bf16(p.numbers[static_cast<size_t>(r * k + c)])))
              << dtype_name(type) << " " << n << "x" << k << " at " << r << ", " << c;
      }
    }
}

TEST(QuantTiles, BlocksAreTiles) {
  if (!rung_works(Rung::kAvx512Bf16)) GTEST_SKIP();
  for (DType type : kTypes) {
    const int64_t n = 40, k = 200;
    Packed p(type, n, k);
    const QuantTiles w(p.tiles.data(), type, n, k);
    alignas(64) bf16 block[kBlockElements];
    for (int64_t panel = 0; panel < 2; ++panel)
      for (int64_t step = 0; step < w.steps; ++step) {
        unpack_quant_block(w, panel, step, reinterpret_cast<char*>(block));
        for (int64_t r = 0; r < 32; ++r)
          for (int64_t c = 0; c < 32; ++c) {
            const int64_t row = panel * 32 + r, column = step * 32 + c;
            const float wanted =
                row < n && column < k
                    ? to_float(to_bf16(p.numbers[static_cast<size_t>(row * k + column)]))
                    : 0.0f;
            ASSERT_EQ(to_float(block[tile_index(r, c, 32)]), wanted)
                << dtype_name(type) << " at " << row << ", " << column;
          }
      }
  }
}

Operand matrix(void* data, DType dtype, int64_t rows, int64_t cols) {
  Operand o;
  o.data = data;
  o.dtype = dtype;
  o.rows = rows;
  o.cols = o.ld = cols;
  return o;
}

// Products of bytes: a row's numbers are its own, whatever the threads and the rows around it, what
// is not finite stays in its row, and tiles and dot products have the same bits.
TEST(QuantTiles, NarrowRowsAreIndependent) {
  if (!rung_works(Rung::kAvx512Bf16)) GTEST_SKIP();
  const int64_t m = 530, n = 70, k = 600, odd = 7;
  Packed p(DType::kQ4G32, n, k);
  const QuantTiles w(p.tiles.data(), DType::kQ4G32, n, k);
  Rng rng(3);
  std::vector<bf16> x(static_cast<size_t>(m * k));
  for (bf16& v : x) v = to_bf16(rng.normal());
  x[odd * k + 300] = to_bf16(std::numeric_limits<float>::infinity());
  auto multiply = [&](const Unit& unit, int64_t row, int64_t rows, int threads) {
    ThreadPool pool(threads);
    std::vector<float> y(static_cast<size_t>(rows * n));
    const Operand in = matrix(x.data() + row * k, DType::kBF16, rows, k);
    const Operand out = matrix(y.data(), DType::kF32, rows, n);
    HostBuffer scratch(quant_bytes_scratch(w, rows));
    multiply_quant_bytes(pool, unit, in, w, {out}, scratch.data());
    return y;
  };
  const std::vector<float> all = multiply(kDotUnit, 0, m, 2);
  auto equal = [&](const std::vector<float>& some, int64_t row) {
    for (size_t i = 0; i < some.size(); ++i) {
      const size_t at = i + static_cast<size_t>(row * n);
      const bool same = at / static_cast<size_t>(n) == odd
                            ? std::isnan(some[i]) && std::isnan(all[at])
                            : some[i] == all[at];
      ASSERT_TRUE(same) << i << ": " << some[i] << ", " << all[at];
    }
  };
  equal(all, 0);
  for (auto [row, rows] : {std::pair<int64_t, int64_t>{8, 522}, {40, 17}, {100, 300}})
    equal(multiply(kDotUnit, row, rows, 1), row);
  if (!rung_works(Rung::kAmx)) return;
  equal(multiply(kAmxUnit, 0, m, 2), 0);
  equal(multiply(kAmxUnit, 40, 17, 1), 40);
}

// One row takes its panels by two, more take them one by one: the numbers are those of many rows.
TEST(Tiles, FewRowsAreThoseOfMany) {
  if (!rung_works(Rung::kAvx512Bf16)) GTEST_SKIP();
  ThreadPool pool(2);
  const int64_t m = 40, k = 200;
  for (int64_t n : {30, 64, 70, 130, 500}) {
    Rng rng(5);
    std::vector<bf16> x(static_cast<size_t>(m * k)), weights(static_cast<size_t>(n * k));
    for (bf16& v : x) v = to_bf16(rng.normal());
    for (bf16& v : weights) v = to_bf16(rng.normal());
    HostBuffer tiles(tiles_bytes(n, k));
    pack_tiles(pool, DType::kBF16, weights.data(), n, k, tiles.data());
    auto multiply = [&](int64_t rows, bool few) {
      std::vector<float> y(static_cast<size_t>(rows * n));
      const Operand in = matrix(x.data(), DType::kBF16, rows, k);
      const Operand out = matrix(y.data(), DType::kF32, rows, n);
      const char* w = reinterpret_cast<const char*>(tiles.data());
      if (few) {
        HostBuffer scratch(few_rows_scratch(rows, k));
        multiply_few(pool, kDotUnit, in, w, {out}, scratch.data());
      } else {
        HostBuffer scratch(rows_scratch(rows, n, k, 2));
        Pieces pieces(scratch.data());
        multiply_rows(pool, kDotUnit, in, {w}, false, {out}, pieces);
      }
      return y;
    };
    const std::vector<float> many = multiply(m, false);
    for (int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16}) {
      const std::vector<float> few = multiply(rows, true);
      for (size_t i = 0; i < few.size(); ++i) ASSERT_EQ(few[i], many[i]) << n << ", " << rows;
    }
  }
}

}  // namespace
}  // namespace wick::cpu
