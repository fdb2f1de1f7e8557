// SPDX-License-Identifier: Apache-2.0
// Many rows of x as integers by quantised rows (prefill). 16 rows of w become a panel of bytes or
// words in the first cache, past which all rows of x are taken a few at a time; the sums of a block
// of 32 columns stay in registers. Bound by the products: 256 of them, a block of one row and eight
// outputs, are 20 instructions where codes have 4 bits and x has 8, 35 where they have 8 and 15,
// and would be 32 in f32.
#include "backend/cpu/quant_fixed.h"

#if WICK_CPU_AVX2
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/quant_fixed-inl.h"

namespace wick::cpu {
namespace {

// Of a number of x beside codes of so many bits.
constexpr int x_bytes(int bits) { return bits == 4 ? 1 : 2; }

constexpr int64_t kCols = 16;              // of a panel: two vectors
constexpr int64_t kRows = 4;               // of x in a tile
constexpr int64_t kNearRows = 256;         // of x that stay in the second cache
constexpr int64_t kPanelBytes = 16 << 10;  // of a panel, so that it stays in the first cache
constexpr int64_t kTaskPanels = 4;

// x by tiles of kRows rows: of each block its integers, [4 bytes' worth of columns][kRows], its
// scales and, beside codes of 4 bits, the two numbers that its sums in words start from.
struct TiledX {
  int64_t blocks, block_bytes;
  char* data;
  TiledX(const FixedCodes& w, void* scratch) : blocks(w.blocks), data(static_cast<char*>(scratch)) {
    block_bytes = kRows * (kBlock * x_bytes(w.bits) + 8);
  }
  char* at(int64_t tile, int64_t block) const {
    return data + (tile * blocks + block) * block_bytes;
  }
  static int64_t tiles(int64_t rows) { return (rows + kRows - 1) / kRows; }
  size_t bytes(int64_t rows) const {
    return static_cast<size_t>((tiles(rows) * blocks * block_bytes + 63) / 64 * 64);
  }
};

// What one thread has: a panel and its scales, and sums where they take several pieces of a panel.
struct PanelRoom {
  static constexpr int64_t kBlocks4 = kPanelBytes / (kCols * kBlock);
  int64_t most;  // blocks in a piece
  char* codes;
  float *scales, *sums;
  PanelRoom(int bits, void* base) : most(bits == 4 ? kBlocks4 : kBlocks4 / 2) {
    codes = static_cast<char*>(base);
    scales = reinterpret_cast<float*>(codes + kPanelBytes);
    sums = scales + kBlocks4 * kCols;
  }
  static size_t bytes() {
    return static_cast<size_t>(kPanelBytes) +
           static_cast<size_t>((kBlocks4 + kNearRows) * kCols) * sizeof(float);
  }
};

}  // namespace
}  // namespace wick::cpu

WICK_AVX2_BEGIN
namespace wick::cpu {
namespace {

void fix_tile(const Operand& x, int64_t row, int64_t rows, int bits, const TiledX& to,
              int64_t tile) {
  const int bytes = x_bytes(bits);
  for (int64_t b = 0; b < to.blocks; ++b) {
    char* at = to.at(tile, b);
    auto* scales = reinterpret_cast<float*>(at + kRows * kBlock * bytes);
    auto* starts = reinterpret_cast<int32_t*>(scales + kRows);
    for (int64_t r = 0; r < kRows; ++r) {
      alignas(32) float part[kBlock];
      if (r < rows)
        load_block(x, row + r, b, part);
      else
        std::fill_n(part, kBlock, 0.0f);
      __m256i v[4];
      scales[r] = fix_block(part, bytes == 1 ? kMostByte : kMostWord, v);
      alignas(32) int32_t words[16];
      if (bytes == 1) {
        const __m256i all = bytes_of(v);
        _mm256_store_si256(reinterpret_cast<__m256i*>(words), all);
        // Each pair of words of a sum has columns 0 and 1, or 2 and 3, of every four.
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), all);
        alignas(32) int16_t half[16];
        _mm256_store_si256(reinterpret_cast<__m256i*>(half), pairs);
        int32_t low = 0, high = 0;
        for (int i = 0; i < 16; i += 2) {
          low += half[i];
          high += half[i + 1];
        }
        starts[r] = static_cast<int32_t>((static_cast<uint32_t>(-8 * low) & 0xffffu) |
                                         static_cast<uint32_t>(-8 * high) << 16);
      } else {
        _mm256_store_si256(reinterpret_cast<__m256i*>(words), words_of(v[0], v[1]));
        _mm256_store_si256(reinterpret_cast<__m256i*>(words + 8), words_of(v[2], v[3]));
        starts[r] = 0;
      }
      for (int64_t i = 0; i < 8 * bytes; ++i)
        std::memcpy(at + (i * kRows + r) * 4, words + i, sizeof(int32_t));
    }
  }
}

