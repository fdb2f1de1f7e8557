// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/quant_product.h"

#include <cstring>

#include "backend/cpu/bf16-inl.h"

#if WICK_CPU_BF16
#include "base/half.h"
#include "base/threads.h"
// After everything that must not be compiled for its instruction set.
#include "backend/cpu/product-inl.h"

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

// A code of 4 bits as bf16 is 128 + (q + 8), because 128 has units in the last place.
constexpr float kNibbleShift = 136.0f;
inline __m512i nibble_pair(__m512i words, int i) {
  // (words >> 4 i & 0x000f000f) | 0x43004300
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(words, static_cast<unsigned>(4 * i)),
                                   _mm512_set1_epi32(0x000f000f), _mm512_set1_epi32(0x43004300),
                                   0xea);
}
// Byte i of 16 words, less 128.
inline __m512 byte_codes(__m512i words, int i) {
  const __m512i q = _mm512_xor_si512(words, _mm512_set1_epi8(-128));
  return _mm512_cvtepi32_ps(
      _mm512_srai_epi32(_mm512_slli_epi32(q, static_cast<unsigned>(24 - 8 * i)), 24));
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

}  // namespace

void unpack_quant_block(const QuantTiles& w, int64_t panel, int64_t step, char* to) {
  const char *scales = w.scales(panel, step), *block = w.block(panel, step);
  const __m512i order = side_by_side();
  for (int64_t tile = 0; tile < 2; ++tile, to += 1024) {
    const __m512 scale = scales_of(scales + tile * 32);
    if (w.bits == 8) {
      for (int64_t quad = 0; quad < 8; ++quad) {
        const __m512i words = _mm512_load_si512(block + tile * 512 + quad * 64);
        WICK_UNROLL
        for (int i = 0; i < 4; i += 2) {
          const __m512 even = _mm512_mul_ps(byte_codes(words, i), scale);
          const __m512 odd = _mm512_mul_ps(byte_codes(words, i + 1), scale);
          _mm512_store_si512(to + (quad * 4 + i) * 32,
                             _mm512_permutexvar_epi16(order, round_pairs(even, odd)));
        }
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
#endif
