// SPDX-License-Identifier: Apache-2.0
// The product of two panels with AVX-512's dot products of bf16 pairs: up to 11 rows x 32 columns
// of sums stay in registers, a block's 32 rows in three turns. Bound by multiply-adds.
#include "backend/cpu/bf16-inl.h"
#include "backend/cpu/product.h"

#if WICK_CPU_BF16
#include <cstring>
#include <limits>

WICK_BF16_BEGIN
namespace wick::cpu {
namespace {

inline __m512bh pair_in_all_lanes(const char* at) {
  int pair;
  std::memcpy(&pair, at, sizeof pair);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

// Where a row's sums lie in Block::c.
constexpr int sums_of(int row) { return row / 16 * 512 + row % 16 * 16; }

template <int First, int Rows>
void some_rows(const Block& b) {
  __m512 sum[Rows][2];
  WICK_UNROLL
  for (int i = 0; i < Rows; ++i) {
    const float* c = b.c + sums_of(First + i);
    sum[i][0] = b.first ? _mm512_setzero_ps() : _mm512_load_ps(c);
    sum[i][1] = b.first ? _mm512_setzero_ps() : _mm512_load_ps(c + 256);
  }
  const char *a = b.a + First * b.a_stride, *at = b.b, *ahead = b.ahead;
  for (int64_t s = 0; s < b.steps; ++s, a += b.a_step, at += b.b_step) {
    for (int64_t i = 0; i < b.ahead_lines; ++i) _mm_prefetch(ahead + i * 64, _MM_HINT_T1);
    ahead += b.ahead_step;
    for (int64_t pair = 0; pair < 16; ++pair) {
      const auto b0 = reinterpret_cast<__m512bh>(_mm512_load_si512(at + pair * 64));
      const auto b1 = reinterpret_cast<__m512bh>(_mm512_load_si512(at + 1024 + pair * 64));
      WICK_UNROLL
      for (int i = 0; i < Rows; ++i) {
        const __m512bh av = pair_in_all_lanes(a + i * b.a_stride + pair * 4);
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], av, b0);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], av, b1);
      }
    }
  }
  WICK_UNROLL
  for (int i = 0; i < Rows; ++i) {
    _mm512_store_ps(b.c + sums_of(First + i), sum[i][0]);
    _mm512_store_ps(b.c + sums_of(First + i) + 256, sum[i][1]);
  }
}

// The same sums for few rows, whose B comes from memory. Lines are read in the order in which they
// lie, one tile after the other, which the processor's own prefetching follows; one row has two
// panels side by side, because the sums of one are a chain that memory would wait for
// (docs/decisions/038).
template <int Rows, int Panels>
void few_rows(const Block& b) {
  __m512 sum[Panels][2][Rows];
  const char *a = b.a, *at[2] = {b.b, b.beside};
  WICK_UNROLL
  for (int p = 0; p < Panels; ++p) {
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const float* c = b.c + p * 512 + i * 16;
      sum[p][0][i] = b.first ? _mm512_setzero_ps() : _mm512_load_ps(c);
      sum[p][1][i] = b.first ? _mm512_setzero_ps() : _mm512_load_ps(c + 256);
    }
  }
  for (int64_t s = 0; s < b.steps; ++s, a += b.a_step) {
    WICK_UNROLL
    for (int tile = 0; tile < 2; ++tile) {
      WICK_UNROLL
      for (int pair = 0; pair < 16; ++pair) {
        WICK_UNROLL
        for (int p = 0; p < Panels; ++p) {
          const char* line = at[p] + tile * 1024 + pair * 64;
          const auto bv = reinterpret_cast<__m512bh>(_mm512_load_si512(line));
          WICK_UNROLL
          for (int i = 0; i < Rows; ++i) {
            const __m512bh av = pair_in_all_lanes(a + i * b.a_stride + pair * 4);
            sum[p][tile][i] = _mm512_dpbf16_ps(sum[p][tile][i], av, bv);
          }
        }
      }
    }
    WICK_UNROLL
    for (int p = 0; p < Panels; ++p) at[p] += b.b_step;
  }
  WICK_UNROLL
  for (int p = 0; p < Panels; ++p) {
    WICK_UNROLL
    for (int i = 0; i < Rows; ++i) {
      _mm512_store_ps(b.c + p * 512 + i * 16, sum[p][0][i]);
      _mm512_store_ps(b.c + p * 512 + i * 16 + 256, sum[p][1][i]);
    }
  }
}

void dot_block(const Block& block) {
  constexpr void (*kFew[])(const Block&) = {few_rows<1, 1>, few_rows<2, 1>, few_rows<3, 1>,
                                            few_rows<4, 1>};
  if (block.beside != nullptr) return few_rows<1, 2>(block);
  if (block.a_tiles == 1 && block.a_rows <= 4) return kFew[block.a_rows - 1](block);
  Block rest = block;
  rest.ahead_lines = 0;  // brought near with the first rows
  if (block.a_tiles == 2) {
    some_rows<0, 11>(block);
    some_rows<11, 11>(rest);
    return some_rows<22, 10>(rest);
  }
  constexpr void (*kFirst[])(const Block&) = {some_rows<0, 5>, some_rows<0, 6>, some_rows<0, 7>,
                                              some_rows<0, 8>};
  constexpr void (*kRest[])(const Block&) = {some_rows<8, 1>, some_rows<8, 2>, some_rows<8, 3>,
                                             some_rows<8, 4>, some_rows<8, 5>, some_rows<8, 6>,
                                             some_rows<8, 7>, some_rows<8, 8>};
  kFirst[std::min(8, block.a_rows) - 5](block);
  if (block.a_rows > 8) kRest[block.a_rows - 9](rest);
}

}  // namespace

const Unit kDotUnit = {.begin = [](int) {},
                       .end = [] {},
                       .block = dot_block,
                       .store = [](float*) {},
                       .in_order = true,
                       .plain = {32, 32},
                       .made = {32, 32},
                       .parts = {32, 16},
                       .far_w = std::numeric_limits<int64_t>::max(),
                       .far_y = std::numeric_limits<int64_t>::max()};

}  // namespace wick::cpu
WICK_BF16_END
#endif