// Eight rows of eight words of 32 bits, turned, at `to` with kCols words from one to the next.
inline void turn_words(const __m256i v[8], char* to) {
  __m256i a[8], b[8];
  WICK_UNROLL
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
  WICK_UNROLL
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  WICK_UNROLL
  for (int i = 0; i < 4; ++i) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + i * kCols * 4),
                       _mm256_permute2x128_si256(b[i], b[i + 4], 0x20));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + (i + 4) * kCols * 4),
                       _mm256_permute2x128_si256(b[i], b[i + 4], 0x31));
  }
}

// Blocks [b0, b1) of rows [n, n + kCols): [32 / (4 / bytes)][kCols] words a block. Rows past the
// last are that one again. What the next call reads is brought near: with few rows of x it would
// be waited for.
void fill_panel(const FixedCodes& w, int64_t n, int64_t b0, int64_t b1, const PanelRoom& room) {
  char* to = room.codes;
  const bool last = b1 == w.blocks;
  const int64_t next = last ? n + kCols : n, shift = last ? -b0 : b1 - b0;
  const int64_t in_line = 64 / w.block_bytes();
  for (int64_t b = b0; b < b1; ++b) {
    if (b % in_line == 0)
      for (int64_t i = 0; i < kCols; ++i)
        _mm_prefetch(reinterpret_cast<const char*>(w.row(std::min(w.rows - 1, next + i)) +
                                                   (b + shift) * w.block_bytes()),
                     _MM_HINT_T0);
    for (int64_t half = 0; half < kCols; half += 8) {
      __m256i v[8], upper[8] = {};
      WICK_UNROLL
      for (int i = 0; i < 8; ++i) {
        const auto* from = reinterpret_cast<const __m128i*>(
            w.row(std::min(w.rows - 1, n + half + i)) + b * w.block_bytes());
        const __m128i some = _mm_loadu_si128(from);
        if (w.bits == 4) {
          const __m256i both = _mm256_set_m128i(_mm_srli_epi16(some, 4), some);
          v[i] = _mm256_and_si256(both, _mm256_set1_epi8(15));
        } else {
          v[i] = _mm256_cvtepi8_epi16(some);
          upper[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128(from + 1));
        }
      }
      turn_words(v, to + half * 4);
      if (w.bits == 8) turn_words(upper, to + 8 * kCols * 4 + half * 4);
    }
    to += kCols * kBlock * x_bytes(w.bits);
    float* scales = room.scales + (b - b0) * kCols;
    for (int64_t i = 0; i < kCols; ++i) {
      bf16 scale;
      std::memcpy(&scale, w.scales(std::min(w.rows - 1, n + i)) + b / w.in_group * 2, 2);
      scales[i] = to_float(scale);
    }
  }
}

inline __m256i word_in_all(const char* at) {
  int32_t word;
  std::memcpy(&word, at, sizeof word);
  return _mm256_set1_epi32(word);
}

