// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/quant_product.h"

#include <cstring>

#include "backend/cpu/bf16-inl.h"

#if WICK_CPU_BF16
#include "base/half.h"
#include "base/threads.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/product-inl.h"

#if defined(__clang__)
#define WICK_UNROLL _Pragma("unroll")
#else
#define WICK_UNROLL _Pragma("GCC unroll 16")
#endif

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

constexpr int64_t kAhead = 16 << 10;  // bytes of w, brought into the second cache
constexpr int64_t kChains = 4;        // sums in flight for a row and 16 outputs

// A code of 4 bits as bf16 is 128 + (q + 8), because 128 has units in the last place; what is too
// much in a dot product, 136 times the sum of x, is known beforehand.
constexpr float kNibbleShift = 136.0f;
inline __m512i nibble_pair(__m512i words, int i) {
  // (words >> 4 i & 0x000f000f) | 0x43004300
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(words, static_cast<unsigned>(4 * i)),
                                   _mm512_set1_epi32(0x000f000f), _mm512_set1_epi32(0x43004300),
                                   0xea);
}
inline __m512 byte_codes(const char* at) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(at))));
}
inline __m512 scales_of(const char* at) {
  return widen_words(_mm256_load_si256(reinterpret_cast<const __m256i*>(at)));
}

// Puts the words of two vectors that lie one after the other side by side.
inline __m512i side_by_side() {
  alignas(64) static const uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                  21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                  11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_load_si512(kOrder);
}

// x of a few rows as the inner loops want it: by row, floats for 8 bits, pairs of bf16 for 4,
// padded with zeros to whole steps; and by row and group, what 4 bits start from.
struct FewRows {
  const char* x;
  int64_t row_bytes;
  const float* start;  // [rows][groups]
};

// Sums of 16 outputs of one group, in kChains parts each.
template <int Bits, int Rows>
inline void add_block(const char* tile, const char* x, int64_t row_bytes,
                      __m512 sum[Rows][kChains]) {
  if constexpr (Bits == 8) {
    WICK_UNROLL
    for (int64_t k = 0; k < kTileBlock; k += kChains) {
      WICK_UNROLL
      for (int64_t j = 0; j < kChains; ++j) {
        const __m512 w = byte_codes(tile + (k + j) * kTileRows);
        WICK_UNROLL
        for (int i = 0; i < Rows; ++i) {
          float v;
          std::memcpy(&v, x + i * row_bytes + (k + j) * 4, sizeof v);
          sum[i][j] = _mm512_fmadd_ps(w, _mm512_set1_ps(v), sum[i][j]);
        }
      }
    }
  } else {
    WICK_UNROLL
    for (int64_t v = 0; v < 4; ++v) {
      const __m512i words = _mm512_load_si512(tile + v * 64);
      WICK_UNROLL
      for (int j = 0; j < kChains; ++j) {
        const auto w = reinterpret_cast<__m512bh>(nibble_pair(words, j));
        WICK_UNROLL
        for (int i = 0; i < Rows; ++i) {
          int pair;
          std::memcpy(&pair, x + i * row_bytes + (v * kChains + j) * 4, sizeof pair);
          sum[i][j] =
              _mm512_dpbf16_ps(sum[i][j], w, reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
        }
      }
    }
  }
}

// One panel: c as Block::c has it.
template <int Bits, int Rows>
void few_rows_panel(const QuantTiles& w, int64_t panel, const FewRows& x, float* c) {
  constexpr int64_t kBlock = kBlockElements * Bits / 8;
  // Sums of both tiles fit the registers together for one row and two.
  constexpr int kTiles = Rows > 2 ? 1 : 2;
  __m512 total[Rows][2];
  for (int i = 0; i < Rows; ++i) total[i][0] = total[i][1] = _mm512_setzero_ps();
  const char* at = w.data + panel * w.panel_bytes;
  const int64_t groups = w.groups();
  int64_t step = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const char* scales = at;
    at += QuantTiles::kScaleBytes;
    const int64_t blocks = std::min(w.in_group, w.steps - step);
    for (int tile0 = 0; tile0 < 2; tile0 += kTiles) {
      __m512 sum[kTiles][Rows][kChains];
      WICK_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        WICK_UNROLL
        for (int i = 0; i < Rows; ++i) {
          WICK_UNROLL
          for (int j = 0; j < kChains; ++j) sum[t][i][j] = _mm512_setzero_ps();
          if (Bits == 4) sum[t][i][0] = _mm512_set1_ps(x.start[i * groups + g]);
        }
      }
      for (int64_t b = 0; b < blocks; ++b) {
        const char* block = at + b * kBlock;
        WICK_UNROLL
        for (int64_t line = 0; line < kBlock / 2 * kTiles; line += 64)
          _mm_prefetch(block + tile0 * (kBlock / 2) + kAhead + line, _MM_HINT_T1);
        WICK_UNROLL
        for (int t = 0; t < kTiles; ++t)
          add_block<Bits, Rows>(block + (tile0 + t) * (kBlock / 2),
                                x.x + (step + b) * 32 * (Bits / 2), x.row_bytes, sum[t]);
      }
      WICK_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const __m512 scale = scales_of(scales + (tile0 + t) * 32);
        WICK_UNROLL
        for (int i = 0; i < Rows; ++i) {
          const __m512* s = sum[t][i];
          total[i][tile0 + t] =
              _mm512_fmadd_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])),
                              scale, total[i][tile0 + t]);
        }
      }
    }
    step += blocks;
    at += blocks * kBlock;
  }
  for (int i = 0; i < Rows; ++i) {
    _mm512_store_ps(c + i * 16, total[i][0]);
    _mm512_store_ps(c + 256 + i * 16, total[i][1]);
  }
}

