// SPDX-License-Identifier: Apache-2.0
// Bound by bytes: a block row is read once and written once.
#include "backend/cpu/tiles.h"

#include <algorithm>
#include <type_traits>

#include "backend/cpu/rungs.h"
#include "base/check.h"
#include "base/threads.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/product-inl.h"

namespace wick::cpu {
namespace {

template <typename T>
void pack_plain(const T* rows, int64_t ld, int64_t n, int64_t k, int64_t block_row, bf16* to) {
  const int64_t first = block_row * kTileBlock, last = std::min(n, first + kTileBlock);
  bf16* out = to + tile_index(first, 0, k);
  std::fill_n(out, tile_blocks(k) * kBlockElements, bf16{});
  for (int64_t row = first; row < last; ++row) {
    const T* from = rows + row * ld;
    bf16* at = to + tile_index(row, 0, k);
    for (int64_t c0 = 0; c0 < k; c0 += kTileBlock, at += kBlockElements)
      for (int64_t c = 0; c < std::min(kTileBlock, k - c0); ++c) {
        bf16& element = at[c / 2 * 2 * kTileRows + c % 2];
        if constexpr (std::is_same_v<T, bf16>)
          element = from[c0 + c];
        else
          element = to_bf16(to_float(from[c0 + c]));
      }
  }
}

template <typename T>
void pack_block_row(const T* rows, int64_t ld, int64_t n, int64_t k, int64_t block_row, bf16* to) {
#if WICK_CPU_BF16
  if (avx512_bf16_works()) return pack_fast(rows, ld, n, k, block_row, to);
#endif
  pack_plain(rows, ld, n, k, block_row, to);
}

}  // namespace

void pack_tile_panel(DType from, const void* rows, int64_t n, int64_t k, void* to, int64_t ld) {
  auto pack = [&](auto* type) {
    pack_block_row(static_cast<decltype(type)>(rows), ld > 0 ? ld : k, n, k, 0,
                   static_cast<bf16*>(to));
  };
  switch (from) {
    case DType::kF32:
      return pack(static_cast<const float*>(nullptr));
    case DType::kBF16:
      return pack(static_cast<const bf16*>(nullptr));
    case DType::kF16:
      return pack(static_cast<const f16*>(nullptr));
    default:
      WICK_CHECK(false, dtype_name(from), " is no weight's element type");
  }
}

void pack_tiles(ThreadPool& pool, DType from, const void* rows, int64_t n, int64_t k, void* to,
                int64_t ld) {
  const int64_t stride = (ld > 0 ? ld : k) * static_cast<int64_t>(dtype_bytes(from)) * kTileBlock;
  pool.parallel(tile_blocks(n), [&](int64_t i) {
    pack_tile_panel(
        from, static_cast<const char*>(rows) + i * stride, std::min(kTileBlock, n - i * kTileBlock),
        k, static_cast<char*>(to) + tiles_bytes(kTileBlock, k) * static_cast<size_t>(i), ld);
  });
}

}  // namespace wick::cpu