// sums[r][kCols] of one tile of x and `blocks` blocks of a panel, added to what is there.
template <int Bits>
void fixed_tile(const char* x, const PanelRoom& room, int64_t blocks, float* sums) {
  constexpr int kBytes = x_bytes(Bits);
  const char* w = room.codes;
  const float* scales = room.scales;
  __m256 total[kRows][2];
  WICK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    total[r][0] = _mm256_loadu_ps(sums + r * kCols);
    total[r][1] = _mm256_loadu_ps(sums + r * kCols + 8);
  }
  for (int64_t b = 0; b < blocks; ++b, scales += kCols) {
    const char* after = x + kRows * kBlock * kBytes;
    __m256i sum[kRows][2];
    WICK_UNROLL
    for (int r = 0; r < kRows; ++r)
      sum[r][0] = sum[r][1] =
          Bits == 4 ? word_in_all(after + (kRows + r) * 4) : _mm256_setzero_si256();
    WICK_UNROLL
    for (int64_t s = 0; s < 8 * kBytes; ++s) {
      const __m256i w0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + s * kCols * 4));
      const __m256i w1 =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(w + s * kCols * 4 + 32));
      WICK_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m256i v = word_in_all(x + (s * kRows + r) * 4);
        if constexpr (Bits == 4) {
          sum[r][0] = _mm256_add_epi16(sum[r][0], _mm256_maddubs_epi16(w0, v));
          sum[r][1] = _mm256_add_epi16(sum[r][1], _mm256_maddubs_epi16(w1, v));
        } else {
          sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(w0, v));
          sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(w1, v));
        }
        // Else GCC adds in another order, which does not fit the registers.
        asm("" : "+x"(sum[r][0]), "+x"(sum[r][1]));
      }
    }
    const __m256 s0 = _mm256_load_ps(scales), s1 = _mm256_load_ps(scales + 8);
    const __m256i ones = _mm256_set1_epi16(1);
    WICK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256 factor = _mm256_broadcast_ss(reinterpret_cast<const float*>(after) + r);
      if constexpr (Bits == 4) {
        sum[r][0] = _mm256_madd_epi16(sum[r][0], ones);
        sum[r][1] = _mm256_madd_epi16(sum[r][1], ones);
      }
      total[r][0] =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][0]), _mm256_mul_ps(s0, factor), total[r][0]);
      total[r][1] =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][1]), _mm256_mul_ps(s1, factor), total[r][1]);
    }
    w += kCols * kBlock * kBytes;
    x = after + kRows * 8;
  }
  WICK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    _mm256_storeu_ps(sums + r * kCols, total[r][0]);
    _mm256_storeu_ps(sums + r * kCols + 8, total[r][1]);
  }
}

// Outputs [n, n + kCols) of `rows` rows of y from `row` on; x holds those rows.
void fixed_panel(const FixedCodes& w, int64_t n, const TiledX& x, int64_t row, int64_t rows,
                 const FixedFinish& finish, const PanelRoom& room) {
  std::fill_n(room.sums, TiledX::tiles(rows) * kRows * kCols, 0.0f);
  for (int64_t b = 0; b < w.blocks; b += room.most) {
    const int64_t blocks = std::min(room.most, w.blocks - b);
    fill_panel(w, n, b, b + blocks, room);
    for (int64_t t = 0; t < TiledX::tiles(rows); ++t)
      (w.bits == 4 ? fixed_tile<4> : fixed_tile<8>)(x.at(t, b), room, blocks,
                                                    room.sums + t * kRows * kCols);
  }
  for (int64_t r = 0; r < rows; ++r)
    finish_row(finish, row + r, n, std::min(kCols, w.rows - n), room.sums + r * kCols);
}

}  // namespace
}  // namespace wick::cpu
WICK_AVX2_END

namespace wick::cpu {

size_t fixed_many_scratch(const FixedCodes& w, int64_t rows, int threads) {
  return TiledX(w, nullptr).bytes(std::min(rows, kNearRows)) +
         static_cast<size_t>(threads) * PanelRoom::bytes();
}

void multiply_fixed_many(ThreadPool& pool, const Operand& x, const FixedCodes& w,
                         const FixedFinish& finish, void* scratch) {
  const TiledX tiled(w, scratch);
  char* rooms = static_cast<char*>(scratch) + tiled.bytes(std::min(x.rows, kNearRows));
  for (int64_t row = 0; row < x.rows; row += kNearRows) {
    const int64_t rows = std::min(kNearRows, x.rows - row);
    pool.parallel(TiledX::tiles(rows), [&](int64_t t) {
      fix_tile(x, row + t * kRows, rows - t * kRows, w.bits, tiled, t);
    });
    const int64_t panels = (w.rows + kCols - 1) / kCols;
    pool.parallel((panels + kTaskPanels - 1) / kTaskPanels, [&](int64_t i, int worker) {
      const PanelRoom room(w.bits, rooms + static_cast<size_t>(worker) * PanelRoom::bytes());
      for (int64_t p = i * kTaskPanels; p < std::min(panels, (i + 1) * kTaskPanels); ++p)
        fixed_panel(w, p * kCols, tiled, row, rows, finish, room);
    });
  }
}

}  // namespace wick::cpu
#endif