void widen_row(const Operand& x, int64_t row, int64_t steps, float* to) {
  for (int64_t s = 0; s < steps; ++s) {
    const __m512i v = _mm512_maskz_loadu_epi16(words_below(x.cols - s * 32),
                                               x.as<uint16_t>() + row * x.ld + s * 32);
    _mm512_store_ps(to + s * 32, widen_words(_mm512_castsi512_si256(v)));
    _mm512_store_ps(to + s * 32 + 16, widen_words(_mm512_extracti64x4_epi64(v, 1)));
  }
}
void copy_row(const Operand& x, int64_t row, const QuantTiles& w, char* to, float* start) {
  for (int64_t g = 0, s = 0; g < w.groups(); ++g) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t end = std::min(w.steps, s + w.in_group); s < end; ++s) {
      const __m512i v = _mm512_maskz_loadu_epi16(words_below(x.cols - s * 32),
                                                 x.as<uint16_t>() + row * x.ld + s * 32);
      _mm512_store_si512(to + s * 64, v);
      sum = _mm512_add_ps(sum, _mm512_add_ps(widen_words(_mm512_castsi512_si256(v)),
                                             widen_words(_mm512_extracti64x4_epi64(v, 1))));
    }
    start[g] = -kNibbleShift * _mm512_reduce_add_ps(sum);
  }
}

inline void finish_panel(const float* c, const Finish& finish, int64_t panel) {
  finish_rows(c, finish, 0, panel * 32, 0, 32);
}

}  // namespace

void unpack_quant_block(const QuantTiles& w, int64_t panel, int64_t step, char* to) {
  const char *scales = w.scales(panel, step), *block = w.block(panel, step);
  const __m512i order = side_by_side();
  for (int64_t tile = 0; tile < 2; ++tile, to += 1024) {
    const __m512 scale = scales_of(scales + tile * 32);
    if (w.bits == 8) {
      const char* from = block + tile * 512;
      for (int64_t pair = 0; pair < 16; ++pair) {
        const __m512 even = _mm512_mul_ps(byte_codes(from + pair * 32), scale);
        const __m512 odd = _mm512_mul_ps(byte_codes(from + pair * 32 + 16), scale);
        _mm512_store_si512(to + pair * 64, _mm512_permutexvar_epi16(order, round_pairs(even, odd)));
      }
    } else {
      const __m512 shift = _mm512_mul_ps(scale, _mm512_set1_ps(-kNibbleShift));
      const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
      for (int64_t v = 0; v < 4; ++v) {
        const __m512i words = _mm512_load_si512(block + tile * 256 + v * 64);
        WICK_UNROLL
        for (int i = 0; i < 4; ++i) {
          const __m512i pair = nibble_pair(words, i);
          const __m512 even =
              _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), scale, shift);
          const __m512 odd =
              _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(pair, high)), scale, shift);
          _mm512_store_si512(to + (v * 4 + i) * 64,
                             _mm512_permutexvar_epi16(order, round_pairs(even, odd)));
        }
      }
    }
  }
}

}  // namespace wick::cpu
WICK_BF16_END

namespace wick::cpu {
namespace {

constexpr int64_t kTaskBytes = 128 << 10;

int64_t x_bytes(const QuantTiles& w) { return w.steps * 32 * (w.bits == 8 ? 4 : 2); }
// Three rows are computed as four.
int64_t computed_rows(int64_t rows) { return rows == 3 ? 4 : rows; }

template <int Bits>
auto panel_fn(int64_t rows) {
  return rows == 1   ? few_rows_panel<Bits, 1>
         : rows == 2 ? few_rows_panel<Bits, 2>
                     : few_rows_panel<Bits, 4>;
}

}  // namespace

size_t quant_few_scratch(const QuantTiles& w, int64_t rows) {
  return static_cast<size_t>(computed_rows(rows) * (x_bytes(w) + w.groups() * 4) + 64);
}

void multiply_quant_few(ThreadPool& pool, const Operand& x, const QuantTiles& w,
                        const Finish& finish, void* scratch) {
  const int64_t rows = computed_rows(x.rows), row_bytes = x_bytes(w);
  char* data = static_cast<char*>(scratch);
  auto* start = reinterpret_cast<float*>(data + rows * row_bytes);
  for (int64_t r = 0; r < rows; ++r) {
    if (r >= x.rows) {
      std::memset(data + r * row_bytes, 0, static_cast<size_t>(row_bytes));
      std::fill_n(start + r * w.groups(), w.groups(), 0.0f);
    } else if (w.bits == 8) {
      widen_row(x, r, w.steps, reinterpret_cast<float*>(data + r * row_bytes));
    } else {
      copy_row(x, r, w, data + r * row_bytes, start + r * w.groups());
    }
  }
  const FewRows few{data, row_bytes, start};
  const auto fn = w.bits == 8 ? panel_fn<8>(rows) : panel_fn<4>(rows);
  const int64_t panels = tile_blocks(w.rows);
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / w.panel_bytes);
  pool.parallel((panels + grain - 1) / grain, [&](int64_t i) {
    alignas(64) float c[2 * 256];
    for (int64_t p = i * grain; p < std::min(panels, (i + 1) * grain); ++p) {
      fn(w, p, few, c);
      finish_panel(c, finish, p);
    }
  });
}

}  // namespace wick::cpu
#endif
